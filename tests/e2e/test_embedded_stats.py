"""Tests of the statistics of commands and errors: the embedded store counts as redis-server does."""

from __future__ import annotations

import re

import pytest

from harness.processes import Storage
from harness.resp import encode

pytestmark = pytest.mark.weir_only

LINES = [
    "SET text value", "GET text", "GET", "INCR text", "INCR a b", "LPUSH text x", "NOSUCH", "CLIENT ID", "CLIENT SETNAME", "CLIENT NOSUCH", "MULTI", "SET text 1", "INCR text", "LPUSH text 1",
    "EXEC", "MULTI", "GET", "EXEC", "EXEC", "XADD s 1-1 f v", "XGROUP CREATECONSUMER s g c", "EVALSHA x 0", "GEOADD text 0 0 m", "EXPIRE text 0", "OBJECT ENCODING nothing",
]  # fmt: skip
# Requests by the type of their keys: in each, K stands for a key of that type, for one that is missing, and for one of another
# type.
LOOK_UPS = {
    "s": "GET K|GETEX K|GETEX K EX 100|GETDEL K|GETSET K v|SET K v|SET K v GET|SET K v NX|SET K v XX GET|SETNX K v|SETEX K 100 v|APPEND K v|STRLEN K|INCR K|INCRBYFLOAT K 1.5|GETRANGE K 0 1|SETRANGE K 1 x|GETBIT K 1|SETBIT K 1 1|BITCOUNT K|BITPOS K 1|BITFIELD K GET u8 0|BITFIELD K SET u8 0 1|BITFIELD_RO K GET u8 0|MGET K K|MSET K v K w|MSETNX K v K w|LCS K K|BITOP OR K K K|TTL K|PTTL K|EXPIRETIME K|PEXPIRETIME K|EXPIRE K 100|PERSIST K|TYPE K|EXISTS K K|TOUCH K K|DEL K|UNLINK K|DUMP K|OBJECT ENCODING K|OBJECT IDLETIME K|OBJECT REFCOUNT K|OBJECT FREQ K|MEMORY USAGE K|MOVE K 1|RENAME K d|RENAMENX K d|COPY K d|COPY K d DB 1",
    "l": "LLEN K|LRANGE K 0 -1|LINDEX K 0|LPOS K a|LPUSH K v|LPUSHX K v|LPOP K|RPOP K 2|LSET K 0 v|LREM K 0 a|LTRIM K 0 0|LINSERT K BEFORE a b|SORT K ALPHA|SORT_RO K ALPHA|SORT K ALPHA STORE d|LMPOP 2 K l2 LEFT|BLMPOP 0.01 1 K LEFT|BLPOP K 0.01|BRPOP K l2 0.01|LMOVE K l2 LEFT RIGHT|LMOVE l2 K LEFT RIGHT|RPOPLPUSH K K|BLMOVE K l2 LEFT RIGHT 0.01|BRPOPLPUSH K l2 0.01",
    "h": "HGET K f|HMGET K f g|HGETALL K|HKEYS K|HVALS K|HLEN K|HEXISTS K f|HSTRLEN K f|HRANDFIELD K|HRANDFIELD K 2|HSCAN K 0|HSET K f v|HSETNX K f v|HMSET K f v|HDEL K f|HINCRBY K n 1|HINCRBYFLOAT K n 1.5",
    "t": "SADD K a|SREM K a|SMEMBERS K|SCARD K|SISMEMBER K a|SMISMEMBER K a b|SPOP K|SPOP K 2|SRANDMEMBER K|SRANDMEMBER K 2|SSCAN K 0|SMOVE K t2 a|SMOVE t2 K a|SINTER K t2|SINTER t2 K|SUNION K t2|SDIFF t2 K|SINTERCARD 2 K t2|SINTERSTORE d t2 K|SUNIONSTORE K K t2|SDIFFSTORE d K t2",
    "z": "ZADD K 1 a|ZADD K INCR 1 a|ZINCRBY K 1 a|ZREM K a|ZSCORE K a|ZMSCORE K a b|ZCARD K|ZCOUNT K 0 9|ZLEXCOUNT K - +|ZRANK K a|ZREVRANK K a|ZRANGE K 0 -1|ZRANGE K 0 9 BYSCORE|ZRANGEBYLEX K - +|ZREMRANGEBYRANK K 0 0|ZREMRANGEBYSCORE K 0 1|ZPOPMIN K|ZPOPMAX K 2|BZPOPMIN K 0.01|BZPOPMAX K z2 0.01|ZMPOP 2 K z2 MIN|BZMPOP 0.01 1 K MIN|ZRANDMEMBER K|ZRANDMEMBER K 2|ZSCAN K 0|GEOADD K 13.3 38.1 p|GEOPOS K p|GEOHASH K p|GEODIST K p q|GEOSEARCH K FROMLONLAT 15 37 BYRADIUS 200 km|GEORADIUS K 15 37 200 km|GEORADIUS K 15 37 200 km STORE d|GEOSEARCHSTORE d K FROMLONLAT 15 37 BYRADIUS 200 km|ZRANGESTORE d K 0 -1|ZUNION 2 K z2|ZINTER 2 z2 K|ZDIFF 2 K z2|ZINTERCARD 2 K z2|ZUNIONSTORE d 2 K z2|ZINTERSTORE K 2 z2 K|ZDIFFSTORE d 2 z2 K",
    "p": "PFADD K a|PFADD K|PFCOUNT K|PFCOUNT K p2|PFMERGE K p2|PFMERGE p2 K|PFDEBUG ENCODING K|PFDEBUG GETREG K|PFDEBUG TODENSE K",
    "x": "XADD K * f v|XADD K NOMKSTREAM * f v|XLEN K|XRANGE K - +|XREVRANGE K + -|XDEL K 1-1|XTRIM K MAXLEN 1|XREAD STREAMS K 0|XREAD STREAMS K x2 $ 0|XREAD BLOCK 10 STREAMS K $|XREADGROUP GROUP g c STREAMS K >|XREADGROUP GROUP g c STREAMS K x2 0 >|XREADGROUP GROUP nog c STREAMS K >|XREADGROUP GROUP g c BLOCK 10 STREAMS K >|XACK K g 1-1|XPENDING K g|XPENDING K g - + 10|XCLAIM K g c 0 1-1|XAUTOCLAIM K g c 0 0|XGROUP CREATE K new $|XGROUP CREATE K new $ MKSTREAM|XGROUP SETID K g 0|XGROUP DESTROY K g|XGROUP CREATECONSUMER K g d|XGROUP DELCONSUMER K g c|XINFO STREAM K|XINFO GROUPS K|XINFO CONSUMERS K g|XSETID K 9-9",
}  # fmt: skip
KEYS = [
    "FLUSHALL", *(line.format(n) for n in (1, 2) for line in ["SET s{} 12", "RPUSH l{} a b c", "HSET h{} f v g w n 1", "SADD t{} a b c", "ZADD z{} 1 a 2 b 3 c", "XADD x{} 1-1 f v", "XADD x{} 1-2 f v", "XGROUP CREATE x{} g 0", "XREADGROUP GROUP g c COUNT 1 STREAMS x{} >"]),
    "PFADD p1 a b", "PFADD p2 a b",
]  # fmt: skip
SCRIPTS = [
    "return redis.call('incr', 'text2', 'x')", "redis.call('set', 'text2', 'x') return redis.pcall('incr', 'text2')", "return redis.call('nosuch')",
    "return redis.error_reply('MINE words')", "return redis.error_reply('')", "return {err = 'OTHER words'}", "local r = redis.pcall('lpush', 'text2', 1) return 1", "error('own')",
]  # fmt: skip


