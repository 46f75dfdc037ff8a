"""Tests of databases: every client selects its own, over connections to stores that all clients share."""

from __future__ import annotations

import random
import re

import pytest

from harness import metrics
from harness.processes import Weir
from harness.resp import Connection
from harness.waiting import until

pytestmark = pytest.mark.weir_only

FLAGS = ["--shards", "2"]


@pytest.fixture(scope="module", params=[1, 3, 0], ids=["one store", "three stores", "embedded"])
def weir(request, module_servers) -> Weir:
    return module_servers.weir(*[module_servers.redis() for _ in range(request.param)], flags=FLAGS)


def test_each_database_has_its_own_keys(weir: Weir):
    with weir.connect() as one, weir.connect() as other:
        one.ok("FLUSHALL")
        other.ok("SELECT", 5)
        one.ok("MSET", "a", 1, "b", 2, "c", 3)
        other.ok("MSET", "a", "x", "b", "y", "d", "z")
        assert one.ok("MGET", "a", "b", "c", "d") == [b"1", b"2", b"3", None]
        assert other.ok("MGET", "a", "b", "c", "d") == [b"x", b"y", None, b"z"]
        assert (one.ok("DBSIZE"), other.ok("DBSIZE")) == (3, 3)
        assert sorted(scanned(other)) == [b"a", b"b", b"d"]
        other.ok("FLUSHDB")
        assert (one.ok("DBSIZE"), other.ok("DBSIZE"), other.ok("RANDOMKEY")) == (3, 0, None)
        other.ok("SELECT", 0)
        assert other.ok("GET", "a") == b"1"


def scanned(connection: Connection) -> list[bytes]:
    keys, cursor = [], b"0"
    while True:
        cursor, some = connection.ok("SCAN", cursor)
        keys += some
        if cursor == b"0":
            return keys


@pytest.mark.parametrize("words, error", [
    (("SELECT", "16"), "ERR DB index is out of range"),
    (("SELECT", "-1"), "ERR DB index is out of range"),
    (("SELECT", "x"), "ERR value is not an integer or out of range"),
    (("SELECT",), "ERR wrong number of arguments for 'select' command"),
    (("MOVE", "k", "99"), "ERR DB index is out of range"),
    (("SWAPDB", "0", "99"), "ERR DB index is out of range"),
    (("COPY", "k{1}", "l{1}", "DB", "x"), "ERR value is not an integer or out of range"),
], ids=str)
def test_a_number_that_is_no_database_is_refused(weir: Weir, words: tuple, error: str):
    with weir.connect() as connection:
        assert connection.call(*words).text == error
        assert connection.ok("PING") == b"PONG"


def test_requests_in_a_pipeline_keep_their_order_across_databases(weir: Weir):
    with weir.connect() as connection:
        connection.ok("FLUSHALL")
        for number in range(200):
            requests = [
                ("SET", "k", number), ("MOVE", "k", 1), ("GET", "k"), ("SELECT", 1), ("GETDEL", "k"),
                ("SET", "k{a}", number), ("COPY", "k{a}", "c{a}", "DB", 2, "REPLACE"), ("SELECT", 2), ("GET", "c{a}"),
                ("SELECT", 0),
            ]
            for words in requests:
                connection.send(*words)
            replies = [reply.plain() for reply in connection.read_many(len(requests))]
            value = b"%d" % number
            assert replies == [b"OK", 1, None, b"OK", value, b"OK", 1, b"OK", value, b"OK"], number


def test_databases_that_are_swapped_are_swapped_for_all(weir: Weir):
    with weir.connect() as one, weir.connect() as other:
        one.ok("FLUSHALL")
        other.ok("SELECT", 7)
        for index in range(10):
            one.ok("SET", f"k{index}", "one")
            other.ok("SET", f"k{index}", "other")
        for _ in range(200):
            assert (one.ok("GET", "k1"), other.ok("GET", "k1")) == (b"one", b"other")
        one.ok("SWAPDB", 0, 7)
        assert {one.ok("GET", f"k{index}") for index in range(10)} == {b"other"}
        assert {other.ok("GET", f"k{index}") for index in range(10)} == {b"one"}


