"""Tests of clients with state on their connection: blocking commands, watched keys, subscriptions."""

from __future__ import annotations

import contextlib
import itertools
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from harness import metrics
from harness.busy import SOON_BUSY, busy
from harness.cluster import Cluster
from harness.processes import Weir
from harness.resp import Closed, Connection
from harness.waiting import until

pytestmark = pytest.mark.weir_only

# The longest wait of a blocking call in seconds: longer than any test.
LONG = 60
FLAGS = ["--shards", "2"]
# The numbers of drains and workers in the test that ends weir while workers pop.
DRAINS, WORKERS = 5, 8


@pytest.fixture(scope="module", params=["one store", "three stores", "cluster", "embedded"])
def weir(request, module_servers) -> Weir:
    if request.param == "cluster":
        united = request.getfixturevalue("cluster")
        return module_servers.weir(*united.nodes, storage=united.storage, flags=FLAGS)
    stores = [module_servers.redis() for _ in range({"one store": 1, "three stores": 3, "embedded": 0}[request.param])]
    return module_servers.weir(*stores, flags=FLAGS)


def blocked(weir: Weir) -> int:
    """Returns the number of calls that wait at the stores."""
    total = 0
    # The embedded store has no address of its own, so weir is asked, which counts its waiting clients.
    for store in weir.backends or [weir]:
        with store.connect() as connection:
            fields = dict(line.split(":", 1) for line in connection.ok("INFO", "clients").decode().split("\r\n") if ":" in line)
            total += int(fields["blocked_clients"])
    return total


WAITS = [
    (("BLPOP", "{w}a", "{w}b", LONG), ("RPUSH", "{w}b", "x"), [b"{w}b", b"x"]),
    (("BRPOP", "{w}a", "{w}b", LONG), ("RPUSH", "{w}a", "x"), [b"{w}a", b"x"]),
    (("BRPOPLPUSH", "{w}a", "{w}t", LONG), ("RPUSH", "{w}a", "x"), b"x"),
    (("BLMOVE", "{w}a", "{w}t", "LEFT", "RIGHT", LONG), ("RPUSH", "{w}a", "y"), b"y"),
    (("BLMPOP", LONG, 2, "{w}a", "{w}b", "LEFT"), ("RPUSH", "{w}b", "x"), [b"{w}b", [b"x"]]),
    (("BZPOPMIN", "{w}z", LONG), ("ZADD", "{w}z", 1, "m"), [b"{w}z", b"m", b"1"]),
    (("BZPOPMAX", "{w}z", LONG), ("ZADD", "{w}z", 1, "m"), [b"{w}z", b"m", b"1"]),
    (("BZMPOP", LONG, 1, "{w}z", "MIN"), ("ZADD", "{w}z", 1, "m"), [b"{w}z", [[b"m", b"1"]]]),
    (("XREAD", "BLOCK", LONG * 1000, "STREAMS", "{w}s", "0"), ("XADD", "{w}s", "1-1", "f", "v"), [[b"{w}s", [[b"1-1", [b"f", b"v"]]]]]),
]


@pytest.mark.parametrize("words, wakes, reply", WAITS, ids=[words[0] for words, _, _ in WAITS])
def test_a_call_waits_until_there_is_something(weir: Weir, words: tuple, wakes: tuple, reply):
    with weir.connect() as waiter, weir.connect() as other:
        other.ok("DEL", "{w}a", "{w}b", "{w}t", "{w}z", "{w}s")
        waiter.send(*words)
        waiter.send("ECHO", "behind")
        until(lambda: blocked(weir) == 1, "the call waits at its store")
        other.ok(*wakes)
        first, second = waiter.read_many(2)
        assert (first.plain(), second.text) == (reply, "behind")


@pytest.mark.parametrize("words", [("BLPOP", "none", "0.05"), ("XREAD", "BLOCK", "50", "STREAMS", "none", "$")], ids=lambda words: words[0])
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_call_whose_time_is_over_is_told_nothing(weir: Weir, words: tuple, protocol: int):
    with weir.connect(protocol=protocol) as connection:
        assert connection.call(*words).raw == (b"*-1\r\n" if protocol == 2 else b"_\r\n")


