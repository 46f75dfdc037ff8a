"""Tests of keyspace events: a redis-server and the embedded store send the same messages in the same order.

Random requests of all families on a few keys, with notify-keyspace-events KEA at both; blocking calls; lifetimes that end; and
the setting and its limits.
"""

from __future__ import annotations

import random
import time

import pytest

from harness.processes import Storage, Weir
from harness.resp import Connection

pytestmark = pytest.mark.weir_only

SEEDS = 6
REQUESTS = 1500
# Requests that weir splits by the cores of their keys, so that the order of their events is open.
SPLIT = {"DEL", "UNLINK", "MSET", "EXISTS", "TOUCH"}

Words = list[str]


class Side:
    """A connection for requests and a subscriber, at one of the two servers."""

    def __init__(self, server, setting: str = "KEA") -> None:
        self.server = server
        self.asking: Connection = server.connect()
        self.listening: Connection = server.connect()
        self.asking.call("FLUSHALL")
        assert self.asking.call("CONFIG", "SET", "notify-keyspace-events", setting).text == "OK"
        self.listening.call("PSUBSCRIBE", "__key*__:*", "sync")
        self.listening.read()

    def told(self) -> list[bytes]:
        """Returns the channels and contents of the messages so far."""
        self.asking.call("PUBLISH", "sync", "now")
        messages = []
        while True:
            _, _, channel, content = self.listening.read().plain()
            if channel == b"sync":
                return messages
            messages.append(channel + b" " + content)

    def close(self) -> None:
        self.asking.call("CONFIG", "SET", "notify-keyspace-events", "")
        self.asking.close()
        self.listening.close()


