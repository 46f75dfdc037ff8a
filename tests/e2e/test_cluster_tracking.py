"""Tests of CLIENT TRACKING in front of a real cluster: a client's cache is never outdated for long, wherever slots and
primaries go.
"""

from __future__ import annotations

import json
from random import Random

import pytest

from harness.cluster import Cluster
from harness.resp import Closed, Connection
from harness.waiting import until

from test_cluster import SHARDS, others, slot_of

pytestmark = pytest.mark.weir_only


@pytest.fixture(scope="module")
def weir(module_servers, cluster: Cluster):
    return module_servers.weir(flags=SHARDS, storage=cluster.storage)


CHANNEL = "__redis__:invalidate"


class Keeper:
    """A client that caches values until a message says that they may have changed."""

    def __init__(self, weir, *options) -> None:
        self.connection: Connection = weir.connect(protocol=3)
        self.kept: dict[str, bytes | None] = {}
        self.hits = 0
        self.whole = 0
        # True once the connection for messages is closed.
        self.is_deaf = False
        self.begin(weir, *options)

    def begin(self, weir, *options) -> None:
        assert self.ask("CLIENT", "TRACKING", "ON", *options).text == "OK"

    def ask(self, *words):
        self.connection.send(*words)
        while (reply := self.connection.read()).kind == b">":
            self.hear(reply.plain())
        return reply

    def hear(self, message: list) -> None:
        if message[0] == b"tracking-redir-broken":
            self.is_deaf = True
            return self.kept.clear()
        assert message[0] == b"invalidate", message
        if message[1] is None:
            self.whole += 1
            self.kept.clear()
        for key in message[1] or []:
            self.kept.pop(key.decode(), None)

    def get(self, key: str) -> bytes | None:
        # PING's reply comes after all messages that were sent before it.
        assert self.ask("PING").text == "PONG"
        if key in self.kept:
            self.hits += 1
            return self.kept[key]
        reply = self.ask("GET", key)
        if reply.is_error:
            assert reply.text.startswith("UNAVAILABLE "), reply
            return None
        # A message that came before the reply concerns an older value.
        self.kept[key] = reply.plain()
        return self.kept[key]

    def close(self) -> None:
        self.connection.close()


class Redirector(Keeper):
    """A keeper that gets its messages over another connection, in RESP2, from the invalidation channel."""

    def begin(self, weir, *options) -> None:
        self.target = weir.connect(protocol=2)
        number = self.target.ok("CLIENT", "ID")
        assert self.target.ok("SUBSCRIBE", CHANNEL) == [b"subscribe", CHANNEL.encode(), 1]
        super().begin(weir, "REDIRECT", number, *options)

    def get(self, key: str) -> bytes | None:
        self.target.send("PING")
        while (told := self.target.read().plain()) != [b"pong", b""]:
            assert told[:2] == [b"message", CHANNEL.encode()], told
            self.hear([b"invalidate", told[2]])
        return super().get(key)

    def close(self) -> None:
        super().close()
        self.target.close()


@pytest.fixture(params=[Keeper, Redirector], ids=["itself", "redirected"])
def kind(request) -> type[Keeper]:
    return request.param


def set_at_owner(cluster: Cluster, key: str, value: str) -> None:
    """Writes directly at the node that owns the key."""

    def is_done() -> bool:
        with cluster.owner(slot_of(cluster, key)).connect() as node:
            return not node.call("SET", key, value).is_error

    until(is_done, "the owner takes it")


def test_what_a_client_keeps_is_not_old_for_long_while_slots_move(weir, cluster: Cluster, kind):
    keys = [f"kept:{number}" for number in range(8)]
    random = Random(11)
    with cluster.nodes[0].connect() as node:
        moves_at_once = "unknown subcommand" not in node.call("CLUSTER", "MIGRATESLOTS").text
    keeper = kind(weir)
    with weir.connect() as writer:
        for turn in range(80):
            key = random.choice(keys)
            for each in keys:
                keeper.get(each)
            if turn % 4 == 0:
                slot = slot_of(cluster, key)
                target = random.choice(others(cluster, slot))
                if moves_at_once and turn % 8 == 0:
                    cluster.move_at_once(slot, slot, target)
                else:
                    cluster.move(slot, target)
            value = str(turn)
            if turn % 2:
                writer.ok("SET", key, value)
            else:
                set_at_owner(cluster, key, value)
            until(lambda: keeper.get(key) == value.encode(), f"{key} is {value}")  # noqa: B023
    assert keeper.hits > 100, "most is kept"
    keeper.close()


def test_a_half_moved_slot_is_read_from_both_nodes(weir, cluster: Cluster, kind):
    names = [f"{{half}}{number}" for number in range(10)]
    slot = slot_of(cluster, "{half}")
    keeper = kind(weir)
    with weir.connect() as writer:
        for name in names:
            writer.ok("DEL", name)
        for name in names[:6]:
            writer.ok("SET", name, "old")
            assert keeper.get(name) == b"old"
        target = others(cluster, slot)[0]
        source = cluster.begin_move(slot, target)
        assert cluster.move_keys(slot, source, target, most=3) == 3
        for name in names:
            assert keeper.get(name) == (b"old" if name in names[:6] else None)
        for name in names:
            writer.ok("SET", name, "new")
            until(lambda: keeper.get(name) == b"new", "it has changed")  # noqa: B023
        cluster.end_move(slot, source, target)
        for name in names:
            writer.ok("SET", name, "newer")
            until(lambda: keeper.get(name) == b"newer", "it has changed again")  # noqa: B023
    keeper.close()


