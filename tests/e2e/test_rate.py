"""Tests of request units and quotas on the real server: who gets how much, what is charged, what is refused and with which error.

Admission is compared with the time that really passed between the first request and the last reply, so a busy machine changes
nothing. Most tests make every request cost exactly one unit; one test computes the price of everything that it sends and
receives.
"""

from __future__ import annotations

import re
import signal
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from harness import metrics
from harness.fake_store import FakeStore, accommodating
from harness.offer import Offer, Offers
from harness.placement import clients_of_every_shard, clients_of_one_shard
from harness.processes import Redis, Storage, Weir
from harness.resp import Connection, Reply, encode
from harness.waiting import until

pytestmark = [pytest.mark.weir_only, pytest.mark.paced]

MICRO = 1_000_000
# Every request costs one request unit, whatever it and its reply contain.
ONE_UNIT = ["--ru-base", "1", "--ru-kib-in", "0", "--ru-kib-out", "0", "--ru-row", "0", "--ru-key", "0", "--ru-latency-ms", "0"]
REFUSAL = re.compile(
    rb"-THROTTLED scope=(?P<scope>global|tenant|user) name=(?P<name>[^ \r\n]+) limit=(?P<limit>\d+) "
    rb"remaining=(?P<remaining>\d+) retry_after_ms=(?P<retry_after_ms>[1-9]\d*)\r\n"
)
# retry_after_ms is up to a quarter longer than needed, so that refused clients do not return all at once.
JITTER = 1.25


def tenant(name: str, **terms: float) -> str:
    return f'[tenants.{name}]\npassword = "secret"\n' + "".join(f"{key} = {value}\n" for key, value in terms.items())


class Limited:
    """A weir with quotas."""

    def __init__(self, servers, folder: Path, quotas: str, *flags: str, shards: int = 2, backends=(), storage=None) -> None:
        self.file = folder / "quotas.toml"
        self.file.write_text(quotas)
        # Replies from memory have a price of their own, so hot keys are switched off.
        flags = ["--shards", str(shards), "--quotas", str(self.file), "--disable", "hot", *flags]
        self.weir: Weir = servers.weir(*backends, flags=flags, storage=storage)

    def connect(self, login: str, **options) -> Connection:
        connection = self.weir.connect(**options)
        connection.ok("AUTH", login, "secret")
        return connection

    def figures(self) -> dict[str, dict[str, float]]:
        return metrics.parse(self.weir.admin("/metrics")[1])

    def counted(self, name: str, label: str = "") -> int:
        """Returns a counter summed over all shards."""
        return int(sum(value for labels, value in self.figures()[name].items() if label in labels))

    def metered(self, name: str, outcome: str = "admitted") -> int:
        """Returns the metered millionths of request units of a tenant."""
        units = self.figures()["weir_tenant_request_units_total"][f'{{tenant="{name}",outcome="{outcome}"}}']
        return round(units * MICRO)


@pytest.fixture
def limited(servers, tmp_path: Path):
    return lambda quotas, *flags, **options: Limited(servers, tmp_path, quotas, *flags, **options)


def refusal(reply: Reply) -> dict[str, str]:
    """Returns the fields of a refusal."""
    match = REFUSAL.fullmatch(reply.raw)
    assert match, f"not a refusal as documented: {reply}"
    return {name: value.decode() for name, value in match.groupdict().items()}


def outcomes(replies: list[Reply]) -> Counter:
    """Counts the replies: served, or by the quota that refused them."""
    words = (refusal(reply) if reply.is_error else None for reply in replies)
    return Counter(f"{word['scope']} {word['name']} {word['limit']}" if word else "served" for word in words)


def ask(connection: Connection, count: int, *before: str) -> Counter:
    return outcomes(connection.pipeline([(*before, "GET", "nothing")] * count))


# How much passes.