def random_request(chance: random.Random) -> tuple:
    key, other = (f"{{t}}{chance.randrange(4)}" for _ in range(2))
    number = chance.randrange(4)
    return chance.choice([
        ("SELECT", number), ("SET", key, chance.randrange(1000)), ("GET", key), ("INCR", key), ("DEL", key, other),
        ("MGET", key, other), ("MOVE", key, number), ("COPY", key, other, "DB", number), ("COPY", key, other),
        ("RENAME", key, other), ("EXISTS", key), ("EXPIRE", key, 100), ("PERSIST", key), ("SWAPDB", number, chance.randrange(4)),
        ("FLUSHDB",) if chance.random() < 0.2 else ("GET", key), ("DBSIZE",), ("KEYS", "*"),
        ("EVAL", "redis.call('select', ARGV[1]) return redis.call('incr', KEYS[1])", 1, key, number),
    ])


@pytest.mark.parametrize("seed", range(6))
def test_several_clients_are_told_what_redis_tells_them(module_servers, seed: int):
    chance = random.Random(seed)
    behind, beside = module_servers.redis(), module_servers.redis()
    weir = module_servers.weir(behind, flags=[*FLAGS, "--hot-rate", "20"] if seed % 2 else FLAGS)
    pairs = [(weir.connect(), beside.connect()) for _ in range(3)]
    for step in range(1_500):
        through, direct = chance.choice(pairs)
        words = random_request(chance)
        if chance.random() < 0.1:
            block = [("MULTI",), *(random_request(chance) for _ in range(3)), ("EXEC",)]
            block = [request for request in block if request[0] not in ("SELECT", "SWAPDB", "FLUSHDB", "DBSIZE", "KEYS", "EVAL")]
        else:
            block = [words]
        for request in block:
            told, wanted = through.call(*request), direct.call(*request)
            if request[0] == "KEYS":
                assert sorted(told.plain()) == sorted(wanted.plain()), (step, request)
            else:
                assert told.raw == wanted.raw, (step, request)
    for through, direct in pairs:
        through.close(), direct.close()


def test_a_key_that_is_hot_in_two_databases_is_two_keys(servers):
    store = servers.redis()
    weir = servers.weir(store, flags=["--shards", "1"])
    with weir.connect() as one, weir.connect() as other:
        other.ok("SELECT", 3)
        one.ok("SET", "hot", "0:0")
        other.ok("SET", "hot", "3:0")
        told = 0

        def is_hot_in_both() -> bool:
            nonlocal told
            for _ in range(300):
                assert (one.ok("GET", "hot"), other.ok("GET", "hot")) == (b"0:%d" % told, b"3:%d" % told)
            entries = [dict(zip(entry[::2], entry[1::2])) for entry in one.ok("QOS", "HOTKEYS")]
            kept = {entry.get(b"database", 0) for entry in entries if entry[b"key"] == b"hot" and entry[b"state"] == b"kept"}
            return kept == {0, 3}

        until(is_hot_in_both, "the key is hot in both databases", seconds=30)
        until(lambda: metrics.total(weir, "weir_hot_hits_total") > 0, "kept replies are used")
        for told in range(1, 200):
            one.ok("SET", "hot", f"0:{told}")
            assert (one.ok("GET", "hot"), other.ok("GET", "hot")) == (b"0:%d" % told, b"3:%d" % (told - 1))
            other.ok("MULTI")
            other.ok("SET", "hot", f"3:{told}")
            other.ok("EXEC")
            assert (one.ok("GET", "hot"), other.ok("GET", "hot")) == (b"0:%d" % told, b"3:%d" % told)
        one.ok("SWAPDB", 0, 3)
        assert (one.ok("GET", "hot"), other.ok("GET", "hot")) == (b"3:%d" % told, b"0:%d" % told)


