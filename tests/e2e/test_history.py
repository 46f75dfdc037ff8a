"""Tests with weir-history against real servers: many clients read and write a few keys, and no read returns an impossible
value.
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import threading

import pytest

from harness import metrics
from harness.careless_cache import CarelessCache
from harness.cluster import Cluster
from harness.processes import ROOT, Redis, Server, StandIn, binary
from harness.waiting import until

# Flags for every weir in this file, besides --shards.
WEIR_FLAGS: list[str] = []
SHARDS = ["--shards", "8"]
# More operations than any run reaches, since runs are ended with a signal.
ENDLESS = ["--operations", "10000000"]
# The number of operations in each part of a run.
STRETCH = 8_000
# With these options writes survive the death of the store's process.
ON_DISK = ["--appendonly", "yes", "--appendfsync", "no"]


class History(Server):
    """A run of weir-history."""

    name = "weir-history"

    def __init__(self, address: str, *flags: str) -> None:
        super().__init__()
        self.flags = ["--address", address, *ENDLESS, *flags]

    def command(self) -> list[str]:
        return [str(binary("weir-history")), *self.flags]

    def asked(self) -> int:
        """Returns the number of operations that weir-history has sent, as of its last progress line."""
        assert not self.exited(), f"weir-history has ended:\n{self.output()}"
        return max(map(int, re.findall(r"^(\d+) of \d+ operations", self.output(1 << 20), re.MULTILINE)), default=0)

    def go_on(self, operations: int = STRETCH) -> None:
        """Waits until `operations` more operations were sent."""
        goal = self.asked() + operations
        until(lambda: self.asked() >= goal, "the run goes on", seconds=60)

    def lines(self, count: int) -> None:
        """Waits for `count` more progress lines, which come twice a second."""
        goal = self.output(1 << 20).count("were asked for") + count
        until(lambda: self.output(1 << 20).count("were asked for") >= goal, "time passes")

    def verdict(self) -> str:
        """Ends the run, and returns its findings."""
        code = self.terminate(60)
        text = self.output(1 << 20)
        assert code in (0, 1) and ("violations: 0\n" in text) == (code == 0), f"it ended with {code}:\n{text}"
        return text


def history(servers, address: str, *flags: str) -> History:
    run = servers.keep(History(address, *flags))
    run.launch()
    return run


def clean(run: History) -> None:
    text = run.verdict()
    assert "violations: 0\n" in text and done(text, "all") > 0, text


def done(text: str, command: str) -> int:
    """Returns the number of operations of one kind, such as "write around", that a verdict (`text`) counts as carried out."""
    found = re.search(rf"^{re.escape(command)} +(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def weir_before(servers, *backends: Redis, flags: list[str] | None = None):
    return servers.weir(*backends, flags=[*SHARDS, *WEIR_FLAGS, *(flags or [])])


@pytest.mark.parametrize(
    ("stores", "flags"),
    [
        (1, ["--flushes", "--undeclared"]),
        (1, ["--reads", "get", "--pipeline", "1", "--keys", "2", "--writes-per-mille", "50"]),
        (3, ["--flushes", "--pipeline", "48"]),
        (3, ["--keys", "24", "--writes-per-mille", "500"]),
    ],
    ids=["one store", "one store, few keys, GET", "three stores, deep pipelines", "three stores, many writes"],
)
def test_nothing_is_read_that_could_not_have_been(servers, stores: int, flags: list[str]):
    weir = weir_before(servers, *(servers.redis() for _ in range(stores)))
    run = history(servers, weir.address, *flags)
    run.go_on()
    clean(run)


@pytest.mark.weir_only
def test_a_write_whose_reply_is_too_large_was_carried_out(servers):
    weir = weir_before(servers, servers.redis(), flags=["--max-reply-bytes", "1KiB"])
    run = history(servers, weir.address, "--connections", "8", "--writes-per-mille", "500", "--closes-per-mille", "0")
    # Few values are so large, and fewer are replies to writes.
    run.go_on(15 * STRETCH)
    clean(run)
    assert sum(metrics.parse(weir.admin("/metrics")[1])["weir_backend_replies_oversized_total"].values()) > 0


@pytest.mark.weir_only
@pytest.mark.parametrize("forgets", [False, True], ids=["nothing is lost", "all is lost"])
def test_a_store_dies_and_comes_back(servers, forgets: bool):
    stores = [servers.redis(*([] if forgets else ON_DISK)) for _ in range(3)]
    weir = weir_before(servers, *stores)
    run = history(servers, weir.address, *(["--stores-forget"] if forgets else []))
    for victim in stores[:2]:
        run.go_on()
        victim.kill()
        run.lines(1)
        victim.start()
    run.go_on()
    clean(run)


@pytest.mark.weir_only
@pytest.mark.parametrize("flags", [[], ["--backend-timeout", "200ms"]], ids=["waited for", "given up"])
def test_a_store_stands_still(servers, flags: list[str]):
    stores = [servers.redis(), servers.redis()]
    weir = weir_before(servers, *stores, flags=flags)
    run = history(servers, weir.address)
    run.go_on()
    stores[0].signal(signal.SIGSTOP)
    run.lines(2)
    stores[0].signal(signal.SIGCONT)
    run.go_on()
    clean(run)


@pytest.mark.weir_only
def test_slots_of_a_cluster_move_under_everything(servers):
    cluster = Cluster(servers)
    weir = servers.weir(flags=SHARDS, storage=cluster.storage)
    run = history(servers, weir.address)
    # The slots of the hash tags of its keys.
    slots = [int(cluster.call(cluster.nodes[0], "CLUSTER", "KEYSLOT", f"{{history{tag}}}").plain()) for tag in range(4)]
    for turn in range(4):
        for slot in slots:
            others = [node for node in cluster.primaries if node is not cluster.owner(slot)]
            target = others[turn % len(others)]
            source = cluster.begin_move(slot, target)
            cluster.move_keys(slot, source, target, most=1)
            run.go_on(STRETCH // 16)
            cluster.end_move(slot, source, target)
    clean(run)


@pytest.mark.weir_only
def test_somebody_writes_around_weir(servers):
    stores = [servers.redis() for _ in range(3)]
    weir = weir_before(servers, *stores)
    run = history(servers, weir.address, "--ttl", "1s", "--around", ",".join(store.address for store in stores))
    run.go_on(2 * STRETCH)
    text = run.verdict()
    assert "violations: 0\n" in text, text
    assert done(text, "write around") > 0 and done(text, "DEL around") > 0, text


def test_a_store_around_that_has_no_key_is_no_mistake_to_overlook(servers):
    """Nobody would write to it."""
    stores = [servers.redis(), servers.redis()]
    flags = ["--address", stores[0].address, "--around", ",".join(store.address for store in stores), "--operations", "10"]
    result = subprocess.run([binary("weir-history"), *flags], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and f"{stores[1].address} holds none of the keys" in result.stderr, result


# Cached replies live for a minute, so that a change which is not reported stays visible.
LONG = ["--shards", "2", "--hot-rate", "20", "--hot-share", "0%", "--hot-ttl", "60s", "--hot-ttl-tracked", "60s"]
OTHERS_WRITE = ["--reads", "get", "--writes-per-mille", "0", "--keys", "2", "--connections", "8", "--pipeline", "1"]


def fleet_history(servers, *flags: str) -> tuple[str, float]:
    """Clients read through one weir, while others write through another weir and directly at the store. Returns the findings,
    and the number of reported changes.
    """
    redis = servers.redis()
    fleet = [servers.weir(redis, flags=[*LONG, *flags]) for _ in range(2)]
    around = ",".join([fleet[1].address, redis.address])
    run = history(servers, fleet[0].address, *OTHERS_WRITE, "--ttl", "2s", "--around", around)
    run.go_on(15 * STRETCH)
    # The checker grants an old value 2 s, which a fast machine's operations do not last.
    run.lines(8)
    samples = metrics.parse(fleet[0].admin("/metrics")[1])
    assert sum(samples["weir_hot_hits_total"].values()) > STRETCH, "most are answered from memory"
    return run.verdict(), sum(samples["weir_hot_changes_told_total"].values())


@pytest.mark.weir_only
def test_writes_through_another_weir_are_heard_of(servers):
    text, told = fleet_history(servers)
    assert "violations: 0\n" in text and done(text, "write around") > 100 and told > 100, text


@pytest.mark.weir_only
def test_without_trackers_such_writes_are_missed(servers):
    """Shows that the test above can fail."""
    text, told = fleet_history(servers, "--disable", "tracking")
    assert "violations: 0\n" not in text and told == 0, text


def test_a_store_alone_is_never_stale(servers):
    """Shows that the checker finds no violations in a single store."""
    run = history(servers, servers.keep(StandIn()).start().address, "--flushes", "--undeclared")
    run.go_on(2 * STRETCH)
    clean(run)


# The number of operations within which the checker notices each of these faults.
NOTICED = 5_000


@pytest.mark.parametrize(
    "overlooked",
    ["nothing", "writes", "fetches", "expiry", "RENAME", "GETDEL", "MSET"],
)
def test_what_a_cache_overlooks_is_found(servers, overlooked: str):
    """Shows that the checker notices each fault of a cache, and none in a correct cache."""
    with CarelessCache(servers.redis().port, overlooked) as proxy:
        flags = ["--connections", "6", "--keys", "6", "--writes-per-mille", "60", "--pipeline", "2"]
        run = history(servers, proxy.address, *flags)
        until(lambda: run.asked() >= NOTICED, "the run goes on")
        if overlooked == "expiry":
            # Values expire after a time, in which a fast machine does many more operations.
            run.lines(4)
        text = run.verdict()
    assert proxy.hits > 100
    assert ("violations: 0\n" in text) == (overlooked == "nothing"), text


@pytest.mark.parametrize(
    ("answer", "code", "told"),
    [
        (b"?\r\n", 1, "that is no RESP"),
        (b"+OK\r\n" * 2, 1, "a reply to nothing"),
        (b"-ERR no\r\n", 1, "was answered -ERR no"),
        (b"-LOADING Redis is loading\r\n", 2, "no read through weir was answered"),
    ],
    ids=["garbage", "a reply too many", "errors of no store", "errors of a store that starts"],
)
def test_what_is_no_reply_and_a_run_that_shows_nothing_are_found(answer: bytes, code: int, told: str):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=answer_all, args=(listener, answer), daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        flags = ["--address", address, "--operations", "50", "--connections", "2", "--pipeline", "1", "--closes-per-mille", "0"]
        result = subprocess.run([binary("weir-history"), *flags], capture_output=True, text=True, timeout=60)
    assert result.returncode == code and told in result.stdout + result.stderr, result
    assert (": 0\n" in result.stdout) == (code == 2), result


def answer_all(listener: socket.socket, answer: bytes) -> None:
    """Serves the first connection, which prepares the keys, and HELLO; whatever else is asked gets this answer."""
    connections = 0
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            connections += 1
            threading.Thread(target=answer_one, args=(connection, b":1\r\n" if connections == 1 else answer), daemon=True).start()


def answer_one(connection: socket.socket, answer: bytes) -> None:
    with contextlib.suppress(OSError), connection:
        while asked := connection.recv(1 << 20):
            connection.sendall(b":1\r\n" if b"HELLO" in asked else answer)


def test_a_run_that_is_not_possible_says_so():
    result = subprocess.run(
        [binary("weir-history"), "--address", "127.0.0.1:1"], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    assert result.returncode == 2 and "cannot prepare 127.0.0.1:1" in result.stderr, result
