"""Tests of `pubsub = "shared"`: all clients of weir share one subscription per channel, and see no difference from a server."""

from __future__ import annotations

import random
import signal
import threading

import pytest

from harness import metrics
from harness.processes import Weir
from harness.relay import Relay
from harness.resp import Connection
from harness.waiting import until

pytestmark = pytest.mark.weir_only

SHARED = """[default]
admin = true
pubsub = "shared"
"""
NAMES = [f"{letter}{number}" for letter in "ab" for number in range(6)]
PATTERNS = ["a*", "b[0-3]", "*", "?1"]
STEPS = 200
FANNED_OUT = 200


@pytest.fixture
def shared(servers, tmp_path):
    """Starts a weir whose tenants share subscriptions."""

    def start(*stores, flags=(), quotas: str = SHARED) -> Weir:
        path = tmp_path / "quotas.toml"
        path.write_text(quotas)
        return servers.weir(*stores, flags=["--shards", "2", "--quotas", str(path), *flags])

    return start


def upstream(store) -> int:
    """Returns the number of subscribed connections at a store."""
    with store.connect() as connection:
        lines = connection.ok("CLIENT", "LIST").decode().splitlines()
    return sum("sub=0 psub=0" not in line for line in lines)


def said(connection: Connection, *words: str) -> list:
    connection.send(*words)
    return connection.read().plain()


def heard(connection: Connection) -> list:
    """Returns all messages that came before the reply to a PING."""
    connection.send("PING", "done")
    messages = []
    while (reply := connection.read().plain()) not in (b"done", [b"pong", b"done"]):
        messages.append(reply)
    return messages


def test_200_clients_of_both_dialects_hear_each_message_once_in_order_over_one_connection_per_shard(servers, shared):
    store = servers.redis()
    weir = shared(store)
    clients = [weir.connect(protocol=2 + number % 2) for number in range(FANNED_OUT)]
    publishers = [weir.connect() for _ in range(3)]
    for number, client in enumerate(clients):
        assert said(client, "SUBSCRIBE", "news") == [b"subscribe", b"news", 1]
        if number % 4 == 0:
            assert said(client, "PSUBSCRIBE", "ne*") == [b"psubscribe", b"ne*", 2]
    assert upstream(store) <= 2, "one for each shard at most, whatever the number of clients"
    patterns = FANNED_OUT // 4
    assert publishers[0].ok("PUBSUB", "NUMSUB", "news", "none") == [b"news", FANNED_OUT, b"none", 0]
    assert publishers[0].ok("PUBSUB", "NUMPAT") == 1
    large = "x" * 40_000
    for number in range(30):
        for which, publisher in enumerate(publishers):
            text = f"{which} {number} {large if number == 7 else ''}"
            assert publisher.ok("PUBLISH", "news", text) == FANNED_OUT + patterns
    for number, client in enumerate(clients):
        kinds = [b"message"] + [b"pmessage"] * (number % 4 == 0)
        replies = client.read_many(90 * len(kinds))
        expected = {b">"} if number % 2 else {b"*"}
        assert {reply.kind for reply in replies} == expected
        for kind in kinds:
            texts = [reply.plain()[-1].split() for reply in replies if reply.plain()[0] == kind]
            for which in range(3):
                assert [int(text[1]) for text in texts if int(text[0]) == which] == list(range(30)), (number, kind)
    assert metrics.total(weir, "weir_messages_delivered_total") == 90 * (FANNED_OUT + patterns)
    assert metrics.total(weir, "weir_shared_messages_total") == 180
    assert metrics.total(weir, "weir_shared_channels", 'kind="channel"') == 1
    for client in clients:
        client.close()
    until(lambda: upstream(store) == 0, "nobody is subscribed")
    until(lambda: metrics.total(weir, "weir_shared_channels") == 0, "nothing is left")
    assert publishers[0].ok("PUBLISH", "news", "x") == 0


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_three_stores_tell_subscribers_what_one_server_tells(servers, shared, seed: int, protocol: int):
    rng = random.Random(f"{seed} {protocol}")
    single = servers.redis()
    weir = shared(*[servers.redis() for _ in range(3)])
    places = [single, weir]
    clients = [[place.connect(protocol=protocol) for _ in range(3)] for place in places]
    publishers = [place.connect() for place in places]
    for _ in range(STEPS):
        if rng.random() < 0.4:
            channel, text = rng.choice(NAMES), str(rng.random())
            counts = [publisher.ok("PUBLISH", channel, text) for publisher in publishers]
            assert counts[0] == counts[1], channel
            told = [[[] for _ in group] for group in clients]
            for group, lists in zip(clients, told, strict=True):
                until(lambda group=group, lists=lists: [each.extend(heard(client)) for client, each in zip(group, lists, strict=True)] and sum(map(len, lists)) >= counts[0], "all have heard")
            assert [sorted(each) for each in told[0]] == [sorted(each) for each in told[1]]
        elif rng.random() < 0.1:
            words = rng.choice([["PUBSUB", "NUMSUB", *NAMES], ["PUBSUB", "NUMSUB"]])
            one, three = (publisher.ok(*words) for publisher in publishers)
            assert one == three, words
        else:
            word = rng.choice(["SUBSCRIBE", "PSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE"])
            words = [word, *rng.choices(PATTERNS if word.startswith("P") else NAMES, k=rng.randrange(1, 4))]
            which = rng.randrange(3)
            one, three = ([reply.plain() for reply in (group[which].send(*words) or group[which].read_many(len(words) - 1))] for group in clients)
            assert one == three, words
            # weir acknowledges the end of a subscription before the store knows of it.
            if word.endswith("UNSUBSCRIBE"):
                asked = ("PUBSUB", "NUMSUB", *NAMES)
                until(lambda: publishers[0].ok(*asked) == publishers[1].ok(*asked), "the store has heard of it")
    for connection in [*publishers, *(client for group in clients for client in group)]:
        connection.close()