class Maker:
    """Makes random requests whose effects do not depend on chance."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.entries = 0
        self.held = None

    def key(self) -> str:
        return self.random.choice("abcdef")

    def word(self) -> str:
        return self.random.choice(["1", "2", "3", "x", "y", "10"])

    def few(self, make=None) -> Words:
        return [(make or self.word)() for _ in range(self.random.randint(1, 3))]

    def request(self) -> Words:
        if self.held:
            words, self.held = self.held, None
            return words
        if self.random.random() < 0.06:
            return ["DEL", *self.few(self.key)]
        return self.random.choice([self.strings, self.strings, self.any, self.any, self.lists, self.lists, self.sets, self.hashes, self.sorted, self.sorted, self.streams, self.streams, self.scripts])()

    def strings(self) -> Words:
        key, word, n = self.key(), self.word(), str(self.random.randint(0, 40))
        return self.random.choice([
            ["SET", key, word], ["SET", key, word, "EX", "100"], ["SET", key, word, "NX"], ["SET", key, word, "XX", "GET"], ["SET", key, word, "KEEPTTL"], ["SETNX", key, word], ["SETEX", key, "100", word], ["PSETEX", key, "100000", word], ["GETSET", key, word],
            ["GETDEL", key], ["GETEX", key, "EX", "100"], ["GETEX", key, "PERSIST"], ["GETEX", key, "EXAT", "1"], ["MSET", key, word, self.key(), word], ["MSETNX", key, word, self.key(), word], ["APPEND", key, word], ["SETRANGE", key, n, word],
            ["INCR", key], ["DECRBY", key, n], ["INCRBYFLOAT", key, "1.5"], ["SETBIT", key, n, "1"], ["SETBIT", key, n, "0"], ["BITOP", "AND", key, self.key(), self.key()], ["BITOP", "NOT", key, "nothing"], ["BITFIELD", key, "SET", "u8", n, "7"], ["BITFIELD", key, "GET", "u8", n],
            ["BITFIELD", key, "INCRBY", "u4", "0", "1", "GET", "u4", "0"], ["PFADD", "p", word], ["PFADD", "q"], ["PFMERGE", "p", "q"], ["PFCOUNT", "p"], ["GET", key],
        ])  # fmt: skip

    def any(self) -> Words:
        key, other = self.key(), self.key()
        return self.random.choice([
            ["UNLINK", key, other], ["EXPIRE", key, "100"], ["EXPIRE", key, "-1"], ["PEXPIREAT", key, "1"], ["EXPIRE", key, "50", "GT"], ["PERSIST", key], ["RENAME", key, other], ["RENAMENX", key, other], ["COPY", key, other], ["COPY", key, other, "REPLACE"],
            ["COPY", key, other, "DB", "3"], ["MOVE", key, "3"], ["SORT", key, "ALPHA", "STORE", other], ["TOUCH", key], ["TYPE", key], ["SWAPDB", "0", "3"], ["SELECT", "3"], ["SELECT", "0"], ["SELECT", "0"], ["EXISTS", key, other], ["OBJECT", "ENCODING", key],
        ])  # fmt: skip

    def lists(self) -> Words:
        key, other, word = self.key(), self.key(), self.word()
        side, where = self.random.choice(["LEFT", "RIGHT"]), self.random.choice(["LEFT", "RIGHT"])
        return self.random.choice([
            ["LPUSH", key, *self.few()], ["RPUSH", key, *self.few()], ["RPUSH", key, *self.few()], ["LPUSHX", key, word], ["RPUSHX", key, word], ["LPOP", key], ["RPOP", key], ["LPOP", key, "2"], ["RPOP", key, "0"], ["LSET", key, "0", word], ["LSET", key, "9", word],
            ["LINSERT", key, "BEFORE", word, word], ["LREM", key, "0", word], ["LTRIM", key, "0", "1"], ["LTRIM", key, "5", "1"], ["LMOVE", key, other, side, where], ["LMOVE", key, key, side, where], ["RPOPLPUSH", key, other], ["LMPOP", "2", key, other, side, "COUNT", "2"],
            ["BLPOP", key, other, "0.001"], ["BLMOVE", key, other, side, where, "0.001"], ["BLMPOP", "0.001", "1", key, side], ["LRANGE", key, "0", "-1"],
        ])  # fmt: skip

    def sets(self) -> Words:
        key, other, word = self.key(), self.key(), self.word()
        return self.random.choice([
            ["SADD", key, *self.few()], ["SADD", key, *self.few()], ["SREM", key, *self.few()], ["SMOVE", key, other, word], ["SUNIONSTORE", key, other, self.key()], ["SINTERSTORE", key, other, self.key()], ["SDIFFSTORE", key, other, self.key()],
            ["SADD", "pool", *self.few()], ["SPOP", "pool", "9"], ["SPOP", "pool", "0"], ["SMEMBERS", key],
        ])  # fmt: skip

    def hashes(self) -> Words:
        key, word = self.key(), self.word()
        return self.random.choice([
            ["HSET", key, word, "1"], ["HSET", key, word, "1", self.word(), "2"], ["HMSET", key, word, "3"], ["HSETNX", key, word, "1"], ["HDEL", key, *self.few()], ["HINCRBY", key, word, "1"], ["HINCRBY", key, word, "x"], ["HINCRBYFLOAT", key, word, "0.5"], ["HINCRBYFLOAT", key, word, "x"], ["HGETALL", key],
        ])  # fmt: skip

    def sorted(self) -> Words:
        key, other, word = self.key(), self.key(), self.word()
        score = str(self.random.randint(0, 5))
        return self.random.choice([
            ["ZADD", key, score, word], ["ZADD", key, score, word, "3", self.word()], ["ZADD", key, "XX", score, word], ["ZADD", key, "NX", score, word], ["ZADD", key, "INCR", score, word], ["ZADD", key, "GT", "CH", score, word], ["ZINCRBY", key, score, word], ["ZINCRBY", key, "0", word], ["ZREM", key, *self.few()],
            ["ZPOPMIN", key], ["ZPOPMAX", key, "2"], ["ZPOPMIN", key, "0"], ["ZMPOP", "2", key, other, "MAX"], ["BZPOPMIN", key, "0.001"], ["BZMPOP", "0.001", "1", key, "MIN"], ["ZREMRANGEBYRANK", key, "0", "0"], ["ZREMRANGEBYSCORE", key, "0", score], ["ZREMRANGEBYLEX", "lex", "[1", "[2"], ["ZADD", "lex", "0", word],
            ["ZUNIONSTORE", key, "2", other, key], ["ZINTERSTORE", key, "2", other, key], ["ZDIFFSTORE", key, "2", other, key], ["ZRANGESTORE", key, other, "0", "1"], ["GEOADD", "g", "13.3", "38.1", word], ["GEOADD", "g", "XX", "13.3", "38.1", word],
            ["GEOSEARCHSTORE", key, "g", "FROMLONLAT", "13", "38", "BYRADIUS", "90", "km"], ["GEOSEARCHSTORE", key, "g", "FROMLONLAT", "90", "8", "BYRADIUS", "1", "km"], ["GEORADIUS", "g", "13", "38", "90", "km", "STORE", key], ["ZRANGE", key, "0", "-1"],
        ])  # fmt: skip

    def streams(self) -> Words:
        stream, group, consumer = self.random.choice("st"), self.random.choice("gh"), self.random.choice("uv")
        self.entries += 1
        last = f"{self.entries}-0"
        some = f"{self.random.randint(1, self.entries)}-0"
        words = self.random.choice([
            ["XADD", stream, last, "f", "v"], ["XADD", stream, last, "f", "v"], ["XADD", stream, "MAXLEN", "2", last, "f", "v"], ["XADD", stream, "NOMKSTREAM", last, "f", "v"], ["XADD", stream, "0-1", "f", "v"], ["XDEL", stream, some], ["XTRIM", stream, "MAXLEN", "3"], ["XSETID", stream, last],
            ["XGROUP", "CREATE", stream, group, "0"], ["XGROUP", "CREATE", stream, group, "$", "MKSTREAM"], ["XGROUP", "SETID", stream, group, "0"], ["XGROUP", "DESTROY", stream, group], ["XGROUP", "CREATECONSUMER", stream, group, consumer], ["XGROUP", "DELCONSUMER", stream, group, consumer],
            ["XREADGROUP", "GROUP", group, consumer, "COUNT", "1", "STREAMS", stream, ">"], ["XREADGROUP", "GROUP", group, consumer, "STREAMS", stream, "0"], ["XREADGROUP", "GROUP", group, consumer, "NOACK", "STREAMS", stream, ">"], ["XACK", stream, group, some], ["XCLAIM", stream, group, consumer, "0", some],
            ["XCLAIM", stream, group, consumer, "0", some, "FORCE"], ["XAUTOCLAIM", stream, group, consumer, "0", "0"], ["XLEN", stream],
        ])  # fmt: skip
        # Since Redis 7.2 these commands create the consumer in any case, and in 7.0 only where there are entries for it.
        if words[0] in ("XREADGROUP", "XCLAIM", "XAUTOCLAIM"):
            self.held = words
            return ["XGROUP", "CREATECONSUMER", stream, group, consumer]
        return words

    def scripts(self) -> Words:
        key, other, word = self.key(), self.key(), self.word()
        return self.random.choice([
            ["EVAL", "redis.call('SET', KEYS[1], 1) redis.call('EXPIRE', KEYS[1], 100) return redis.call('DEL', KEYS[2])", "2", key, other],
            ["EVAL", "return redis.pcall('HSET', KEYS[1], ARGV[1], 1)", "1", key, word],
            ["MULTI"], ["EXEC"], ["EXEC"],
        ])  # fmt: skip


def play(sides: list[Side], requests: list[Words]) -> list[str]:
    """Sends requests to both servers, one by one, and returns those whose messages differ."""
    different, queues = [], False
    for words in requests:
        for side in sides:
            side.asking.send(*words)
        replies = [side.asking.read() for side in sides]
        # A transaction would queue the PUBLISH that marks the end of a request's messages.
        queues = words[0] == "MULTI" or queues and words[0] != "EXEC"
        if queues:
            continue
        ours, theirs = (side.told() for side in sides)
        if words[0] in SPLIT and isinstance(sides[0].server, Weir):
            ours, theirs = sorted(ours), sorted(theirs)
        if ours != theirs:
            different.append(f"{words}: {replies[0]} {replies[1]}\n    ours   {ours}\n    theirs {theirs}")
    return different


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_requests_cause_the_same_messages(subject, model, seed):
    maker, sides = Maker(seed), [Side(subject), Side(model)]
    requests = [maker.request() for _ in range(REQUESTS)]
    if isinstance(subject, Weir):
        # Within transactions, weir refuses commands that reach another database, so it gets no transactions.
        requests = [words for words in requests if words[0] not in ("MULTI", "EXEC")]
    different = play(sides, [*requests, ["EXEC"]])
    for side in sides:
        side.close()
    assert not different, f"seed {seed}: {len(different)} differ:\n" + "\n".join(different[:20])


def test_keys_that_are_new_or_missed_are_told_of(subject, model):
    sides = [Side(subject, "KEAnm"), Side(model, "KEAnm")]
    different = play(sides, [
        ["GET", "a"], ["SET", "a", "1"], ["SET", "a", "2"], ["LPUSH", "l", "1"], ["LPUSH", "l", "1"], ["RENAME", "l", "m"], ["COPY", "m", "n"], ["HGET", "h", "f"], ["ZADD", "z", "XX", "1", "m"], ["HINCRBYFLOAT", "h", "f", "x"], ["DEL", "a"], ["SADD", "s", "1"], ["SREM", "s", "1"], ["APPEND", "x", "1"],
    ])  # fmt: skip
    for side in sides:
        side.close()
    assert not different, "\n".join(different)


@pytest.mark.parametrize(
    ("waiting", "ready"),
    [
        (["BLPOP", "l", "9"], ["RPUSH", "l", "1"]),
        (["BLPOP", "l", "9"], ["RPUSH", "l", "1", "2"]),
        (["BRPOP", "l", "9"], ["LPUSH", "l", "1"]),
        (["BLMOVE", "l", "m", "LEFT", "RIGHT", "9"], ["RPUSH", "l", "1"]),
        (["BRPOPLPUSH", "l", "l", "9"], ["RPUSH", "l", "1"]),
        (["BLMPOP", "9", "2", "k", "l", "LEFT", "COUNT", "5"], ["RPUSH", "l", "1", "2"]),
        (["BZPOPMIN", "z", "9"], ["ZADD", "z", "1", "m"]),
        (["BZMPOP", "9", "1", "z", "MAX", "COUNT", "2"], ["ZADD", "z", "1", "m", "2", "n", "3", "o"]),
        (["XREADGROUP", "GROUP", "g", "c", "BLOCK", "9000", "STREAMS", "s", ">"], ["XADD", "s", "2-1", "f", "v"]),
        (["BLPOP", "l", "9"], ["EVAL", "redis.call('RPUSH', 'l', 1) return redis.call('SET', 'k', 1)", "0"]),
    ],
)
def test_calls_that_waited_cause_the_same_messages(subject, model, waiting, ready):
    told = []
    for server in (subject, model):
        side = Side(server)
        side.asking.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
        side.asking.call("XGROUP", "CREATECONSUMER", "s", "g", "c")
        side.told()
        with server.connect() as waiter:
            waiter.send(*waiting)
            until_blocked(side.asking)
            side.asking.call(*ready)
            waiter.read()
        told.append(side.told())
        side.close()
    assert told[0] == told[1]


def until_blocked(connection: Connection) -> None:
    for _ in range(1000):
        if b"blocked_clients:1\r" in connection.call("INFO", "clients").value:
            return
        time.sleep(0.005)
    raise AssertionError("nobody waits")


def test_keys_that_expire_are_told_of(subject, model):
    told = []
    for server in (subject, model):
        side = Side(server, "Ex")
        for number in range(20):
            side.asking.call("SET", f"k{number}", "v", "PX", "30")
        side.asking.call("SELECT", "3")
        side.asking.call("SET", "other", "v", "PX", "30")
        messages: list[bytes] = []
        deadline = time.monotonic() + 10
        while len(messages) < 21 and time.monotonic() < deadline:
            side.asking.call("GET", "other")
            messages += side.told()
        told.append(sorted(messages))
        side.close()
    assert told[0] == told[1]
    assert len(told[0]) == 21


def test_the_setting_is_spelled_as_by_redis(subject, model):
    with subject.connect() as ours, model.connect() as theirs:
        for setting in ("KEA", "", "x", "q", "Kx?", "AKE", "gxKEnm", "Am", "AnmKE", "g$lshzxetd", "g$lshzxet", "dKE", "E", "n", "m", "KEx$", "kea"):
            for words in (["CONFIG", "SET", "notify-keyspace-events", setting], ["CONFIG", "GET", "notify-keyspace-events"]):
                assert ours.call(*words).raw == theirs.call(*words).raw, words
        words = ["CONFIG", "SET", "notify-keyspace-events", "KEA", "notify-keyspace-events", "x"]
        assert ours.call(*words).raw == theirs.call(*words).raw


def test_patterns_of_stars_leave_out_the_empty_channel(subject, model):
    def heard(server, pattern: str) -> list[bytes]:
        with server.connect() as listener, server.connect() as talker:
            listener.call("PSUBSCRIBE", pattern)
            replies = [talker.call("PUBLISH", channel, "x").raw for channel in ("", "a")]
            # Messages may come before the reply.
            listener.send("SUBSCRIBE", "")
            heard = [listener.read().raw]
            while b"subscribe" not in heard[-1]:
                heard.append(listener.read().raw)
            replies += [talker.call("PUBSUB", "CHANNELS", asked).raw for asked in ("", "*", "**")]
            listener.send_raw(b"*1\r\n$4\r\nPING\r\n")
            while b"pong" not in heard[-1]:
                heard.append(listener.read().raw)
        return replies + heard

    for pattern in ("*", "**", "", "?", "a*", "[^b]"):
        assert heard(subject, pattern) == heard(model, pattern), pattern


def test_a_subscriber_that_asks_in_resp3_hears_of_its_own_changes(subject, model):
    replies = []
    for server in (subject, model):
        with server.connect(protocol=3) as connection:
            connection.call("CONFIG", "SET", "notify-keyspace-events", "KEA")
            connection.call("FLUSHALL")
            connection.call("PSUBSCRIBE", "__key*__:*")
            connection.send("SET", "k", "v", "EX", "100")
            replies.append(sorted(connection.read().raw for _ in range(5)))
            connection.call("CONFIG", "SET", "notify-keyspace-events", "")
    assert replies[0] == replies[1]


def test_patterns_of_many_cannot_hold_the_store():
    server = Storage("--scriptable=false").start()
    try:
        with server.connect(timeout=60.0) as listening, server.connect(timeout=60.0) as asking:
            asking.call("CONFIG", "SET", "notify-keyspace-events", "KEA")
            for first in range(0, 20_000, 1000):
                listening.send("PSUBSCRIBE", *[f"*{number}*a*b*c" for number in range(first, first + 1000)])
                for _ in range(1000):
                    listening.read()
            asking.call("MSET", *[word for number in range(20_000) for word in (f"key:{number}", "v")])
            started = time.monotonic()
            assert asking.call("DEL", *[f"key:{number}" for number in range(20_000)]).raw == b":20000\r\n"
            assert time.monotonic() - started < 5.0
            stats = asking.call("INFO", "stats").value.decode()
            assert int(stats.split("keyspace_events_dropped:")[1].split("\r")[0]) > 0
            # The steps for events do not end the script that causes them.
            script = "for number = 1, 1000 do redis.call('SET', 'k' .. number, 'v') end return 'done'"
            assert asking.call("EVAL", script, "0").raw == b"$4\r\ndone\r\n"
            assert asking.call("DBSIZE").raw == b":1000\r\n"
    finally:
        server.discard()