def test_errors_are_those_of_the_store(weir: Weir):
    with weir.connect() as connection:
        assert connection.call("BLPOP", "k", "-1").text == "ERR timeout is negative"
        assert connection.call("BLPOP", "k", "x").text == "ERR timeout is not a float or out of range"
        connection.ok("SET", "text", "x")
        assert connection.call("BLPOP", "text", "1").text.startswith("WRONGTYPE ")
        connection.ok("MULTI")
        connection.ok("BLPOP", "none", "0")
        assert connection.call("EXEC").raw == b"*1\r\n*-1\r\n", "in a transaction it does not wait"


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("words", [
    ("CLIENT", "TRACKINGINFO"), ("CLIENT", "TRACKING", "OFF"), ("CLIENT", "TRACKING", "perhaps"), ("CLIENT", "CACHING", "YES"),
    ("CLIENT", "CACHING", "perhaps"), ("CLIENT", "REPLY", "ON"), ("CLIENT", "REPLY", "perhaps"), ("CLIENT", "NO-TOUCH", "ON"),
    ("CLIENT", "GETREDIR"), ("CONFIG", "GET", "notify-keyspace-events"),
], ids=" ".join)
def test_what_clients_say_when_they_start_is_answered_as_a_server_does(module_servers, words: tuple, protocol: int):
    store = module_servers.redis()
    weir = module_servers.weir(store, flags=FLAGS)
    with weir.connect(protocol=protocol) as through, store.connect(protocol=protocol) as direct:
        wanted = direct.call(*words).raw
        if wanted.startswith(b"-ERR unknown subcommand"):
            wanted = b"+OK\r\n"
        assert through.call(*words).raw == wanted
        assert through.call("CLIENT", "CAPA", "redirect").text == "OK"


def test_wait_counts_the_replicas_that_have_the_writes_of_the_client(servers):
    store = servers.redis()
    replica = servers.redis("--replicaof", "127.0.0.1", str(store.port))
    weir = servers.weir(store, flags=FLAGS)
    with weir.connect() as connection, weir.connect() as other:
        until(lambda: connection.ok("WAIT", 1, 100) == 1, "the replica has caught up")
        for number in range(100):
            connection.ok("SET", f"k{number}", number)
            assert connection.ok("WAIT", 1, 0) == 1
            with replica.connect() as direct:
                assert direct.ok("GET", f"k{number}") == b"%d" % number
        replica.signal(signal.SIGSTOP)
        try:
            connection.ok("SET", "k", "late")
            assert connection.ok("WAIT", 1, 200) == 0
            assert connection.ok("WAIT", 0, 0) == 0
            connection.send("WAIT", 1, 0)
            until(lambda: blocked(weir) == 1, "the call waits at its store")
            assert other.ok("GET", "k") == b"late"
        finally:
            replica.signal(signal.SIGCONT)
        assert connection.read().plain() == 1
        assert connection.call("WAIT", 1, -1).text == "ERR timeout is negative"


def test_wait_is_an_error_where_the_store_refuses_what_makes_it_count_the_writes_of_the_client(servers):
    store = servers.redis()
    with store.connect() as direct:
        direct.ok("ACL", "SETUSER", "weir", "on", ">w", "+@all", "-spublish", "~*", "&*")
        weir = servers.weir(storage=f"redis://weir:w@{store.address}", flags=FLAGS)
        with weir.connect() as connection:
            connection.ok("SET", "k", "v")
            assert connection.call("WAIT", 0, 10).text.startswith("NOPERM ")
            direct.ok("ACL", "SETUSER", "weir", "+spublish", "resetchannels")
            assert connection.call("WAIT", 0, 10).text.startswith("NOPERM ")
            direct.ok("ACL", "SETUSER", "weir", "&__weir:copies")
            assert connection.ok("WAIT", 0, 10) == 0


def test_a_call_waits_on_no_connection_that_was_opened_while_its_store_was_busy(servers):
    store = servers.redis(*SOON_BUSY)
    weir = servers.weir(store, flags=["--shards", "1"])
    with weir.connect() as client, weir.connect() as other:
        number = client.ok("CLIENT", "ID")
        with busy(store):
            assert client.call("BLPOP", "q", LONG).is_error
        until(lambda: not other.call("SET", "k", "v").is_error, "all is well again")
        client.send("BLPOP", "q", LONG)
        until(lambda: blocked(weir) == 1, "the call waits at its store")
        assert other.ok("CLIENT", "UNBLOCK", number) == 1
        assert client.read().raw == b"*-1\r\n"


