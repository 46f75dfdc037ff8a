"""Tests of hot keys whose stores report changes: replies that are cached for a minute are never seen after a write, wherever
it was made.
"""

from __future__ import annotations

import random
import signal
import threading
import time

import pytest

from harness import metrics
from harness.busy import SOON_BUSY, busy
from harness.cluster import Cluster
from harness.hot_keys import reads_tracked
from harness.processes import Redis, Weir
from harness.relay import Relay
from harness.resp import Connection
from harness.waiting import until
from test_cluster import slot_of

pytestmark = pytest.mark.weir_only

# With these lifetimes, a change that is not reported would stay invisible during a test.
FLAGS = ["--shards", "2", "--hot-rate", "10", "--hot-share", "0%", "--hot-ttl", "60s", "--hot-ttl-tracked", "60s"]


def tracked(weir: Weir) -> float:
    return metrics.total(weir, "weir_hot_tracked")


def make_tracked(weir: Weir, reader: Connection, key: str) -> None:
    """Reads a key until it is answered from memory and its store reports changes."""

    until(lambda: reads_tracked(weir, reader, key), f"{key} is kept and tracked")


def sees(reader: Connection, key: str, value: bytes | None) -> bool:
    return reader.ok("GET", key) == value


@pytest.fixture(scope="module")
def redis(module_servers) -> Redis:
    return module_servers.redis()


@pytest.fixture(scope="module")
def fleet(module_servers, redis) -> list[Weir]:
    return [module_servers.weir(redis, flags=FLAGS) for _ in range(2)]


def test_two_weirs_and_a_writer_around_them_agree(fleet, redis):
    with fleet[0].connect() as one, fleet[1].connect() as other, redis.connect() as direct:
        writers = [one, other, direct]
        writers[2].ok("SET", "shared", "0")
        for weir, reader in zip(fleet, [one, other]):
            make_tracked(weir, reader, "shared")
        for number in range(60):
            value = b"%d" % number
            writers[number % 3].ok("SET", "shared", value)
            for reader in (one, other):
                until(lambda: sees(reader, "shared", value), f"write {number} is seen")
            # Between some writes the key is cached again.
            if number % 10 == 0:
                for weir, reader in zip(fleet, [one, other]):
                    make_tracked(weir, reader, "shared")


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("database", [0, 5])
def test_every_way_to_change_a_key_is_told(fleet, redis, protocol: int, database: int):
    weir = fleet[0]
    changes = [
        (("SET", "k", "set"), b"set"),
        (("APPEND", "k", "+"), b"set+"),
        (("SETRANGE", "k", "0", "S"), b"Set+"),
        (("DEL", "k"), None),
        (("EVAL", "return redis.call('set', 'k', 'script')", "0"), b"script"),
        (("PEXPIRE", "k", "1"), None),
        (("SET", "k", "again"), b"again"),
        (("RENAME", "k", "other"), None),
        (("RENAME", "other", "k"), b"again"),
        (("FLUSHDB",), None),
        (("MSET", "k", "several", "l", "1"), b"several"),
        (("FLUSHALL",), None),
    ]
    with weir.connect(protocol=protocol) as reader, redis.connect() as direct:
        reader.ok("SELECT", str(database))
        direct.ok("SELECT", str(database))
        for change, value in changes:
            make_tracked(weir, reader, "k")
            direct.ok(*change)
            until(lambda: sees(reader, "k", value), f"{change} is seen")


def test_a_field_that_expires_is_not_answered_from_memory_any_more(servers):
    weir = servers.weir(flags=FLAGS)
    reads = [("HGET", "h", "a"), ("HMGET", "h", "b", "a"), ("HEXISTS", "h", "a"), ("HSTRLEN", "h", "a")]
    with weir.connect() as reader, weir.connect() as other:
        for number in range(5):
            reader.ok("HSET", "h", "a", "value", "b", "1")
            reader.ok("HPEXPIRE", "h", "300", "FIELDS", "1", "a")
            before = metrics.total(weir, "weir_hot_hits_total")

            def has_expired() -> bool:
                for read in reads:
                    for _ in range(10):
                        reader.ok(*read)
                # HPTTL is never answered from memory.
                return other.ok("HPTTL", "h", "FIELDS", "1", "a") == [-2]

            until(has_expired, "the field has expired")
            told = [reader.ok(*read) for read in reads]
            assert told == [None, [b"1", None], 0, 0], f"round {number}"
        assert metrics.total(weir, "weir_hot_hits_total") > before, "it was kept meanwhile"


def test_a_full_table_of_the_store_costs_nothing_but_hits(servers):
    redis = servers.redis("--tracking-table-max-keys", "10")
    weir = servers.weir(redis, flags=FLAGS)
    keys = [f"k{number}" for number in range(40)]
    with weir.connect() as reader, redis.connect() as direct:
        for key in keys:
            direct.ok("SET", key, "old")
        until(lambda: [reader.ok("GET", key) for key in keys for _ in range(20)] and tracked(weir) > 0, "keys are tracked")
        for number in range(20):
            value = b"%d" % number
            for key in keys:
                direct.ok("SET", key, value)
            for key in keys:
                until(lambda: sees(reader, key, value), f"write {number} of {key} is seen")