@pytest.mark.parametrize("shards", [2, 8])
def test_a_tenant_gets_its_quota(limited, shards: int):
    """A tenant gets its quota to within two per cent over ten seconds, with connections on one shard or on all, beside other
    tenants.
    """
    rates, burst_seconds = {"small": 1_000, "medium": 5_000, "large": 20_000}, 0.5
    tenants = [f"{size}-{where}" for size in rates for where in ("one", "all")]
    rate_of = {name: rates[name.partition("-")[0]] for name in tenants}
    # The rate of this tenant is far below one unit per shard and period.
    rate_of["tiny-all"] = 10
    quotas = "".join(tenant(name, ru_per_second=rate, burst_seconds=burst_seconds) for name, rate in rate_of.items())
    server = limited(quotas, *ONE_UNIT, shards=shards)
    offers = {}
    for name, rate in rate_of.items():
        where = clients_of_one_shard(server.weir, 3) if name.endswith("one") else clients_of_every_shard(server.weir)
        for connection in where:
            connection.ok("AUTH", name, "secret")
        offers[name] = Offer(where, 1.4 * rate if rate > 10 else 40)
    with Offers(*offers.values()):
        until(lambda: all(offer.inner_seconds > 10 for offer in offers.values()), "ten seconds have passed")
    for name, offer in offers.items():
        rate = rate_of[name]
        shown = f"{name}: {offer.served} of {offer.sent} in {offer.inner_seconds:.3f} to {offer.outer_seconds:.3f} s"
        assert offer.other == 0 and offer.served + offer.throttled == offer.sent, shown
        # Each shard may admit one request on credit, and may hold one unit that no request asked for.
        assert offer.served <= 1.02 * rate * (burst_seconds + offer.outer_seconds) + shards, shown
        assert offer.served >= 0.98 * rate * (burst_seconds + offer.inner_seconds) - 2 * shards - 1, shown
        # The metered amounts are exactly those that the clients saw.
        until(lambda: server.metered(name) == offer.served * MICRO, f"what was admitted is told: {shown}")
        until(lambda: server.metered(name, "throttled") == offer.throttled * MICRO, f"and what was refused: {shown}")
        print(shown)


ROWS = 100_000
SCAN_UNITS = 1 + ROWS // 50
SCAN_BYTES = len(b"*%d\r\n" % ROWS) + ROWS * len(b"$1\r\n1\r\n")


