"""What the scripts of this folder share: servers to compare, keys to read, and a run of redis-benchmark with its CPU bill."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from harness.ports import free_port  # noqa: E402, F401
from harness.processes import CLOCK_TICKS, TARGET, Redis, Server, Weir, accepts, binary  # noqa: E402, F401
from harness.resp import encode  # noqa: E402

import ending  # noqa: E402

# Where daemons are that no shell of a user finds, too.
PATH_SEARCHED = os.environ["PATH"] + ":/usr/sbin"
# Builds run in other folders than this one.
os.environ["CARGO_TARGET_DIR"] = str(TARGET)

ending.take_along(ROOT / "perf")

CONNECTIONS = 50
VALUE_BYTES = 64
# Keys of one comparison: so many, or as many as have values of so many bytes together.
KEYS_MAX = 100_000
STORED_BYTES_MAX = 128 * 1024 * 1024
FILL_BATCH_MAX = 1000
FILL_BATCH_BYTES_MAX = 1024 * 1024
# Requests of one measurement, by pipeline depth: long enough that a scheduler hiccup does not show, short enough for many rounds.
REQUESTS = {1: 150_000, 16: 800_000, 64: 1_600_000}
REQUESTS_ELSEWHERE = 500_000
# Of large values fewer, for the same reasons.
MOVED_BYTES_MAX = 1024 * 1024 * 1024
RUN_SECONDS_MAX = 600


class WeirBinary(Weir):
    """weir from a given binary, with a given number of shards."""

    def __init__(self, path: Path, shards: int, *backends: Redis, flags: list[str] | None = None) -> None:
        super().__init__(*backends, flags=["--shards", str(shards), *(flags or [])])
        self.path = path

    def command(self) -> list[str]:
        return [str(self.path), *super().command()[1:]]


class Node(Redis):
    """A node of the binary that is asked for."""

    program = "redis-server"

    def command(self) -> list[str]:
        return [self.program, *super().command()[1:]]


class Servers:
    """What a Cluster asks for its nodes, and what ends everything."""

    def __init__(self, program: str = "redis-server") -> None:
        self.program = program
        self.started: list[Server] = []

    def redis(self, *options: str) -> Redis:
        node = Node(*options)
        node.program = self.program
        return self.keep(node).start()

    def keep(self, server):
        self.started.append(server)
        return server

    def discard(self) -> None:
        for server in reversed(self.started):
            server.discard()


@dataclass(frozen=True)
class Load:
    """What redis-benchmark does in one measurement."""

    command: str
    depth: int
    value_bytes: int = VALUE_BYTES
    requests_wanted: int | None = None
    keys_wanted: int | None = None

    @property
    def requests(self) -> int:
        usual = REQUESTS.get(self.depth, REQUESTS_ELSEWHERE)
        return self.requests_wanted or min(usual, MOVED_BYTES_MAX // self.value_bytes)

    @property
    def keys(self) -> int:
        return self.keys_wanted or keys_of(self.value_bytes)

    def command_line(self, port: int, login: str | None = None) -> list[str]:
        user, _, password = (login or "").partition(":")
        numbers = {
            "-p": port,
            "-c": CONNECTIONS,
            "-n": self.requests,
            "-P": self.depth,
            "-r": self.keys,
            "-d": self.value_bytes,
        }
        return [
            "redis-benchmark",
            "-h",
            "127.0.0.1",
            *[word for flag, number in numbers.items() for word in (flag, str(number))],
            "-t",
            self.command.lower(),
            "--csv",
            *(["--user", user, "-a", password] if login else []),
        ]


def keys_of(value_bytes: int) -> int:
    return min(KEYS_MAX, STORED_BYTES_MAX // value_bytes)


@dataclass(frozen=True)
class Bill:
    """What one measurement cost."""

    requests: int
    cpu_seconds: float
    requests_per_second: float
    # From the first byte sent of a batch to the first byte received: the whole of a request only where the depth is 1.
    p99_ms: float

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


class Others:
    """What of all CPUs went to processes that have no part in this, from the moment it is made."""

    def __init__(self, servers: list[Server]) -> None:
        self.meters = [Meter(server.pid) for server in servers]
        self.since, self.busy, self.own = time.monotonic(), self._busy(), self._own()

    def share(self) -> float:
        ours = self._own() - self.own + sum(meter.seconds() for meter in self.meters)
        available = (time.monotonic() - self.since) * (os.cpu_count() or 1)
        return max(0.0, self._busy() - self.busy - ours) / available

    @staticmethod
    def _busy() -> float:
        """User, nice and system time of all CPUs; interrupts are nobody's."""
        return sum(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:4])) / CLOCK_TICKS

    @staticmethod
    def _own() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in used)


