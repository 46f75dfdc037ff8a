"""Tests of nodes that cannot carry out a request at the moment (CLUSTERDOWN, TRYAGAIN): clients see the error only if it
lasts.
"""

from __future__ import annotations

import threading
import time

import pytest
from redis.crc import key_slot

from harness.fake_cluster import FakeCluster
from harness.processes import Storage

pytestmark = pytest.mark.weir_only


@pytest.fixture
def fake(servers) -> FakeCluster:
    cluster = FakeCluster([servers.keep(Storage()).start() for _ in range(3)])
    cluster.tell()
    return cluster


@pytest.fixture
def weir(servers, fake: FakeCluster):
    seeds = ",".join(node.address for node in fake.nodes)
    return servers.weir(flags=["--shards", "2"], storage=f"cluster://{seeds}")


def asked_again(weir, reason: str) -> int:
    lines = [line for line in weir.admin("/metrics")[1].splitlines() if line.startswith("weir_cluster_asked_again_total{")]
    return sum(int(line.rsplit(" ", 1)[1]) for line in lines if f'reason="{reason}"' in line)


def owner_of(fake: FakeCluster, key: str) -> int:
    return fake.owner[key_slot(key.encode())]


def test_a_node_that_is_down_for_a_moment_is_asked_again(fake: FakeCluster, weir):
    with weir.connect() as client:
        assert client.ok("SET", "{foo}n", "0") == b"OK"
        for command, told in [
            (("INCR", "{foo}n"), 1),
            (("GET", "{foo}n"), b"1"),
            (("MGET", "{foo}n", "{foo}m"), [b"1", None]),
        ]:
            fake.refuse(owner_of(fake, "foo"), "CLUSTERDOWN", "TIMES", 5)
            assert client.call(*command).plain() == told
        assert asked_again(weir, "clusterdown") == 15
        # A transaction is retried as a whole, and later requests wait for it.
        fake.refuse(owner_of(fake, "foo"), "CLUSTERDOWN", "TIMES", 3)
        replies = client.pipeline([("MULTI",), ("INCR", "{foo}n"), ("INCR", "{foo}n"), ("EXEC",), ("GET", "{foo}n")])
        assert [reply.plain() for reply in replies[-2:]] == [[2, 3], b"3"]


def test_keys_on_their_way_are_waited_for(fake: FakeCluster, weir):
    with weir.connect() as client:
        assert client.ok("SADD", "{foo}a", "1") == 1
        fake.refuse(owner_of(fake, "foo"), "TRYAGAIN", "TIMES", 12)
        assert client.ok("SUNION", "{foo}a", "{foo}b") == [b"1"], "for longer than six refusals"
        assert asked_again(weir, "tryagain") == 12


def test_a_client_that_tracks_keys_hears_of_neither_where_it_is_short(fake: FakeCluster, weir):
    with weir.connect(protocol=3) as client:
        assert client.ok("CLIENT", "TRACKING", "ON") == b"OK"
        for number, (refusal, times) in enumerate([("TRYAGAIN", 9), ("CLUSTERDOWN", 5)]):
            fake.refuse(owner_of(fake, "foo"), refusal, "TIMES", times)
            assert client.ok("INCR", "{foo}n") == number + 1
            assert asked_again(weir, refusal.lower()) == times
        fake.refuse(owner_of(fake, "foo"), "CLUSTERDOWN")
        began = time.monotonic()
        assert client.call("GET", "{foo}n").text.startswith("CLUSTERDOWN ")
        assert 0.8 < time.monotonic() - began < 1.6
        fake.refuse(owner_of(fake, "foo"), "OFF")
        assert client.ok("GET", "{foo}n") == b"2"


def test_order_is_kept_through_a_short_outage(fake: FakeCluster, weir):
    """Several connections append to lists of their own while all nodes reply CLUSTERDOWN now and then: no client sees it."""
    errors: list[str] = []
    over = threading.Event()

    def run(number: int) -> None:
        count = 0
        with weir.connect(timeout=30) as client:
            while not over.is_set():
                replies = client.pipeline([("APPEND", f"log:{number}", f"{count + step},") for step in range(4)])
                errors.extend(reply.text for reply in replies if reply.is_error)
                count += 4
            expected = "".join(f"{step}," for step in range(count))
            # A request that was refused in the middle of a pipeline whose end succeeded gets its error, and its value is missing.
            if not errors and client.ok("GET", f"log:{number}") != expected.encode():
                errors.append(f"log:{number}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        time.sleep(0.2)
        for node in range(3):
            fake.refuse(node, "CLUSTERDOWN")
        time.sleep(0.3)
        for node in range(3):
            fake.refuse(node, "OFF")
    over.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert [error for error in errors if not error.startswith("CLUSTERDOWN")] == []
    # A node may begin or stop replying CLUSTERDOWN in the middle of a pipeline.
    assert len(errors) <= 8 * 3 * 2, errors[:5]
    assert asked_again(weir, "clusterdown") > 0


def test_a_node_that_stays_down_is_told_of_within_a_second_or_the_deadline(fake: FakeCluster, weir):
    with weir.connect() as client, weir.connect() as urgent:
        assert urgent.ok("QOS", "SET", "DEADLINE", "200") == b"OK"
        fake.refuse(owner_of(fake, "foo"), "CLUSTERDOWN")
        # At its deadline a request may be at the node once more.
        cut_off = ("CLUSTERDOWN ", "DEADLINE stage=backend ")
        for connection, least, most, words in [(client, 0.8, 1.6, "CLUSTERDOWN "), (urgent, 0.1, 0.5, cut_off)]:
            began = time.monotonic()
            told = connection.call("SET", "foo", "v")
            assert told.text.startswith(words), told
            assert least < time.monotonic() - began < most
        # A script may have been carried out before it replied this, so it is not retried.
        began = time.monotonic()
        assert client.call("EVAL", "return redis.error_reply('CLUSTERDOWN so')", "1", "foo").is_error
        assert time.monotonic() - began < 0.5
        fake.refuse(owner_of(fake, "foo"), "OFF")
        assert client.ok("SET", "foo", "v") == b"OK"