def test_a_store_without_the_database_is_not_blamed_for_it(servers):
    store = servers.redis("--databases", "2")
    weir = servers.weir(store, flags=["--shards", "1"])
    with weir.connect() as one, weir.connect() as other:
        other.ok("SELECT", 9)
        for _ in range(100):
            refusal = other.call("SET", "k", "v").text
            assert refusal.startswith("UNAVAILABLE ") and "no-database" in refusal, refusal
            assert one.ok("SET", "k", "v") == b"OK"
        assert store.connect().ok("INFO", "keyspace").count(b"db") == 1
        other.ok("SELECT", 1)
        assert other.ok("SET", "k", "v") == b"OK"


def test_what_is_kept_on_a_connection_is_kept_in_its_database(weir: Weir):
    with weir.connect() as one, weir.connect() as other:
        one.ok("FLUSHALL")
        one.ok("SELECT", 4)
        one.send("BLPOP", "list", 30)
        other.ok("RPUSH", "list", "wrong")
        other.ok("SELECT", 4)
        other.ok("RPUSH", "list", "right")
        assert one.read().plain() == [b"list", b"right"]
        # A key is watched in one database, and the transaction runs in another.
        one.ok("WATCH", "w{x}")
        one.ok("SELECT", 6)
        one.ok("SET", "in{x}", "6")
        one.ok("MULTI")
        one.ok("GET", "in{x}")
        assert one.ok("EXEC") == [b"6"]
        for change in (4, 6):
            one.ok("SELECT", 4)
            one.ok("WATCH", "w{x}")
            one.ok("SELECT", 6)
            other.ok("SELECT", change)
            other.ok("SET", "w{x}", change)
            one.ok("MULTI")
            one.ok("SET", "done{x}", change)
            assert one.ok("EXEC") == (None if change == 4 else [b"OK"])
        one.ok("UNWATCH")
        one.ok("SELECT", 0)
        assert one.ok("EXISTS", "done{x}") == 0


def test_a_transaction_selects_databases(weir: Weir):
    with weir.connect() as connection, weir.connect() as other:
        connection.ok("SELECT", 2)
        connection.ok("MULTI")
        for words in [("SELECT", 2), ("SET", "k", "2"), ("SELECT", 1), ("SET", "k", "1"), ("CLIENT", "INFO"), ("SELECT", 3), ("PING",)]:
            assert connection.call(*words).text == "QUEUED"
        assert b" db=2 " in other.ok("CLIENT", "LIST"), "nothing has happened yet"
        *first, told, selected, pong = connection.ok("EXEC")
        assert (first, selected, pong) == ([b"OK"] * 4, b"OK", b"PONG") and b" db=1 " in told
        assert b" db=3 " in connection.ok("CLIENT", "INFO") and connection.ok("EXISTS", "k") == 0
        # No shared connection has changed its database.
        for database, value in [(0, None), (1, b"1"), (2, b"2"), (3, None)]:
            other.ok("SELECT", database)
            assert other.ok("GET", "k") == value, database
        # Redis stays in the database of the last SELECT that succeeded.
        connection.ok("MULTI")
        for words in [("SELECT", 4), ("SELECT", 999), ("SET", "k", "4")]:
            assert connection.call(*words).text == "QUEUED"
        assert [reply.text for reply in connection.call("EXEC").children] == ["OK", "ERR DB index is out of range", "OK"]
        assert connection.ok("GET", "k") == b"4"


def test_a_transaction_that_fails_leaves_its_client_where_it_was(weir: Weir):
    with weir.connect() as one, weir.connect() as other:
        for end in [("DISCARD",), ("SET", "k"), ("RESET",)]:
            one.ok("SET", "f{x}", "0")
            one.ok("MULTI")
            one.ok("SELECT", 5)
            one.call(*end)
            one.call("EXEC")
            assert one.ok("GET", "f{x}") == b"0", end
        for changes in (False, True):
            one.ok("WATCH", "f{x}")
            if changes:
                other.ok("SET", "f{x}", "1")
            one.ok("MULTI")
            one.ok("SELECT", 5)
            one.ok("SET", "f{x}", "5")
            assert one.ok("EXEC") == (None if changes else [b"OK", b"OK"])
            assert one.ok("GET", "f{x}") == (b"1" if changes else b"5")
            one.ok("SELECT", 0)


