"""Tests of QOS LIMITS and QOS EXPLAIN, which tell a client its limits before a request is refused."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from harness import metrics
from harness.processes import Weir

pytestmark = pytest.mark.weir_only

FILE = """
[global]
ru_per_second = 100_000
[tenants.acme]
password = "acme-password"
ru_per_second = 1_000
burst_seconds = 2
user_ru_per_second = 100
[tenants.free]
password = "free-password"
"""


@pytest.fixture
def weir(servers, tmp_path: Path) -> Weir:
    file = tmp_path / "quotas.toml"
    file.write_text(FILE)
    return servers.weir(flags=["--shards", "2", "--quotas", str(file), "--ru-latency-ms", "0"])


def login(weir: Weir, name: str, protocol: int = 3):
    connection = weir.connect()
    assert connection.ok("HELLO", str(protocol), "AUTH", name, f"{name.split('/')[0]}-password")
    return connection


def by_scope(told: list) -> dict:
    return {entry[b"scope"].decode(): entry for entry in told}


def test_limits_name_all_three_scopes(weir: Weir):
    with login(weir, "acme/ann") as connection:
        told = by_scope(connection.ok("QOS", "LIMITS"))
    assert list(told) == ["global", "tenant", "user"]
    assert [entry[b"name"] for entry in told.values()] == [b"global", b"acme", b"acme/ann"]
    assert [entry[b"limit"] for entry in told.values()] == [100_000, 1_000, 100]
    assert [entry[b"burst"] for entry in told.values()] == [100_000, 2_000, 200]
    assert [entry[b"remaining"] for entry in told.values()] == [100_000, 2_000, 200]
    assert [entry[b"reset_ms"] for entry in told.values()] == [0, 0, 0]


def test_what_was_spent_is_missing_and_comes_back(weir: Weir):
    with login(weir, "acme") as connection:
        # The request costs about 1,000 request units, because it carries 1 MiB.
        assert connection.ok("SET", "large", "x" * (1 << 20)) in ("OK", b"OK")
        tenant = by_scope(connection.ok("QOS", "LIMITS"))["tenant"]
    assert 0 <= tenant[b"remaining"] < 2_000 and 0 < tenant[b"reset_ms"] <= 1_100, tenant
    # Another connection, on whatever shard, sees the same bucket.
    with login(weir, "acme", protocol=2) as connection:
        flat = connection.ok("QOS", "LIMITS")[1]
    told = dict(zip(flat[::2], flat[1::2]))
    assert told[b"limit"] == 1_000 and told[b"remaining"] <= 2_000


def test_a_tenant_without_bound_is_told_so(weir: Weir):
    with login(weir, "free") as connection:
        told = by_scope(connection.ok("QOS", "LIMITS"))
    assert list(told) == ["global", "tenant"]
    assert told["tenant"][b"limit"] is None and told["tenant"][b"remaining"] is None


def test_a_price_is_explained_term_by_term(weir: Weir):
    with login(weir, "acme/ann") as connection:
        told = connection.ok("QOS", "EXPLAIN", "SET", "key", "v" * 1_024)
        price = {name.decode(): Decimal(value.decode()) for name, value in told[b"estimate"].items()}
        frame = len(f"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$1024\r\n") + 1_024 + 2
        assert price["base"] == 1 and price["to_floor"] == 0
        assert price["request_bytes"] == Decimal(frame * 1_000_000 // 1_024) / 1_000_000
        assert price["total"] == sum(value for name, value in price.items() if name != "total")
        assert told[b"command"] == b"SET" and told[b"class"] == b"point" and told[b"rate"] == b"admitted"
        assert told[b"shard"] in (0, 1) and told[b"slot"] == connection.ok("CLUSTER", "KEYSLOT", "key")
        assert [scope[b"verdict"] for scope in told[b"scopes"]] == [b"fits"] * 3
        # EXPLAIN has not carried the request out.
        assert connection.ok("EXISTS", "key") == 0


def test_what_costs_nothing_or_much_or_is_no_command(weir: Weir):
    with login(weir, "acme") as connection:
        assert connection.ok("QOS", "EXPLAIN", "PING")[b"handled"] == b"answered by weir, at no cost"
        told = connection.ok("QOS", "EXPLAIN", "EVAL", "return 1", "0")
        assert Decimal(told[b"estimate"][b"total"].decode()) == 5
        assert connection.call("QOS", "EXPLAIN", "NOPE").text.startswith("ERR unknown command 'NOPE'")
        assert connection.call("QOS", "EXPLAIN").text == "ERR wrong number of arguments for 'qos|explain' command"
        assert connection.call("QOS", "LIMITS", "x").text == "ERR wrong number of arguments for 'qos|limits' command"


def test_the_end_of_a_subscription_is_never_refused(weir: Weir):
    with login(weir, "acme") as connection:
        for word in ("UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"):
            told = connection.ok("QOS", "EXPLAIN", word, "news")
            assert b"never refused" in told[b"handled"] and b"estimate" not in told, told


def test_a_request_that_would_be_refused_whatever_the_quota_is_explained_by_its_error(weir: Weir):
    with login(weir, "acme") as connection:
        for words in (
            ("SRANDMEMBER", "set", "-100000000"),
            ("SINTER", *["key"] * 40),
            ("CONFIG", "SET", "maxmemory", "1"),
            ("FLUSHALL",),
        ):
            told, error = connection.ok("QOS", "EXPLAIN", *words), connection.call(*words)
            assert error.is_error and told[b"handled"] == error.text.encode(), (told, error)
            assert b"estimate" not in told, told
    refusals = metrics.parse(weir.admin("/metrics")[1])["weir_refusals_total"]
    assert sum(value for labels, value in refusals.items() if 'reason="excess"' in labels) == 2, refusals


def test_a_refusal_is_foretold(weir: Weir):
    with login(weir, "acme/bob") as connection:
        # Of many keys, one that is hot is answered from memory and costs a tenth.
        for number in range(300):
            reply = connection.call("GET", f"key{number}")
            if reply.is_error:
                break
        assert reply.text.startswith("THROTTLED scope=user name=acme/bob limit=100 "), reply
        told = connection.ok("QOS", "EXPLAIN", "GET", "key")
        user = by_scope(told[b"scopes"])["user"]
        # Some quota may have come in by now, so that the shard would ask the pool.
        assert user[b"verdict"] in (b"throttled", b"ask the pool", b"fits"), user
        assert user[b"remaining"] <= 5
