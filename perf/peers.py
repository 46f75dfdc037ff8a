"""Other proxies, set up as their documentation recommends, in front of the same backends."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import bench


class Twemproxy(bench.Server):
    """Debian's nutcracker."""

    name = "twemproxy"
    program = "nutcracker"

    def __init__(self, *backends: bench.Redis) -> None:
        super().__init__()
        self.backends = backends

    def command(self) -> list[str]:
        lines = [
            "pool:",
            f"  listen: 127.0.0.1:{self.port}",
            "  hash: fnv1a_64",
            "  distribution: ketama",
            "  redis: true",
            "  server_connections: 1",
            "  servers:",
            *[f"   - {backend.address}:1" for backend in self.backends],
        ]
        config = self.folder / "nutcracker.yml"
        config.write_text("\n".join(lines) + "\n")
        options = ["-c", str(config), "-a", "127.0.0.1", "-s", str(bench.free_port()), "-v", "4"]
        return [self.program, *options]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": bench.PATH_SEARCHED}

    def ready(self) -> bool:
        return bench.accepts(self.port)


class Floor(bench.Server):
    """weir-floor before one store: what any forwarder of weir's shape costs."""

    name = "weir-floor"

    def __init__(self, backend: bench.Redis) -> None:
        super().__init__()
        self.backend = backend

    def command(self) -> list[str]:
        return [str(bench.binary("weir-floor")), "--listen", self.address, "--storage", self.backend.address]

    def ready(self) -> bool:
        return bench.accepts(self.port)


class Predixy(bench.Server):
    """predixy, which Debian has no package of: one thread, like one shard, and each store a group of its own."""

    name = "predixy"

    def __init__(self, program: str, *backends: bench.Redis) -> None:
        super().__init__()
        self.program = program
        self.backends = backends

    def command(self) -> list[str]:
        groups = [
            line
            for number, backend in enumerate(self.backends)
            for line in (f"    Group store{number} {{", f"        + {backend.address}", "    }")
        ]
        lines = [
            "Name peer",
            f"Bind 127.0.0.1:{self.port}",
            "WorkerThreads 1",
            "StandaloneServerPool {",
            "    Databases 1",
            "    Hash crc16",
            '    HashTag "{}"',
            "    Distribution modula",
            "    RefreshMethod fixed",
            *groups,
            "}",
        ]
        config = self.folder / "predixy.conf"
        config.write_text("\n".join(lines) + "\n")
        return [self.program, str(config)]

    def ready(self) -> bool:
        return bench.accepts(self.port)


# What `--peer NAME=BINARY` can name: how its configuration is written.
KINDS = {"predixy": Predixy}


class Unknown(Exception):
    """No such peer; the text says which there are, or what is wrong with the binary."""


def named(text: str, backends: list[bench.Redis]) -> bench.Server:
    """The server that `NAME=BINARY` asks for."""
    name, _, path = text.partition("=")
    if name not in KINDS:
        raise Unknown(f"{text!r}: NAME=BINARY is expected, and NAME is one of {', '.join(KINDS)}")
    program = shutil.which(str(Path(path).expanduser()), path=bench.PATH_SEARCHED) if path else None
    if program is None:
        raise Unknown(f"{text!r}: {path or 'nothing'} is no program that can be started")
    return KINDS[name](str(Path(program).resolve()), *backends)
