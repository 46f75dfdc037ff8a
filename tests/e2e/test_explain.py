"""Tests of QOS LIMITS and QOS EXPLAIN, which tell a client its limits before a request is refused."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from harness import metrics
from harness.processes import Weir
from harness.waiting import until

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
[tenants.operator]
password = "operator-password"
admin = true
"""

# A shard that has little of the quota left would ask for more.
PASSES = [b"admitted", b"ask the pool"]


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


def test_what_weir_answers_itself_has_its_price(weir: Weir):
    with login(weir, "acme") as connection:
        for words, rate in (
            (("QOS", "LIMITS"), b"answered even if the quota is used up"),
            (("QOS", "TENANTS"), b"answered even if the quota is used up"),
            (("QOS", "HOTKEYS"), b"answered even if the quota is used up"),
            (("QOS", "EXPLAIN", "GET", "x"), b"answered even if the quota is used up"),
            (("AUTH", "acme", "acme-password"), b"never throttled"),
            (("COMMAND", "COUNT"), None),
            (("INFO", "weir"), None),
        ):
            told = connection.ok("QOS", "EXPLAIN", *words)
            assert told[b"handled"] == b"answered by weir, priced like any request", (words, told)
            price = Decimal(told[b"estimate"][b"total"].decode())
            assert 1 <= price < 2 and told[b"rate"] in ([rate] if rate else PASSES), (words, told)
        for words, costs in (
            (("QOS", "SET", "TIER", "batch"), b"at no cost"),
            (("QOS", "HELP"), b"priced by the bytes of its reply if they are more than 1 KiB"),
            (("CONFIG", "GET", "save"), b"at no cost"),
            (("EXEC",), b"at the price of all requests of its transaction"),
            (("ECHO", "x" * 2_000), b"priced by its bytes"),
        ):
            told = connection.ok("QOS", "EXPLAIN", *words)
            assert told[b"handled"] == b"answered by weir, " + costs and b"estimate" not in told, (words, told)


def test_a_call_is_explained_by_the_request_inside(weir: Weir):
    with login(weir, "acme") as connection:
        plain = connection.ok("QOS", "EXPLAIN", "GET", "x")
        told = connection.ok("QOS", "EXPLAIN", "QOS", "CALL", "TIER", "batch", "DEADLINE", "50", "GET", "x")
        assert told[b"estimate"] == plain[b"estimate"] and told[b"command"] == b"GET", told
        assert plain[b"tier"] != told[b"tier"] == b"batch", (plain, told)
        assert b"50 ms" in told[b"deadline"] and told[b"rate"] in PASSES, told
        for words in (("TIER", "none", "GET", "x"), ("TIER", "batch"), ("QOS", "LIMITS"), ("NOPE",)):
            call = ("QOS", "CALL", *words)
            told, error = connection.ok("QOS", "EXPLAIN", *call), connection.call(*call)
            assert error.is_error and told[b"handled"] == error.text.encode(), (told, error)


def test_what_an_administrator_asks_of_the_stores_is_priced_as_that(weir: Weir):
    with login(weir, "operator") as connection:
        for words in (("CONFIG", "GET", "maxmemory"), ("INFO", "keyspace")):
            told = connection.ok("QOS", "EXPLAIN", *words)
            assert told[b"place"].startswith(b"every backend") and b"handled" not in told, told
            assert Decimal(told[b"estimate"][b"total"].decode()) >= 1 and told[b"rate"] in PASSES, told


def test_the_count_of_the_static_limiter_is_foretold(servers, tmp_path: Path):
    file = tmp_path / "quotas.toml"
    file.write_text('[tenants.acme]\npassword = "acme-password"\nru_per_second = 5\n')
    weir = servers.weir(flags=["--shards", "2", "--quotas", str(file), "--limiter", "static"])
    with login(weir, "acme") as connection:

        def told() -> dict:
            connection.pipeline([("GET", "x")] * 10)
            return connection.ok("QOS", "EXPLAIN", "GET", "x")

        # The second may end between the requests and the question.
        until(lambda: told()[b"rate"] == b"throttled", "the count is used up")
        until(lambda: connection.ok("QOS", "EXPLAIN", "GET", "x")[b"rate"] == b"admitted", "the next second has begun")
        (scope,) = connection.ok("QOS", "EXPLAIN", "GET", "x")[b"scopes"]
        assert [scope[name] for name in (b"scope", b"name", b"limit", b"remaining")] == [b"tenant", b"acme", 5, 5], scope


def test_what_is_only_counted_is_told_so(servers, tmp_path: Path):
    file = tmp_path / "quotas.toml"
    file.write_text(FILE)
    weir = servers.weir(flags=["--shards", "2", "--quotas", str(file), "--shadow", "rate"])
    with login(weir, "acme") as connection:
        assert connection.ok("QOS", "EXPLAIN", "GET", "x")[b"rate"] in [b"shadow: " + rate for rate in PASSES]


def test_the_connections_that_a_tenant_may_still_have_are_told(servers, tmp_path: Path):
    file = tmp_path / "quotas.toml"
    file.write_text(FILE.replace("ru_per_second = 1_000", "ru_per_second = 1_000\nprivate_links = 2"))
    weir = servers.weir(flags=["--shards", "1", "--quotas", str(file), "--private-links", "10"])
    with login(weir, "acme") as connection, login(weir, "free") as other:

        def told() -> list[bytes]:
            return [each.ok("QOS", "EXPLAIN", "BLPOP", "q", "0")[b"private_links"] for each in (connection, other)]

        texts = [b"%d of this core's are free for the tenant, %d in all" % numbers for numbers in ((2, 10), (8, 10))]
        assert told() == texts
        connection.ok("WATCH", "k")
        texts = [b"%d of this core's are free for the tenant, %d in all" % numbers for numbers in ((1, 9), (8, 9))]
        assert told() == texts


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
