"""The container image that tools/deploy/Dockerfile describes, laid out as a folder, and weir started in it as a container
runtime would.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from .processes import ROOT, Redis, Weir, binary

DOCKERFILE = ROOT / "tools" / "deploy" / "Dockerfile"
CONTAINED = Path(__file__).with_name("contained.py")
# The folder in which the first stage of the Dockerfile builds the binaries.
BUILT = "/src/target/release/"
MOUNT_POINTS = ("proc", "sys", "dev", "tmp", "etc")


@dataclass
class Image:
    """The last stage of the Dockerfile, parsed."""

    copies: list[tuple[Path, str]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    user: str = "root"

    @classmethod
    def read(cls) -> Image:
        image = cls()
        for line in DOCKERFILE.read_text().splitlines():
            word, _, rest = line.partition(" ")
            match word:
                case "FROM":
                    image = cls()
                case "COPY" if rest.startswith("--from=build "):
                    source, target = rest.split()[1:]
                    assert source.startswith(BUILT), f"the first stage leaves binaries in {BUILT}: {line}"
                    image.copies.append((binary(source.removeprefix(BUILT)), target))
                case "COPY":
                    source, target = rest.split()
                    image.copies.append((ROOT / source, target))
                case "ENV":
                    image.environment |= dict(pair.split("=", 1) for pair in rest.split())
                case "EXPOSE":
                    image.ports += [int(port) for port in rest.split()]
                case "ENTRYPOINT":
                    image.entrypoint = json.loads(rest)
                case "USER":
                    image.user = rest
        return image

    def build(self, folder: Path) -> None:
        """Lays out the image's files, and the shared libraries that its base image has (those of libc and gcc)."""
        for name in MOUNT_POINTS:
            (folder / name).mkdir(parents=True)
        for source, target in [*self.copies, *((library, str(library)) for library in libraries(binary("weir")))]:
            place = folder / target.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, place)
        (folder / "etc/passwd").write_text("root:x:0:0::/:\nnobody:x:65534:65534::/:\n")


def libraries(program: Path) -> list[Path]:
    """Returns the shared libraries that a program is linked with, including the loader."""
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True, timeout=60).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", said)]


class Container(Weir):
    """A weir in the image, in a network namespace of its own, with the environment that a container runtime would give it.

    `environment` is added to the image's; `hosts` are names of stores, for which this makes addresses.
    """

    def __init__(self, image: Image, root: Path, environment: dict[str, str], seccomp: Path, hosts: dict[str, str]) -> None:
        super().__init__()
        self.image, self.root, self.seccomp = image, root, seccomp
        self.given = {**image.environment, **environment}
        (root / "etc/hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in hosts.items()))

    def command(self) -> list[str]:
        told = {
            "root": str(self.root),
            "seccomp": str(self.seccomp),
            "nobody": self.image.user == "nobody",
            "environment": self.given,
            "command": self.image.entrypoint,
        }
        return [sys.executable, str(CONTAINED), json.dumps(told)]

    def within(self, *words: str) -> list[str]:
        """Returns a command line that runs a command in the container's network namespace."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", str(self.process.pid), "--net", *user, "--", *words]

    def asks(self, *words: str) -> str:
        """Runs a command in the container's network namespace, and returns its output."""
        done = subprocess.run(self.within(*words), capture_output=True, text=True, timeout=60)
        return done.stdout if done.returncode == 0 else ""

    def ready(self) -> bool:
        # Until the process has a network namespace of its own, another weir might answer.
        network = f"/proc/{self.pid}/ns/net"
        apart = os.path.exists(network) and os.readlink(network) != os.readlink("/proc/self/ns/net")
        return apart and self.asks("curl", "-s", "http://127.0.0.1:7381/healthz") != ""


class Neighbour(Redis):
    """A redis-server in a container's network namespace, at an address of its own and the usual port."""

    def __init__(self, container: Container, address: str) -> None:
        super().__init__()
        self.container, self.bound = container, address

    def command(self) -> list[str]:
        options = ["--bind", self.bound, "--port", "6379", "--save", "", "--appendonly", "no", "--protected-mode", "no"]
        return self.container.within("redis-server", *options)

    def ready(self) -> bool:
        return "PONG" in self.container.asks("redis-cli", "-h", self.bound, "PING")