def test_a_tracker_that_the_store_closes_ends_what_was_kept(servers):
    redis = servers.redis()
    weir = servers.weir(redis, flags=FLAGS)
    with weir.connect() as reader, redis.connect() as direct:
        direct.ok("SET", "k", "old")
        for number in range(3):
            make_tracked(weir, reader, "k")
            lines = direct.ok("CLIENT", "LIST").decode().splitlines()
            trackers = [line.split()[0].removeprefix("id=") for line in lines if " flags=t " in line]
            assert trackers
            lost = metrics.total(weir, "weir_hot_trackers_lost_total")
            for tracker in trackers:
                direct.ok("CLIENT", "KILL", "ID", tracker)
            until(lambda: metrics.total(weir, "weir_hot_trackers_lost_total") > lost, "the tracker is lost")
            # This write happens before another tracker link is open, so the store reports it to nobody.
            direct.ok("SET", "k", f"new{number}")
            until(lambda: sees(reader, "k", b"new%d" % number), "the write is seen")
            # A reply that is cached until then lives for --hot-ttl, as without trackers.
            reader.ok("SET", "k", f"own{number}")


def test_a_store_that_was_busy_when_it_was_to_track_keys_does_so_soon_after(servers):
    store = servers.redis(*SOON_BUSY)
    weir = servers.weir(store, flags=FLAGS)
    with weir.connect() as reader, store.connect() as direct:
        direct.ok("SET", "k", "v")
        make_tracked(weir, reader, "k")
        opened = metrics.total(weir, "weir_backend_connections_opened_total")
        for line in direct.ok("CLIENT", "LIST").decode().splitlines():
            if " flags=t " in line:
                direct.ok("CLIENT", "KILL", "ID", line.split()[0].removeprefix("id="))
        with busy(store):
            until(lambda: metrics.total(weir, "weir_backend_connections_opened_total") > opened, "the store is asked to track keys")
        until(lambda: not reader.call("GET", "k").is_error, "all is well again")
        make_tracked(weir, reader, "k")


def test_a_store_that_is_cut_off_ends_what_was_kept(servers):
    redis = servers.redis()
    with Relay(redis.port) as relay:
        weir = servers.weir(storage=f"redis://127.0.0.1:{relay.port}", flags=FLAGS)
        with weir.connect() as reader:
            make_tracked(weir, reader, "k")
            relay.hold()
            until(lambda: metrics.total(weir, "weir_hot_trackers_lost_total") >= 1, "the tracker is given up")
            assert tracked(weir) == 0
            relay.release()


def test_a_store_that_stands_still_is_not_answered_for(servers):
    redis = servers.redis()
    weir = servers.weir(redis, flags=FLAGS)
    with weir.connect() as reader, redis.connect() as direct:
        direct.ok("SET", "k", "old")
        make_tracked(weir, reader, "k")
        redis.signal(signal.SIGSTOP)
        until(lambda: metrics.total(weir, "weir_hot_trackers_lost_total") >= 1, "the tracker is given up")
        reader.send("GET", "k")
        redis.signal(signal.SIGCONT)
        assert reader.read().plain() == b"old"


def test_it_can_be_switched_off(servers, redis):
    weir = servers.weir(redis, flags=[*FLAGS, "--disable", "tracking"])
    with weir.connect() as reader, redis.connect() as direct:
        direct.ok("SET", "off", "old")
        before = metrics.total(weir, "weir_hot_hits_total")
        until(lambda: sees(reader, "off", b"old") and metrics.total(weir, "weir_hot_hits_total") > before, "it is kept")
        direct.ok("SET", "off", "new")
        assert tracked(weir) == 0 and sees(reader, "off", b"old")


def test_before_a_cluster_the_owner_tells(servers):
    cluster = Cluster(servers)
    fleet = [servers.weir(storage=cluster.storage, flags=FLAGS) for _ in range(2)]
    with fleet[0].connect() as one, fleet[1].connect() as other:
        for key in ("a", "b", "c", "d"):
            one.ok("SET", key, "0")
            for weir, reader in zip(fleet, [one, other]):
                make_tracked(weir, reader, key)
            for number in range(1, 6):
                one.ok("SET", key, str(number))
                until(lambda: sees(other, key, b"%d" % number), f"write {number} of {key} is seen")
        # The new owner of a slot reports changes as the former one did.
        slot = slot_of(cluster, "a")
        cluster.move(slot, next(node for node in cluster.primaries if node is not cluster.owner(slot)))
        one.ok("SET", "a", "moved")
        until(lambda: sees(other, "a", b"moved"), "the slot's move is seen")
        make_tracked(fleet[1], other, "a")
        one.ok("SET", "a", "last")
        until(lambda: sees(other, "a", b"last"), "the new owner tells")


def test_what_is_seen_is_hardly_ever_older_than_a_round_trip(fleet, redis):
    """Checks delays roughly: with a lifetime of a minute, any missed change shows clearly."""
    stop = threading.Event()
    acknowledged = [0]
    worst = [0.0]

    def write() -> None:
        with redis.connect() as direct:
            for number in range(1, 400):
                direct.ok("SET", "counted", str(number))
                acknowledged[0] = number
                time.sleep(random.uniform(0, 0.01))
        stop.set()

    def read(weir: Weir) -> None:
        behind_since = None
        with weir.connect() as reader:
            while not stop.is_set():
                known = acknowledged[0]
                seen = int(reader.ok("GET", "counted") or 0)
                now = time.monotonic()
                if seen >= known:
                    behind_since = None
                    continue
                behind_since = behind_since or now
                worst[0] = max(worst[0], now - behind_since)

    with redis.connect() as direct:
        direct.ok("SET", "counted", "0")
    readers = [threading.Thread(target=read, args=(weir,)) for weir in fleet]
    for reader in readers:
        reader.start()
    write()
    for reader in readers:
        reader.join()
    assert worst[0] < 5
