"""Tests of windows, queues, deadlines and stalls, as clients and operators see them."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import metrics
from harness.placement import clients_of_every_shard
from harness.processes import Redis, Storage, Weir, accepts
from harness.resp import Connection, Reply, encode
from harness.waiting import until

pytestmark = [pytest.mark.weir_only, pytest.mark.alone]

ALL_OFF = ["--disable", "window,queue,shed"]
IN_SHADOW = ["--shadow", "window,queue,shed"]
# One request at a time, so that the numbers in flight and waiting are known.
ONE_BY_ONE = ["--window-max", "1"]
UNSURE = " (it may have happened)"


@pytest.fixture
def storage(servers):
    return lambda *options: servers.keep(Storage(*options)).start()


def explained(connection: Connection, *command: str) -> dict[str, str]:
    flat = connection.ok("QOS", "EXPLAIN", *command)
    pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2])
    return {name.decode(): value.decode() for name, value in pairs if isinstance(value, bytes)}


def counted(weir: Weir, name: str, label: str = "") -> int:
    """Returns the sum of a metric over all shards."""
    found = metrics.parse(weir.admin("/metrics")[1])[name]
    return int(sum(value for labels, value in found.items() if label in labels))


def fields(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.removesuffix(UNSURE).split(" ")[1:])


# --- what EXPLAIN foretells -------------------------------------------------------------------------------------------


def test_explain_says_what_each_layer_would_decide(servers):
    weir = servers.weir(flags=["--shards", "2"])
    for connection in clients_of_every_shard(weir):
        with connection:
            for key in ("a", "b", "c", "d"):
                told = explained(connection, "GET", key)
                assert re.fullmatch(r"room: \d+ of \d+ in flight", told["window"]), told
                assert told["queue"] == "goes on at once" and told["stalled"] == "no"
                assert told["tier"] == "standard" and told["deadline"] == "none"
                assert told["level"] == "0 (Steady): at the usual price" and told["connections"] == "usual"
            connection.ok("CLIENT", "SETNAME", "cart;tier=batch;deadline=5000ms")
            told = explained(connection, "GET", "a")
            assert told["tier"] == "batch" and told["deadline"].startswith("in time: 5000 ms, "), told
            assert "window" not in explained(connection, "DBSIZE"), "it goes to every store"


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (ALL_OFF, {"window": "off", "queue": "off", "deadline": "off", "level": "off"}),
        (
            IN_SHADOW,
            {
                "window": "shadow: room: ",
                "queue": "nothing waits: the window is in shadow",
                "deadline": "shadow: in time: 5000 ms",
                "level": "shadow: 0 (Steady)",
            },
        ),
        (["--disable", "queue", "--shadow", "shed"], {"window": "room: ", "queue": "off", "level": "shadow: "}),
        (["--disable", "window"], {"window": "off", "queue": "nothing waits: the window is off"}),
        (["--shadow", "queue"], {"queue": "shadow: goes on at once"}),
    ],
)
def test_explain_where_a_layer_is_off_or_in_shadow(servers, flags, wanted):
    weir = servers.weir(flags=["--shards", "1", *flags])
    with weir.connect() as connection:
        connection.ok("QOS", "SET", "DEADLINE", 5000)
        told = explained(connection, "GET", "a")
    for name, start in wanted.items():
        assert told[name].startswith(start), told


def test_explain_counts_those_before(servers, storage):
    """A connection that is alone may wait for any time, and each core gives the same explanation."""
    weir = servers.weir(storage("--servers", "1", "--service-time", "point=30ms"), flags=["--shards", "2", *ONE_BY_ONE])
    askers = clients_of_every_shard(weir)
    with weir.connect() as filler:
        filler.send_raw(encode("GET", "k") * 60)
        for asker in askers:
            told = until(lambda: waits(asker), "requests wait")
            assert told["window"] == "full: 1 of 1 in flight", told
        assert all(reply.is_null for reply in filler.read_many(60))
    for asker in askers:
        until(lambda: explained(asker, "GET", "k")["queue"] == "goes on at once", "nothing waits any more")
        until(lambda: explained(asker, "GET", "k")["window"] == "room: 0 of 1 in flight", "nothing is in flight")
    assert counted(weir, "weir_requests_queued_total") >= 59


def waits(asker: Connection) -> dict[str, str] | None:
    told = explained(asker, "GET", "k")
    return told if re.fullmatch(r"would wait behind [1-9]\d*", told["queue"]) else None


# --- what operators see -----------------------------------------------------------------------------------------------


def test_metrics_and_info_tell_of_each_backend(servers):
    weir = servers.weir(servers.redis(), servers.redis(), flags=["--shards", "2"])
    with weir.connect() as connection:
        connection.pipeline([("GET", f"k{number}") for number in range(500)])
        info = connection.ok("INFO", "weir").decode()
    found = metrics.parse(weir.admin("/metrics")[1])
    for family in (
        "weir_backend_in_flight", "weir_backend_window", "weir_queue_depth", "weir_queue_bytes", "weir_queue_age_seconds",
        "weir_queue_full", "weir_backend_base_seconds", "weir_backend_median_seconds", "weir_backend_stalled",
    ):
        assert len(found[family]) == 2 * 2, "by backend and track"
    assert all(value > 0 for value in found["weir_backend_window"].values())
    refusals = found["weir_overload_refusals_total"]
    for reason in ("window", "queue", "stalled", "deadline", "latency"):
        assert sum(f'reason="{reason}"' in labels for labels in refusals) == 4, "by tier"
    for index, backend in enumerate(weir.backends):
        line = re.search(rf"^backend{index}:(.*)\r$", info, re.MULTILINE)[1]
        told = dict(field.split("=", 1) for field in line.split(","))
        assert told["name"] == backend.address and int(told["window"]) > 0 and told["stalled"] == "0", line
        assert {"in_flight", "queue", "base_us", "median_us", "level"} <= set(told), line
    assert "\noverload_refusals_queue:0\r" in info


# --- what there is no room for ----------------------------------------------------------------------------------------


def storm(weir: Weir, connections: int, each: int) -> list[list[Reply]]:
    """Lets all connections increment counters of their own at the same time, and returns their replies."""

    def count(name: str) -> list[Reply]:
        with weir.connect() as connection:
            replies = connection.pipeline([("INCR", name)] * each)
            # A superfluous reply would come before this one.
            assert connection.call("ECHO", name).value == name.encode()
            return replies

    with ThreadPoolExecutor(connections) as pool:
        return list(pool.map(count, [f"count:{number}" for number in range(connections)]))


def check_counts(weir: Weir, stormed: list[list[Reply]]) -> Counter[str]:
    """Checks that the served requests counted in order and the refused ones were not carried out. Returns the number of
    refusals by reason.
    """
    reasons: Counter[str] = Counter()
    with weir.connect() as connection:
        for number, replies in enumerate(stormed):
            served = [int(reply.value) for reply in replies if not reply.is_error]
            assert served == list(range(1, len(served) + 1))
            for reply in replies:
                if reply.is_error:
                    told = fields(reply.text)
                    assert reply.text.startswith("OVERLOADED ") and not reply.text.endswith(UNSURE), reply
                    assert told["backend"] == weir.backends[0].address and int(told["retry_after_ms"]) >= 1
                    reasons[told["reason"]] += 1
            until(lambda: not connection.call("GET", f"count:{number}").is_error, "the store has time again")
            assert int(connection.ok("GET", f"count:{number}") or 0) == len(served)
    return reasons


def test_beyond_the_queue_everybody_is_told_when_to_come_back(servers, storage):
    store = storage("--servers", "1", "--service-time", "all=20ms")
    weir = servers.weir(store, flags=["--shards", "1", "--window-max", "2", "--queue-limit", "20"])
    stormed = storm(weir, connections=50, each=4)
    reasons = check_counts(weir, stormed)
    assert set(reasons) == {"queue"}, reasons
    assert counted(weir, "weir_overload_refusals_total", 'reason="queue"') >= reasons["queue"]
    # The first request of a connection waits for at most 150 ms, in which one store serves seven.
    assert sum(len(replies) for replies in stormed) - reasons["queue"] >= 7, "what could wait was served"


def test_without_a_queue_nothing_waits(servers, storage):
    store = storage("--servers", "1", "--service-time", "all=20ms")
    weir = servers.weir(store, flags=["--shards", "1", "--window-max", "2", "--disable", "queue"])
    assert set(check_counts(weir, storm(weir, connections=20, each=4))) == {"window"}
    assert counted(weir, "weir_requests_queued_total") == 0


@pytest.mark.parametrize("flags", [ALL_OFF, IN_SHADOW])
def test_without_these_layers_or_in_shadow_nobody_is_refused(servers, storage, flags):
    store = storage("--servers", "1", "--service-time", "all=5ms")
    weir = servers.weir(store, flags=["--shards", "1", "--window-max", "2", "--queue-limit", "1", *flags])
    assert not check_counts(weir, storm(weir, connections=50, each=4))
    with weir.connect() as connection:
        with store.connect() as direct:
            for kind in ("point", "write"):
                direct.ok("STORAGE", "SET", "SERVICE-TIME", kind, "100ms")
        connection.ok("QOS", "SET", "DEADLINE", 10)
        # A core that the machine runs again only after the reply has come notices no lateness, so this is tried several times.
        for _ in range(10):
            assert connection.ok("SET", "k", "v") == b"OK"
            if counted(weir, "weir_shadow_refusals_total", 'reason="deadline"') > 0:
                break
    would_wait = counted(weir, "weir_shadow_waits_total")
    would_be_late = counted(weir, "weir_shadow_refusals_total", 'reason="deadline"')
    assert (would_wait > 0, would_be_late > 0) == ((flags == IN_SHADOW,) * 2)
    assert counted(weir, "weir_requests_queued_total") == 0 == counted(weir, "weir_overload_refusals_total")


# --- deadlines --------------------------------------------------------------------------------------------------------


def test_a_deadline_is_kept_to_and_nothing_overtakes_what_the_store_does_yet(servers, storage):
    weir = servers.weir(storage("--service-time", "all=200ms"), flags=["--shards", "2"])
    with weir.connect() as connection, weir.connect() as other:
        connection.ok("QOS", "SET", "DEADLINE", 30)
        reply = connection.call("SET", "k", "v")
        assert reply.text.startswith("DEADLINE stage=backend waited_ms=") and reply.text.endswith(UNSURE), reply
        assert 1 <= int(fields(reply.text)["waited_ms"]) < 200
        connection.ok("QOS", "SET", "DEADLINE", 30_000)
        assert connection.ok("GET", "k") == b"v", "it goes on behind the SET"
        reply = connection.call("QOS", "CALL", "DEADLINE", 30, "GET", "k")
        assert reply.text.startswith("DEADLINE stage=") and not reply.text.endswith(UNSURE), reply
        # Once weir knows how long replies take, it refuses a hopeless request on arrival instead of sending it behind others.
        until(lambda: hopeless_behind(other, connection), "it is known what a reply takes")
    assert counted(weir, "weir_overload_refusals_total", 'reason="deadline"') >= 3


def hopeless_behind(other: Connection, connection: Connection) -> bool:
    other.send("GET", "k")
    reply = connection.call("QOS", "CALL", "DEADLINE", 30, "GET", "k")
    assert other.read().value == b"v"
    return reply.text.startswith("DEADLINE stage=arrival ")


def test_a_deadline_behind_a_clients_name(servers, storage):
    weir = servers.weir(storage("--service-time", "all=300ms"), flags=["--shards", "1"])
    with weir.connect() as connection, weir.connect() as patient:
        connection.ok("CLIENT", "SETNAME", "cart;deadline=50ms")
        assert connection.ok("CLIENT", "GETNAME").startswith(b"cart")
        reply = connection.call("GET", "k")
        assert reply.text.startswith("DEADLINE stage=backend waited_ms="), reply
        assert patient.ok("SET", "k", "v") == b"OK"


# --- weir behind weir -------------------------------------------------------------------------------------------------


def passed_on(weir: Weir) -> int:
    return counted(weir, "weir_deadlines_passed_on_total")


def refused_late(weir: Weir) -> int:
    return counted(weir, "weir_overload_refusals_total", 'reason="deadline"')


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_weir_behind_refuses_by_the_rest_of_a_deadline(servers, storage, protocol):
    """The store takes 100 ms per request, and ten requests are more important, so a deadline of 400 ms is hopeless."""
    inner = servers.weir(storage("--servers", "1", "--service-time", "all=100ms"), flags=["--shards", "1", *ONE_BY_ONE])
    outer = servers.weir(inner, flags=["--shards", "2"])
    with inner.connect() as filler, outer.connect() as client, outer.connect() as other:
        client.ok("HELLO", protocol)
        # weir recognises the weir behind it by a first reply, and needs some replies to know the store's latency.
        client.ok("GET", "k")
        filler.pipeline([("GET", "k")] * 10)

        def refusal_from_behind() -> str | None:
            before = refused_late(inner), passed_on(outer)
            filler.send_raw(encode("GET", "k") * 10)
            until(lambda: waits(inner_client), "others wait")
            reply = client.call("QOS", "CALL", "DEADLINE", 400, "TIER", "batch", "SET", "late", "1")
            assert not any(served.is_error for served in filler.read_many(10))
            assert reply.text.startswith("DEADLINE stage="), reply
            assert (refused_late(inner), passed_on(outer)) == (before[0] + 1, before[1] + 1)
            # If the refusal comes too late, the outer weir answers itself and cannot know the outcome.
            return None if reply.text.endswith(UNSURE) else reply.text

        with inner.connect() as inner_client:
            told = fields(until(refusal_from_behind, "the weir behind refuses what is too late"))
        assert told["stage"] == "queue" and int(told["waited_ms"]) < 400, told
        assert client.call("GET", "late").is_null, "it was never begun"
        # The inner weir waits for a request that the store has begun, so no other request is refused because of it.
        reply = client.call("QOS", "CALL", "DEADLINE", 20, "INCR", "n")
        assert reply.text.startswith("DEADLINE stage=backend "), reply
        replies = other.pipeline([("MULTI",), ("INCR", "n"), ("EXEC",), ("DBSIZE",)])
        assert not any(reply.is_error for reply in replies) and replies[2].children[0].value == b"2", replies
    assert counted(outer, "weir_backend_stalled") == 0 == counted(outer, "weir_backend_level")


def test_what_stands_behind_may_change_from_a_weir_to_a_redis_and_back(servers, storage):
    inner = servers.weir(storage(), flags=["--shards", "1"])
    outer = servers.weir(inner, flags=["--shards", "1"])
    with outer.connect() as client:
        client.ok("QOS", "SET", "DEADLINE", 20_000)

        def serves() -> bool:
            return not client.call("SET", "k", "v").is_error

        until(lambda: serves() and passed_on(outer) > 0, "the weir behind is told deadlines")
        inner.kill()
        # The kernel's work for a ring may outlive its process.
        until(lambda: not accepts(inner.port), "the port is free")
        redis = Redis()
        redis.port = inner.port
        servers.keep(redis).start()
        assert redis.port == inner.port
        until(serves, "the store in its place is there")
        before = passed_on(outer)
        assert {reply.value for reply in client.pipeline([("GET", "k")] * 100)} == {b"v"}
        assert passed_on(outer) == before
        with redis.connect() as direct:
            assert re.search(r"total_error_replies:0\r", direct.ok("INFO", "stats").decode()), "it never heard of QOS"
        redis.kill()
        inner.start()
        until(lambda: serves() and passed_on(outer) > before, "the weir behind is there again")


def test_without_deadlines_a_weir_behind_is_told_none(servers):
    inner = servers.weir(flags=["--shards", "1"])
    outer = servers.weir(inner, flags=["--shards", "1", "--disable", "shed"])
    with outer.connect() as client:
        client.ok("QOS", "SET", "DEADLINE", 20_000)
        assert not any(reply.is_error for reply in client.pipeline([("GET", "k")] * 100))
    assert passed_on(outer) == 0


# --- a store that stands still ----------------------------------------------------------------------------------------


class Counting:
    """Connections that increment one key, and the replies that they got."""

    def __init__(self) -> None:
        self.served = 0
        self.unsure = 0
        self.refused = 0

    def take(self, reply: Reply) -> Reply:
        if not reply.is_error:
            self.served += 1
        else:
            assert "reason=stalled" in reply.text, reply
            if reply.text.endswith(UNSURE):
                self.unsure += 1
            else:
                self.refused += 1
        return reply

    def count(self, connection: Connection) -> Reply:
        return self.take(connection.call("INCR", "n"))


def test_a_store_that_stands_still_keeps_nobody_waiting_and_does_nothing_twice(servers):
    redis = servers.redis()
    weir = servers.weir(redis, flags=["--shards", "2"])
    counting = Counting()
    with weir.connect() as early, weir.connect() as late:
        for _ in range(50):
            assert not counting.count(early).is_error
        redis.signal(signal.SIGSTOP)
        started = time.monotonic()
        # This request is in flight when the store stops, so it may still be carried out.
        first = counting.count(early)
        assert first.text.endswith(UNSURE) and time.monotonic() - started >= 0.9, first
        # By now the store counts as stalled, and new requests are not sent at all.
        for _ in range(20):
            assert not counting.count(late).text.endswith(UNSURE)
        assert counting.refused == 20
        assert int(fields(first.text)["retry_after_ms"]) >= 1
        told = explained(late, "INCR", "n")
        assert told["stalled"].startswith("yes") and told["queue"].startswith("refused"), told
        assert counted(weir, "weir_backend_stalled") >= 1
        redis.signal(signal.SIGCONT)
        until(lambda: not counting.count(late).is_error, "it is served again")
        until(lambda: not counting.count(early).is_error, "so is whoever was there before")
        assert counting.unsure == 1
        assert int(late.ok("GET", "n")) == counting.served + counting.unsure
        until(lambda: explained(late, "INCR", "n")["stalled"] == "no", "all cores know")


def test_without_a_window_a_store_that_stands_still_is_given_up(servers):
    redis: Redis = servers.redis()
    weir = servers.weir(redis, flags=["--shards", "1", "--backend-timeout", "1500ms", *ALL_OFF])
    with weir.connect() as connection:
        connection.ok("SET", "n", 0)
        redis.signal(signal.SIGSTOP)
        reply = connection.call("INCR", "n")
        assert reply.text.startswith("UNAVAILABLE ") and "reason=reply-timeout" in reply.text, reply
        redis.signal(signal.SIGCONT)
        until(lambda: not connection.call("INCR", "n").is_error, "it is served again")
