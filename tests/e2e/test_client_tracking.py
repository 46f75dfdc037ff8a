"""CLIENT TRACKING: clients are told of changes of the keys that they have read, whoever makes them.

A client that keeps values by it is at work in test_programs.py.
"""

from __future__ import annotations

import pytest

from harness.processes import Weir
from harness.resp import Connection
from harness.waiting import until

pytestmark = pytest.mark.weir_only

FLAGS = ["--shards", "2"]


@pytest.fixture(scope="module", params=[1, 3], ids=["one store", "three stores"])
def weir(request, module_servers) -> Weir:
    return module_servers.weir(*[module_servers.redis() for _ in range(request.param)], flags=FLAGS)


@pytest.fixture
def writer(weir: Weir):
    with weir.connect() as connection:
        yield connection


def tracker(weir: Weir, *options) -> Connection:
    connection = weir.connect(protocol=3)
    connection.ok("CLIENT", "TRACKING", "ON", *options)
    return connection


def changed(key: str) -> list:
    return [b"invalidate", [key.encode()]]


def test_a_key_that_was_read_and_changes_is_told_once(weir: Weir, writer: Connection):
    with tracker(weir) as reader:
        for number in range(20):
            writer.ok("SET", f"k{number}", "old")
            assert reader.ok("GET", f"k{number}") == b"old"
        for number in range(20):
            writer.ok("SET", f"k{number}", "new")
            writer.ok("SET", f"k{number}", "newer")
            writer.ok("SET", f"unread{number}", "x")
        assert sorted(reader.read().plain()[1][0] for _ in range(20)) == sorted(f"k{number}".encode() for number in range(20))
        assert reader.ok("PING", "nothing else") == b"nothing else"
        # A write around weir counts as well.
        assert reader.ok("GET", "k0") == b"newer"
        owner = next(store for store in weir.backends if holds(store, "k0"))
        with owner.connect() as direct:
            direct.ok("SET", "k0", "direct")
        assert reader.read().plain() == changed("k0")
        assert reader.ok("GET", "k0") == b"direct"


def holds(store, key: str) -> bool:
    with store.connect() as connection:
        return connection.ok("EXISTS", key) == 1


def test_reads_in_transactions_scripts_and_of_many_keys_are_tracked(weir: Weir, writer: Connection):
    with tracker(weir) as reader:
        writer.ok("MSET", "{t}a", "1", "{t}b", "2", "{t}c", "3")
        reader.ok("MULTI")
        reader.ok("GET", "{t}a")
        assert reader.ok("EXEC") == [b"1"]
        assert reader.ok("MGET", "{t}b", "{t}c") == [b"2", b"3"]
        for key in ("{t}a", "{t}b", "{t}c"):
            writer.ok("SET", key, "x")
            assert reader.read().plain() == changed(key)
        reader.ok("WATCH", "{t}a")
        assert reader.ok("GET", "{t}a") == b"x"
        writer.ok("SET", "{t}a", "y")
        assert reader.read().plain() == changed("{t}a")
        reader.ok("MULTI")
        reader.ok("SET", "{t}a", "z")
        assert reader.call("EXEC").is_null
        # The link serves on, with nothing watched.
        reader.ok("MULTI")
        reader.ok("GET", "{t}a")
        assert reader.ok("EXEC") == [b"y"]


def test_a_hot_key_is_read_at_its_store_by_who_tracks_it(weir: Weir, writer: Connection):
    writer.ok("SET", "hot", "0")
    for _ in range(3_000):
        writer.send("GET", "hot")
    writer.read_many(3_000)
    with tracker(weir) as reader:
        for number in range(50):
            assert int(reader.ok("GET", "hot")) == number
            writer.ok("INCR", "hot")
            assert reader.read().plain() == changed("hot")


def test_opt_in_opt_out_and_noloop(weir: Weir, writer: Connection):
    with tracker(weir, "OPTIN", "NOLOOP") as reader:
        info = reader.ok("CLIENT", "TRACKINGINFO")
        assert set(info[b"flags"]) == {b"on", b"optin", b"noloop"} and info[b"redirect"] == 0
        reader.ok("GET", "{o}not")
        reader.ok("CLIENT", "CACHING", "YES")
        reader.ok("GET", "{o}yes")
        reader.ok("GET", "{o}not either")
        assert "OPTOUT mode" in reader.call("CLIENT", "CACHING", "NO").text
        for key in ("{o}not", "{o}not either", "{o}yes"):
            writer.ok("SET", key, "x")
        assert reader.read().plain() == changed("{o}yes")
        reader.ok("CLIENT", "CACHING", "YES")
        reader.ok("GET", "{o}yes")
        assert reader.ok("SET", "{o}yes", "its own") == b"OK"
        assert reader.ok("PING", "nothing") == b"nothing"
    with tracker(weir, "OPTOUT") as reader:
        reader.ok("CLIENT", "CACHING", "NO")
        reader.ok("GET", "{o}not")
        reader.ok("GET", "{o}yes")
        for key in ("{o}not", "{o}yes"):
            writer.ok("SET", key, "x")
        assert reader.read().plain() == changed("{o}yes")