def figures(connection) -> tuple[dict[str, str], dict[str, str]]:
    """Returns calls, rejections and failures by command, and the number of errors by code."""
    text = connection.call("INFO", "commandstats", "errorstats").value.decode()
    commands = {}
    for name, calls, rest in re.findall(r"cmdstat_([^:]+):calls=(\d+),usec=\d+,usec_per_call=[\d.]+,(\S+)", text):
        commands[name] = f"{calls},{rest}"
    return commands, dict(re.findall(r"errorstat_([^:]+):count=(\d+)", text))


def test_what_is_counted_is_the_same(model):
    store = Storage("--scriptable=false").start()
    try:
        shown = []
        for server in (store, model):
            with server.connect() as connection:
                connection.call("FLUSHALL")
                connection.ok("CONFIG", "RESETSTAT")
                for line in LINES:
                    connection.call(*line.split())
                for script in SCRIPTS:
                    connection.call("EVAL", script, "0")
                connection.call("EVAL_RO", "return redis.call('set', 'a', 'b')", "0")
                shown.append(figures(connection))
                names = connection.call("LATENCY", "HISTOGRAM").plain()[::2]
                calls = [connection.call("LATENCY", "HISTOGRAM", name).plain()[1][1] for name in (b"set", b"client|id")]
                shown[-1] += (sorted(names), calls)
                assert connection.call("LATENCY", "HISTOGRAM", "client").plain()[0] == b"client|id"
        for ours, theirs in zip(*shown, strict=True):
            assert ours == theirs
    finally:
        store.discard()