def test_wait_before_several_stores_asks_those_that_the_client_has_written_to(servers):
    stores = [servers.redis() for _ in range(3)]
    replicas = [servers.redis("--replicaof", "127.0.0.1", str(store.port)) for store in stores[:2]]
    weir = servers.weir(*stores, flags=FLAGS)
    with contextlib.ExitStack() as stack:
        direct = [stack.enter_context(store.connect()) for store in stores]
        client, other = (stack.enter_context(weir.connect()) for _ in range(2))
        for store in direct[:2]:
            until(lambda store=store: store.ok("WAIT", 1, 100) == 1, "the replica has caught up")
        # A client that has written nothing is told of the store without replicas.
        assert client.ok("WAIT", 0, 0) == 0
        keys: dict[int, str] = {}
        for number in range(1_000):
            other.ok("SET", key := f"k{number}", "v")
            keys.setdefault(next(index for index, store in enumerate(direct) if store.ok("EXISTS", key)), key)
        assert set(keys) == {0, 1, 2}
        for index in (0, 1):
            client.ok("SET", keys[index], "new")
            assert client.ok("WAIT", 1, 0) == 1
        replicas[1].signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            client.ok("SET", keys[0], "newer")
            assert client.ok("WAIT", 1, 300) == 0
            assert 0.29 < time.monotonic() - began
            client.send("WAIT", 1, 0)
            until(lambda: blocked(weir) == 1, "the call waits at its store")
            assert other.ok("GET", keys[0]) == b"newer"
        finally:
            replicas[1].signal(signal.SIGCONT)
        assert client.read().plain() == 1
        other.ok("MSET", *(word for key in keys.values() for word in (key, "v")))
        assert other.ok("WAIT", 1, 100) == 0, "one of the three stores has no replica"
        assert client.call("WAIT", 1, -1).text == "ERR timeout is negative"
        stores[1].kill()
        assert client.call("WAIT", 1, 100).text.startswith("UNAVAILABLE ")


def test_many_that_wait_hold_up_nobody(weir: Weir):
    waiters = [weir.connect() for _ in range(200)]
    try:
        for index, waiter in enumerate(waiters):
            waiter.send("BLPOP", f"queue:{index}", LONG)
        until(lambda: blocked(weir) == len(waiters), "all of them wait")
        with weir.connect() as other:
            for index in range(200):
                other.ok("SET", f"k{index}", index)
            for index in range(len(waiters)):
                other.ok("RPUSH", f"queue:{index}", index)
        for index, waiter in enumerate(waiters):
            assert waiter.read().plain() == [b"queue:%d" % index, b"%d" % index]
    finally:
        for waiter in waiters:
            waiter.close()


