"""Tests of weir without any other server: with the embedded store as its backend."""

from __future__ import annotations

import random

import pytest

from harness import shapes
from harness.processes import Redis, Weir
from harness.shapes import Shape
from harness.waiting import until
from test_clients_python import client

# Tests of weir in front of Redis that must pass for the embedded store too, for its command families.
from test_clients_python import (  # noqa: F401
    test_a_pool_of_threads,
    test_bytes_stay_bytes,
    test_connection_commands,
    test_errors_are_the_clients_own,
    test_expiry,
    test_hashes,
    test_lists,
    test_many_keys_at_once,
    test_pipelines,
    test_redis_py_asyncio,
    test_scan_finds_every_key,
    test_sets,
    test_sorted_sets,
    test_strings,
    test_transactions,
)
from test_tools import test_redis_benchmark  # noqa: F401

pytestmark = pytest.mark.weir_only

ROWS = 100_000
SHAPES = shapes.load()
SHAPES_MIN = 190
# Fields that XINFO of the embedded store has from Redis 7.2, and the reference, of 7.0, has not.
LATER_FIELDS = {b"active-time", b"inactive"}


@pytest.fixture(scope="module")
def reference(module_servers) -> Redis:
    return module_servers.redis()


@pytest.fixture(scope="module")
def weir_over_redis(module_servers) -> Weir:
    """A weir with the embedded store, in the place of the fixture that test_clients_python and test_tools use."""
    return module_servers.weir(flags=["--shards", "2"])


@pytest.fixture(params=[None, 2, 3], ids=["default", "resp2", "resp3"])
def r(request, weir_over_redis):
    with client(weir_over_redis, request.param, decode_responses=True) as connected:
        connected.flushall()
        yield connected


def test_there_are_enough_shapes():
    assert len(SHAPES) >= SHAPES_MIN


@pytest.mark.parametrize("protocol", [2, 3], ids=["resp2", "resp3"])
@pytest.mark.parametrize("shape", SHAPES, ids=[shape.name for shape in SHAPES])
def test_replies_are_the_same_bytes(shape: Shape, protocol: int, reference: Redis, weir_over_redis: Weir):
    tag = f"embedded-{protocol}-{shape.family}-{shape.steps[0].line}".encode()
    differences = []
    with reference.connect(protocol=protocol) as direct, weir_over_redis.connect(protocol=protocol) as through:
        for step in shape.steps:
            for connection in (direct, through):
                connection.send_raw(step.request(tag))
            expected, found = direct.read(), through.read()
            if step.mark == "?" and "XINFO" in step.text:
                found = shapes.without_fields(found, LATER_FIELDS)
            if not shapes.agree(expected, found, step.mark):
                differences.append(
                    f"line {step.line}: {step.mark} {step.text}\n    redis: {expected}\n    weir:  {found}"
                )
    assert not differences, f"{shape.family}.shapes\n" + "\n".join(differences)


def test_sums_of_decimals_have_every_digit_of_redis(reference: Redis, weir_over_redis: Weir):
    rng = random.Random(1)

    def decimal(digits: int) -> str:
        places = rng.randint(0, digits)
        fraction = f".{rng.randrange(10**places):0{places}d}" if places else ""
        return f"{rng.choice(['', '-'])}{rng.randrange(10**digits)}{fraction}"

    requests = []
    for digits in (2, 4, 9, 15) * 250:
        requests += [("SET", "sum", decimal(digits)), ("INCRBYFLOAT", "sum", decimal(digits))]
        requests += [("HSET", "sums", "f", decimal(digits)), ("HINCRBYFLOAT", "sums", "f", decimal(digits))]
    with reference.connect() as direct, weir_over_redis.connect() as through:
        expected, found = direct.pipeline(requests), through.pipeline(requests)
    sums = [(request, reply.value) for request, reply in zip(requests, expected) if "INCR" in request[0]]
    # Most sums must show that Redis adds in binary, because otherwise the comparison proves nothing.
    assert sum(len(value) >= 18 for _, value in sums) > 1_000, "long sums are among them"
    differences = [
        f"{' '.join(request)}: redis {theirs}, weir {ours}"
        for request, theirs, ours in zip(requests, expected, found)
        if theirs.raw != ours.raw
    ]
    assert not differences, "\n".join(differences[:10])


def test_what_it_does_not_have_it_says(weir_over_redis: Weir):
    with weir_over_redis.connect() as connection:
        reply = connection.call("VCARD", "a")
        assert reply.is_error and "vcard" in reply.text.lower(), reply
        assert connection.ok("PING") == b"PONG"


def test_a_range_of_a_hundred_thousand_rows(weir_over_redis: Weir):
    with weir_over_redis.connect() as connection:
        connection.ok("DEL", "rows:l", "rows:z", "rows:h", "rows:s")
        for first in range(0, ROWS, 10_000):
            numbers = range(first, first + 10_000)
            connection.ok("RPUSH", "rows:l", *numbers)
            connection.ok("ZADD", "rows:z", *[word for number in numbers for word in (number, f"m{number}")])
            connection.ok("HSET", "rows:h", *[word for number in numbers for word in (f"f{number}", number)])
            connection.ok("SADD", "rows:s", *numbers)
        assert connection.ok("LRANGE", "rows:l", 0, -1) == [b"%d" % number for number in range(ROWS)]
        assert connection.ok("ZRANGE", "rows:z", 0, -1) == [b"m%d" % number for number in range(ROWS)]
        assert connection.ok("ZRANGEBYSCORE", "rows:z", 10, 19) == [b"m%d" % number for number in range(10, 20)]
        flat = connection.ok("HGETALL", "rows:h")
        assert dict(zip(flat[::2], flat[1::2])) == {b"f%d" % number: b"%d" % number for number in range(ROWS)}
        assert set(connection.ok("SMEMBERS", "rows:s")) == {b"%d" % number for number in range(ROWS)}


def test_keys_expire_and_give_back_their_memory(weir_over_redis: Weir):
    with weir_over_redis.connect() as connection:
        connection.ok("FLUSHALL")
        for i in range(2000):
            connection.ok("SET", f"brief:{i}", "v", "PX", 50)
        # No client reads these keys again, so they must be removed without that.
        until(lambda: connection.ok("DBSIZE") == 0, "all keys have expired")


def test_each_start_begins_empty(servers):
    weir = servers.weir()
    with weir.connect() as connection:
        connection.ok("SET", "a", "1")
    assert weir.terminate() == 0
    weir.start()
    with weir.connect() as connection:
        assert connection.ok("DBSIZE") == 0
