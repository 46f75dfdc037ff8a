"""Tests with redis-py and coredis in their default settings, through whole command families."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor

import coredis
import pytest
import redis
from harness.processes import Redis
from redis.exceptions import NoScriptError, ResponseError

FAMILY_KEYS = 500


def client(weir, protocol: int | None = None, **options) -> redis.Redis:
    """A client with default settings, unless a protocol is asked for."""
    if protocol is not None:
        options["protocol"] = protocol
    return redis.Redis(host="127.0.0.1", port=weir.port, socket_timeout=30, **options)


def empty(weir) -> None:
    """Empties the stores behind weir directly."""
    for store in [*weir.backends, *([weir] if isinstance(weir, Redis) else [])]:
        with store.connect() as connection:
            connection.ok("FLUSHALL")


@pytest.fixture(params=[None, 2, 3], ids=["default", "resp2", "resp3"])
def r(request, weir_over_redis):
    """A client with decoded replies, on empty stores."""
    empty(weir_over_redis)
    with client(weir_over_redis, request.param, decode_responses=True) as connected:
        yield connected


def test_strings(r):
    assert r.set("s", "v") is True
    assert r.get("s") == "v"
    assert r.set("s", "w", nx=True) is None
    assert r.set("s", "w", get=True) == "v"
    assert r.getset("s", "x") == "w"
    assert r.append("s", "yz") == 3
    assert r.strlen("s") == 3
    assert r.getrange("s", 1, 2) == "yz"
    assert r.setrange("s", 1, "--") == 3
    assert r.getdel("s") == "x--"
    assert r.get("s") is None
    assert [r.incr("n"), r.incrby("n", 5), r.decr("n"), r.decrby("n", 2)] == [1, 6, 5, 3]
    assert r.incrbyfloat("f", 1.5) == 1.5
    assert r.setnx("x", 1) and not r.setnx("x", 2)
    assert r.setex("e", 100, "v") and r.psetex("p", 100_000, "v")
    assert r.getex("e", persist=True) == "v" and r.ttl("e") == -1


def test_many_keys_at_once(r):
    values = {f"many:{i}": f"value-{i}" for i in range(FAMILY_KEYS)}
    assert r.mset(values) is True
    names = list(values)
    random.Random(1).shuffle(names)
    assert r.mget(names) == [values[name] for name in names]
    assert r.mget("many:1", "absent", "many:2") == ["value-1", None, "value-2"]
    assert r.exists(*names, "absent", names[0]) == FAMILY_KEYS + 1
    assert r.touch(*names) == FAMILY_KEYS
    assert r.delete(*names[:100], "absent") == 100
    assert r.unlink(*names[100:]) == FAMILY_KEYS - 100
    assert r.exists(*names) == 0


def test_expiry(r):
    r.set("e", "v")
    assert r.ttl("e") == -1 and r.ttl("absent") == -2
    assert r.expire("e", 100) and 98 <= r.ttl("e") <= 100
    assert r.pexpire("e", 50_000) and 48_000 < r.pttl("e") <= 50_000
    assert r.expireat("e", 4_102_444_800) and r.expiretime("e") == 4_102_444_800
    assert r.persist("e") and not r.persist("e")


def test_keys(r):
    r.set("{k}a", "v")
    assert r.rename("{k}a", "{k}b")
    assert r.renamenx("{k}b", "{k}c")
    assert r.copy("{k}c", "{k}d")
    assert r.type("{k}d") == "string"
    assert r.object("encoding", "{k}d") == "embstr"
    r.rpush("{k}s", 3, 1, 2)
    assert r.sort("{k}s", desc=True) == ["3", "2", "1"]
    with pytest.raises(ResponseError, match="no such key"):
        r.rename("{k}none", "{k}b")
    raw = redis.Redis(host="127.0.0.1", port=r.connection_pool.connection_kwargs["port"])
    dumped = raw.dump("{k}d")
    assert raw.restore("{k}e", 0, dumped) and r.get("{k}e") == "v"
    raw.close()


def test_hashes(r):
    assert r.hset("h", mapping={"a": 1, "b": "two", "c": 3}) == 3
    assert r.hget("h", "b") == "two"
    assert r.hmget("h", "a", "none", "c") == ["1", None, "3"]
    assert r.hgetall("h") == {"a": "1", "b": "two", "c": "3"}
    assert r.hincrby("h", "a", 4) == 5 and r.hincrbyfloat("h", "c", 0.5) == 3.5
    assert sorted(r.hkeys("h")) == ["a", "b", "c"] and len(r.hvals("h")) == r.hlen("h") == 3
    assert r.hexists("h", "a") and r.hstrlen("h", "b") == 3
    assert r.hdel("h", "a", "none") == 1 and not r.hsetnx("h", "b", 0)
    assert dict(r.hscan_iter("h")) == {"b": "two", "c": "3.5"}
    assert r.hrandfield("h", 10, withvalues=False) is not None


def test_lists(r):
    assert r.rpush("l", *range(10)) == 10
    assert r.lpush("l", "first") == 11
    assert r.lrange("l", 0, 2) == ["first", "0", "1"]
    assert r.lindex("l", -1) == "9" and r.llen("l") == 11
    assert r.lpop("l") == "first" and r.rpop("l", 2) == ["9", "8"]
    assert r.linsert("l", "before", "3", "x") == 9 and r.lpos("l", "x") == 3
    assert r.lrem("l", 1, "x") == 1 and r.lset("l", 0, "zero") and r.ltrim("l", 0, 3)
    assert r.lrange("l", 0, -1) == ["zero", "1", "2", "3"]
    r.rpush("{l}a", 1, 2)
    assert r.lmove("{l}a", "{l}b") == "1"
    assert r.rpoplpush("{l}a", "{l}b") == "2"
    assert r.lrange("{l}b", 0, -1) == ["2", "1"]


def test_pops_from_the_first_that_has_some(r):
    r.rpush("{mpop}l", 1, 2, 3)
    r.zadd("{mpop}z", {"a": 1, "b": 2})
    assert r.lmpop(2, "{mpop}none", "{mpop}l", direction="LEFT", count=2) == ["{mpop}l", ["1", "2"]]
    name, members = r.zmpop(2, ["{mpop}none", "{mpop}z"], min=True)
    assert name == "{mpop}z" and [member[0] for member in members] == ["a"]


def test_sets(r):
    assert r.sadd("{s}a", 1, 2, 3) == 3 and r.sadd("{s}b", 2, 3, 4) == 3
    assert r.smembers("{s}a") == {"1", "2", "3"}
    assert r.sismember("{s}a", 1) and r.smismember("{s}a", [1, 9]) == [1, 0]
    assert set(r.sinter("{s}a", "{s}b")) == {"2", "3"} and set(r.sunion("{s}a", "{s}b")) == {"1", "2", "3", "4"}
    assert set(r.sdiff("{s}a", "{s}b")) == {"1"} and r.sintercard(2, ["{s}a", "{s}b"]) == 2
    assert r.sinterstore("{s}c", "{s}a", "{s}b") == 2 and r.smove("{s}a", "{s}b", 1)
    assert r.scard("{s}b") == 4 and r.srem("{s}b", 1, 9) == 1
    assert set(r.sscan_iter("{s}b")) == {"2", "3", "4"}
    assert r.spop("{s}c") in {"2", "3"} and r.srandmember("{s}b") in {"2", "3", "4"}


def test_sorted_sets(r):
    assert r.zadd("{z}a", {"a": 1, "b": 2.5, "c": 3}) == 3
    assert r.zscore("{z}a", "b") == 2.5 and r.zmscore("{z}a", ["a", "none"]) == [1.0, None]
    assert r.zrange("{z}a", 0, -1) == ["a", "b", "c"]
    assert [tuple(pair) for pair in r.zrange("{z}a", 0, -1, withscores=True)] == [("a", 1), ("b", 2.5), ("c", 3)]
    assert r.zrangebyscore("{z}a", 2, "+inf") == ["b", "c"] and r.zcount("{z}a", 1, 2.5) == 2
    assert r.zrank("{z}a", "c") == 2 and r.zrevrank("{z}a", "c") == 0 and r.zincrby("{z}a", 2, "a") == 3.0
    r.zadd("{z}b", {"c": 10, "d": 20})
    assert r.zunionstore("{z}u", ["{z}a", "{z}b"]) == 4 and r.zinterstore("{z}i", ["{z}a", "{z}b"]) == 1
    assert r.zscore("{z}i", "c") == 13.0
    assert len(r.zpopmin("{z}u")) >= 1 and r.zcard("{z}u") == 3 and r.zrem("{z}u", "c") == 1
    assert dict(r.zscan_iter("{z}b")) == {"c": 10.0, "d": 20.0}


def test_streams(r):
    first = r.xadd("{x}s", {"a": 1})
    second = r.xadd("{x}s", {"b": 2})
    assert r.xlen("{x}s") == 2
    assert [entry[0] for entry in r.xrange("{x}s")] == [first, second]
    assert r.xread({"{x}s": 0}, count=1)
    assert r.xgroup_create("{x}s", "g", id=0)
    assert r.xreadgroup("g", "c", {"{x}s": ">"})
    assert r.xpending("{x}s", "g")["pending"] == 2
    assert r.xack("{x}s", "g", first) == 1
    assert r.xinfo_stream("{x}s")["length"] == 2 and r.xinfo_groups("{x}s")[0]["name"] == "g"
    assert r.xtrim("{x}s", maxlen=1, approximate=False) == 1 and r.xdel("{x}s", second) == 1


def test_bits_counts_and_places(r):
    assert r.setbit("b", 7, 1) == 0 and r.getbit("b", 7) == 1 and r.bitcount("b") == 1 and r.bitpos("b", 1) == 7
    assert r.bitfield("bf").set("u8", 0, 200).get("u8", 0).execute() == [0, 200]
    assert r.pfadd("{p}a", 1, 2, 3) == 1 and r.pfcount("{p}a") == 3 and r.pfmerge("{p}b", "{p}a")
    assert r.geoadd("g", (13.361389, 38.115556, "Palermo", 15.087269, 37.502669, "Catania")) == 2
    assert 166 < r.geodist("g", "Palermo", "Catania", unit="km") < 167
    assert r.geosearch("g", longitude=15, latitude=37, radius=100, unit="km") == ["Catania"]


def test_scripts(r):
    script = r.register_script("return {KEYS[1], redis.call('INCRBY', KEYS[1], ARGV[1])}")
    assert script(keys=["{e}n"], args=[7]) == ["{e}n", 7]
    assert script(keys=["{e}n"], args=[7]) == ["{e}n", 14]
    assert r.eval("return redis.call('GET', KEYS[1])", 1, "{e}n") == "14"
    with pytest.raises(NoScriptError):
        r.evalsha("f" * 40, 1, "{e}n")


def test_transactions(r):
    with r.pipeline(transaction=True) as pipe:
        pipe.set("{t}a", 1).incr("{t}a").get("{t}a").hset("{t}h", "f", "v").hgetall("{t}h")
        assert pipe.execute() == [True, 2, "2", 1, {"f": "v"}]
    with r.pipeline(transaction=True) as pipe:
        pipe.set("{t}s", "text").incr("{t}s").set("{t}b", 1)
        with pytest.raises(ResponseError, match="not an integer"):
            pipe.execute()
    assert r.get("{t}b") == "1"


def test_pipelines(r):
    with r.pipeline(transaction=False) as pipe:
        for i in range(FAMILY_KEYS):
            pipe.set(f"pipe:{i}", i)
            pipe.incr(f"pipe:{i}")
            pipe.get(f"pipe:{i}")
        replies = pipe.execute()
    assert replies == [reply for i in range(FAMILY_KEYS) for reply in (True, i + 1, str(i + 1))]


def test_scan_finds_every_key(r):
    names = {f"scan:{i}" for i in range(FAMILY_KEYS)} | {"{tag}scan", "other"}
    with r.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.set(name, 1)
        pipe.execute()
    assert set(r.scan_iter()) == names
    assert set(r.scan_iter(match="scan:*", count=7)) == {name for name in names if name.startswith("scan:")}
    assert set(r.scan_iter(count=100_000)) == names
    assert set(r.scan_iter(_type="hash")) == set()
    assert set(r.keys("*")) == names
    assert r.dbsize() == len(names)
    assert r.flushdb() and r.dbsize() == 0


def test_errors_are_the_clients_own(r):
    r.set("e", "text")
    with pytest.raises(ResponseError, match="not an integer"):
        r.incr("e")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        r.lpush("e", 1)
    with pytest.raises(ResponseError, match="unknown command"):
        r.execute_command("NOSUCHCOMMAND", "x")
    assert r.get("e") == "text", "the connection is still good"


def test_connection_commands(r):
    assert r.ping() is True
    assert r.echo("hello") == "hello"
    assert isinstance(r.client_id(), int)
    assert r.client_setname("tester") and r.client_getname() == "tester"
    assert r.client_info()
    assert len(r.time()) == 2
    assert r.info()["redis_version"]
    assert r.config_get("maxmemory") is not None
    assert r.command_count() > 100


def test_commands_about_the_server_in_a_transaction(r):
    """The pipelines of redis-py are transactions unless told otherwise."""
    r.set("counted", 1)
    with r.pipeline() as pipe:
        pipe.info().incr("counted").client_list().info("server").client_info()
        everything, counted, clients, server, own = pipe.execute()
    assert everything["redis_version"] == server["redis_version"] and "connected_clients" in everything
    assert counted == 2
    assert str(own["id"]) in [line["id"] for line in clients]


def test_wait_does_not_wait_in_a_transaction(servers):
    with client(servers.weir(servers.redis())) as r, r.pipeline() as pipe:
        assert pipe.set("k", 1).wait(3, 0).execute() == [True, 0]


def test_bytes_stay_bytes(weir_over_redis):
    every_byte = bytes(range(256)) * 10
    with client(weir_over_redis) as raw:
        assert raw.set(every_byte, every_byte)
        assert raw.get(every_byte) == every_byte
        assert raw.hset(b"bytes\r\n", every_byte, every_byte) in (0, 1)
        assert raw.hgetall(b"bytes\r\n") == {every_byte: every_byte}


def test_a_pool_of_threads(weir_over_redis):
    """One pool shared by threads, as web servers use it."""
    with client(weir_over_redis, decode_responses=True) as shared:

        def work(worker: int) -> list:
            wrong = []
            for i in range(200):
                name, value = f"pool:{worker}:{i}", f"{worker}/{i}"
                shared.set(name, value)
                if (found := shared.get(name)) != value:
                    wrong.append((name, value, found))
            return wrong

        with ThreadPoolExecutor(8) as pool:
            assert [wrong for wrongs in pool.map(work, range(8)) for wrong in wrongs] == []


def test_redis_py_asyncio(weir_over_redis):
    async def work() -> None:
        async with redis.asyncio.Redis(host="127.0.0.1", port=weir_over_redis.port, decode_responses=True) as shared:

            async def one(i: int) -> None:
                await shared.set(f"async:{i}", i)
                assert await shared.get(f"async:{i}") == str(i)

            await asyncio.gather(*(one(i) for i in range(100)))
            async with shared.pipeline(transaction=True) as pipe:
                assert await pipe.set("{async}a", 1).incr("{async}a").execute() == [True, 2]

    asyncio.run(work())


def test_coredis(weir_over_redis):
    async def work() -> None:
        shared = coredis.Redis(host="127.0.0.1", port=weir_over_redis.port, decode_responses=True)
        async with shared:
            assert await shared.set("co:a", "1") and await shared.get("co:a") == "1"
            assert await shared.incr("co:a") == 2
            await shared.delete(["co:h", "co:z", "co:s", "co:l"])
            await shared.hset("co:h", {"f": "v"})
            assert await shared.hgetall("co:h") == {"f": "v"}
            await shared.zadd("co:z", {"m": 1.5})
            assert await shared.zscore("co:z", "m") == 1.5
            await shared.sadd("co:s", ["x", "y"])
            assert set(await shared.smembers("co:s")) == {"x", "y"}
            await shared.rpush("co:l", ["a", "b"])
            assert list(await shared.lrange("co:l", 0, -1)) == ["a", "b"]
            assert list(await shared.mget(["co:a", "co:none"])) == ["2", None]
            async with shared.pipeline(transaction=False) as pipe:
                answers = [pipe.set(f"co:{i}", str(i)) for i in range(50)]
            assert len([await answer for answer in answers]) == 50

    asyncio.run(work())
