"""Tests of fleet quotas: three weirs in front of one store share one quota, with a redis-server for their counters.

Admission is compared with the quota over the time that really passed, so a busy machine changes nothing; the quota is far below
the capacity of any machine.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from harness import metrics
from harness.fake_store import FakeStore
from harness.offer import Offer, Offers
from harness.processes import Redis, Weir
from harness.waiting import until

pytestmark = pytest.mark.weir_only

# Every request costs one request unit, whatever it and its reply contain.
ONE_UNIT = ["--ru-base", "1", "--ru-kib-in", "0", "--ru-kib-out", "0", "--ru-row", "0", "--ru-key", "0", "--ru-latency-ms", "0"]
QUOTA = 900
BURST_SECONDS = 1.0
QUOTAS = f"""
[tenants.acme]
password = "secret"
ru_per_second = {QUOTA}
burst_seconds = {BURST_SECONDS}
[tenants.free]
password = "secret"
"""
HEAVY, SOME = 2_000, 100
SHARDS = 2


class Fleet:
    """Several weirs in front of one store, which share quotas by counters in the Redis at `counters`."""

    def __init__(self, servers, folder: Path, counters: str, size: int, quotas: str = QUOTAS, users: int = 0) -> None:
        self.servers, self.counters, self.users = servers, counters, users
        self.file = folder / "quotas.toml"
        self.file.write_text(quotas)
        self.store = servers.redis()
        self.weirs: list[Weir] = [self.start() for _ in range(size)]

    def start(self) -> Weir:
        flags = ["--shards", str(SHARDS), "--quotas", str(self.file), "--disable", "hot", "--fleet", self.counters, *ONE_UNIT]
        return self.servers.weir(self.store, flags=[*flags, "--fleet-users", str(self.users)])

    def pages(self) -> list[dict]:
        return [page(weir) for weir in self.weirs]

    def is_whole(self) -> bool:
        return all(page["state"] == "connected" and page["hosts"] == len(self.weirs) for page in self.pages())

    def offers(self, *rates: int, name: str = "acme") -> list[Offer]:
        return [Offer([login(weir, name) for _ in range(3)], rate) for weir, rate in zip(self.weirs, rates, strict=True)]


def login(weir: Weir, name: str = "acme", resp3: bool = False):
    connection = weir.connect()
    connection.ok("HELLO", "3" if resp3 else "2", "AUTH", name, "secret")
    return connection


def page(weir: Weir) -> dict:
    status, body = weir.admin("/fleet")
    assert status == 200, body
    return json.loads(body)


def shares(fleet: Fleet) -> list[float]:
    return [page["scopes"][0]["share"] for page in fleet.pages()]


def pass_seconds(offers: list[Offer], seconds: float) -> tuple[float, float]:
    """Lets `seconds` pass under load. Returns the times between which to measure."""
    start = time.monotonic()
    until(lambda: min(offer.last_reply for offer in offers) > start + seconds, f"{seconds} s have passed", seconds + 30)
    return start, min(offer.last_reply for offer in offers)


def rate(offers: list[Offer], start: float, end: float) -> float:
    """Returns what all offers together were served between two times, as a share of the quota."""
    return sum(offer.served_between(start, end) for offer in offers) / (QUOTA * (end - start))


def stays_below_the_bound(offers: list[Offer], beyond: float = 0.0) -> None:
    """Checks that no more was served than the quota, one burst, and `beyond` seconds of the quota for further terms of the
    bound.
    """
    seconds = max(offer.last_reply for offer in offers) - min(offer.first_send for offer in offers)
    served = sum(offer.served for offer in offers)
    most = QUOTA * (1.02 * seconds + BURST_SECONDS + beyond) + len(offers) * SHARDS
    assert served <= most, f"{served} in {seconds:.2f} s, and {most:.0f} are the most"
    assert not any(offer.other for offer in offers)


@pytest.fixture
def counters(servers) -> Redis:
    return servers.redis()


@pytest.fixture
def fleet(servers, tmp_path: Path, counters: Redis) -> Fleet:
    fleet = Fleet(servers, tmp_path, f"redis://{counters.address}", 3)
    until(fleet.is_whole, "they know each other")
    return fleet


def settle(fleet: Fleet, offers: list[Offer], most_at: int) -> None:
    """Waits until shares follow demand, and the units that had gathered in buckets are spent."""
    until(lambda: shares(fleet)[most_at] > 0.8 and sum(shares(fleet)) > 0.98, "shares are by demand")
    pass_seconds(offers, 3)


def test_demand_that_moves_takes_its_share_along(fleet: Fleet):
    for place in range(3):
        rates = [HEAVY if other == place else SOME for other in range(3)]
        offers = fleet.offers(*rates)
        with Offers(*offers):
            settle(fleet, offers, place)
            ratio = rate(offers, *pass_seconds(offers, 4))
        assert 0.95 <= ratio <= 1.03, f"{ratio} with most at {place}"
        stays_below_the_bound(offers)
    # No client sends requests any more.
    until(lambda: all(abs(share - 1 / 3) < 0.001 for share in shares(fleet)), "shares are even")


def test_counters_that_are_away_and_come_back(fleet: Fleet, counters: Redis):
    offers = fleet.offers(HEAVY, SOME, SOME)
    with Offers(*offers):
        settle(fleet, offers, 0)
        counters.kill()
        until(lambda: all(page["state"] == "away" for page in fleet.pages()), "all notice")
        kept = shares(fleet)
        ratio = rate(offers, *pass_seconds(offers, 5))
        assert 0.95 <= ratio <= 1.03, ratio
        assert shares(fleet) == kept, "the last shares hold"
        problem = fleet.pages()[0]["problem"]
        assert "refused" in problem, problem
        counters.start()
        until(fleet.is_whole, "all count again")
        ratio = rate(offers, *pass_seconds(offers, 4))
        assert 0.9 <= ratio <= 1.03, ratio
    stays_below_the_bound(offers)
    for weir in fleet.weirs:
        assert f"the store redis://{counters.address} cannot be asked: " in weir.output()
        assert "the last shares hold for a minute" in weir.output()
        assert "answers again: " in weir.output()


def test_counters_that_are_emptied(fleet: Fleet, counters: Redis):
    offers = fleet.offers(HEAVY, SOME, SOME)
    with Offers(*offers), counters.connect() as connection:
        settle(fleet, offers, 0)
        for _ in range(3):
            connection.ok("FLUSHALL")
            pass_seconds(offers, 1.5)
            assert fleet.is_whole(), fleet.pages()
        settle(fleet, offers, 0)
        ratio = rate(offers, *pass_seconds(offers, 4))
        assert 0.95 <= ratio <= 1.03, ratio
        # The counters of hosts and quotas without requests expire.
        assert all(0 < connection.ok("PTTL", key) <= 60_000 for key in connection.ok("KEYS", "*"))
        assert sorted(connection.ok("KEYS", "*")) == [b"{weir:weir}:d:tenant:acme", b"{weir:weir}:hosts"]
    stays_below_the_bound(offers)


def test_counters_that_stand_still_hold_up_nobody(fleet: Fleet, counters: Redis):
    with counters.connect() as connection, login(fleet.weirs[0], "free") as client:
        connection.ok("DEBUG", "SLEEP", "0")
        connection.send("DEBUG", "SLEEP", "4")
        until(lambda: page(fleet.weirs[0])["state"] == "away", "it is noticed")
        assert page(fleet.weirs[0])["problem"] == "it did not answer in time"
        started = time.monotonic()
        for number in range(100):
            client.ok("SET", f"k{number}", "v")
        assert page(fleet.weirs[0])["state"] == "away" or time.monotonic() - started < 4, "all that was while it stood still"
    until(fleet.is_whole, "all count again")


def test_hosts_that_come_and_go(fleet: Fleet):
    gone = fleet.weirs.pop()
    gone.terminate()
    until(fleet.is_whole, "two are left")
    assert "fleet: 2 hosts share quotas, there were 3" in fleet.weirs[0].output()
    until(lambda: all(abs(share - 0.5) < 0.001 for share in shares(fleet)), "they have half each")
    fleet.weirs.append(fleet.start())
    until(fleet.is_whole, "there are three again")
    until(lambda: all(abs(share - 1 / 3) < 0.001 for share in shares(fleet)), "they have a third each")


def test_what_is_told(fleet: Fleet):
    until(lambda: all(abs(share - 1 / 3) < 0.001 for share in shares(fleet)), "shares are even")
    weir = fleet.weirs[1]
    told = page(weir)
    assert told["store"] == fleet.counters and told["namespace"] == "weir" and told["problem"] is None
    assert len({page["host"] for page in fleet.pages()}) == 3
    scope = told["scopes"][0]
    assert (scope["scope"], scope["name"], scope["ru_per_second"]) == ("tenant", "acme", QUOTA)
    assert 299 < scope["share_ru_per_second"] <= 300 and len(told["scopes"]) == 1
    with login(weir, resp3=True) as connection:
        limits = {limit[b"scope"]: limit for limit in connection.ok("QOS", "LIMITS")}
        tenant = limits[b"tenant"]
        assert tenant[b"limit"] == QUOTA and tenant[b"share"] in (299, 300)
        assert tenant[b"remaining"] <= 300 and b"share" not in limits[b"global"]
        # A refused client is told the whole quota, not one weir's share.
        refused = next(reply for reply in connection.pipeline([("GET", "k")] * 2_000) if reply.is_error)
        assert f"limit={QUOTA} " in refused.text, refused
    figures = metrics.parse(weir.admin("/metrics")[1])
    assert figures["weir_fleet_hosts"][""] == 3
    assert set(figures["weir_fleet_share_ratio"]) == {'{scope="tenant",name="acme"}'}
    exchanges = figures["weir_fleet_exchanges_total"]
    assert exchanges['{outcome="answered"}'] >= 2 and exchanges['{outcome="refused"}'] == 0
    assert 0 <= figures["weir_fleet_answer_age_seconds"][""] < 30


def test_other_quotas_are_shared_too(fleet: Fleet):
    until(lambda: all(abs(share - 1 / 3) < 0.001 for share in shares(fleet)), "shares are even")
    quotas = QUOTAS.replace("[tenants.free]", "[tenants.zeta]\npassword = 'x'\nru_per_second = 30\n[tenants.free]")
    for weir in fleet.weirs:
        assert weir.admin_request("POST", "/config/quotas", quotas.encode())[0] == 200

    def even() -> bool:
        scopes = [page["scopes"] for page in fleet.pages()]
        return all([abs(scope["share"] - 1 / 3) < 0.001 for scope in some] == [True, True] for some in scopes)

    until(even, "both are shared")


def test_a_store_with_a_password(servers, tmp_path: Path):
    counters = servers.redis("--requirepass", "sesame")
    fleet = Fleet(servers, tmp_path, f"redis://:sesame@{counters.address}", 1)
    until(fleet.is_whole, "it may count")
    fleet.counters = f"redis://:poppy@{counters.address}"
    locked_out = fleet.start()
    until(lambda: "WRONGPASS" in locked_out.output(), "it says why it may not")
    until(lambda: page(locked_out)["problem"], "the page says it")
    assert page(locked_out)["state"] == "starting" and page(locked_out)["scopes"][0]["share"] == 0.1
    for weir in (fleet.weirs[0], locked_out):
        assert "sesame" not in weir.output() + weir.admin("/fleet")[1]
        assert "poppy" not in weir.output() + weir.admin("/fleet")[1]


def test_a_host_that_nobody_knows(servers, tmp_path: Path):
    fleet = Fleet(servers, tmp_path, "redis://counters.invalid:6379", 1)
    weir = fleet.weirs[0]
    until(lambda: "the store redis://counters.invalid:6379 cannot be asked: " in weir.output(), "it is told")
    with login(weir) as connection:
        assert connection.ok("SET", "k", "v") == b"OK"


NONSENSE = {
    "errors": lambda words: b"-ERR unknown command\r\n",
    "another protocol": lambda words: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "endless": lambda words: b"$900000000\r\n" + b"x" * 100_000,
    "wrong kinds": lambda words: b"*1\r\n:1\r\n",
    "closes": lambda words: None,
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_a_store_that_talks_nonsense(servers, tmp_path: Path, kind: str):
    with FakeStore(NONSENSE[kind]) as counters:
        weir = Fleet(servers, tmp_path, f"redis://{counters.address}", 1).weirs[0]

        def asked_in_vain() -> bool:
            exchanges = page(weir)["exchanges"]
            assert exchanges["answered"] == 0
            return exchanges["lost"] + exchanges["refused"] >= 3

        until(asked_in_vain, "it was asked a few times")
        assert page(weir)["state"] == "starting" and page(weir)["problem"]
        assert weir.resident_bytes() < 300 << 20
        with login(weir) as connection:
            assert connection.ok("SET", "k", "v") == b"OK"


OF_USERS = f"""
[tenants.acme]
password = "secret"
user_ru_per_second = {QUOTA}
burst_seconds = {BURST_SECONDS}
"""


@pytest.fixture
def fleet_of_users(servers, tmp_path: Path) -> Fleet:
    counters = servers.redis("--requirepass", "sesame")
    fleet = Fleet(servers, tmp_path, f"redis://:sesame@{counters.address}", 3, quotas=OF_USERS, users=10)
    until(fleet.is_whole, "they know each other")
    return fleet


def share_of_user(weir: Weir, name: str) -> int:
    with login(weir, name, resp3=True) as connection:
        limits = {limit[b"scope"]: limit for limit in connection.ok("QOS", "LIMITS")}
    assert b"share" not in limits[b"tenant"]
    return limits[b"user"][b"share"]


def test_a_user_has_one_quota_at_all_of_them(fleet_of_users: Fleet):
    fleet = fleet_of_users
    assert [share_of_user(weir, "acme/bob") for weir in fleet.weirs] == [QUOTA // 3 - 1] * 3, "rounded down"

    def shares_follow(most_at: int) -> bool:
        shares = [share_of_user(weir, "acme/ann") / QUOTA for weir in fleet.weirs]
        return shares[most_at] > 0.8 and sum(shares) > 0.98

    offers = fleet.offers(HEAVY, SOME, SOME, name="acme/ann")
    others = fleet.offers(20, 20, 20, name="acme/bob")
    with Offers(*offers, *others):
        until(lambda: shares_follow(0), "shares are by demand")
        pass_seconds(offers, 3)
        ratio = rate(offers, *pass_seconds(offers, 4))
    assert 0.95 <= ratio <= 1.03, ratio
    # Until the user is counted, each weir grants an even share.
    stays_below_the_bound(offers, beyond=(3 + BURST_SECONDS) * 1.0)
    assert not any(offer.throttled for offer in others), "who asks for little has it everywhere"
    assert [page["users"] for page in fleet.pages()] == [{"counted": 1, "most": 10, "left_out": 0}] * 3
    figures = metrics.parse(fleet.weirs[0].admin("/metrics")[1])
    assert figures["weir_fleet_users"][""] == 1 and figures["weir_fleet_users_left_out_total"][""] == 0
    until(lambda: all(page["users"]["counted"] == 0 for page in fleet.pages()), "it is forgotten", 30)


def test_more_users_ask_for_much_than_are_counted(fleet_of_users: Fleet):
    fleet = fleet_of_users
    weir = fleet.weirs[0]
    with login(weir) as connection:
        def ask() -> dict:
            replies = connection.pipeline([("QOS", "CALL", "USER", f"u{n % 40}", "GET", "k") for n in range(8_000)])
            assert {reply.text.split()[0] for reply in replies if reply.is_error} <= {"THROTTLED"}
            return page(weir)["users"]

        until(lambda: (users := ask())["counted"] == 10 and users["left_out"] > 0, "some of them are counted")
    assert page(fleet.weirs[1])["users"] == {"counted": 0, "most": 10, "left_out": 0}


def test_users_are_not_counted_unless_they_are_told_apart(servers, tmp_path: Path):
    fleet = Fleet(servers, tmp_path, f"redis://{servers.redis().address}", 1, quotas=OF_USERS)
    until(fleet.is_whole, "it counts")
    assert "users" not in page(fleet.weirs[0]) and "weir_fleet_users" not in fleet.weirs[0].admin("/metrics")[1]
    with login(fleet.weirs[0], "acme/ann", resp3=True) as connection:
        assert all(b"share" not in limit for limit in connection.ok("QOS", "LIMITS")), "it has all of its own"


def test_without_a_fleet_there_is_none(servers):
    weir = servers.weir(flags=["--shards", "1"])
    assert weir.admin("/fleet")[0] == 404
    assert "weir_fleet" not in weir.admin("/metrics")[1]
    threads = [path.read_text() for path in Path(f"/proc/{weir.pid}/task").glob("*/comm")]
    assert any("weir-control" in name for name in threads) and not any("weir-fleet" in name for name in threads)