def test_a_subscription_is_acknowledged_when_the_store_has_acknowledged_it(servers, shared):
    store = servers.redis()
    with Relay(store.port) as relay:
        weir = shared(relay)
        with weir.connect() as first, weir.connect() as second, weir.connect() as publisher:
            assert said(first, "SUBSCRIBE", "news") == [b"subscribe", b"news", 1]
            relay.hold()
            second.send("SUBSCRIBE", "news")
            until(lambda: relay.held_bytes() > 0, "the subscription is on its way")
            assert not second.parser.pending
            relay.release()
            assert second.read().plain() == [b"subscribe", b"news", 1]
            assert publisher.ok("PUBLISH", "news", "text") == 2
            assert first.read().plain() == second.read().plain() == [b"message", b"news", b"text"]


def test_clients_that_come_and_go_leave_a_channel_alive_for_those_who_stay(servers, shared):
    store = servers.redis()
    weir = shared(store)
    stop = threading.Event()
    failures: list[BaseException] = []

    def churn(seed: int) -> None:
        rng = random.Random(seed)
        try:
            while not stop.is_set():
                with weir.connect(protocol=2 + seed % 2) as client:
                    for _ in range(rng.randrange(1, 6)):
                        for word in ("SUBSCRIBE", "UNSUBSCRIBE")[: 1 + (rng.random() < 0.7)]:
                            client.send(word, "news")
                            while client.read().plain()[0] != word.lower().encode():
                                pass
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    try:
        with weir.connect() as publisher:
            for number in range(60):
                with weir.connect() as client:
                    assert said(client, "SUBSCRIBE", "news") == [b"subscribe", b"news", 1]
                    assert publisher.ok("PUBLISH", "news", f"mark {number}") >= 1
                    while client.read().plain()[2] != f"mark {number}".encode():
                        pass
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    until(lambda: upstream(store) == 0, "nobody is subscribed")


