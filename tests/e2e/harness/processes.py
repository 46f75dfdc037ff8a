"""Server processes: started on free ports, awaited until they serve, watched, and ended by their own process id."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from .ports import free_port
from .resp import Closed, Connection, encode
from .waiting import until

ROOT = Path(__file__).resolve().parents[3]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
START_ATTEMPTS = 3
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

alive: list[Server] = []


def binary(name: str) -> Path:
    """Returns the path of the binary under test: from WEIR_BINARIES, or the newest in the usual build folders."""
    folder = os.environ.get("WEIR_BINARIES")
    folders = [Path(folder)] if folder else [TARGET / profile for profile in ("checked", "release")]
    found = [path for path in (folder / name for folder in folders) if path.exists()]
    assert found, f"{name} is not built in any of {[str(folder) for folder in folders]}: cargo build --profile checked"
    return max(found, key=lambda path: path.stat().st_mtime)


class Server:
    """One server process and its output."""

    name = "server"
    # True puts the process into a group of its own, out of reach of a Ctrl-C in the terminal, for callers that end their servers
    # themselves.
    own_group = False

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"weir-e2e-{self.name}-"))
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def command(self) -> list[str]:
        raise NotImplementedError

    def ready(self) -> bool:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {**os.environ, "RUST_BACKTRACE": "1"}

    def start(self):
        """Starts the server and waits until it serves. If another process has taken the port meanwhile, tries once more."""
        for attempt in range(1, START_ATTEMPTS + 1):
            if not (attempt == 1 and self.port):
                self.port = free_port()
            self.launch()
            try:
                until(lambda: self.exited() or self.ready(), f"{self.name} serves\n{self.output()}")
            except AssertionError as error:
                self.stop()
                raise AssertionError(f"{error}\n{self.output()}") from None
            if not self.exited():
                return self
            self._forget()
            if "in use" not in self.output():
                break
        raise AssertionError(f"{self.name} ended with {self.process.returncode} at start:\n{self.output()}")

    def launch(self) -> None:
        """Starts the process without waiting for it."""
        with open(self.folder / "output", "ab") as output:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env=self.environment(),
                process_group=0 if self.own_group else None,
            )
        alive.append(self)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def exited(self) -> bool:
        return self.process.poll() is not None

    def output(self, limit: int = 8000) -> str:
        """Returns the end of the server's stdout and stderr."""
        path = self.folder / "output"
        return path.read_bytes()[-limit:].decode(errors="backslashreplace") if path.exists() else ""

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kills the server at once, as a crash would. `start` brings it back on the same port."""
        self.process.kill()
        self.process.wait()
        self._forget()

    def terminate(self, seconds: float = 30.0) -> int:
        """Sends SIGTERM, and returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(seconds)

    def wait(self, seconds: float = 30.0) -> int:
        code = self.process.wait(seconds)
        self._forget()
        return code

    def stop(self) -> None:
        """Makes sure that the process is gone, whatever state it is in."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()
        self._forget()

    def _forget(self) -> None:
        if self in alive:
            alive.remove(self)

    def discard(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def connect(self, **options) -> Connection:
        return Connection(self.port, **options)

    def resident_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"{self.name} has no VmRSS")

    def descriptors(self) -> int:
        """Returns the number of open file descriptors."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def descriptor_kinds(self) -> Counter[str]:
        """Returns the number of open file descriptors of each kind: socket, anon_inode:[eventpoll], a path."""
        found = Counter()
        for entry in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found[re.sub(r":\[\d+\]$", "", os.readlink(entry))] += 1
        return found

    def cpu_ticks(self) -> int:
        """Returns the user and system CPU time of all threads, in clock ticks."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])


class Redis(Server):
    """A plain redis-server without persistence."""

    name = "redis"

    def __init__(self, *options: str) -> None:
        super().__init__()
        self.options = options

    def command(self) -> list[str]:
        return [
            "redis-server",
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--enable-debug-command",
            "yes",
            "--dir",
            str(self.folder),
            "--maxclients",
            "12000",
            "--loglevel",
            "warning",
            *self.options,
        ]

    def ready(self) -> bool:
        return self.answers_ping()

    def answers_ping(self) -> bool:
        try:
            with Connection(self.port, timeout=1.0) as connection:
                return connection.call("PING").text.startswith(("PONG", "NOAUTH"))
        except (OSError, Closed):
            return False


class Storage(Redis):
    """A weir-storage. A subclass of the plain server, so that a test can use it in the place of one."""

    name = "weir-storage"

    def command(self) -> list[str]:
        return [str(binary("weir-storage")), "--listen", f"127.0.0.1:{self.port}", *self.options]

    def environment(self) -> dict[str, str]:
        return {key: value for key, value in super().environment().items() if not key.startswith("WEIR_")}

    def ready(self) -> bool:
        # While a stall is scripted, PING would have to wait with all other requests.
        return "listening" in self.output()


class Weir(Server):
    """A weir in front of the given backends, or with the embedded store if there are none."""

    name = "weir"
    # The page that shows that weir serves; /healthz where a test starts weir without its stores.
    ready_path = "/readyz"

    def __init__(self, *backends: Redis, flags: list[str] | None = None, storage: str | None = None) -> None:
        super().__init__()
        self.backends = list(backends)
        self.storage = storage or ("redis://" + ",".join(b.address for b in backends) if backends else "embedded")
        self.flags = flags or []
        self.admin_port = 0
        # The admin port of an earlier server, if this one replaces it.
        self.admin_port_kept: int | None = None

    def command(self) -> list[str]:
        self.admin_port = self.admin_port_kept or free_port()
        return [
            str(binary("weir")),
            "--listen",
            f"127.0.0.1:{self.port}",
            "--admin",
            f"127.0.0.1:{self.admin_port}",
            "--storage",
            self.storage,
            *self.flags,
        ]

    def environment(self) -> dict[str, str]:
        # Every flag has an environment variable, so those of the caller's shell are removed.
        return {key: value for key, value in super().environment().items() if not key.startswith("WEIR_")}

    def ready(self) -> bool:
        try:
            return self.admin(self.ready_path)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def admin(self, path: str) -> tuple[int, str]:
        """Returns the status and body of an admin page."""
        return self.admin_request("GET", path)[:2]

    def admin_request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str, dict[str, str]]:
        """Returns the status, the body, and the headers (names in lower case) of an admin request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return response.status, response.read().decode(), found
        finally:
            connection.close()


class StandIn(Redis):
    """A plain redis-server in weir's place. A test that fails with it is wrong itself."""

    name = "stand-in"

    def __init__(self, *backends: Redis, flags: list[str] | None = None, storage: str | None = None) -> None:
        super().__init__()
        self.backends = list(backends)


def at_unix_socket(path: Path) -> bytes | None:
    """Returns the reply to PING of the process that listens at the path; None if nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(30)
        try:
            client.connect(str(path))
        except OSError:
            return None
        with contextlib.suppress(OSError):
            client.sendall(encode("PING"))
            return client.recv(100)
        return b""


def with_files(limit: int, command: list[str]) -> list[str]:
    """Returns a command that runs this one with a limit of open files."""
    return ["bash", "-c", f'ulimit -n {limit} && exec "$@"', "bash", *command]


def accepts(port: int) -> bool:
    """True if something accepts connections at the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False