def test_a_tracked_client_selects_within_a_transaction(servers):
    weir = servers.weir(servers.redis(), flags=FLAGS)
    with weir.connect(protocol=3) as client, weir.connect() as other:
        client.ok("CLIENT", "TRACKING", "ON")
        client.ok("MULTI")
        client.ok("SELECT", 5)
        client.ok("SET", "k", "5")
        assert client.ok("EXEC") == [b"OK", b"OK"]
        assert client.ok("GET", "k") == b"5" and other.ok("EXISTS", "k") == 0
        client.ok("SELECT", 0)
        assert client.ok("EXISTS", "k") == 0


def test_a_store_with_fewer_databases_says_so_within_the_transaction(servers):
    weir = servers.weir(servers.redis("--databases", "4"), flags=FLAGS)
    with weir.connect() as client:
        client.ok("MULTI")
        for words in [("SELECT", 3), ("SELECT", 9), ("SET", "k", "3"), ("SELECT", 9)]:
            assert client.call(*words).text == "QUEUED"
        told = ["OK", "ERR DB index is out of range", "OK", "ERR DB index is out of range"]
        assert [reply.text for reply in client.call("EXEC").children] == told
        assert client.ok("GET", "k") == b"3"


def test_transactions_that_select_take_links(servers):
    store = servers.redis()
    with servers.weir(store, flags=[*FLAGS, "--private-links", "0"]).connect() as client:
        client.ok("MULTI")
        text = "ERR SELECT of another database cannot stand in a transaction, since weir was started with --private-links 0"
        assert client.call("SELECT", 1).text.startswith(text)
        assert client.call("EXEC").text.startswith("EXECABORT ")
    weir = servers.weir(store, flags=["--shards", "1", "--private-links", "4"])
    waiters = [weir.connect() for _ in range(3)]
    with weir.connect() as client:
        # One tenant may hold three of four private links.
        for waiter in waiters:
            waiter.send("BLPOP", "q", 0)
        until(lambda: b"blocked_clients:3\r" in client.ok("INFO", "clients"), "they wait")
        client.ok("MULTI")
        client.ok("SELECT", 1)
        client.ok("SET", "k", "1")
        assert client.call("EXEC").text.startswith("OVERLOADED reason=links ")
        assert client.ok("EXISTS", "k") == 0
        client.ok("LPUSH", "q", "a")

        def executes() -> bool:
            client.ok("MULTI")
            client.ok("SELECT", 1)
            client.ok("SELECT", 0)
            return not client.call("EXEC").is_error

        until(executes, "there is a link again")
        # The same link is used again and again.
        with store.connect() as direct:
            connections = lambda: int(re.search(rb"total_connections_received:(\d+)", direct.ok("INFO", "stats"))[1])
            before = connections()
            assert all(executes() for _ in range(20))
            assert connections() < before + 20
    for waiter in waiters:
        waiter.close()


def test_kept_replies_of_all_databases_of_a_transaction_are_dropped(servers):
    weir = servers.weir(servers.redis(), flags=[*FLAGS, "--hot-rate", "50", "--hot-ttl", "10s"])
    with weir.connect() as writer, weir.connect() as reader:
        for database in (0, 1):
            reader.ok("SELECT", database)
            writer.ok("SELECT", database)
            writer.ok("SET", "hot", "old")
            for _ in range(40):
                for _ in range(200):
                    reader.send("GET", "hot")
                assert all(reply.value == b"old" for reply in reader.read_many(200))
        for number in range(20):
            writer.ok("SELECT", 0)
            writer.ok("MULTI")
            writer.ok("SET", "hot", f"{number}-0")
            writer.ok("SELECT", 1)
            writer.ok("SET", "hot", f"{number}-1")
            assert writer.ok("EXEC") == [b"OK"] * 3
            for database in (0, 1):
                reader.ok("SELECT", database)
                assert reader.ok("GET", "hot") == f"{number}-{database}".encode()