def said_of_others(shares: list[float]) -> str:
    """A line for a table's head."""
    return f"* other processes: {statistics.median(shares):.0%} of the CPUs in half of the measurements, {max(shares):.0%} in the worst"


def said_of_bar(ratio: float, bar: float | None) -> str:
    """What a table says of a bar, where there is one."""
    return "" if bar is None else f"{bar:.2f} {'met' if ratio <= bar else '**missed**'}"


# What other processes may use of the CPUs in a round that counts, and how many rounds must be left for that.
OTHERS_MAX = 0.1
CALM_ROUNDS_MIN = 3


def calm_rounds(shares: list[float]) -> list[int]:
    """The rounds that other processes did not disturb, by what these used in each; all rounds if those are too few."""
    calm = [number for number, share in enumerate(shares) if share <= OTHERS_MAX]
    return calm if len(calm) >= CALM_ROUNDS_MIN else list(range(len(shares)))


def quartiles(values: list[float]) -> list[float]:
    """The ends of the middle half."""
    if len(values) < 2:
        return values * 2
    first, _, third = statistics.quantiles(values, n=4)
    return [first, third]


def rotated(names: list[str], number: int) -> list[str]:
    """The order of a round: another one begins each time."""
    turn = number % len(names)
    return names[turn:] + names[:turn]


def ratio_and_range(ours: list[float], theirs: list[float]) -> tuple[float, list[float]]:
    """Round by round: the median, the least and the most."""
    ratios = [mine / other for mine, other in zip(ours, theirs)]
    return statistics.median(ratios), [min(ratios), max(ratios)]


def fill(server: Server, value_bytes: int = VALUE_BYTES) -> None:
    """Sets every key that redis-benchmark may ask for, through this server: each proxy places keys in its own way."""
    value = b"x" * value_bytes
    keys = keys_of(value_bytes)
    batch = max(1, min(FILL_BATCH_MAX, FILL_BATCH_BYTES_MAX // value_bytes))
    with server.connect() as connection:
        for first in range(0, keys, batch):
            several = range(first, min(first + batch, keys))
            connection.send_raw(b"".join(encode("SET", f"key:{i:012}", value) for i in several))
            for reply in connection.read_many(len(several)):
                assert reply.raw == b"+OK\r\n", f"{server.name}: {reply}"


# Of redis-benchmark's table.
COLUMN_RATE, COLUMN_P99 = 1, 6


def measure(server: Server, load: Load, login: str | None = None) -> Bill:
    """One run of redis-benchmark against one server, as USER:PASSWORD if wanted."""
    meter = Meter(server.pid)
    command = load.command_line(server.port, login)
    run = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX)
    used = meter.seconds()
    rows = [
        line.strip('"').split('","')
        for line in run.stdout.splitlines()
        if line.startswith(f'"{load.command.upper()}"')
    ]
    if run.returncode or len(rows) != 1 or server.exited():
        raise SystemExit(
            f"{server.name}: redis-benchmark ended with {run.returncode}\n{run.stdout}{run.stderr}{server.output()}"
        )
    return Bill(load.requests, used, float(rows[0][COLUMN_RATE]), float(rows[0][COLUMN_P99]))


def machine() -> dict[str, str]:
    """What the numbers were taken on."""
    model = next(
        (line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown"
    )
    return {
        "kernel": platform.release(),
        "cpu": f"{os.cpu_count()} x {model}",
        "redis-server": version_of("redis-server"),
        "redis-benchmark": version_of("redis-benchmark"),
    }


def version_of(program: str) -> str:
    """The first line that a program says about its version."""
    try:
        run = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PATH": PATH_SEARCHED},
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "not installed"
    return ((run.stdout + run.stderr).strip().splitlines() or ["says nothing of its version"])[0]


def commit_of(path: Path) -> str:
    """The commit of a worktree, and whether it has changes of its own."""
    git = lambda *words: subprocess.run(["git", "-C", str(path), *words], capture_output=True, text=True).stdout.strip()  # noqa: E731
    return git("rev-parse", "--short", "HEAD") + (
        "+changes" if git("status", "--porcelain", "--", "src", "tools/*.rs", "Cargo.lock") else ""
    )