def look_ups(connection, listener, request: list[str]) -> tuple[str, list]:
    """Returns the hits and misses of a request, and the keys that it missed as keyspace events tell them."""
    connection.send_raw(b"".join(encode(*line.split()) for line in [*KEYS, "CONFIG RESETSTAT"]))
    for _ in [*KEYS, "CONFIG RESETSTAT"]:
        connection.read()
    missed_since(listener)
    connection.call(*request)
    text = connection.call("INFO", "stats").value.decode()
    counts = re.search(r"keyspace_hits:\d+\r\nkeyspace_misses:\d+", text)[0]
    return counts.replace("\r\n", " "), missed_since(listener)


def missed_since(listener) -> list:
    """Returns the keys of the events that have come since the last call."""
    listener.send_raw(encode("PING"))
    events = []
    while (message := listener.read().plain())[0] != b"pong":
        events.append(message[3])
    return events


@pytest.mark.parametrize("kind", LOOK_UPS)
def test_reads_alone_count_as_hits_and_misses(subject, model, kind):
    different = []
    other = "l1" if kind == "s" else "s1"
    with subject.connect() as ours, model.connect() as theirs, subject.connect() as told, model.connect() as heard:
        for connection in (ours, theirs):
            connection.ok("CONFIG", "SET", "notify-keyspace-events", "Em")
        for connection in (told, heard):
            connection.call("PSUBSCRIBE", "__keyevent@0__:*")
        for template in LOOK_UPS[kind].split("|"):
            for key in (f"{kind}1", "missing", other):
                request = [key if word == "K" else word for word in template.split()]
                found, expected = look_ups(ours, told, request), look_ups(theirs, heard, request)
                if found != expected:
                    different.append(f"{' '.join(request)}: ours {found}, theirs {expected}")
        theirs.ok("CONFIG", "SET", "notify-keyspace-events", "")
        ours.ok("CONFIG", "SET", "notify-keyspace-events", "")
    assert not different, "\n".join(different)


def test_times_are_shown_by_percentile():
    store = Storage("--scriptable=false").start()
    try:
        with store.connect() as connection:
            connection.call("EVAL", "for i = 1, 3000000 do end", "0")
            text = connection.call("INFO", "all").value.decode()
            found = re.search(r"latency_percentiles_usec_eval:p50=([\d.]+),p99=([\d.]+),p99\.9=([\d.]+)", text)
            assert found and float(found[1]) > 1_000
            assert int(re.search(r"cmdstat_eval:calls=1,usec=(\d+)", text)[1]) > 1_000
    finally:
        store.discard()