@pytest.mark.parametrize("behind", [0, 10], ids=["nothing behind", "more behind than is read"])
@pytest.mark.parametrize("leaves", ["closes", "has sent its last"])
def test_nothing_is_popped_for_a_client_that_has_left(weir: Weir, leaves: str, behind: int):
    with weir.connect() as other:
        other.ok("DEL", "left")
        waiter = weir.connect()
        waiter.send("BLPOP", "left", LONG)
        until(lambda: blocked(weir) == 1, "the call waits at its store")
        for _ in range(behind):
            waiter.send("ECHO", b"x" * 10_000)
        if leaves == "closes":
            waiter.close()
        else:
            waiter.half_close()
        until(lambda: blocked(weir) == 0, "the call is over at the store, too")
        waiter.close()
        assert other.ok("RPUSH", "left", "x") == 1 and other.ok("LLEN", "left") == 1


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_call_is_unblocked_as_at_its_timeout_or_with_an_error(weir: Weir, protocol: int):
    error = "UNBLOCKED client unblocked via CLIENT UNBLOCK"
    with weir.connect(protocol=protocol) as waiter, weir.connect() as other:
        number = waiter.ok("CLIENT", "ID")
        assert other.ok("CLIENT", "UNBLOCK", number) == 0
        for _ in range(3):
            for words, nil in [(("BLPOP", "none", "0"), b"*-1\r\n"), (("BLMOVE", "none", "none", "LEFT", "LEFT", "0"), b"*-1\r\n"),
                               (("XREAD", "BLOCK", "0", "STREAMS", "none", "$"), b"*-1\r\n")]:
                for reason in ("TIMEOUT", "ERROR"):
                    waiter.send(*words)
                    until(lambda: blocked(weir) == 1, "the call waits at its store")
                    assert b" flags=b " in other.ok("CLIENT", "LIST", "ID", number)
                    assert other.ok("CLIENT", "UNBLOCK", number, reason) == 1
                    reply = waiter.read()
                    if reason == "ERROR":
                        assert reply.text == error
                    else:
                        assert reply.raw == (nil if protocol == 2 else b"_\r\n")
        assert other.ok("CLIENT", "UNBLOCK", number) == 0
        assert other.call("CLIENT", "UNBLOCK", number, "NOW").text == "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"
        assert other.call("CLIENT", "UNBLOCK", "x").text == "ERR value is not an integer or out of range"
        assert b" flags=N " in other.ok("CLIENT", "LIST", "ID", number)
        # The connection can be used as before.
        waiter.send("BLPOP", "list", "0")
        until(lambda: blocked(weir) == 1, "the call waits at its store")
        other.ok("RPUSH", "list", "x")
        assert waiter.read().plain() == [b"list", b"x"]


def test_one_client_of_many_is_unblocked(weir: Weir):
    waiters = [weir.connect() for _ in range(30)]
    try:
        numbers = [waiter.ok("CLIENT", "ID") for waiter in waiters]
        for round in range(3):
            for index, waiter in enumerate(waiters):
                waiter.send("BLPOP", f"unblocked:{index}", LONG)
            until(lambda: blocked(weir) == len(waiters), "all of them wait")
            with weir.connect() as other:
                for index in range(0, len(waiters), 2):
                    assert other.ok("CLIENT", "UNBLOCK", numbers[index]) == 1
                for waiter in waiters[::2]:
                    assert waiter.read().raw == b"*-1\r\n"
                for index in range(1, len(waiters), 2):
                    other.ok("RPUSH", f"unblocked:{index}", round)
            for index in range(1, len(waiters), 2):
                assert waiters[index].read().plain() == [b"unblocked:%d" % index, b"%d" % round]
    finally:
        for waiter in waiters:
            waiter.close()


@pytest.mark.parametrize("behind", [0, 10], ids=["nothing behind", "more behind than is read"])
def test_a_drain_does_not_wait_for_what_may_never_end(servers, behind: int):
    weir = servers.weir(servers.redis(), flags=FLAGS)
    with weir.connect() as waiter, weir.connect() as subscriber, weir.connect() as watcher:
        waiter.send("BLPOP", "none", "0")
        for _ in range(behind):
            waiter.send("ECHO", b"x" * 10_000)
        subscriber.ok("SUBSCRIBE", "c")
        watcher.ok("WATCH", "k")
        until(lambda: blocked(weir) == 1, "the call waits at its store")
        assert weir.terminate(10) == 0
        assert waiter.read_to_end() == []


def test_a_drain_takes_nothing_that_does_not_arrive(servers):
    """Each element that is pushed while weir drains is either delivered or still at the store."""
    store = servers.redis()
    pushed, popped = 0, []
    for _ in range(DRAINS):
        weir = servers.weir(store, flags=FLAGS)
        over = threading.Event()

        def pop(connection: Connection) -> None:
            with connection, contextlib.suppress(Closed):
                while True:
                    popped.append(connection.ok("BLPOP", "queue", 0)[1])

        def push() -> int:
            with store.connect() as direct:
                for number in itertools.count():
                    if over.is_set():
                        return number
                    direct.ok("RPUSH", "queue", pushed + number)

        with ThreadPoolExecutor(WORKERS + 1) as pool:
            workers = [pool.submit(pop, weir.connect()) for _ in range(WORKERS)]
            before = len(popped)
            producer = pool.submit(push)
            try:
                until(lambda: len(popped) > before + 20, "elements are popped")
                assert weir.terminate(30) == 0
                for worker in workers:
                    worker.result(30)
            finally:
                over.set()
            pushed += producer.result(30)
    with store.connect() as direct:
        rest = direct.ok("LRANGE", "queue", 0, -1)
    assert sorted(map(int, [*popped, *rest])) == list(range(pushed))


