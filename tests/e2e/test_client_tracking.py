"""Tests of CLIENT TRACKING: clients get messages about changes of the keys that they have read, whoever makes the changes.

test_programs.py has a client that caches values with it. Messages that clients redirect to others are compared with those of a
plain redis-server.
"""

from __future__ import annotations

import pytest

from harness import metrics
from harness.busy import SOON_BUSY, busy
from harness.processes import Server, Weir
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
        # A write directly at the store counts as well.
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
        # The private link can be used again, with nothing watched on it.
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


def test_an_exception_within_a_transaction(weir: Weir, writer: Connection):
    with tracker(weir, "OPTIN") as reader:
        for command in (["MULTI"], ["CLIENT", "CACHING", "YES"], ["GET", "{o}yes"], ["EXEC"]):
            reader.send(*command)
        told = [reader.read() for _ in range(4)]
        assert [reply.text for reply in told[:3]] == ["OK", "QUEUED", "QUEUED"]
        assert told[3].plain()[0] == b"OK" and len(told[3].plain()) == 2
        reader.ok("GET", "{o}not")
        for key in ("{o}not", "{o}yes"):
            writer.ok("SET", key, "x")
        assert reader.read().plain() == changed("{o}yes")
        # A transaction without a read uses it up.
        for command in (["MULTI"], ["CLIENT", "CACHING", "YES"], ["EXEC"]):
            reader.call(*command)
        reader.ok("GET", "{o}not")
        writer.ok("SET", "{o}not", "y")
        assert reader.ok("PING", "nothing") == b"nothing"


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
        # An open client would keep values without hearing of their changes.
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
    [(2, ["OPTIN", "OPTOUT"], "ERR"), (3, ["PREFIX", "x"], "ERR"), (3, ["PERHAPS"], "syntax"), (2, ["REDIRECT", "0"], "redirect")],
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

    with weir.connect() as target, weir.connect() as tracker, weir.connect() as foreign:
        for connection in (target, tracker):
            connection.ok("AUTH", "acme", "a")
        foreign.ok("AUTH", "some", "s")
        number = target.ok("CLIENT", "ID")
        # The target may subscribe to the invalidation channel, which names only keys of its tenant; other channels stay
        # forbidden.
        target.ok("SUBSCRIBE", CHANNEL)
        assert tracker.call("PUBLISH", CHANNEL, "forged").text.startswith("NOPERM ")
        assert tracker.call("SUBSCRIBE", "__redis__:other").text.startswith("NOPERM ")
        assert foreign.call("CLIENT", "TRACKING", "ON", "REDIRECT", number).text == NO_TARGET
        assert foreign.ok("CLIENT", "GETREDIR") == -1
        tracker.ok("CLIENT", "TRACKING", "ON", "REDIRECT", number)
        tracker.ok("GET", "acme:k")
        tracker.ok("SET", "acme:k", "v")
        assert target.read().plain() == [b"message", CHANNEL, [b"acme:k"]]


CHANNEL = b"__redis__:invalidate"
NO_TARGET = "ERR The client ID you want redirect to does not exist"
OVERLAP = "ERR Prefix '{}' overlaps with {} prefix '{}'. Prefixes for a single client must not overlap."


@pytest.fixture(scope="module", params=["redis-server", "one store", "three stores", "embedded store"])
def server(request, module_servers) -> Server:
    """A plain redis-server; and weir, which must behave in the same way."""
    if request.param == "redis-server":
        return module_servers.redis()
    stores = {"one store": 1, "three stores": 3, "embedded store": 0}[request.param]
    return module_servers.weir(*[module_servers.redis() for _ in range(stores)], flags=FLAGS)


def listener(server: Server, protocol: int) -> tuple[Connection, int]:
    """Returns a connection that receives messages of others, and its id."""
    connection = server.connect(protocol=protocol)
    number = connection.ok("CLIENT", "ID")
    if protocol == 2:
        connection.ok("SUBSCRIBE", CHANNEL)
    return connection, number


def told(protocol: int, keys: list[bytes] | None) -> list:
    return [b"message", CHANNEL, keys] if protocol == 2 else [b"invalidate", keys]


