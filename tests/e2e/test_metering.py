"""Tests of metering: what tenants used of their quotas, on the page /tenants, in QOS TENANTS and in the metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import metrics
from harness.processes import Weir
from harness.waiting import until

pytestmark = pytest.mark.weir_only

FILE = """
[tenants.acme]
password = "acme-password"
ru_per_second = 5_000
[tenants.operator]
password = "operator-password"
admin = true
[tenants.zeta]
password = "zeta-password"
"""
OUTCOMES = ["admitted", "throttled", "shed", "cached"]
PERIODS = ["this_minute", "last_minute", "last_hour", "last_day"]


@pytest.fixture
def weir(servers, tmp_path: Path) -> Weir:
    file = tmp_path / "quotas.toml"
    file.write_text(FILE)
    return servers.weir(flags=["--shards", "2", "--quotas", str(file)])


def tenants(weir: Weir, tenant: str, *words: str, protocol: int = 2) -> list:
    """Returns the reply to QOS TENANTS as Python values."""
    with weir.connect() as connection:
        login = (tenant, f"{tenant}-password")
        assert connection.ok("HELLO", str(protocol), "AUTH", *login)
        return connection.ok("QOS", "TENANTS", *words)


REQUESTS = 40


def use(weir: Weir, tenant: str) -> None:
    """Sends some requests that are admitted, each for a little more than one request unit."""
    with weir.connect() as connection:
        assert connection.ok("AUTH", tenant, f"{tenant}-password") == b"OK"
        replies = connection.pipeline([("SET", f"metered:{n}", "v") for n in range(REQUESTS)])
        assert [reply.text for reply in replies] == ["OK"] * REQUESTS
    # Shards report after a moment, and the login pays like any other request.
    least = lambda: page(weir, f"?tenant={tenant}")["tenants"][0]["request_units"]["last_hour"]["admitted"] >= REQUESTS  # noqa: E731
    until(least, "what was used is booked")


def used(amounts: dict) -> bool:
    """True if a tenant's request units, by outcome, are those of one call of `use`: all admitted."""
    spent = [float(amounts[name]) for name in amounts]
    return REQUESTS <= spent[0] <= 1.5 * REQUESTS and spent[1:] == [0, 0, 0]


def page(weir: Weir, query: str = "") -> dict:
    status, text, headers = weir.admin_request("GET", f"/tenants{query}")
    assert status == 200 and headers["content-type"] == "application/json", text
    return json.loads(text)


def test_a_tenant_is_told_of_itself(weir: Weir):
    use(weir, "acme")
    (told,) = tenants(weir, "acme", protocol=3)
    assert list(told) == [
        b"name",
        b"ru_per_second",
        b"share_of_quota",
        *(period.encode() for period in PERIODS),
        b"suggested_ru_per_second",
    ]
    assert (told[b"name"], told[b"ru_per_second"]) == (b"acme", 5_000)
    # The share belongs to the last minute, which may have ended just now.
    assert 0 <= told[b"share_of_quota"] <= 1.5 * REQUESTS / (5_000 * 60)
    assert told[b"suggested_ru_per_second"] is None
    for period in PERIODS:
        assert [name.decode() for name in told[period.encode()]] == OUTCOMES
        assert all(isinstance(amount, float) for amount in told[period.encode()].values())
    # The requests may fall into this minute and the one before; the login before the question pays a unit too.
    assert used(told[b"last_hour"]) and used(told[b"last_day"]), told
    recent = [told[b"this_minute"][b"admitted"], told[b"last_minute"][b"admitted"]]
    assert sum(recent) == pytest.approx(told[b"last_hour"][b"admitted"])
    # A tenant may name another tenant, but is shown only itself.
    assert [told[b"name"] for told in tenants(weir, "acme", "AFTER", "a", protocol=3)] == [b"acme"]