def test_private_links_are_bounded_and_named_in_the_refusal(servers):
    weir = servers.weir(servers.redis(), flags=["--shards", "1", "--private-links", "5"])
    waiters = [weir.connect() for _ in range(4)]
    with weir.connect() as other:
        for waiter in waiters:
            waiter.send("BLPOP", "none", "0")
        until(lambda: blocked(weir) == 4, "as many wait as one tenant may have")
        for words in [("BLPOP", "none", "0"), ("WATCH", "k"), ("SUBSCRIBE", "c")]:
            assert other.call(*words).text.startswith("OVERLOADED reason=links "), words
        assert other.ok("SET", "k", "v") == b"OK"
        gauges = metrics.parse(weir.admin("/metrics")[1])["weir_private_links"]
        by_use = {re.search(r'use="(\w+)"', labels)[1]: value for labels, value in gauges.items()}
        assert by_use == {"waiting": 4, "watching": 0, "subscribed": 0, "tracking": 0, "redirected": 0, "shared": 0, "idle": 0}
        waiters.pop().close()
        until(lambda: other.call("WATCH", "k").text == "OK", "the place of one that left is free")
    for waiter in waiters:
        waiter.close()


def test_a_tenant_has_as_many_private_links_as_its_quota_says(servers, tmp_path):
    quotas = tmp_path / "quotas.toml"
    quotas.write_text('[default]\n[tenants.few]\npassword = "f"\nprivate_links = 2\n[tenants.none]\npassword = "n"\nprivate_links = 0\n')
    weir = servers.weir(servers.redis(), flags=["--shards", "1", "--quotas", str(quotas)])
    waiters = [weir.connect() for _ in range(3)]
    for number, waiter in enumerate(waiters):
        waiter.ok("AUTH", "few", "f")
        waiter.send("BLPOP", "none", "0")
        until(lambda: blocked(weir) == min(number + 1, 2), "the call waits at its store")
    assert waiters[2].read().text.startswith("OVERLOADED reason=links ")
    with weir.connect() as other, weir.connect() as another:
        assert other.call("WATCH", "k").text == "OK", "others have theirs"
        another.ok("AUTH", "none", "n")
        assert another.call("BLPOP", "none", "0").text.startswith("OVERLOADED reason=links ")
    for waiter in waiters:
        waiter.close()


