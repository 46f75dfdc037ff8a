"""Compares the state of connections: several clients at once get the same bytes from a redis-server and from the embedded store.

Random interleavings of blocking calls, watches, transactions, subscriptions and databases. A call that waits at one server must
wait at the other, and end with the same request of another client. The embedded store is used without weir, so that only its own
order matters; test_sessions.py tests through weir.
"""

from __future__ import annotations

import random
import re

import pytest

from harness.processes import Redis, Storage
from harness.resp import Connection, encode, shorten
from harness.waiting import until

pytestmark = pytest.mark.weir_only

CLIENTS = 5
STEPS = 500
SEEDS = 6
# Commands whose replies name channels in the order of a hash table.
UNORDERED = {"UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE", "PUBLISH", "PUBSUB", "EXEC"}

# Errors of an XREADGROUP whose stream or group is gone: the first two are those of Redis 7.0, the others are those of 7.2.
GONE = re.compile(
    rb"-(UNBLOCKED the stream key no longer exists|NOGROUP the consumer group [^\r]*|NOGROUP No such key [^\r]*|WRONGTYPE [^\r]*)\r\n"
)

Words = list[str]


class Requests:
    """Makes requests on four keys of any type, three channels and three databases."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.entry = 0

    def key(self) -> str:
        return self.random.choice("abcd")

    def of_lists(self) -> Words:
        key, number = self.key, str(self.random.randrange(9))
        return self.random.choice([
            ["RPUSH", key(), number], ["LPUSH", key(), "x", "y"], ["RPUSH", key(), "q"], ["LPOP", key()], ["RPOP", key(), "2"],
            ["LREM", key(), "0", "x"], ["LTRIM", key(), "0", "1"], ["LMOVE", key(), key(), "LEFT", "RIGHT"], ["LSET", key(), "0", "z"],
            ["RPOPLPUSH", key(), key()], ["LINSERT", key(), "BEFORE", "x", "w"], ["LPUSHX", key(), "1"], ["LMPOP", "2", key(), key(), "LEFT"],
            ["LRANGE", key(), "0", "-1"], ["SORT", key(), "ALPHA", "STORE", key()],
        ])  # fmt: skip

    def of_sorted_sets(self) -> Words:
        key = self.key
        return self.random.choice([
            ["ZADD", key(), str(self.random.randrange(3)), self.random.choice("mno")], ["ZADD", key(), "NX", "1", "m"],
            ["ZADD", key(), "XX", "1", "nobody"], ["ZADD", key(), "1", "a", "2", "b"], ["ZREM", key(), "m"], ["ZINCRBY", key(), "1", "m"],
            ["ZPOPMIN", key()], ["ZPOPMAX", key(), "0"], ["ZMPOP", "1", key(), "MAX"], ["ZUNIONSTORE", key(), "1", key()],
            ["ZRANGESTORE", key(), key(), "0", "-1"], ["ZREMRANGEBYRANK", key(), "5", "6"], ["ZRANGE", key(), "0", "-1", "WITHSCORES"],
        ])  # fmt: skip

    def of_streams(self) -> Words:
        key = self.key
        self.entry += 1
        this, last = f"{self.entry}-1", f"{self.entry - 1}-1"
        return self.random.choice([
            ["XADD", key(), this, "f", "v"], ["XADD", key(), this, "f", "v"], ["XADD", key(), "MAXLEN", "1", this, "f", "v"], ["XDEL", key(), last],
            ["XTRIM", key(), "MAXLEN", "1"], ["XGROUP", "CREATE", key(), "g", self.random.choice("0$"), "MKSTREAM"],
            ["XGROUP", "DESTROY", key(), "g"], ["XGROUP", "CREATECONSUMER", key(), "g", "e"], ["XGROUP", "SETID", key(), "g", "0"],
            ["XREADGROUP", "GROUP", "g", "c", "STREAMS", key(), ">"], ["XACK", key(), "g", last], ["XCLAIM", key(), "g", "d", "0", last],
            ["XSETID", key(), "1000000-1"], ["XRANGE", key(), "-", "+"],
        ])  # fmt: skip

    def of_others(self) -> Words:
        key = self.key
        return self.random.choice([
            ["SET", key(), "v"], ["APPEND", key(), ""], ["SETRANGE", key(), "0", ""], ["INCR", key()], ["GETDEL", key()], ["GETEX", key(), "PERSIST"],
            ["MSET", key(), "1", key(), "2"], ["SETBIT", key(), "3", "1"], ["BITFIELD", key(), "INCRBY", "u4", "0", "0"], ["PFADD", key(), "a"],
            ["SADD", key(), "a", "b"], ["SREM", key(), "zz"], ["SMOVE", key(), key(), "a"], ["SUNIONSTORE", key(), key(), key()],
            ["HSET", key(), "f", "1"], ["HSETNX", key(), "f", "1"], ["HDEL", key(), "zz"], ["GEOADD", key(), "XX", "1", "1", "p"],
            ["DEL", key()], ["DEL", key(), key()], ["RENAME", key(), key()], ["COPY", key(), key(), "REPLACE"], ["EXPIRE", key(), "1000", "NX"],
            ["PERSIST", key()], ["EXPIRE", key(), "-1"], ["TYPE", key()],
        ])  # fmt: skip

    def of_databases(self) -> Words:
        key, one, other = self.key, str(self.random.randrange(3)), str(self.random.randrange(3))
        return self.random.choice([
            ["SELECT", one], ["SELECT", one], ["SELECT", one], ["SELECT", "16"], ["SWAPDB", one, other], ["SWAPDB", "0", "x"], ["SWAPDB", "0", "77"],
            ["MOVE", key(), one], ["MOVE", key(), "x"], ["COPY", key(), key(), "DB", one, "REPLACE"], ["DBSIZE"],
            ["FLUSHDB"] if self.random.random() < 0.5 else ["FLUSHALL"],
        ])  # fmt: skip

    def that_waits(self) -> Words:
        # A call that has waited looks at all its keys since Redis 7.2, and in 7.0 only at the one that is ready.
        key, timeout = self.key, self.random.choice(["0", "0", "0", "100", "50.5"])
        twice = [key()] * 2
        count = self.random.choice([[], ["COUNT", "1"], ["COUNT", "2"]])
        wrong = self.random.choice(["-1", "x", "inf", "nan", "1e300", "1e5000", "9223372036854776", " 1", ""])
        return self.random.choice([
            ["BLPOP", *twice, timeout], ["BRPOP", key(), timeout], ["BLMOVE", key(), key(), "LEFT", "RIGHT", timeout],
            ["BRPOPLPUSH", key(), key(), timeout], ["BLMPOP", timeout, "2", *twice, "LEFT", *count],
            ["BZPOPMIN", *twice, timeout], ["BZPOPMAX", key(), timeout], ["BZMPOP", timeout, "2", *twice, "MIN", *count],
            ["XREAD", *count, "BLOCK", "0", "STREAMS", *twice, "$", self.random.choice("0$")], ["XREAD", "BLOCK", "0", "STREAMS", key(), "$"],
            ["XREADGROUP", "GROUP", "g", "c", *count, "BLOCK", "0", "STREAMS", key(), ">"],
            ["XREADGROUP", "GROUP", "g", "d", "BLOCK", "0", "NOACK", "STREAMS", *twice, ">", ">"],
            ["BLPOP", key(), wrong], ["BLMPOP", wrong, "1", key(), "LEFT"], ["BLMOVE", key(), key(), "UP", "LEFT", wrong],
            ["WAIT", "0", "0"], ["WAIT", "1", "0"], ["WAIT", "x", "0"], ["WAIT", "1", wrong.replace("e", ".")], ["BLMPOP", "0", "0", key(), "LEFT"], ["BZMPOP", "0", "1", key(), "UP"], ["XREAD", "BLOCK", wrong.replace("e", "."), "STREAMS", key(), "$"],
        ])  # fmt: skip

    def of_transactions(self) -> Words:
        watch = ["WATCH", self.key(), self.key()]
        return self.random.choice([["MULTI"], ["MULTI"], ["EXEC"], ["EXEC"], watch, watch, ["DISCARD"], ["UNWATCH"]])

    def of_channels(self) -> Words:
        channel, pattern = self.random.choice(["c1", "c2", "d1"]), self.random.choice(["c*", "*", "d?"])
        return self.random.choice([
            ["SUBSCRIBE", channel], ["SUBSCRIBE", channel, "c1"], ["PSUBSCRIBE", pattern], ["SSUBSCRIBE", channel], ["UNSUBSCRIBE", channel],
            ["PUNSUBSCRIBE", pattern], ["SUNSUBSCRIBE", channel], ["UNSUBSCRIBE"], ["PUNSUBSCRIBE"], ["SUNSUBSCRIBE"], ["RESET"], ["PING", "x"],
            ["PUBLISH", channel, "m"], ["PUBLISH", channel, "m"], ["PUBLISH", channel, "m"], ["SPUBLISH", channel, "m"], ["PUBSUB", "CHANNELS"],
            ["PUBSUB", "NUMSUB", channel, "c1"], ["PUBSUB", "NUMPAT"], ["PUBSUB", "SHARDCHANNELS"], ["PUBSUB", "SHARDNUMSUB", channel],
        ])  # fmt: skip


    def of_tracking(self) -> Words:
        key, on = self.key, ["CLIENT", "TRACKING", "ON"]
        return self.random.choice([
            on, [*on, "NOLOOP"], [*on, "OPTIN"], [*on, "OPTOUT", "NOLOOP"], [*on, "OPTIN", "OPTOUT"], ["CLIENT", "TRACKING", "OFF"],
            ["CLIENT", "CACHING", "YES"], ["CLIENT", "CACHING", "NO"], ["CLIENT", "TRACKINGINFO"], ["CLIENT", "GETREDIR"], ["RESET"],
            ["GET", key()], ["MGET", key(), key()], ["STRLEN", key()], ["LLEN", key()], ["EXISTS", key(), key()], ["TYPE", key()],
            ["SET", key(), "x"], ["MSET", key(), "1", key(), "2"], ["DEL", key()], ["FLUSHALL"],
        ])  # fmt: skip


KINDS = {
    "changes": {"of_tracking": 12, "of_lists": 3, "of_others": 4, "of_transactions": 1},
    "waits": {"of_lists": 5, "of_sorted_sets": 3, "of_streams": 4, "of_others": 3, "that_waits": 8, "of_transactions": 2},
    "watches": {"of_lists": 2, "of_sorted_sets": 2, "of_streams": 2, "of_others": 7, "of_databases": 1, "of_transactions": 8},
    "channels": {"of_channels": 10, "of_others": 1, "of_transactions": 2},
    "all": {
        "of_lists": 4, "of_sorted_sets": 2, "of_streams": 3, "of_others": 4, "of_databases": 3, "that_waits": 8, "of_transactions": 4,
        "of_channels": 4,
    },  # fmt: skip
}


class Side:
    """A server, its clients, and one more connection that shows when the server has done its work."""

    def __init__(self, server: Redis, protocols: list[int]) -> None:
        self.clients = [server.connect(protocol=protocol) for protocol in protocols]
        self.ids = [client.ok("CLIENT", "ID") for client in self.clients]
        self.control = server.connect()
        self.control.ok("FLUSHALL")
        for client in self.clients:
            client.socket.setblocking(False)

    def settle(self) -> None:
        """Returns once all earlier requests were carried out, and replies to other clients were written."""
        for _ in range(2):
            self.control.ok("PING")

    def received(self, client: int) -> bytes:
        """Returns the bytes that a client has been sent since the last call."""
        data = b""
        try:
            while some := self.clients[client].socket.recv(1 << 18):
                data += some
        except BlockingIOError:
            return data
        raise AssertionError(f"client {client} was closed after {shorten(data)}")

    def close(self) -> None:
        for connection in [*self.clients, self.control]:
            connection.close()


@pytest.fixture(scope="module")
def reference(module_servers) -> Redis:
    return module_servers.redis()


@pytest.fixture(scope="module")
def embedded(module_servers) -> Storage:
    return module_servers.keep(Storage("--scriptable=false")).start()


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("kind", KINDS)
def test_several_clients_are_told_what_redis_tells_them(kind: str, seed: int, reference: Redis, embedded: Storage):
    requests = Requests(seed)
    protocols = [requests.random.choice([2, 3]) for _ in range(CLIENTS)]
    sides = [Side(reference, protocols), Side(embedded, protocols)]
    try:
        play(requests, KINDS[kind], sides)
    finally:
        for side in sides:
            side.close()


def play(requests: Requests, weights: dict[str, int], sides: list[Side]) -> None:
    chance = requests.random
    waiting, queueing = set(), set()
    for _ in range(STEPS):
        free = [client for client in range(CLIENTS) if client not in waiting]
        if not free or chance.random() < 0.03:
            asker, words = None, ["CLIENT UNBLOCK"]
            unblock(chance.randrange(CLIENTS), chance.choice([[], ["TIMEOUT"], ["ERROR"]]), sides)
        else:
            asker = chance.choice(free)
            words = getattr(requests, chance.choices(list(weights), list(weights.values()))[0])()
            if asker in queueing and chance.random() < 0.25:
                words = ["EXEC"]
            for side in sides:
                side.clients[asker].send_raw(encode(*words))
        for side in sides:
            side.settle()
        for client in range(CLIENTS):
            told = same_bytes(client, words, sides, has_waited=client != asker)
            if client == asker:
                waiting = waiting - {client} if told else waiting | {client}
                queueing = next_queueing(queueing, client, words, told)
            elif told and not told.startswith(b">"):
                waiting.discard(client)


def next_queueing(queueing: set[int], client: int, words: Words, told: bytes) -> set[int]:
    if words[0] == "MULTI" and told == b"+OK\r\n":
        return queueing | {client}
    return queueing - {client} if words[0] in ("EXEC", "DISCARD", "RESET") else queueing


def unblock(client: int, how: Words, sides: list[Side]) -> None:
    replies = [side.control.call("CLIENT", "UNBLOCK", side.ids[client], *how).raw for side in sides]
    assert replies[0] == replies[1]


def same_bytes(client: int, words: Words, sides: list[Side], has_waited: bool) -> bytes:
    """Returns the bytes that both servers have sent a client; fails if they differ. A client that `has_waited` for a stream
    which is gone gets any of several errors.
    """
    told = [side.received(client) for side in sides]

    def agree() -> bool:
        for at, side in enumerate(sides):
            told[at] += side.received(client)
        comparable = sorted_lines if words[0] in UNORDERED else bytes
        shown = [GONE.sub(b"-GONE\r\n", data) for data in told] if has_waited else told
        return comparable(shown[0]) == comparable(shown[1])

    if not agree():
        try:
            until(agree, "both say the same", 5.0)
        except AssertionError:
            raise AssertionError(f"after {words} client {client} is told {shorten(told[0])} by Redis, else {shorten(told[1])}") from None
    return told[0]


def sorted_lines(data: bytes) -> bytes:
    return b"\r\n".join(sorted(data.split(b"\r\n")))


def test_what_is_sent_behind_a_call_that_waits_is_answered_behind_it(reference: Redis, embedded: Storage):
    for server in (reference, embedded):
        with server.connect() as waiter, server.connect() as other:
            waiter.send_raw(b"".join(encode("BLPOP", "q", 0) + encode("INCR", "n") for _ in range(100)))
            for number in range(100):
                other.ok("RPUSH", "q", number)
            replies = [reply.plain() for reply in waiter.read_many(200)]
            assert replies == [reply for number in range(100) for reply in ([b"q", b"%d" % number], number + 1)]
            other.ok("FLUSHALL")


def many(server: Redis, count: int) -> list[Connection]:
    return [server.connect() for _ in range(count)]


def test_many_that_wait_for_one_key_are_served_in_order(embedded: Storage):
    waiters = many(embedded, 500)
    with embedded.connect() as other:
        for waiter in waiters:
            waiter.send("BLPOP", "row", 0)
            other.ok("PING")
        until(lambda: b"blocked_clients:500" in other.ok("INFO", "clients"), "all of them wait")
        other.ok("RPUSH", "row", *range(500))
        assert [waiter.read().plain()[1] for waiter in waiters] == [b"%d" % number for number in range(500)]
        assert other.ok("EXISTS", "row") == 0
    for waiter in waiters:
        waiter.close()
