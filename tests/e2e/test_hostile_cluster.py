"""Tests of a cluster node that lies in its answers about the cluster: other nodes' slots are served, and weir's memory does
not grow.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from redis.crc import key_slot

from harness.fake_cluster import SLOTS, FakeCluster
from harness.fake_store import FakeStore, accommodating
from harness.processes import Storage
from harness.resp import Connection
from harness.waiting import until

pytestmark = pytest.mark.weir_only

ROUNDS = 4
GROWTH_MAX = 64 << 20
DESCRIPTORS_MAX = 64
LARGE = 32 << 20


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(data), data)


def address(number: int) -> str:
    """Returns an address on this machine where no server listens."""
    return f"127.{number >> 16 & 63}.{number >> 8 & 255}.{number & 255}:1"


class Hostile:
    """The last of three primaries, whose answers about the cluster a test makes up."""

    def __init__(self, servers) -> None:
        self.lie: Callable[[Hostile, bytes], bytes | None] = honest
        self.asked = 0
        self.random = random.Random(7)
        self.store = FakeStore(self._answer)
        self.healthy = [servers.keep(Storage()).start() for _ in range(2)]
        self.cluster = FakeCluster([*self.healthy, self.store])
        self.cluster.tell(0, 1)

    def key(self, node: int) -> str:
        """Returns a key in a slot of this node."""
        return next(key for key in map(str, range(1000)) if self.cluster.owner[key_slot(key.encode())] == node)

    def weir(self, servers):
        """Starts a weir in front of the cluster that asks the hostile node first."""
        seeds = ",".join(server.address for server in (self.store, *self.healthy))
        return servers.weir(flags=["--shards", "2"], storage=f"cluster://{seeds}")

    def view(self) -> bytes:
        return self.cluster.view(2).encode()

    def _answer(self, words: list[bytes]) -> bytes | None:
        match [words[0].upper(), *(word.upper() for word in words[1:2])]:
            case [b"CLUSTER", what]:
                self.asked += 1
                return self.lie(self, what)
            case [b"GET" | b"SET", _]:
                return f"-MOVED {key_slot(words[1])} {self.random.choice(self.healthy).address}\r\n".encode()
        return accommodating(words)


def honest(node: Hostile, what: bytes) -> bytes:
    if what == b"NODES":
        return bulk(node.view())
    slots = node.cluster.owner
    first = [slots.index(owner) for owner in range(3)]
    ranges = zip(first, [*first[1:], SLOTS], node.cluster.nodes, range(3), strict=True)
    told = [
        b"*3\r\n:%d\r\n:%d\r\n*3\r\n%s:%d\r\n%s"
        % (low, high - 1, bulk(b"127.0.0.1"), server.port, bulk(node.cluster.id(place).encode()))
        for low, high, server, place in ranges
    ]
    return b"*3\r\n" + b"".join(told)


def garbage(node: Hostile, what: bytes) -> bytes:
    return node.random.randbytes(node.random.randrange(1, 10_000))


def damaged(node: Hostile, what: bytes) -> bytes:
    """Returns the right answer about the cluster, except for a few random bytes."""
    text = bytearray(node.view())
    for _ in range(node.random.randrange(1, 20)):
        text[node.random.randrange(len(text))] = node.random.randrange(256)
    return bulk(bytes(text))


def errors(node: Hostile, what: bytes) -> bytes:
    return b"-" + b"ERR who knows " * 2_000 + b"\r\n"


def large(node: Hostile, what: bytes) -> bytes:
    return bulk(b" " * LARGE)


def endless(node: Hostile, what: bytes) -> bytes:
    """Returns arrays within arrays within arrays, without an end."""
    return b"*1000000000\r\n" * (LARGE // 13)


def crowd(node: Hostile, what: bytes) -> bytes:
    """Returns an answer with 120 nodes, as many as allowed, that no other node knows, and with other ones each time."""
    view = node.view()
    if what == b"NODES":
        others = (node.random.getrandbits(22) for _ in range(120))
        view += "".join(f"{other:040x} {address(other)}@2 master - 0 0 9 connected\n" for other in others).encode()
    return bulk(view)


def replicas(node: Hostile, what: bytes) -> bytes:
    """Returns an answer by which every node, this one too, is a replica of this node."""
    return bulk(node.view().replace(b" master -", f" slave {node.cluster.id(2)}".encode()))


def broken_off(node: Hostile, what: bytes) -> bytes | None:
    return None


def not_ended(node: Hostile, what: bytes) -> bytes:
    return b"$100\r\nhardly"


LIES = [garbage, damaged, errors, large, endless, crowd, replicas, broken_off, not_ended]


@contextmanager
def bounded(weir) -> Iterator[None]:
    """Checks that weir holds little more memory and descriptors after the block than before it."""
    memory, open_before = weir.resident_bytes(), weir.descriptors()
    yield
    assert weir.resident_bytes() - memory < GROWTH_MAX
    assert weir.descriptors() - open_before < DESCRIPTORS_MAX


@pytest.mark.parametrize("lie", LIES)
def test_a_node_that_lies_harms_its_own_slots_only(servers, lie):
    node = Hostile(servers)
    with node.store:
        weir = node.weir(servers)
        keys = [node.key(0), node.key(1)]
        with weir.connect() as client:
            for key in keys:
                until(lambda: client.call("SET", key, "0").text == "OK", "it is served")  # noqa: B023
            with bounded(weir):
                node.lie = lie
                for number in range(ROUNDS):
                    before = node.asked
                    # Requests for its own slots may fail, at any time; `other` sends some.
                    with Connection(weir.port) as other:
                        other.send("GET", node.key(2))
                        for key in keys:
                            client.ok("SET", key, str(number))
                            assert client.ok("GET", key) == b"%d" % number

                        def is_asked() -> bool:
                            other.send("GET", node.key(2))  # noqa: B023
                            assert client.ok("MGET", *keys) == [b"%d" % number] * 2  # noqa: B023
                            return node.asked > before  # noqa: B023

                        until(is_asked, "weir asks it who owns what", seconds=60)
            node.lie = honest
            owners = lambda: {owner["id"] for owner in json.loads(weir.admin("/cluster")[1])["nodes"]}  # noqa: E731
            until(lambda: owners() == {node.cluster.id(place) for place in range(3)}, "only members are left", seconds=60)
            assert [client.ok("GET", key) for key in keys] == [b"%d" % (ROUNDS - 1)] * 2


def usurper(node: Hostile, what: bytes) -> bytes:
    """Claims half of the time that this node owns all slots, with the highest possible epoch."""
    if node.random.random() < 0.5:
        return honest(node, what)
    members = [f"{node.cluster.id(place)} {server.address}@2 " for place, server in enumerate(node.cluster.nodes)]
    newest = (1 << 63) - 1
    lines = [f"{member}master - 0 0 {place + 1} connected\n" for place, member in enumerate(members[:2])]
    return bulk("".join([*lines, f"{members[2]}myself,master - 0 0 {newest} connected 0-{SLOTS - 1}\n"]).encode())


def test_a_node_that_claims_everything_now_and_then_is_believed_for_as_long_at_most(servers):
    node = Hostile(servers)
    with node.store:
        weir = node.weir(servers)
        key = node.key(0)
        with weir.connect() as client:
            until(lambda: client.call("SET", key, "right").text == "OK", "it is served")
            with bounded(weir):
                node.lie = usurper
                for _ in range(ROUNDS):
                    before = node.asked

                    def is_asked() -> bool:
                        client.call("GET", node.key(2))
                        reply = client.call("GET", key)
                        assert reply.value == b"right" or reply.text.startswith(("UNAVAILABLE", "OVERLOADED")), reply.text
                        return node.asked > before  # noqa: B023

                    until(is_asked, "weir asks it who owns what", seconds=60)
            node.lie = honest
            until(lambda: client.call("GET", key).value == b"right", "its owner serves it again", seconds=60)