def test_broadcasts_are_about_prefixes_and_flushall_is_told_to_all(weir: Weir, writer: Connection):
    with tracker(weir, "BCAST", "PREFIX", "user:", "PREFIX", "item:") as listener, tracker(weir) as reader:
        assert b"t" in line_of(listener)[b"flags"] and b"B" in line_of(listener)[b"flags"]
        for number in range(9):
            writer.ok("SET", f"other:{number}", "x")
            writer.ok("SET", f"user:{number}", "x")
        assert sorted(listener.read().plain()[1][0] for _ in range(9)) == sorted(f"user:{number}".encode() for number in range(9))
        reader.ok("GET", "user:1")
        writer.ok("FLUSHALL")
        assert reader.read().plain() == [b"invalidate", None]


def line_of(connection: Connection) -> dict[bytes, bytes]:
    return dict(word.split(b"=", 1) for word in connection.ok("CLIENT", "INFO").split())


def test_tracking_ends_and_leaves_nothing_at_the_stores(weir: Weir, writer: Connection):
    def tracking() -> int:
        total = 0
        for store in weir.backends:
            with store.connect() as connection:
                fields = dict(line.split(":", 1) for line in connection.ok("INFO", "clients").decode().split("\r\n") if ":" in line)
                total += int(fields["tracking_clients"])
        return total

    until(lambda: tracking() == 0, "earlier ones are gone")
    with tracker(weir) as reader:
        assert tracking() == len(weir.backends)
        reader.ok("GET", "k")
        reader.ok("CLIENT", "TRACKING", "OFF")
        until(lambda: tracking() == 0, "it has ended")
        writer.ok("SET", "k", "x")
        assert reader.ok("GET", "k") == b"x"
        assert reader.ok("CLIENT", "TRACKINGINFO")[b"flags"] == [b"off"]
        reader.ok("CLIENT", "TRACKING", "ON")
        assert reader.call("RESET").text == "RESET"
        until(lambda: tracking() == 0, "RESET ends it")
    leaver = tracker(weir)
    assert tracking() == len(weir.backends)
    leaver.close()
    until(lambda: tracking() == 0, "it ends with its client")


def test_a_lost_connection_to_a_store_ends_the_client(weir: Weir):
    with tracker(weir) as reader:
        reader.ok("GET", "k")
        with weir.backends[0].connect() as direct:
            for line in direct.ok("CLIENT", "LIST").decode().splitlines():
                fields = dict(word.split("=", 1) for word in line.split())
                if "t" in fields["flags"]:
                    direct.ok("CLIENT", "KILL", "ID", fields["id"])
        # It would keep values whose changes it is not told of.
        reader.read_to_end()


def test_other_databases_are_tracked_too(weir: Weir):
    with tracker(weir) as reader, weir.connect() as writer:
        for connection in (reader, writer):
            connection.ok("SELECT", 3)
        reader.ok("GET", "third")
        writer.ok("SET", "third", "x")
        assert reader.read().plain() == changed("third")
        assert reader.ok("GET", "third") == b"x"


@pytest.mark.parametrize(
    ("protocol", "options", "words"),
    [(2, [], "HELLO 3"), (3, ["REDIRECT", "5"], "REDIRECT"), (3, ["OPTIN", "OPTOUT"], "ERR"), (3, ["PREFIX", "x"], "ERR"), (3, ["PERHAPS"], "syntax")],
)
def test_bad_options_are_refused_and_switch_nothing_on(weir: Weir, protocol: int, options: list, words: str):
    with weir.connect(protocol=protocol) as client:
        reply = client.call("CLIENT", "TRACKING", "ON", *options)
        assert reply.is_error and words in reply.text, reply.text
        assert client.ok("SET", "k", "v") == b"OK"
        assert client.ok("CLIENT", "GETREDIR") == -1


def test_tenants_hear_of_their_own_keys(servers, tmp_path):
    quotas = tmp_path / "quotas.toml"
    quotas.write_text("[tenants.acme]\npassword = 'a'\nkeys = ['acme:']\n[tenants.some]\npassword = 's'\ndatabases = [1]\n")
    weir = servers.weir(servers.redis(), flags=[*FLAGS, "--quotas", str(quotas)])
    with weir.connect() as client:
        client.ok("HELLO", "3", "AUTH", "some", "s")
        client.ok("SELECT", "1")
        refusal = "NOPERM tenant 'some' has only the databases 1, and BCAST tells of keys in all"
        assert client.call("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "a").text == refusal
        client.ok("HELLO", "3", "AUTH", "acme", "a")
        for options in (["BCAST"], ["BCAST", "PREFIX", "zeta:"], ["BCAST", "PREFIX", "acme:", "PREFIX", "a"]):
            assert client.call("CLIENT", "TRACKING", "ON", *options).text.startswith("NOPERM "), options
        client.ok("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "acme:k")