@pytest.mark.parametrize("protocol", [2, 3])
def test_increments_with_optimistic_locking_lose_none(weir: Weir, protocol: int):
    clients, each = 4, 25

    def increment(pipe) -> None:
        number = int(pipe.get("{n}umber") or 0)
        pipe.multi()
        pipe.set("{n}umber", number + 1)
        pipe.lpush("{n}umbers", number + 1)

    def work() -> None:
        client = redis.Redis(port=weir.port, protocol=protocol)
        for _ in range(each):
            client.transaction(increment, "{n}umber")
        client.close()

    with weir.connect() as connection:
        connection.ok("DEL", "{n}umber", "{n}umbers")
        threads = [threading.Thread(target=work) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert connection.ok("GET", "{n}umber") == b"%d" % (clients * each)
        numbers = connection.ok("LRANGE", "{n}umbers", 0, -1)
        assert numbers == [b"%d" % number for number in range(clients * each, 0, -1)]


def test_a_watched_key_that_changes_fails_the_transaction_and_a_hot_key_is_no_exception(weir: Weir):
    with weir.connect() as watcher, weir.connect() as other:
        for _ in range(3):
            # Enough reads make the key hot, so that its value is cached.
            other.ok("SET", "hot", "0")
            other.pipeline([("GET", "hot")] * 3_000)
            watcher.ok("WATCH", "hot")
            seen = watcher.ok("GET", "hot")
            other.ok("SET", "hot", "1")
            watcher.ok("MULTI")
            watcher.ok("SET", "hot", seen)
            assert watcher.call("EXEC").raw == b"*-1\r\n"
            assert other.ok("GET", "hot") == b"1"
        watcher.ok("WATCH", "hot")
        watcher.ok("UNWATCH")
        other.ok("SET", "hot", "2")
        watcher.ok("MULTI")
        watcher.ok("GET", "hot")
        assert watcher.call("EXEC").plain() == [b"2"]
        watcher.ok("WATCH", "hot")
        watcher.ok("MULTI")
        assert watcher.call("WATCH", "other").text == "ERR WATCH inside MULTI is not allowed"
        assert watcher.call("EXEC").raw == b"*0\r\n"


def test_a_watch_does_not_outlive_its_connection_to_the_store(weir: Weir):
    if not weir.backends:
        pytest.skip("connections to the embedded store are not lost while weir lives")
    with weir.connect() as watcher:
        watcher.ok("WATCH", "k")
        for store in weir.backends:
            with store.connect() as connection:
                connection.ok("CLIENT", "KILL", "TYPE", "normal")
        until(lambda: watcher.call("PING").text == "PONG", "the client is still there")
        watcher.ok("MULTI")
        watcher.ok("SET", "k", "1")
        assert watcher.call("EXEC").raw == b"*-1\r\n"


def said(word: str, name: str | None, count: int) -> list:
    return [word.encode(), None if name is None else name.encode(), count]


@pytest.mark.parametrize("protocol", [2, 3])
def test_messages_reach_subscribers_once_and_in_order(weir: Weir, protocol: int):
    # Names contain the protocol, because cluster nodes may still deliver messages of the other protocol's channels.
    news, sport, none, nothing, pattern = (f"{protocol}:{name}" for name in ("news", "sport", "none", "nothing", "n*"))

    def message(channel: str, text: str) -> list[bytes]:
        return [b"message", channel.encode(), text.encode()]

    with weir.connect(protocol=protocol) as subscriber, weir.connect() as publisher:
        subscriber.send("SUBSCRIBE", news, sport)
        subscriber.send("PSUBSCRIBE", pattern)
        replies = [reply.plain() for reply in subscriber.read_many(3)]
        assert replies == [said("subscribe", news, 1), said("subscribe", sport, 2), said("psubscribe", pattern, 3)]
        told = [publisher.ok("PUBLISH", channel, number) for number, channel in enumerate([news, sport, none, nothing])]
        # A cluster node counts only its own subscribers.
        assert told == [2, 1, 1, 1] or weir.storage.startswith("cluster"), told
        matching = [(news, b"0"), (none, b"2"), (nothing, b"3")]
        matched = [[b"pmessage", pattern.encode(), channel.encode(), text] for channel, text in matching]
        # Messages of different stores may overtake each other.
        got = sorted(subscriber.read().plain() for _ in range(5))
        assert got == sorted([message(news, "0"), message(sport, "1"), *matched]), got
        for number in range(500):
            publisher.ok("PUBLISH", sport, number)
        assert [subscriber.read().plain() for _ in range(500)] == [message(sport, str(number)) for number in range(500)]
        subscriber.send("PUNSUBSCRIBE")
        assert subscriber.read().plain() == said("punsubscribe", pattern, 2)
        subscriber.send("UNSUBSCRIBE")
        assert sorted(reply.plain()[1].decode() for reply in subscriber.read_many(2)) == [news, sport]
        assert subscriber.call("GET", "none").is_null, "it may do anything again"


def test_a_subscriber_of_resp3_goes_on_with_requests(weir: Weir):
    with weir.connect(protocol=3) as subscriber, weir.connect() as publisher:
        subscriber.send("SUBSCRIBE", "both")
        subscriber.read()
        publisher.ok("PUBLISH", "both", "x")
        assert subscriber.read().plain() == [b"message", b"both", b"x"]
        assert subscriber.ok("SET", "k", "v") == b"OK"
        subscriber.send("BLPOP", "none", "0.05")
        assert subscriber.read().is_null


def test_a_subscriber_of_resp2_may_do_nothing_else(weir: Weir):
    with weir.connect() as subscriber:
        subscriber.ok("SUBSCRIBE", "c")
        assert subscriber.call("GET", "k").text.startswith("ERR Can't execute 'get': only (P|S)SUBSCRIBE")
        assert subscriber.call("PING").plain() == [b"pong", b""]
        assert subscriber.call("RESET").text == "RESET"
        assert subscriber.call("GET", "none").is_null


def subscribers(weir: Weir) -> list[int]:
    """Returns the number of subscribers of the channel `leaving` at each store."""
    found = []
    for store in weir.backends or [weir]:
        with store.connect() as connection:
            found.append(connection.ok("PUBSUB", "NUMSUB", "leaving")[1])
    return found


def test_a_subscriber_that_leaves_is_gone_at_the_store(weir: Weir):
    subscriber = weir.connect()
    subscriber.ok("SUBSCRIBE", "leaving")
    assert sum(subscribers(weir)) == 1
    subscriber.close()
    until(lambda: sum(subscribers(weir)) == 0, "the subscription is over")


def test_tenants_have_channels_of_their_own(servers, tmp_path):
    quotas = tmp_path / "quotas.toml"
    quotas.write_text(
        "[tenants.acme]\npassword = 'a'\nkeys = ['acme:']\n[tenants.zeta]\npassword = 'z'\nkeys = ['zeta:']\n"
    )
    weir = servers.weir(servers.redis(), flags=[*FLAGS, "--quotas", str(quotas)])

    def client(tenant: str) -> Connection:
        connection = weir.connect()
        connection.ok("AUTH", tenant, tenant[0])
        return connection

    acme, zeta = client("acme"), client("zeta")
    for words in [("SUBSCRIBE", "zeta:c"), ("SUBSCRIBE", "acme:c", "c"), ("PSUBSCRIBE", "*"), ("PSUBSCRIBE", "[az]*"), ("SSUBSCRIBE", "zeta:c"),
                  ("SUBSCRIBE", "__keyspace@0__:zeta:k"), ("SUBSCRIBE", "__keyevent@0__:set"), ("PUBLISH", "zeta:c", "x"),
                  ("WATCH", "zeta:k"), ("BLPOP", "zeta:q", "1")]:  # fmt: skip
        assert acme.call(*words).text.startswith("NOPERM "), words
    acme.ok("SUBSCRIBE", "acme:c")
    acme.send("PSUBSCRIBE", "acme:p*", "__keyspace@0__:acme:*")
    acme.read_many(2)
    assert zeta.call("PUBLISH", "acme:c", "x").text.startswith("NOPERM ")
    other = client("acme")
    assert other.ok("PUBLISH", "acme:c", "x") == 1
    assert acme.read().plain() == [b"message", b"acme:c", b"x"]
    # Each tenant asks about its own channels.
    assert other.ok("PUBSUB", "NUMSUB", "acme:c") == [b"acme:c", 1] and other.ok("PUBSUB", "CHANNELS", "acme:*") == [b"acme:c"]
    for words in [("PUBSUB", "NUMSUB", "acme:c"), ("PUBSUB", "CHANNELS", "a*"), ("PUBSUB", "CHANNELS"), ("PUBSUB", "NUMPAT")]:
        assert zeta.call(*words).text.startswith("NOPERM "), words
    # A tenant that may no longer use its channels loses its subscriptions.
    quotas.write_text("[tenants.acme]\npassword = 'a'\nkeys = ['other:']\n[tenants.zeta]\npassword = 'z'\nkeys = ['zeta:']\n")
    weir.signal(signal.SIGHUP)
    acme.read_to_end()
    for connection in (zeta, other):
        connection.close()


def test_a_call_that_waits_follows_its_slot(cluster: Cluster, module_servers):
    weir = module_servers.weir(*cluster.nodes, storage=cluster.storage, flags=FLAGS)
    with weir.connect() as waiter, weir.connect() as other:
        for _ in range(3):
            slot = int(other.ok("CLUSTER", "KEYSLOT", "{moving}q"))
            source = cluster.owner(slot)
            target = next(node for node in cluster.nodes if node is not source)
            waiter.send("BLPOP", "{moving}q", LONG)
            until(lambda: blocked(weir) == 1, "the call waits at its store")
            cluster.move(slot, target)
            until(lambda: other.ok("RPUSH", "{moving}q", "x") == 1, "the new owner takes it")
            assert waiter.read().plain() == [b"{moving}q", b"x"]