@pytest.mark.parametrize("protocols", [(2, 2), (2, 3), (3, 2), (3, 3)], ids=["2 to 2", "2 to 3", "3 to 2", "3 to 3"])
def test_messages_go_to_the_connection_that_is_named(server: Server, protocols: tuple[int, int]):
    target, number = listener(server, protocols[1])
    with target, server.connect(protocol=protocols[0]) as reader, server.connect() as writer:
        writer.ok("SET", "k", "old")
        reader.ok("CLIENT", "TRACKING", "ON", "REDIRECT", number)
        assert reader.ok("GET", "k") == b"old"
        writer.ok("SET", "k", "new")
        assert target.read().plain() == told(protocols[1], [b"k"])
        assert reader.ok("CLIENT", "GETREDIR") == number
        line = line_of(reader)
        assert line[b"redir"] == b"%d" % number and b"t" in line[b"flags"]
        info = reader.ok("CLIENT", "TRACKINGINFO")
        info = info if isinstance(info, dict) else dict(zip(info[::2], info[1::2]))
        assert info == {b"flags": [b"on"], b"redirect": number, b"prefixes": []}
        reader.ok("GET", "k")
        writer.ok("FLUSHALL")
        assert target.read().plain() == told(protocols[1], None)
        # Messages come to the client itself again, which can receive them in RESP3 only.
        reader.ok("CLIENT", "TRACKING", "ON")
        assert reader.ok("CLIENT", "GETREDIR") == 0
        reader.ok("GET", "k")
        writer.ok("SET", "k", "newer")
        if protocols[0] == 3:
            assert reader.read().plain() == changed("k")
        assert reader.ok("PING", "nothing else") == b"nothing else"


def test_many_clients_redirect_to_few_wherever_they_are(server: Server):
    targets = [listener(server, protocol) for protocol in (2, 3) * 3]
    readers = [server.connect() for _ in range(12)]
    with server.connect() as writer:
        for index, reader in enumerate(readers):
            reader.ok("CLIENT", "TRACKING", "ON", "REDIRECT", targets[index % 6][1])
            reader.ok("GET", f"many:{index}")
            writer.ok("SET", f"many:{index}", "x")
        for index, (target, _) in enumerate(targets):
            keys = (f"many:{index}".encode(), f"many:{index + 6}".encode())
            # Messages of several stores may come in any order.
            assert sorted(target.read().plain() for _ in keys) == [told(2 + index % 2, [key]) for key in sorted(keys)]
    for connection in [*readers, *(target for target, _ in targets)]:
        connection.close()