def test_a_tenant_of_scans_stays_near_its_quota(limited):
    """A single scan costs a fifth of a second's quota, which is unknown until the first one has ended."""
    rate = 10_000
    quotas = tenant("scanner", ru_per_second=rate) + tenant("loader")
    server = limited(quotas, "--ru-kib-in", "0", "--ru-kib-out", "0", "--ru-latency-ms", "0")
    with server.connect("loader") as loader:
        for _ in range(100):
            loader.ok("RPUSH", "table", *["1"] * (ROWS // 100))
    done: list[float] = []
    start = time.monotonic()
    ends = start + 8

    def scan() -> None:
        with server.connect("scanner") as connection:
            while time.monotonic() < ends:
                connection.send("LRANGE", "table", 0, -1)
                if told := scanned(connection):
                    time.sleep(told)
                else:
                    done.append(time.monotonic())

    scanners = [threading.Thread(target=scan) for _ in range(2)]
    for scanner in scanners:
        scanner.start()
    for scanner in scanners:
        scanner.join()
    spent, due = len(done) * SCAN_UNITS, rate * (1 + max(done) - start)
    assert abs(spent - due) <= 0.02 * due + 2 * SCAN_UNITS, f"{len(done)} scans: {spent} RU, and {due:.0f} were due"
    until(lambda: server.metered("scanner") == spent * MICRO, f"what was admitted is told: {spent} RU")


def scanned(connection: Connection) -> float | None:
    """Reads the reply to a scan without parsing its rows. Returns None, or the seconds after which a refused client may
    return.
    """
    data = b""
    while not data.endswith(b"\r\n") or (data.startswith(b"*") and len(data) < SCAN_BYTES):
        piece = connection.socket.recv(1 << 20)
        assert piece, "closed"
        data += piece
    if data.startswith(b"*"):
        assert len(data) == SCAN_BYTES
        return None
    match = REFUSAL.fullmatch(data)
    assert match, data[:200]
    return int(match["retry_after_ms"]) / 1000


# What is charged.


def price(request: bytes, reply: int, rows: int = 0, keys: int = 0, requests: int = 1, floor: int = 0) -> int:
    """Returns the price in millionths of a request unit, with the default weights: 1 for a request, 1 per KiB of it, 0.25 per
    KiB of the reply, 0.02 per row, and 0.06 per key of several that are written.
    """
    units = requests * MICRO + len(request) * MICRO // 1024 + reply * (MICRO // 4) // 1024 + rows * (MICRO // 50)
    return max(units + keys * (6 * MICRO // 100), floor * MICRO)


def test_what_is_charged_is_what_it_cost(limited, servers):
    quotas = tenant("acme", ru_per_second=1_000_000, admin="true")
    # What depends on time is not charged: the machine may pause for longer than a tenant has to spare.
    timeless = ("--ru-latency-ms", "0", "--ru-busy-ms", "0")
    server = limited(quotas, *timeless, backends=[servers.redis(), servers.redis()])
    spent = 0
    with server.connect("acme") as connection:

        def charged(what: str) -> None:
            # A report contains everything before it; anything more would appear with the next one.
            until(lambda: server.metered("acme") >= spent, f"{what} is reported")
            assert server.metered("acme") == spent, what

        def send(*words: object, rows: int = 0, keys: int = 0, floor: int = 0, inner: tuple = ()) -> Reply:
            nonlocal spent
            reply = connection.call(*words)
            spent += price(encode(*(inner or words)), len(reply.raw), rows, keys, floor=floor)
            return reply

        def send_in_parts(*words: object, keys: int = 0, rows: int = 0) -> None:
            """Sends a request with up to nine keys, so that the first line of each part's reply has four bytes."""
            nonlocal spent
            before = server.counted("weir_requests_forwarded_total")
            reply = connection.call(*words)
            assert not reply.is_error, reply
            parts = server.counted("weir_requests_forwarded_total") - before
            assert parts > 1, "the keys have homes apart"
            values = len(reply.raw) - 4 if reply.kind == b"*" else 0
            # `+OK` has five bytes with its line end, `:N` and `*N` have four.
            line = 5 if reply.kind == b"+" else 4
            spent += price(encode(*words), values + line * parts, rows, keys)
            charged(f"{words[0]} in {parts} parts")

        charged("nothing, so far")
        send("GET", "nothing")
        charged("a read of nothing")
        send("SET", "large", "x" * 10_240)
        assert send("GET", "large").value == b"x" * 10_240
        charged("10 KiB there and back")
        twenty = [f"{{tag}}{n}" for n in range(20)]
        send("MSET", *(word for name in twenty for word in (name, f"value of {name}")), keys=20)
        assert len(send("MGET", *twenty, rows=20).children) == 20
        assert send("DEL", *twenty[:7], keys=7).value == b"7"
        send("RPUSH", "list", *range(1000))
        assert len(send("LRANGE", "list", 0, -1, rows=1000).children) == 1000
        assert send("INCR", "large").is_error
        charged("what the store had to say against it")
        nine = [f"apart:{n}" for n in range(9)]
        send_in_parts("MSET", *(word for name in nine for word in (name, f"value of {name}")), keys=9)
        send_in_parts("MGET", *nine, rows=9)
        send_in_parts("DEL", *nine[:5], keys=5)
        assert send("EVAL", "return redis.call('GET', KEYS[1])", 1, "large", floor=5).value == b"x" * 10_240
        send("EVAL", "return 1", 0, floor=5)
        charged("scripts, whose work does not show")
        connection.ok("SADD", "{t}one", 1, 2, 3)
        spent += price(encode("SADD", "{t}one", 1, 2, 3), 4)
        for words in (
            ("SINTERCARD", 2, "{t}one", "{t}two"),
            ("SUNION", "{t}two", "{t}three"),
            ("ZDIFF", 2, "{t}two", "{t}three"),
            ("LCS", "{t}two", "{t}three", "LEN"),
            ("SORT_RO", "{t}one", "LIMIT", 0, 0),
            ("BITCOUNT", "{t}two"),
            ("COPY", "{t}one", "{t}copy"),
            ("LPOS", "{t}two", "x"),
        ):
            assert not send(*words, floor=5).is_error
        charged("what is combined, searched or copied inside the store")
        inner = ("GET", "large")
        send("QOS", "CALL", "USER", "ann", *inner, inner=inner)
        charged("what stands in QOS CALL, and not the words around it")
        # KEYS costs at least 100 units, whatever it finds. With two stores the test does not know the bytes of the reply's parts.
        connection.ok("KEYS", "no such keys")
        spent += 100 * MICRO
        charged("a walk over all keys")
        for local in (("PING",), ("ECHO", "x"), ("CLIENT", "ID"), ("TIME",), ("QOS", "SET", "TIER", "batch")):
            connection.ok(*local)
        charged("nothing, for what weir answers in a line or two")
        assert not send("QOS", "TENANTS").is_error
        charged("a question to weir itself, as any request")
        queued = [("SET", "{t}a", "x" * 3_000), ("LPUSH", "{t}l", 1, 2, 3), ("LRANGE", "{t}l", 0, -1), ("MGET", "{t}a", "{t}b")]
        connection.ok("MULTI")
        assert [connection.ok(*words) for words in queued] == [b"QUEUED"] * 4
        charged("nothing, for what is only queued")
        reply = connection.call("EXEC")
        # Rows: one each for two commands, three for the elements of the list, two for the values of MGET.
        spent += price(b"".join(encode(*words) for words in queued), len(reply.raw), rows=7, requests=4)
        charged("a transaction, as a whole")
        queued = [("EVAL", "return 1", 0)] * 3 + [("GET", "large")]
        connection.ok("MULTI")
        assert [connection.ok(*words) for words in queued] == [b"QUEUED"] * 4
        reply = connection.call("EXEC")
        # Each script costs its minimum, whatever the read beside them costs.
        lacking = 3 * (5 * MICRO - price(encode(*queued[0]), 0))
        whole = price(b"".join(encode(*words) for words in queued), len(reply.raw), rows=4, requests=4) + lacking
        assert whole > 15 * MICRO
        spent += whole
        charged("a transaction with scripts in it")
        mix = [("SET", f"mix:{n}", "y" * (n * 7)) if n % 2 else ("GET", f"mix:{n - 1}") for n in range(600)]
        for words, reply in zip(mix, connection.pipeline(mix), strict=True):
            assert not reply.is_error
            spent += price(encode(*words), len(reply.raw))
        charged("a pipeline")


def test_who_leaves_before_the_reply_is_charged(limited, servers):
    store = servers.keep(Storage("--servers", "100", "--service-time", "point=300ms")).start()
    server = limited(tenant("acme", ru_per_second=1_000), *ONE_UNIT, storage=f"redis://{store.address}")
    with server.connect("acme") as connection:
        # Requests of a new class start slowly, until 32 of them are settled.
        assert not any(reply.is_error for reply in connection.pipeline([("GET", "nothing")] * 40))
        until(lambda: server.metered("acme") == 40 * MICRO, "the class is known")
        for _ in range(20):
            connection.send("GET", "nothing")
        until(lambda: server.counted("weir_requests_forwarded_total") == 60, "all are under way")
    assert server.counted("weir_clients_closed_total") <= 1 and server.metered("acme") == 40 * MICRO
    until(lambda: server.metered("acme") == 60 * MICRO, "what it left behind is charged")


def test_what_was_sent_is_charged_though_the_store_never_answers(limited):
    with FakeStore(lambda words: None if words[0] == b"GET" else accommodating(words)) as store:
        quotas = tenant("acme", ru_per_second=1, burst_seconds=5)
        server = limited(quotas, *ONE_UNIT, storage=f"redis://{store.address}")
        with server.connect("acme") as connection:
            replies = [connection.call("GET", "nothing").text for _ in range(40)]
            assert {reply.split()[0] for reply in replies} <= {"UNAVAILABLE", "THROTTLED"}
            sent = sum("reason=connection-lost" in reply for reply in replies)
            assert sent > 0
            # The other requests were refused while the store was ejected.
            until(lambda: server.metered("acme") == sent * MICRO, "those that were sent are charged")


def test_what_never_reached_a_store_costs_nothing(limited):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        quotas = tenant("acme", ru_per_second=1, burst_seconds=5)
        server = limited(quotas, *ONE_UNIT, storage="redis://127.0.0.1:%d" % nobody.getsockname()[1])
        with server.connect("acme") as connection:
            replies = [connection.call("GET", "nothing") for _ in range(40)]
            assert {reply.text.split()[0] for reply in replies} == {"UNAVAILABLE"}
            assert server.metered("acme") == 0 == server.metered("acme", "throttled")


def test_a_reply_that_is_too_large_is_charged_by_what_was_read(limited, servers):
    flags = ("--max-reply-bytes", "1MiB", "--ru-latency-ms", "0")
    server = limited(tenant("acme", ru_per_second=1_000_000), *flags, backends=[servers.redis()])
    size = 3 << 20
    with server.connect("acme") as connection:
        connection.ok("SETRANGE", "large", size - 1, "x")
        until(lambda: server.metered("acme") > 0, "the write is charged")
        before = server.metered("acme")
        assert "--max-reply-bytes" in connection.call("GET", "large").text
        read = len(b"$%d\r\n" % size) + size + 2
        until(lambda: server.metered("acme") == before + price(encode("GET", "large"), read), "and so is all that was read")


# What one may do to others.

EVERYBODY = "[global]\nru_per_second = 1_000\n"


def test_a_walk_that_asks_for_everything_keeps_nobody_else_waiting(limited):
    server = limited(EVERYBODY + tenant("walker") + tenant("reader"))
    with server.connect("walker") as walker, server.connect("reader") as reader:
        for words in (
            ("HSCAN", "missing", 0, "COUNT", 4_294_967_295),
            ("HSCAN", "missing", 0, "COUNT", 4_294_967_295, "MATCH", "count"),
            ("SETBIT", "far", 4_000_000_000, 1),
        ):
            walker.call(*words)
            reply = reader.call("GET", "nothing")
            assert not reply.is_error or int(refusal(reply)["retry_after_ms"]) <= 250 * JITTER, f"{words}: {reply}"


def test_a_transaction_that_asks_for_more_than_there_is_fills_no_bucket(limited):
    rate, walks = 100, 108_000
    server = limited(EVERYBODY + tenant("acme", ru_per_second=rate) + tenant("other"))
    with server.connect("acme") as connection, server.connect("other") as other:
        connection.ok("MULTI")
        queued = connection.pipeline([("HSCAN", "k", 0, "COUNT", 4_294_967_295)] * walks)
        assert {reply.raw for reply in queued} == {b"+QUEUED\r\n"}
        # A request that costs more than a burst is admitted when the bucket is full, and becomes a debt.
        assert len(connection.call("EXEC").children) == walks
        told = refusal(connection.call("GET", "nothing"))
        assert told["scope"] == "tenant" and int(told["retry_after_ms"]) > 900 * walks // rate
        reply = other.call("GET", "nothing")
        assert not reply.is_error or int(refusal(reply)["retry_after_ms"]) <= 250 * JITTER, reply


def test_what_turns_out_dear_is_owed_until_it_is_paid_off(limited, servers):
    rate, size, count = 100, 1 << 20, 90
    flags = ("--ru-latency-ms", "0")
    quotas = EVERYBODY + tenant("acme", ru_per_second=rate) + tenant("owner") + tenant("other")
    server = limited(quotas, *flags, backends=[servers.redis()])
    with server.connect("owner") as owner:
        owner.ok("SETRANGE", "large", size - 1, "x")
    with server.connect("acme") as connection, server.connect("other") as other:
        assert ask(connection, 5)["served"] == 5
        time_of_debt = time.monotonic()
        served = sum(not reply.is_error for reply in connection.pipeline([("GET", "large")] * count))
        # The costs were unknown, so up to a burst of requests may have been sent. All of their cost is owed.
        assert 1 <= served <= rate
        debt = served * (1 + size // 1024 // 4) - rate
        told = refusal(connection.call("GET", "nothing"))
        assert told["scope"] == "tenant" and told["remaining"] == "0"
        waits = int(told["retry_after_ms"]) / 1000
        due = debt / rate - (time.monotonic() - time_of_debt)
        assert due - 2 <= waits <= JITTER * (due + 2), f"{debt} are owed"
        reply = other.call("GET", "nothing")
        assert not reply.is_error or int(refusal(reply)["retry_after_ms"]) <= 250 * JITTER, "nobody else pays for it"


# Whose quota.

# Bursts of 100, 1,000 and 2,000 units, with rates so low that little comes in while a test runs.
NESTED = (
    "[global]\nru_per_second = 10\nburst_seconds = 200\n"
    + tenant("acme", ru_per_second=10, burst_seconds=100, user_ru_per_second=1)
    + "[tenants.acme.users.loader]\nru_per_second = 2\n"
    + tenant("zeta")
)


def test_three_scopes_and_a_refusal_burns_nothing_in_the_others(limited):
    server = limited(NESTED, *ONE_UNIT)
    start = time.monotonic()
    served = 0

    def spend(login: str, count: int, burst: int, scope: str, rate: int) -> None:
        nonlocal served
        found = Counter()
        with server.connect(login) as connection:
            # Units of a bucket that another core holds become available a few periods later.
            until(lambda: found.update(ask(connection, count)) or found["served"] >= burst, f"{login} is served {burst}", 5)
        # Counted from the start of the test, because empty buckets may have filled since.
        gathered = rate * (time.monotonic() - start) + 2
        assert found["served"] <= burst + gathered, (login, found)
        assert set(found) == {"served", scope}, (login, found)
        served += found["served"]

    spend("acme/ann", 500, 100, "user acme/ann 1", 1)
    spend("acme/bob", 500, 100, "user acme/bob 1", 1)
    spend("acme/loader", 500, 200, "user acme/loader 2", 2)
    # The tenant's 1,000 units pay only for requests of users that were served, not for the 1,100 refused ones.
    spend("acme", 1_500, 1_000 - served, "tenant acme 10", 10)
    # The global 2,000 units pay only for requests of tenants that were served.
    spend("zeta", 2_000, 2_000 - served, "global global 10", 10)
    assert 2_000 <= served <= 2_000 + 10 * (time.monotonic() - start) + 2


def test_a_user_is_one_user_however_it_is_named(limited):
    server = limited(NESTED, *ONE_UNIT, shards=4)
    refused = "user acme/ann 1"
    with server.connect("acme/ann") as connection:
        assert ask(connection, 300)[refused] >= 190
    with server.connect("acme") as connection:
        assert ask(connection, 20, "QOS", "CALL", "USER", "ann")[refused] >= 15
        assert ask(connection, 20, "QOS", "CALL", "USER", "bob") == {"served": 20}
        assert ask(connection, 20) == {"served": 20}
        connection.ok("QOS", "SET", "USER", "ann")
        assert ask(connection, 20)[refused] >= 15
    with server.connect("acme") as connection:
        connection.ok("CLIENT", "SETNAME", "cart;user=ann")
        assert ask(connection, 20)[refused] >= 15


@pytest.mark.parametrize(
    ("rates", "named"),
    [
        # Waits of about 1,000, 200 and 100 ms for the user, its tenant and all together; the longest wait moves from row to row.
        ({"user": 1, "tenant": 5, "all": 10}, "user acme/ann 1"),
        ({"user": 10, "tenant": 1, "all": 5}, "tenant acme 1"),
        ({"user": 10, "tenant": 5, "all": 1}, "global global 1"),
    ],
)
def test_the_most_restrictive_scope_is_named(limited, rates: dict[str, int], named: str):
    burst_seconds = 20
    quotas = (
        f"[global]\nru_per_second = {rates['all']}\nburst_seconds = {400 / rates['all']}\n"
        + tenant("acme", ru_per_second=rates["tenant"], burst_seconds=burst_seconds, user_ru_per_second=rates["user"])
        + tenant("zeta")
    )
    # One shard, so that no other one holds units.
    server = limited(quotas, *ONE_UNIT, shards=1)
    with server.connect("acme/ann") as ann, server.connect("acme") as acme, server.connect("zeta") as zeta:
        # Use up the user's bucket, then the rest of its tenant's, then the rest of the global one.
        ask(ann, 400), ask(acme, 400), ask(zeta, 800)
        # The wait for one unit, and for one more that was admitted on credit.
        told = range(500, int(JITTER * 2_000) + 2)

        def is_named() -> bool:
            last = refusal(ann.pipeline([("GET", "nothing")] * 10)[-1])
            found = f"{last['scope']} {last['name']} {last['limit']}"
            return found == named and last["remaining"] == "0" and int(last["retry_after_ms"]) in told

        # The named scope nearly always has the longest wait, except for a moment before its wait ends.
        until(is_named, f"{named} is named, with the longest of the waits")


NAMES = 50_000
# Per name: a bucket on a core and one in the pools, the tables' free room, and the messages about it between both.
BYTES_PER_NAME = 2_000


def test_a_flood_of_invented_names_is_survived(limited):
    server = limited(tenant("acme", user_ru_per_second=1), *ONE_UNIT)

    def active() -> int:
        # Traffic makes weir search for idle users, so this sends a request.
        connection.call("QOS", "CALL", "USER", "ann", "GET", "nothing")
        return server.counted("weir_users_active")

    with server.connect("acme") as connection:
        before, sizes = server.weir.resident_bytes(), []
        for flood in range(3):
            for chunk in range(0, NAMES, 5_000):
                names = range(chunk, chunk + 5_000)
                replies = connection.pipeline([("QOS", "CALL", "USER", f"{flood}-{n}", "GET", "nothing") for n in names])
                assert all(reply.is_null for reply in replies)
            assert 0 < active() <= NAMES + 1
            sizes.append(server.weir.resident_bytes() - before)
            assert ask(connection, 20, "QOS", "CALL", "USER", f"{flood}-0")["user acme/%d-0 1" % flood] >= 15, "none is forgotten"
            until(lambda: active() <= 1, "what each spent came in again, and nothing of them is left")
        assert sizes[0] <= NAMES * BYTES_PER_NAME, sizes
        # New names replace old ones, so the pools of one flood disappear with the next.
        assert server.counted("weir_quota_pools") <= 2 * NAMES + 2, "one flood, and one before it"
        assert sizes[2] <= 2.5 * sizes[0], f"the room of those who are gone is used again: {sizes}"


# What a refusal says.


@pytest.mark.parametrize("login", ["acme", "beta/ann"])
def test_who_comes_again_as_told_is_served(limited, login: str):
    rate = 40
    quotas = tenant("acme", ru_per_second=rate, burst_seconds=0.1) + tenant("beta", user_ru_per_second=rate, burst_seconds=0.1)
    server = limited(quotas, *ONE_UNIT)
    with server.connect(login) as connection:
        start = time.monotonic()
        served, second_tries = ask(connection, 50)["served"], 0
        for _ in range(25):
            # Units that have gathered meanwhile are spent first.
            while not (reply := connection.call("GET", "nothing")).is_error:
                served += 1
            told = refusal(reply)
            assert told["remaining"] == "0" and told["limit"] == str(rate)
            # The wait is the time in which one unit comes in, plus a quarter, rounded up.
            assert int(told["retry_after_ms"]) <= JITTER * 1000 / rate + 1, told
            time.sleep(int(told["retry_after_ms"]) / 1000)
            if (reply := connection.call("GET", "nothing")).is_error:
                second_tries += 1
                time.sleep(int(refusal(reply)["retry_after_ms"]) / 1000)
                reply = connection.call("GET", "nothing")
            assert reply.is_null, f"after it had waited twice as told: {reply}"
            served += 1
        # No client is admitted too early, however often it asks.
        assert served <= rate * (0.1 + time.monotonic() - start) + 2
        assert second_tries <= 5, "now and then, because all together was spent elsewhere, but not as a rule"


# Other quotas.


def test_other_quotas_are_in_force_at_once_and_nothing_is_given_twice(limited):
    """The quota rises by a change of the file, falls by POST, and returns by SIGHUP, with traffic all the time."""

    def quotas(rate: int) -> str:
        return tenant("acme", ru_per_second=rate)

    server = limited(quotas(2_000), *ONE_UNIT)
    connections = clients_of_every_shard(server.weir)
    for connection in connections:
        connection.ok("AUTH", "acme", "secret")
    offer = Offer(connections, 6_000)

    def in_force(version: int) -> float:
        page = '"version": %d,' % version
        until(lambda: re.search(r'"version":\s*%d\b' % version, server.weir.admin("/config/quotas")[1]), f"{page} is shown")
        return time.monotonic()

    def check(rate: int, since: float) -> None:
        """Checks the admitted rate over 1.5 s, once the shards have had a moment to change."""
        start = since + 0.1
        until(lambda: offer.moments and offer.moments[-1] > start + 1.5, "time has passed")

        def measured() -> tuple[int, float]:
            end = offer.moments[-1]
            return offer.served_between(start, end), rate * (end - start)

        def is_served() -> bool:
            served, due = measured()
            return served >= 0.93 * due

        # A client that paused for a moment gets the units that gathered meanwhile later.
        until(is_served, f"all of {rate} RU/s is served")
        served, due = measured()
        # A new burst would add a whole second's quota.
        assert served <= 1.07 * due, f"{served} were served of {due:.0f} at {rate} RU/s"

    with Offers(offer):
        until(lambda: offer.throttled > 1_000, "the burst is spent")
        check(2_000, time.monotonic())
        server.file.write_text(quotas(4_000))
        check(4_000, in_force(1))
        status, text, _ = server.weir.admin_request("POST", "/config/quotas", quotas(500).encode())
        assert status == 200, text
        check(500, in_force(2))
        server.weir.signal(signal.SIGHUP)
        check(4_000, in_force(3))
    assert offer.other == 0 and offer.served + offer.throttled == offer.sent
    until(lambda: server.metered("acme") == offer.served * MICRO, "what was admitted is told, over all versions")


# What is refused as a whole, and what stays in order.

FIFTEEN = tenant("acme", ru_per_second=1, burst_seconds=15) + tenant("operator", admin="true")


def test_a_throttled_transaction_leaves_nothing_done(limited):
    server = limited(FIFTEEN, *ONE_UNIT)
    with server.connect("acme") as connection, server.connect("operator") as operator:
        assert ask(connection, 5) == {"served": 5}
        connection.ok("MULTI")
        assert [connection.ok("SET", f"{{t}}{n}", n) for n in range(14)] == [b"QUEUED"] * 14, "to queue costs nothing"
        told = refusal(connection.call("EXEC"))
        assert (told["scope"], told["name"]) == ("tenant", "acme") and int(told["remaining"]) in (10, 11, 12)
        assert operator.ok("EXISTS", *(f"{{t}}{n}" for n in range(14))) == 0
        # The transaction has ended, and nothing was charged for it.
        assert connection.call("EXEC").text == "ERR EXEC without MULTI"
        assert connection.pipeline([("MULTI",), *[("INCR", "{t}n")] * 8, ("EXEC",)])[-1].plain() == list(range(1, 9))
        assert ask(connection, 20)["served"] in (2, 3, 4), "15 less 5 less 8"


def test_pipelines_keep_their_order_around_refusals(limited):
    server = limited(tenant("acme", ru_per_second=50, burst_seconds=2) + tenant("loader"), *ONE_UNIT)
    count = 400
    with server.connect("loader") as loader:
        loader.pipeline([("SET", f"key:{n}", f"value {n}") for n in range(count)])
    with server.connect("acme") as connection:
        requests = [words for n in range(count) for words in (("GET", f"key:{n}"), ("ECHO", f"echo {n}"))]
        replies = connection.pipeline(requests)
        found = Counter()
        for n, (read, echoed) in enumerate(zip(replies[::2], replies[1::2], strict=True)):
            assert echoed.value == b"echo %d" % n
            if read.is_error:
                refusal(read)
            else:
                assert read.value == b"value %d" % n
            found[read.is_error] += 1
        assert found[False] >= 100 and found[True] >= 200, found
        # Order holds for requests that are served, refused and served again, between a write and its reads.
        assert connection.ok("ECHO", "the end") == b"the end"


# Without the layer, and with another one.


def test_switched_off_nothing_is_refused(limited):
    server = limited(tenant("acme", ru_per_second=1, burst_seconds=10, user_ru_per_second=1), *ONE_UNIT, "--disable", "rate")
    with server.connect("acme/ann") as connection:
        assert ask(connection, 3_000) == {"served": 3_000}
    assert server.counted("weir_refusals_total") == 0 == server.counted("weir_shadow_refusals_total")


def test_in_shadow_nothing_is_refused_and_what_would_be_is_counted(limited):
    server = limited(tenant("acme", ru_per_second=1, burst_seconds=100), *ONE_UNIT, "--shadow", "rate")
    with server.connect("acme") as connection:
        start = time.monotonic()
        # A request that arrives while the pool is being asked is decided when the answer comes.
        assert ask(connection, 1_500) == {"served": 1_500}
        assert sum((ask(connection, 1) for _ in range(1_500)), Counter()) == {"served": 1_500}
        would_pass = 100 + (time.monotonic() - start) + 20
    until(
        lambda: server.metered("acme", "throttled") + server.metered("acme") == 3_000 * MICRO,
        "each is metered as what it would have been",
    )
    counted = server.counted("weir_shadow_refusals_total")
    assert server.counted("weir_refusals_total") == 0
    assert 3_000 - would_pass <= counted <= 2_900
    assert server.metered("acme", "throttled") == counted * MICRO


def test_the_static_limiter_counts_requests_by_the_second(limited, servers):
    server = limited(tenant("acme", ru_per_second=100) + tenant("zeta"), "--limiter", "static")
    with server.connect("acme") as connection, server.connect("zeta") as zeta:
        zeta.ok("RPUSH", "list", *range(1000))
        start = time.monotonic()
        replies = connection.pipeline([("LRANGE", "list", 0, -1)] * 350)
        served = sum(not reply.is_error for reply in replies)
        windows = int(time.monotonic() - start) + 2
        # The static limiter counts a reply of a thousand rows as one request; each second brings the whole quota again, without
        # savings.
        assert served in range(100, 100 * windows + 1, 100), served
        told = refusal(next(reply for reply in reversed(replies) if reply.is_error))
        assert (told["scope"], told["name"], told["limit"]) == ("tenant", "acme", "100")
        assert int(told["retry_after_ms"]) <= 1_000
        time.sleep(int(told["retry_after_ms"]) / 1000)
        assert connection.call("GET", "nothing").is_null
        assert ask(zeta, 1_000) == {"served": 1_000}