def test_a_store_that_dies_costs_its_subscribers_their_connections_and_is_heard_again(servers, shared):
    stores = [servers.redis() for _ in range(2)]
    weir = shared(*stores)
    homes = {}
    for name in NAMES:
        with weir.connect() as client:
            said(client, "SUBSCRIBE", name)
            homes[name] = next(index for index, store in enumerate(stores) if name.encode() in listed(store))
    dying, living = (next(name for name, home in homes.items() if home == index) for index in (0, 1))
    with weir.connect() as first, weir.connect(protocol=3) as second, weir.connect() as third:
        for client in (first, second):
            assert said(client, "SUBSCRIBE", dying)[2] == 1
        assert said(third, "SUBSCRIBE", living)[2] == 1
        stores[0].kill()
        for client in (first, second):
            assert client.read_to_end() == []
        with weir.connect() as late:
            refusal = late.call("SUBSCRIBE", dying)
            assert refusal.text.startswith("UNAVAILABLE "), refusal
            assert late.call("PING").text == "PONG"
        with weir.connect() as publisher:
            assert publisher.ok("PUBLISH", living, "still") == 1
            assert third.read().plain()[2] == b"still"
            stores[0].start()
            with weir.connect() as again:
                until(lambda: not (reply := again.call("SUBSCRIBE", dying)).is_error and reply.plain()[2] == 1, "it is back")
                until(lambda: publisher.call("PUBLISH", dying, "text").plain() == 1, "the publisher's core sees it too")
                assert again.read().plain() == [b"message", dying.encode(), b"text"]


def listed(store) -> list[bytes]:
    with store.connect() as connection:
        return connection.ok("PUBSUB", "CHANNELS")


def test_a_subscriber_that_does_not_read_is_closed_and_the_others_hear_everything(servers, shared):
    store = servers.redis("--client-output-buffer-limit", "pubsub", "0", "0", "0")
    weir = shared(store, flags=["--subscriber-limit", "4MiB"])
    with weir.connect() as slow, weir.connect() as fast, weir.connect() as publisher:
        for client in (slow, fast):
            said(client, "SUBSCRIBE", "news")
        text, sent = "x" * 60_000, 0
        while metrics.total(weir, "weir_clients_expelled_total", 'reason="slow-subscriber"') == 0:
            for _ in range(20):
                assert publisher.ok("PUBLISH", "news", f"{sent} {text}") >= 1
                assert fast.read().plain()[2].startswith(f"{sent} ".encode())
                sent += 1
            assert sent < 2_000, "the slow one is still there"
        until(lambda: publisher.ok("PUBLISH", "news", "end") == 1, "only the fast one is counted")


def test_a_subscriber_that_reads_too_little_for_too_long_is_closed_in_exact_mode_too(servers, shared):
    for mode in ("shared", "exact"):
        flags = ["--subscriber-slow-limit", "1MiB", "--subscriber-slow-time", "1s"]
        weir = shared(servers.redis(), flags=flags, quotas=SHARED.replace("shared", mode))
        with weir.connect() as slow, weir.connect() as publisher:
            said(slow, "SUBSCRIBE", "news")
            for _ in range(300):
                publisher.ok("PUBLISH", "news", "x" * 60_000)
            until(lambda weir=weir: metrics.total(weir, "weir_clients_expelled_total", 'reason="slow-subscriber"') == 1, "it is closed")


TENANTS = """[default]
admin = true
[tenants.one]
password = "1"
channels = ["one:"]
pubsub = "shared"
[tenants.two]
password = "2"
channels = ["one:", "two:"]
pubsub = "exact"
"""