def test_options_hold_for_redirected_messages_too(server: Server):
    target, number = listener(server, 2)
    with target, server.connect() as reader, server.connect() as writer:
        reader.ok("CLIENT", "TRACKING", "ON", "REDIRECT", number, "BCAST", "PREFIX", "user:")
        reader.ok("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "item:", "NOLOOP", "REDIRECT", number)
        info = reader.ok("CLIENT", "TRACKINGINFO")
        assert info[1::2] == [[b"on", b"bcast", b"noloop"], number, [b"item:", b"user:"]]
        for key in ("other:1", "user:1", "item:1"):
            reader.ok("SET", key, "its own")
            writer.ok("SET", key, "x")
        assert sorted(target.read().plain()[2] for _ in range(2)) == [[b"item:1"], [b"user:1"]]
        reader.ok("CLIENT", "TRACKING", "OFF")
        reader.ok("CLIENT", "TRACKING", "ON", "OPTIN", "REDIRECT", number)
        reader.ok("GET", "{o}not")
        reader.ok("CLIENT", "CACHING", "YES")
        assert reader.ok("CLIENT", "TRACKINGINFO")[1] == [b"on", b"optin", b"caching-yes"]
        reader.ok("GET", "{o}yes")
        for key in ("{o}not", "{o}yes"):
            writer.ok("SET", key, "x")
        assert target.read().plain() == told(2, [b"{o}yes"])
        assert target.ok("PING") == [b"pong", b""]


def test_bad_redirections_are_refused_as_a_server_does(server: Server):
    target, number = listener(server, 3)
    with target, server.connect(protocol=3) as reader:
        for words, error in [
            (["REDIRECT", 999_999_999], NO_TARGET),
            (["REDIRECT", -1], NO_TARGET),
            (["REDIRECT", "x"], "ERR value is not an integer or out of range"),
            (["REDIRECT", number, "REDIRECT", number], "ERR A client can only redirect to a single other client"),
            (["REDIRECT"], "ERR syntax error"),
            (["REDIRECT", number, "PREFIX", "a"], "ERR PREFIX option requires BCAST mode to be enabled"),
            (["BCAST", "PREFIX", "a", "PREFIX", "b", "PREFIX", "ab"], OVERLAP.format("a", "another provided", "ab")),
        ]:
            assert reader.call("CLIENT", "TRACKING", "ON", *words).text == error
            assert reader.ok("CLIENT", "GETREDIR") == -1
        reader.ok("CLIENT", "TRACKING", "ON", "REDIRECT", number, "OPTIN")
        for words, error in [
            (["BCAST", "REDIRECT", number], "ERR You can't switch BCAST mode on/off before disabling"),
            (["OPTOUT"], "ERR You can't switch OPTIN/OPTOUT mode before disabling"),
            (["REDIRECT", 999_999_999], NO_TARGET),
        ]:
            assert reader.call("CLIENT", "TRACKING", "ON", *words).text.startswith(error)
        assert reader.ok("CLIENT", "GETREDIR") == number


def test_the_end_of_tracking_checks_its_options_as_a_server_does(server: Server):
    target, number = listener(server, 3)
    with target, server.connect(protocol=3) as reader, server.connect() as writer:
        reader.ok("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "end:")
        assert reader.call("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "end:1").text == OVERLAP.format("end:1", "an existing", "end:")
        for words, error in [
            (["FOO"], "ERR syntax error"),
            (["REDIRECT"], "ERR syntax error"),
            (["REDIRECT", "x"], "ERR value is not an integer or out of range"),
            (["REDIRECT", 999_999_999], NO_TARGET),
        ]:
            assert reader.call("CLIENT", "TRACKING", "OFF", *words).text == error
            writer.ok("SET", "end:2", "x")
            assert reader.read().plain() == changed("end:2")
        for _ in range(2):
            assert reader.ok("CLIENT", "TRACKING", "OFF", "REDIRECT", number, "BCAST", "PREFIX", "a", "PREFIX", "ab") == b"OK"
            assert reader.ok("CLIENT", "GETREDIR") == -1


@pytest.mark.parametrize("end", [["RESET"], ["CLIENT", "TRACKING", "OFF"]], ids=" ".join)
def test_no_client_hears_of_keys_that_another_one_has_tracked(servers, end: list[str]):
    """A store that is busy with a script refuses to end the tracking."""
    store = servers.redis(*SOON_BUSY)
    weir = servers.weir(store, flags=["--shards", "1"])
    with weir.connect(protocol=3) as first, weir.connect(protocol=3) as second, store.connect() as direct:
        first.ok("CLIENT", "TRACKING", "ON", "BCAST")
        with busy(store):
            first.ok(*end)
        until(lambda: not second.call("SET", "k", "v").is_error, "all is well again")
        second.ok("SUBSCRIBE", "news")
        direct.ok("SET", "secret", "x")
        direct.ok("PUBLISH", "news", "hello")
        assert second.read().plain() == [b"message", b"news", b"hello"]


def test_a_second_reply_to_one_command_reaches_no_other_client(servers, tmp_path):
    """redis-server 7.0 refuses overlapping prefixes and says OK behind that; the error's length is the client's choice."""
    quotas = tmp_path / "quotas.toml"
    quotas.write_text("[tenants.evil]\npassword = 'e'\nkeys = ['evil:']\n[tenants.shop]\npassword = 's'\nkeys = ['shop:']\n")
    weir = servers.weir(servers.redis(), flags=["--shards", "1", "--quotas", str(quotas)])
    # An error of as many bytes as weir receives at once.
    length = 20_480 - len(OVERLAP.format("evil:", "another provided", "evil:")) - len("-\r\n")
    prefixes = ["evil:" + "a" * (length // 2), "evil:" + "a" * (length - length // 2)]
    with weir.connect() as evil, weir.connect() as shop:
        evil.ok("AUTH", "evil", "e")
        shop.ok("AUTH", "shop", "s")
        evil.send("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "evil:z", "PREFIX", prefixes[0], "PREFIX", prefixes[1])
        evil.send("BLPOP", "evil:q", 0)
        assert evil.read().text.startswith("ERR Prefix 'evil:aaa")
        shop.send("BLPOP", "shop:jobs", 0)
        with weir.connect() as other:
            other.ok("AUTH", "evil", "e")
            other.ok("RPUSH", "evil:q", "x")
            assert evil.read().plain() == [b"evil:q", b"x"]
            other.ok("AUTH", "shop", "s")
            other.ok("RPUSH", "shop:jobs", "y")
            assert shop.read().plain() == [b"shop:jobs", b"y"]


def test_a_client_whose_target_has_left_is_told(server: Server):
    target, number = listener(server, 2)
    with server.connect(protocol=3) as reader, server.connect() as writer:
        reader.ok("CLIENT", "TRACKING", "ON", "REDIRECT", number)
        reader.ok("GET", "broken")
        target.close()
        lines = lambda: writer.ok("CLIENT", "LIST").decode().splitlines()  # noqa: E731
        until(lambda: not any(line.startswith(f"id={number} ") for line in lines()), "the target is gone")
        writer.ok("SET", "broken", "x")
        assert reader.read().plain() == [b"tracking-redir-broken", number]
        info = reader.ok("CLIENT", "TRACKINGINFO")
        assert set(info[b"flags"]) == {b"on", b"broken_redirect"} and info[b"redirect"] == number
        assert b"R" in line_of(reader)[b"flags"]
        assert reader.ok("PING", "nothing else") == b"nothing else"
        successor, number = listener(server, 2)
        with successor:
            reader.ok("CLIENT", "TRACKING", "ON", "REDIRECT", number)
            assert reader.ok("CLIENT", "TRACKINGINFO")[b"flags"] == [b"on"]
            reader.ok("GET", "broken")
            writer.ok("SET", "broken", "y")
            assert successor.read().plain() == told(2, [b"broken"])


def test_dialects_change_while_keys_are_tracked(server: Server):
    target, number = listener(server, 3)
    with target, server.connect(protocol=3) as reader, server.connect() as writer:
        writer.ok("HSET", "{d}h", "f", "v")
        reader.ok("CLIENT", "TRACKING", "ON", "REDIRECT", number)
        for protocol, pairs in [(2, [b"f", b"v"]), (3, {b"f": b"v"}), (2, [b"f", b"v"])]:
            reader.ok("HELLO", protocol)
            assert reader.ok("HGETALL", "{d}h") == pairs
            writer.ok("HSET", "{d}h", "f", "v")
            assert target.read().plain() == told(3, [b"{d}h"])
        # A target may change its own protocol, while it has no other subscriptions.
        target.ok("SUBSCRIBE", CHANNEL)
        assert target.ok("HELLO", 2)[5] == 2
        reader.ok("HGETALL", "{d}h")
        writer.ok("DEL", "{d}h")
        assert target.read().plain() == told(2, [b"{d}h"])


def test_messages_come_to_clients_that_are_sent_no_replies(server: Server):
    target, number = listener(server, 3)
    with target, server.connect(protocol=3) as reader, server.connect() as writer:
        reader.ok("CLIENT", "TRACKING", "ON", "REDIRECT", number)
        reader.ok("GET", "silent")
        target.send("CLIENT", "REPLY", "OFF")
        target.send("GET", "unanswered")
        target.send("NO-SUCH-COMMAND")
        writer.ok("SET", "silent", "x")
        assert target.read().plain() == told(3, [b"silent"])
        assert target.ok("CLIENT", "REPLY", "ON") == b"OK"
        for words in (["CLIENT", "REPLY", "SKIP"], ["SET", "silent", "y"], ["GET", "silent"]):
            target.send(*words)
        assert target.read().plain() == b"y"


def test_calls_that_wait_are_answered_before_messages_about_them(server: Server):
    with server.connect(protocol=3) as reader, server.connect() as writer:
        reader.ok("CLIENT", "TRACKING", "ON")
        for _ in range(20):
            reader.ok("LRANGE", "{w}to", 0, -1)
            reader.send("BLMOVE", "{w}from", "{w}to", "LEFT", "LEFT", 0)
            until(lambda: b"b" in line_named(writer, reader), "it waits")
            writer.ok("RPUSH", "{w}from", "x")
            assert reader.read().plain() == b"x"
            assert reader.read().plain() == changed("{w}to")


def line_named(asker: Connection, connection: Connection) -> bytes:
    """Returns the line of CLIENT LIST for another connection."""
    port = connection.socket.getsockname()[1]
    for line in asker.ok("CLIENT", "LIST").splitlines():
        fields = dict(word.split(b"=", 1) for word in line.split())
        if fields[b"addr"].endswith(b":%d" % port):
            return fields[b"flags"]
    return b""


def test_links_for_redirected_messages_end_with_their_use(weir: Weir):
    def links() -> float:
        return metrics.total(weir, "weir_private_links", 'use="redirected"')

    until(lambda: links() == 0, "earlier ones are gone")
    target, number = listener(weir, 2)
    with target, weir.connect() as reader:
        reader.ok("CLIENT", "TRACKING", "ON", "REDIRECT", number)
        until(lambda: links() == len(weir.backends), "there is one for each store")
        reader.ok("CLIENT", "TRACKING", "OFF")
        until(lambda: links() == 0, "they are closed when nobody redirects to the target")
        # The links are opened again; the loss of one closes the target, because it would miss messages.
        reader.ok("CLIENT", "TRACKING", "ON", "REDIRECT", number)
        with weir.backends[0].connect() as direct:
            redirected = [line.split("redir=")[1].split()[0] for line in direct.ok("CLIENT", "LIST").decode().splitlines()]
            for store_number in set(redirected) - {"-1", "0"}:
                direct.ok("CLIENT", "KILL", "ID", store_number)
        target.read_to_end()
