"""Tests of fairness: the embedded store is one thread behind a few connections that all tenants share, and no client stops the
others or costs them a link.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from harness.processes import Weir
from harness.resp import Connection, encode

pytestmark = [pytest.mark.weir_only, pytest.mark.alone]

MEBIBYTE = 1 << 20


@pytest.fixture
def weir(servers) -> Weir:
    # All clients share one shard and one connection to the store. The output limit is high, because these tests are not about
    # replies that a slow client leaves in weir.
    flags = ["--shards", "1", "--backend-connections", "1", "--output-limit", "1GiB"]
    return servers.weir(storage="embedded", flags=flags)


def links_lost(weir: Weir) -> int:
    _, page = weir.admin("/metrics")
    lines = re.findall(r"^weir_backend_connections_lost_total(?:\{[^}]*\})? (\d+)", page, re.MULTILINE)
    assert lines, "no metric tells of lost connections"
    return sum(int(value) for value in lines)


def fill(connection: Connection) -> None:
    connection.ok("SADD", "s", b"m" * 5_000)
    connection.ok("SET", "big", b"v" * (3 * MEBIBYTE))
    for start in range(0, 200_000, 10_000):
        connection.ok("RPUSH", "list", *[b"x"] * 10_000)
        connection.ok("SADD", "members", *[str(member) for member in range(start * 3 // 10, start * 3 // 10 + 3_000)])


ANSWERED, TOO_LARGE, TOO_MUCH_WORK, FULL = "answered", "ERR the reply", "ERR the request", "OOM command not"
# For each flood, its requests and the replies that end them.
FLOODS = {
    "picks": ([encode("SRANDMEMBER", "s", "-16384")] * 20, TOO_LARGE),
    "large values": ([encode("GET", "big")] * 200, ANSWERED),
    "one set many times": ([encode("SUNION", *["members"] * 17)] * 5, TOO_MUCH_WORK),
    "long lists": ([encode("LREM", "list", "0", "nobody")] * 1_000, ANSWERED),
    "values many times": ([encode("MGET", *["big"] * 1_000)] * 5, TOO_LARGE),
    "transactions": ([encode("MULTI"), *[encode("GET", "big")] * 100, encode("EXEC")], ANSWERED),
    "growth": ([encode("SETRANGE", f"far{number}", "500000000", "x") for number in range(20)], FULL),
}


@pytest.mark.parametrize("name", FLOODS)
def test_one_client_floods_and_the_others_are_answered(weir: Weir, name: str):
    with weir.connect() as flood, weir.connect() as neighbour:
        fill(flood)
        neighbour.ok("SET", "k", "v")
        before = weir.resident_bytes()
        requests, ending = FLOODS[name]
        flood.send_raw(b"".join(requests))
        answered = 0
        endings: Counter[str] = Counter()
        while answered < len(requests):
            # Both take turns, so that the neighbour sends requests while most of the flood is still to come.
            assert neighbour.ok("GET", "k") == b"v"
            assert neighbour.ok("PING") == b"PONG"
            for _ in range(min(20, len(requests) - answered)):
                reply = flood.read()
                answered += 1
                endings[" ".join(reply.text.split(" ")[:3]) if reply.is_error else ANSWERED] += 1
        assert endings == {ending: len(requests)}
        assert links_lost(weir) == 0
        if name != "large values":
            # weir holds a reply or two, never all that were asked for.
            assert weir.resident_bytes() - before < 300 * MEBIBYTE


def test_a_reply_that_is_too_large_is_refused_by_the_store(weir: Weir):
    with weir.connect() as connection:
        fill(connection)
        for words in (["SRANDMEMBER", "s", "-16384"], ["MGET", *["big"] * 100], ["HELLO", "3"], ["MGET", *["big"] * 100]):
            reply = connection.call(*words)
            if words[0] != "HELLO":
                assert reply.text == "ERR the reply would be larger than 67108864 bytes", reply.text[:100]
        assert connection.ok("STRLEN", "big") == 3 * MEBIBYTE