def test_tenants_with_their_own_modes_and_channels_hear_each_other(servers, shared, tmp_path):
    store = servers.redis()
    weir = shared(store, quotas=TENANTS)
    with weir.connect() as one, weir.connect() as also, weir.connect() as two, weir.connect() as publisher:
        for client, name in ((one, "one"), (also, "one"), (two, "two")):
            client.ok("AUTH", name, {"one": "1", "two": "2"}[name])
        assert one.call("SUBSCRIBE", "two:x").text.startswith("NOPERM tenant 'one' has only channels ")
        assert one.call("PSUBSCRIBE", "*").text.startswith("NOPERM ")
        for client in (one, also, two):
            assert said(client, "SUBSCRIBE", "one:x")[2] == 1
        assert upstream(store) == 2
        assert publisher.ok("PUBLISH", "one:x", "text") == 3
        assert publisher.ok("PUBSUB", "NUMSUB", "one:x") == [b"one:x", 3]
        for client in (one, also, two):
            assert client.read().plain()[2] == b"text"

        # A change of the mode affects new subscriptions only.
        path = tmp_path / "quotas.toml"
        path.write_text(TENANTS.replace('"exact"', '"shared"'))
        weir.signal(signal.SIGHUP)
        with weir.connect() as third:
            third.ok("AUTH", "two", "2")
            until(lambda: "shared" in str(third.ok("QOS", "EXPLAIN", "SUBSCRIBE", "one:x")), "the quotas are in force")
            assert said(third, "SUBSCRIBE", "one:x")[2] == 1
            assert upstream(store) == 2
            assert publisher.ok("PUBLISH", "one:x", "again") == 4
            for client in (one, also, two, third):
                assert client.read().plain()[2] == b"again"

        # A change of a tenant's channels closes clients that are subscribed.
        path.write_text(TENANTS.replace('channels = ["one:"]', 'channels = ["other:"]'))
        weir.signal(signal.SIGHUP)
        assert one.read_to_end() == also.read_to_end() == []
        until(lambda: publisher.ok("PUBLISH", "one:x", "last") == 1, "those of the other tenant stay")
        assert two.read().plain()[2] == b"last"


def test_channels_are_bounded_and_other_names_have_connections_of_their_own(servers, shared):
    store = servers.redis()
    weir = shared(store, flags=["--shared-channels", "20", "--private-links", "10"])
    with weir.connect(protocol=3) as client, weir.connect() as other:
        answers = [client.call("SUBSCRIBE", f"channel{number}") for number in range(40)]
        refusals = [answer.text for answer in answers if answer.is_error]
        assert 20 <= len(refusals) < 40 and all(text.startswith("OVERLOADED reason=channels ") for text in refusals)
        count = 40 - len(refusals)
        assert metrics.total(weir, "weir_shared_channels") == count
        assert said(client, "SUBSCRIBE", "__keyevent@0__:set")[2] == count + 1
        assert said(client, "SSUBSCRIBE", "sharded")[2] == 1
        assert said(client, "SUBSCRIBE", "n" * 2_000)[2] == count + 2
        assert other.ok("PUBLISH", "n" * 2_000, "text") == 1
        assert client.read().plain()[2] == b"text"
        assert metrics.total(weir, "weir_private_links", 'use="subscribed"') == 1
        assert 1 <= metrics.total(weir, "weir_private_links", 'use="shared"') <= 2
        assert b"pubsub_clients:1" in other.ok("INFO", "clients")
        client.ok("RESET")
        until(lambda: metrics.total(weir, "weir_shared_channels") == 0, "all have ended")


def test_a_drain_does_not_wait_for_subscribers(servers, shared):
    store = servers.redis()
    weir = shared(store)
    with weir.connect() as client, weir.connect(protocol=3) as other:
        for subscriber in (client, other):
            assert said(subscriber, "SUBSCRIBE", "news")[2] == 1
        assert weir.terminate(10) == 0
        assert client.read_to_end() == other.read_to_end() == []
    until(lambda: upstream(store) == 0, "nothing is left at the store")