def test_that_a_key_was_absent_is_forgotten_when_its_slot_has_another_owner(weir, cluster: Cluster, kind):
    keeper = kind(weir)
    slot = slot_of(cluster, "absent")
    with weir.connect() as writer:
        writer.ok("DEL", "absent")
    assert keeper.get("absent") is None and keeper.get("absent") is None and keeper.hits == 1
    cluster.move(slot, others(cluster, slot)[0])
    # No node reports this change: the former owner has lost the slot, and the key was not read at the new one.
    set_at_owner(cluster, "absent", "present")
    until(lambda: keeper.get("absent") == b"present", "weir has heard of the move", seconds=60)
    assert keeper.whole > 0
    keeper.close()


def test_broadcasts_are_heard_from_a_node_that_joins(servers, kind):
    cluster = Cluster(servers)
    weir = servers.weir(flags=SHARDS, storage=cluster.storage)
    keeper = kind(weir, "BCAST", "PREFIX", "bc:")
    for number in range(9):
        keeper.kept[f"bc:{number}"] = b"old"
        set_at_owner(cluster, f"bc:{number}", "new")
        until(lambda: keeper.get(f"bc:{number}") == b"new", "it is told")  # noqa: B023
    joined = cluster._start(servers)
    cluster.call(joined, "CLUSTER", "SET-CONFIG-EPOCH", 10)
    cluster.call(cluster.nodes[0], "CLUSTER", "MEET", "127.0.0.1", joined.port, cluster.bus_ports[joined.port])
    cluster.nodes.append(joined)
    until(lambda: all(cluster._sees_all(node) for node in cluster.nodes), "nodes know each other")
    known = lambda: len(json.loads(weir.admin("/cluster")[1])["nodes"])  # noqa: E731
    until(lambda: known() == 4, "weir knows the node", seconds=60)
    cluster.move(slot_of(cluster, "bc:3"), joined)
    for turn in range(5):
        keeper.get("bc:3")
        set_at_owner(cluster, "bc:3", f"there {turn}")
        until(lambda: keeper.get("bc:3") == b"there %d" % turn, "it is told", seconds=60)  # noqa: B023
    keeper.close()


def test_a_failover_costs_no_client_a_change(servers, kind):
    cluster = Cluster(servers, primaries=3, replicas=3)
    weir = servers.weir(flags=SHARDS, storage=cluster.storage)
    key = next(name for name in map(str, range(100)) if cluster.owner(slot_of(cluster, name)) is cluster.nodes[0])
    set_at_owner(cluster, key, "before")
    keeper = kind(weir)
    assert keeper.get(key) == b"before"
    # The primary hands over to its replica, and stays connected as a replica itself.
    replica = cluster.nodes[3]
    cluster.call(replica, "CLUSTER", "FAILOVER")
    until(lambda: cluster.owner(slot_of(cluster, key)) is replica, "it has taken over")
    set_at_owner(cluster, key, "after")
    until(lambda: keeper.get(key) == b"after", "it is told", seconds=60)
    # The loss of a primary closes the client's connection for messages, so that it drops its cache.
    until(lambda: keeper.get(key) == b"after" and key in keeper.kept, "it is kept")
    replica.kill()

    def is_closed() -> bool:
        try:
            keeper.ask("PING")
            return keeper.is_deaf
        except Closed:
            return True

    until(is_closed, "the client is closed")


def test_a_connection_may_take_its_own_messages_and_those_of_others(weir):
    with weir.connect(protocol=3) as target, weir.connect() as reader, weir.connect() as writer:
        number = target.ok("CLIENT", "ID")
        for client in (target, reader):
            client.ok("CLIENT", "TRACKING", "ON", "REDIRECT", number)
            assert client.ok("CLIENT", "GETREDIR") == number
        for turn in range(6):
            # One key of each node, and more.
            writer.ok("SET", f"own:{turn}", "x")
            writer.ok("SET", f"other:{turn}", "x")
            target.ok("GET", f"own:{turn}")
            reader.ok("GET", f"other:{turn}")
            for key in (f"own:{turn}", f"other:{turn}"):
                writer.ok("SET", key, "y")
                assert target.read().plain() == [b"invalidate", [key.encode()]]
        assert reader.ok("PING") == b"PONG"


def test_a_client_whose_target_has_left_is_told(weir):
    target = weir.connect(protocol=2)
    number = target.ok("CLIENT", "ID")
    with weir.connect(protocol=3) as reader:
        reader.ok("CLIENT", "TRACKING", "ON", "REDIRECT", number)
        reader.ok("GET", "broken")
        target.close()
        assert reader.read().plain() == [b"tracking-redir-broken", number]
        info = reader.ok("CLIENT", "TRACKINGINFO")
        assert set(info[b"flags"]) == {b"on", b"broken_redirect"} and info[b"redirect"] == number
        assert [reader.call("GET", f"k{turn}").is_error for turn in range(6)] == [False] * 6


def test_what_is_refused_before_a_cluster(weir):
    with weir.connect(protocol=3) as client:
        refusal = client.call("CLIENT", "TRACKING", "ON", "REDIRECT", 999_999_999).text
        assert refusal == "ERR The client ID you want redirect to does not exist"
        assert client.ok("CLIENT", "GETREDIR") == -1
        assert client.ok("CLIENT", "TRACKING", "ON") == b"OK"
        assert client.call("MGET", "a", "b").text.startswith("CROSSSLOT")
        assert client.ok("CLIENT", "TRACKING", "OFF") == b"OK"
        assert client.ok("MGET", "a", "b") == [None, None]
