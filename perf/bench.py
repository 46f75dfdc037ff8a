"""What the scripts of this folder share: servers to compare, keys to read, and a run of redis-benchmark with its CPU bill."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from harness.ports import free_port  # noqa: E402
from harness.processes import CLOCK_TICKS, Redis, Server, Weir, accepts  # noqa: E402
from harness.resp import encode  # noqa: E402

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))

KEYS = 100_000
VALUE_BYTES = 64
CONNECTIONS = 50
FILL_BATCH = 1000
# Requests of one measurement, by pipeline depth: long enough that a scheduler hiccup does not show, short enough for many rounds.
REQUESTS = {1: 150_000, 16: 800_000, 64: 1_600_000}
RUN_SECONDS_MAX = 600


class Twemproxy(Server):
    """nutcracker in front of the same backends, set up as its documentation recommends."""

    name = "twemproxy"

    def __init__(self, *backends: Redis) -> None:
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
        return ["nutcracker", "-c", str(config), "-a", "127.0.0.1", "-s", str(free_port()), "-v", "4"]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin"}

    def ready(self) -> bool:
        return accepts(self.port)


class WeirBinary(Weir):
    """weir from a given binary, with a given number of shards."""

    def __init__(self, path: Path, shards: int, *backends: Redis, flags: list[str] | None = None) -> None:
        super().__init__(*backends, flags=["--shards", str(shards), *(flags or [])])
        self.path = path

    def command(self) -> list[str]:
        return [str(self.path), *super().command()[1:]]


@dataclass(frozen=True)
class Bill:
    """What one measurement cost."""

    requests: int
    cpu_seconds: float
    requests_per_second: float

    @property
    def cpu_micros_per_request(self) -> float:
        return self.cpu_seconds / self.requests * 1e6


# utime and stime are each cut down to whole ticks; two readings of both may be this much off.
TICKS_LOST_SECONDS = 4 / CLOCK_TICKS


class Meter:
    """User and system time of a process, all threads, from the moment it is made.

    utime + stime of /proc/PID/stat come in ticks of 10 ms, too coarse for a short run. The scheduler keeps the same time in
    nanoseconds per living thread; where more is missing there than ticks can lose, threads have ended, and the ticks count.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.fine, self.ticks = self._fine(), self._ticks()

    def seconds(self) -> float:
        fine, ticks = self._fine() - self.fine, self._ticks() - self.ticks
        return ticks if ticks - fine > TICKS_LOST_SECONDS else fine

    def _ticks(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    def _fine(self) -> float:
        total = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            try:
                total += int((task / "schedstat").read_text().split()[0])
            except (FileNotFoundError, ProcessLookupError):
                continue  # the thread has ended meanwhile, or the kernel keeps no schedstat
        return total / 1e9


def fill(server: Server) -> None:
    """Sets every key that redis-benchmark may ask for, through this server: each proxy places keys in its own way."""
    value = b"x" * VALUE_BYTES
    with server.connect() as connection:
        for first in range(0, KEYS, FILL_BATCH):
            connection.send_raw(
                b"".join(encode("SET", f"key:{i:012}", value) for i in range(first, first + FILL_BATCH))
            )
            for reply in connection.read_many(FILL_BATCH):
                assert reply.raw == b"+OK\r\n", f"{server.name}: {reply}"


def benchmark_command(
    port: int, command: str, depth: int, requests: int, clients: int = CONNECTIONS, login: str | None = None
) -> list[str]:
    user, _, password = (login or "").partition(":")
    return [
        "redis-benchmark",
        "-h",
        "127.0.0.1",
        "-p",
        str(port),
        "-c",
        str(clients),
        "-n",
        str(requests),
        "-P",
        str(depth),
        "-r",
        str(KEYS),
        "-d",
        str(VALUE_BYTES),
        "-t",
        command.lower(),
        "--csv",
        *(["--user", user, "-a", password] if login else []),
    ]


def measure(server: Server, command: str, depth: int, requests: int, login: str | None = None) -> Bill:
    """One run of redis-benchmark against one server, as USER:PASSWORD if wanted."""
    meter = Meter(server.pid)
    run = subprocess.run(
        benchmark_command(server.port, command, depth, requests, login=login),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
    )
    used = meter.seconds()
    rows = [line.strip('"').split('","') for line in run.stdout.splitlines() if line.startswith(f'"{command.upper()}"')]
    if run.returncode or len(rows) != 1 or server.exited():
        raise SystemExit(
            f"{server.name}: redis-benchmark ended with {run.returncode}\n{run.stdout}{run.stderr}{server.output()}"
        )
    return Bill(requests, used, float(rows[0][1]))


def machine() -> dict[str, str]:
    """What the numbers were taken on."""
    model = next(
        (line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown"
    )
    return {
        "kernel": platform.release(),
        "cpu": f"{os.cpu_count()} x {model}",
        "redis-server": first_line("redis-server", "--version"),
        "redis-benchmark": first_line("redis-benchmark", "--version"),
        "twemproxy": first_line("nutcracker", "--version"),
    }


def first_line(*command: str) -> str:
    path = os.environ["PATH"] + ":/usr/sbin"
    try:
        run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})
    except FileNotFoundError:
        return "not installed"
    return (run.stdout + run.stderr).strip().splitlines()[0]


def commit_of(path: Path) -> str:
    """The commit of a worktree, and whether it has changes of its own."""
    git = lambda *words: subprocess.run(["git", "-C", str(path), *words], capture_output=True, text=True).stdout.strip()  # noqa: E731
    return git("rev-parse", "--short", "HEAD") + (
        "+changes" if git("status", "--porcelain", "--", "src", "Cargo.lock") else ""
    )