def test_info_counts_the_keys_of_each_database_of_the_embedded_store(servers):
    weir = servers.weir(flags=FLAGS)
    with weir.connect() as connection:
        connection.ok("SET", "k", "v")
        connection.ok("SELECT", 5)
        connection.ok("MSET", "k", "v", "l", "v")
        connection.ok("EXPIRE", "l", 100)
        lines = ["db0:keys=1,expires=0,avg_ttl=0", "db5:keys=2,expires=1,avg_ttl=0"]
        told = lambda: [line for line in connection.ok("INFO", "keyspace").decode().split("\r\n") if line.startswith("db")]
        until(lambda: told() == lines, "the control executor has heard of it")


def test_a_client_begins_in_the_first_database_and_reset_returns_to_it(weir: Weir):
    with weir.connect() as connection:
        connection.ok("SELECT", 8)
        assert b" db=8 " in connection.ok("CLIENT", "INFO") and b" db=8 " in connection.ok("CLIENT", "LIST")
        assert connection.call("RESET").text == "RESET"
        assert b" db=0 " in connection.ok("CLIENT", "INFO")


def test_a_tenant_has_only_its_databases(servers, tmp_path):
    quotas = tmp_path / "quotas.toml"
    quotas.write_text(
        '[default]\nadmin = true\n[tenants.some]\npassword = "s"\nadmin = true\ndatabases = [1, 3]\n'
    )
    weir = servers.weir(servers.redis(), flags=[*FLAGS, "--quotas", str(quotas)])
    with weir.connect() as one, weir.connect() as some:
        some.ok("AUTH", "some", "s")
        refusal = "NOPERM tenant 'some' has only the databases 1, 3"
        one.ok("SET", "k", "0")
        assert some.call("GET", "k").text == f"{refusal}, not 0"
        assert some.call("SELECT", 2).text == f"{refusal}, not 2"
        some.ok("SELECT", 3)
        some.ok("SET", "k", "3")
        for words in [("MOVE", "k", 0), ("MOVE", "k", 300), ("COPY", "k", "l{k}", "DB", 300), ("COPY", "k", "l{k}", "DB", 2), ("SWAPDB", 1, 2), ("SWAPDB", 2, 1), ("FLUSHALL",),
                      ("EVAL", "redis.call('select', 0) return redis.call('get', KEYS[1])", 1, "k")]:
            assert some.call(*words).text.startswith(refusal), words
        assert some.ok("MOVE", "k", 1) == 1
        for words in [("MOVE", "k", 0), ("SELECT", 2)]:
            some.ok("MULTI")
            assert some.call(*words).text.startswith(refusal), words
            assert some.call("EXEC").text.startswith("EXECABORT ")
        some.ok("MULTI")
        some.ok("SELECT", 1)
        some.ok("SET", "k", "1")
        assert some.ok("EXEC") == [b"OK", b"OK"]
        assert one.ok("GET", "k") == b"0"


@pytest.mark.parametrize("protocol", [2, 3])
def test_info_keyspace_counts_the_keys_of_all_stores(servers, protocol: int):
    weir = servers.weir(*[servers.redis() for _ in range(3)], flags=FLAGS)
    with weir.connect(protocol=protocol) as client:
        for database, count in [(0, 30), (5, 20)]:
            client.ok("SELECT", database)
            for number in range(count):
                client.ok("SET", f"k{number}", "v", *(("EX", 1000) if number % 2 else ()))
        lines = client.ok("INFO", "Keyspace").decode().split("\r\n")
        assert lines[0] == "# Keyspace"
        assert [line.split(",avg_ttl=")[0] for line in lines[1:3]] == ["db0:keys=30,expires=15", "db5:keys=20,expires=10"]