def test_the_older_dialect_has_the_same_in_flat_lists(weir: Weir):
    use(weir, "zeta")
    (told,) = tenants(weir, "zeta")
    pairs = dict(zip(told[::2], told[1::2]))
    assert (pairs[b"name"], pairs[b"ru_per_second"], pairs[b"share_of_quota"]) == (b"zeta", None, None)
    assert pairs[b"last_hour"][::2] == [name.encode() for name in OUTCOMES]
    assert used(dict(zip(pairs[b"last_hour"][::2], pairs[b"last_hour"][1::2]))), pairs


def test_an_administrator_is_told_of_all(weir: Weir):
    names = [told[b"name"] for told in tenants(weir, "operator", protocol=3)]
    assert names == [b"acme", b"operator", b"zeta"]
    assert [told[b"name"] for told in tenants(weir, "operator", "after", "operator", protocol=3)] == [b"zeta"]
    assert tenants(weir, "operator", "AFTER", "zeta") == []


def test_what_is_wrong_with_the_question_is_told(weir: Weir):
    with weir.connect() as connection:
        assert connection.call("QOS", "TENANTS").text.startswith("NOAUTH ")
        assert connection.ok("AUTH", "operator", "operator-password") == b"OK"
        for words in [("BEFORE", "a"), ("AFTER",), ("AFTER", "a", "b")]:
            assert connection.call("QOS", "TENANTS", *words).text.startswith("ERR QOS TENANTS: "), words
        assert any(line.startswith(b"TENANTS") for line in connection.ok("QOS", "HELP"))


def test_answers_stay_in_order_around_the_question(weir: Weir):
    with weir.connect() as connection:
        assert connection.ok("AUTH", "acme", "acme-password") == b"OK"
        requests = [request for n in range(50) for request in (("SET", "k", n), ("QOS", "TENANTS"), ("GET", "k"))]
        replies = connection.pipeline(requests)
        for n, (stored, told, read) in enumerate(zip(*[iter(replies)] * 3)):
            assert stored.text == "OK" and read.value == str(n).encode()
            assert told.children[0].children[1].value == b"acme"


def test_refused_writes_of_a_hot_key_are_throttled_ones(servers):
    weir = servers.weir(flags=["--shards", "2", "--hot-rate", "10", "--hot-share", "0%", "--hot-write-rate", "5"])
    with weir.connect() as connection:

        def is_refused() -> bool:
            replies = connection.pipeline([("GET", "hot"), ("SET", "hot", "v")] * 50)
            return any(reply.is_error and reply.text.startswith("THROTTLED scope=key ") for reply in replies)

        until(is_refused, "a write is refused")
    booked = lambda: page(weir)["tenants"][0]["request_units"]["last_hour"]  # noqa: E731
    until(lambda: float(booked()["throttled"]) > 0, "what was refused is booked")
    assert float(booked()["shed"]) == 0


def test_the_verdict_knows_of_requests_that_are_throttled_without_a_price(servers, tmp_path: Path):
    file = tmp_path / "quotas.toml"
    file.write_text('[tenants.acme]\npassword = "acme-password"\nru_per_second = 5\n')
    weir = servers.weir(flags=["--shards", "2", "--limiter", "static", "--quotas", str(file)])
    with weir.connect() as connection:
        connection.ok("AUTH", "acme", "acme-password")

        def reasons() -> list[str]:
            connection.pipeline([("GET", "k")] * 100)
            verdict = json.loads(weir.admin("/state.json")[1])["verdict"]
            return [reason["text"] for reason in verdict["reasons"] if verdict["grade"] == "strained"]

        until(lambda: any(text.endswith(" requests a second refused: throttled") for text in reasons()), "the verdict knows")


def test_without_a_quota_file_there_is_one_tenant(servers):
    weir = servers.weir(flags=["--shards", "2"])
    with weir.connect() as connection:
        (told,) = connection.ok("QOS", "TENANTS")
        assert told[:4] == [b"name", b"default", b"ru_per_second", None]
    assert [tenant["name"] for tenant in page(weir)["tenants"]] == ["default"]


def test_the_page(weir: Weir):
    told = page(weir)
    assert told["quotas_version"] == 0 and told["next"] is None and told["since"] <= told["at"]
    assert [tenant["name"] for tenant in told["tenants"]] == ["acme", "operator", "zeta"]
    acme = told["tenants"][0]
    assert acme["ru_per_second"] == 5_000 and acme["suggestion"] is None
    assert acme["share_of_quota"] == {"last_minute": 0, "last_hour": 0}
    assert list(acme["request_units"]) == PERIODS
    assert all(list(amounts) == OUTCOMES for amounts in acme["request_units"].values())
    zeta = page(weir, "?tenant=zeta&minutes=60")["tenants"]
    assert [tenant["name"] for tenant in zeta] == ["zeta"]
    assert zeta[0]["ru_per_second"] is None and zeta[0]["minutes"] == []
    assert [tenant["name"] for tenant in page(weir, "?after=acme")["tenants"]] == ["operator", "zeta"]


@pytest.mark.parametrize(
    ("query", "status", "detail"),
    [
        ("?minutes=1441", 400, "from 0 to 1440"),
        ("?minutes=all", 400, "minutes=all"),
        ("?colour=red", 400, "tenant=, after= and minutes= are expected"),
        ("?tenant=nobody", 404, "'nobody'"),
    ],
)
def test_what_is_wrong_with_the_pages_address_is_told(weir: Weir, query: str, status: int, detail: str):
    found, text, headers = weir.admin_request("GET", f"/tenants{query}")
    assert found == status and headers["content-type"] == "application/problem+json"
    assert detail in json.loads(text)["detail"]


def test_the_metrics(weir: Weir):
    use(weir, "acme")
    text = weir.admin("/metrics")[1]
    found = metrics.parse(text)
    labels = set(found["weir_tenant_request_units_total"])
    names = ("acme", "operator", "zeta", "(other)")
    assert labels == {f'{{tenant="{name}",outcome="{outcome}"}}' for name in names for outcome in OUTCOMES}
    counted = {name: found["weir_tenant_request_units_total"][f'{{tenant="acme",outcome="{name}"}}'] for name in OUTCOMES}
    assert used(counted), counted
    assert found["weir_tenant_quota_request_units_per_second"] == {'{tenant="acme"}': 5_000}
    assert metrics.promtool(text) in (None, ""), metrics.promtool(text)


def test_the_number_of_series_is_bounded(servers, tmp_path: Path):
    file = tmp_path / "quotas.toml"
    file.write_text("".join(f'[tenants.t{n}]\npassword = "x"\nru_per_second = 1\n' for n in range(1_000)))
    weir = servers.weir(flags=["--shards", "1", "--quotas", str(file)])
    found = metrics.parse(weir.admin("/metrics")[1])
    assert len(found["weir_tenant_request_units_total"]) == (100 + 1) * len(OUTCOMES)
    assert len(found["weir_tenant_quota_request_units_per_second"]) == 100


def test_other_quotas_are_told_of_at_once(weir: Weir):
    body = b'[tenants.acme]\npassword = "acme-password"\nru_per_second = 7\n'
    assert weir.admin_request("POST", "/config/quotas", body)[0] == 200
    told = page(weir)
    assert (told["quotas_version"], [tenant["name"] for tenant in told["tenants"]]) == (1, ["acme"])
    assert told["tenants"][0]["ru_per_second"] == 7
    # The tenant of a client that is logged in is removed: the client is shown no tenant.
    with weir.connect() as connection:
        assert connection.ok("AUTH", "acme", "acme-password") == b"OK"
        body = b'[tenants.new]\npassword = "x"\n'
        assert weir.admin_request("POST", "/config/quotas", body)[0] == 200
        until(lambda: connection.call("QOS", "TENANTS").text.startswith("NOAUTH "), "the tenant is gone")
