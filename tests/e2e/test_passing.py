"""Tests of unusual messages: pushes and attributes, oversized replies, changes of the RESP version, and blocking commands."""

from __future__ import annotations

import hashlib
import random
import signal

import pytest

from harness import metrics
from harness.fake_store import FakeStore, accommodating
from harness.placement import clients_of_every_shard, keys_by_backend
from harness.processes import Weir
from harness.resp import Connection, encode, shorten
from harness.waiting import until

pytestmark = pytest.mark.weir_only

MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def two(module_servers) -> Weir:
    return module_servers.weir(module_servers.redis(), module_servers.redis(), flags=["--shards", "4"])


def answering(replies: dict[bytes, bytes]):
    """Returns a store whose reply to GET depends on the key."""

    def handler(words: list[bytes]):
        return replies.get(words[1], b"$-1\r\n") if words[0].upper() == b"GET" else accommodating(words)

    return handler


UNUSUAL = {
    b"attribute": b"|1\r\n+ttl\r\n:3600\r\n$5\r\nvalue\r\n",
    b"nested": b"*2\r\n%1\r\n+a\r\n~2\r\n:1\r\n:2\r\n|1\r\n+x\r\n+y\r\n,1.5\r\n",
    b"verbatim": b"=8\r\ntxt:text\r\n",
    b"bulk error": b"!11\r\nERR unusual\r\n",
    b"big number": b"(3492890328409238509324850943850943825024385\r\n",
    b"boolean": b"#t\r\n",
    b"double": b",inf\r\n",
    b"null": b"_\r\n",
    b"empty": b"*0\r\n",
    b"empty map": b"%0\r\n",
}


@pytest.mark.parametrize("name", UNUSUAL, ids=lambda name: name.decode())
def test_reply_types_of_resp3_pass_unchanged(servers, name: bytes):
    with FakeStore(answering(UNUSUAL)) as store:
        weir = servers.weir(storage=f"redis://{store.address}")
        with weir.connect(protocol=3) as connection:
            connection.send_raw(encode("GET", name) + encode("PING"))
            received = read_until(connection, b"+PONG\r\n")
            assert received == UNUSUAL[name] + b"+PONG\r\n"


def read_until(connection: Connection, end: bytes) -> bytes:
    received = b""
    while not received.endswith(end):
        data = connection.socket.recv(1 << 16)
        assert data, f"closed after {received!r}"
        received += data
    return received


def test_a_push_from_a_store_is_nobodys_reply(servers):
    """weir's shared connections never ask for pushes. A push that comes nevertheless must not shift the replies of their
    clients.
    """
    push = b">3\r\n+message\r\n+channel\r\n+payload\r\n"

    def handler(words: list[bytes]):
        if words[0].upper() != b"GET":
            return accommodating(words)
        return push + b"$%d\r\n%s\r\n" % (len(words[1]), words[1]) + push

    with FakeStore(handler) as store:
        weir = servers.weir(storage=f"redis://{store.address}")
        with weir.connect(protocol=3) as connection:
            own = 0
            for i in range(50):
                name = f"key:{i}".encode()
                connection.send("GET", name)
                while (reply := connection.read()).kind == b">":
                    pass
                assert reply.value == name or reply.text.startswith("UNAVAILABLE"), reply
                own += reply.value == name
            assert own > 0, "what stands between pushes is passed on"


@pytest.mark.parametrize("depth", [8, 33, 100_000])
def test_a_reply_nests_as_deep_as_it_likes(servers, depth: int):
    nested = b"*1\r\n" * depth + b":1\r\n"
    with FakeStore(answering({b"deep": nested})) as store:
        weir = servers.weir(storage=f"redis://{store.address}")
        with weir.connect() as connection:
            connection.send_raw(encode("GET", "deep"))
            assert read_until(connection, b":1\r\n") == nested
            assert connection.ok("PING") == b"PONG"


def test_a_script_that_returns_itself_costs_nobody_a_connection(servers):
    """For a script that returns itself, Redis nests arrays until there is no room, with an error in the innermost."""
    store = servers.redis()
    weir = servers.weir(store, flags=["--shards", "1"])
    itself = encode("EVAL", "local a = {}; local b = {a}; a[1] = b; return a", "0")
    told = []
    with weir.connect() as neighbour:
        neighbour.ok("SET", "key", "value")
        for server in (store, weir):
            with server.connect() as connection:
                connection.send_raw(itself)
                told.append(read_until(connection, b"-ERR reached lua stack limit\r\n"))
                assert neighbour.ok("GET", "key") == b"value"
    assert told[0] == told[1] and told[0].count(b"*1\r\n") > 100
    assert metrics.total(weir, "weir_backend_connections_lost_total") == 0


def read_until(connection: Connection, end: bytes) -> bytes:
    """Returns the bytes of a reply up to `end`, without parsing."""
    told = bytearray()
    while not told.endswith(end):
        received = connection.socket.recv(1 << 16)
        assert received, told[-100:]
        told += received
    return bytes(told)


def test_a_reply_over_the_limit_is_refused_alone(servers):
    """The store's reply is too large: its request gets an error, and other requests on the connection are not affected."""
    weir = servers.weir(servers.redis(), flags=["--shards", "1", "--max-reply-bytes", "1MiB"])
    with weir.connect() as connection, weir.connect() as neighbour:
        assert connection.ok("SET", "half", b"h" * (MEBIBYTE // 2)) == b"OK"
        neighbour.ok("SET", "neighbour", "fine")
        replies = []
        for _ in range(10):
            neighbour.send_raw(encode("GET", "neighbour") * 20)
            replies.append(connection.call("MGET", *["half"] * 10))
            assert [reply.value for reply in neighbour.read_many(20)] == [b"fine"] * 20
        assert all(reply.is_error for reply in replies), [shorten(reply.raw, 100) for reply in replies]
        assert connection.ok("STRLEN", "half") == MEBIBYTE // 2
        assert connection.ok("GET", "half") == b"h" * (MEBIBYTE // 2)


def test_an_enormous_reply_does_not_grow_weir(servers):
    """One small request asks for a reply of a gigabyte."""
    weir = servers.weir(servers.redis(), flags=["--shards", "1"])
    with weir.connect() as connection:
        connection.ok("SET", "k", b"m" * MEBIBYTE)
        before = weir.resident_bytes()
        connection.send("MGET", *["k"] * 1000)
        peak = before

        def answered() -> bool:
            nonlocal peak
            peak = max(peak, weir.resident_bytes())
            connection.socket.settimeout(0)
            try:
                connection.parser.feed(connection.socket.recv(1 << 16))
            except BlockingIOError:
                return False
            finally:
                connection.socket.settimeout(30)
            return True

        until(answered, "there is an answer")
        assert connection.read().is_error
        assert peak - before < 256 * MEBIBYTE, f"grew by {(peak - before) // MEBIBYTE} MiB"


def test_a_dialect_changes_between_replies_of_a_pipeline(two: Weir):
    with two.connect() as connection:
        connection.ok("DEL", "dialect:none")
        connection.ok("HSET", "dialect:h", "f", "v")
        requests = []
        for _ in range(20):
            requests += [
                ("GET", "dialect:none"),
                ("HELLO", 3),
                ("GET", "dialect:none"),
                ("HGETALL", "dialect:h"),
                ("HELLO", 2),
            ]
        replies = connection.pipeline([*requests, ("HGETALL", "dialect:h")])
        for i in range(0, len(requests), 5):
            assert replies[i].raw == b"$-1\r\n"
            assert replies[i + 1].kind == b"%" and replies[i + 2].raw == b"_\r\n"
            assert replies[i + 3].raw == b"%1\r\n$1\r\nf\r\n$1\r\nv\r\n"
            assert replies[i + 4].kind == b"*"
        assert replies[-1].raw == b"*2\r\n$1\r\nf\r\n$1\r\nv\r\n"


BLOCKING = [
    ("xread", "block", "0", "streams", "s", "$"),
    ("XREAD", "COUNT", "1", "Block", "0", "STREAMS", "s", "$"),
    ("xreadgroup", "group", "g", "c", "bLOCK", "0", "streams", "s", ">"),
    ("XREADGROUP", "GROUP", "BLOCK", "BLOCK", "COUNT", "1", "BLOCK", "0", "STREAMS", "s", ">"),
    ("blpop", "l", "0"),
    ("bRpOp", "l", "0"),
    ("brpoplpush", "a", "b", "0"),
    ("blmove", "a", "b", "left", "left", "0"),
    ("bzpopmax", "z", "0"),
    ("bzmpop", "0", "1", "z", "min"),
    ("blmpop", "0", "1", "l", "left"),
    ("wait", "1", "0"),
    ("subscribe", "c"),
    ("ssubscribe", "c"),
    ("psubscribe", "c*"),
    ("monitor",),
    ("sync",),
    ("psync", "?", "-1"),
    ("client", "tracking", "on"),
    ("shutdown", "nosave"),
]


@pytest.fixture(scope="module")
def shared_only(module_servers) -> Weir:
    return module_servers.weir(module_servers.redis(), module_servers.redis(), flags=["--shards", "4", "--private-links", "0", "--monitors", "0"])


@pytest.mark.parametrize("words", BLOCKING, ids=" ".join)
def test_nothing_can_block_or_shift_a_shared_connection(shared_only: Weir, words: tuple[str, ...]):
    """Blocking commands in small letters too, behind QOS CALL, inline, and in a transaction: an error at once, and later
    replies are right.
    """
    with shared_only.connect() as connection:
        connection.send_raw(
            encode(*words)
            + encode("ECHO", "1")
            + encode("QOS", "CALL", *words)
            + encode("ECHO", "2")
            + " ".join(words).encode()
            + b"\r\n"
            + encode("ECHO", "3")
            + encode("MULTI")
            + encode(*words)
            + encode("EXEC")
            + encode("ECHO", "4")
        )
        replies = connection.read_many(10)
        assert [replies[i].text for i in (1, 3, 5, 9)] == ["1", "2", "3", "4"], replies
        assert all(replies[i].is_error for i in (0, 2, 4, 7, 8)), replies


def test_words_that_only_look_like_blocking(two: Weir):
    with two.connect() as connection:
        connection.ok("DEL", "block", "{block}s")
        assert connection.ok("SET", "block", "BLOCK") == b"OK"
        connection.ok("XADD", "{block}s", "1-1", "BLOCK", "0")
        assert connection.ok("XREAD", "STREAMS", "{block}s", "0")
        connection.ok("XGROUP", "CREATE", "{block}s", "BLOCK", "0")
        assert connection.ok("XREADGROUP", "GROUP", "BLOCK", "BLOCK", "STREAMS", "{block}s", ">")


def test_scripts_are_loaded_on_every_backend(two: Weir):
    with two.connect() as connection:
        digest = connection.ok("SCRIPT", "LOAD", "return {KEYS[1], ARGV[1]}")
        for names in keys_by_backend(two, "script").values():
            for name in names[:5]:
                assert connection.ok("EVALSHA", digest, 1, name, "x") == [name.encode(), b"x"]
        assert connection.ok("SCRIPT", "EXISTS", digest, "f" * 40) == [1, 0]
        assert connection.ok("SCRIPT", "FLUSH") == b"OK"
        assert connection.ok("SCRIPT", "EXISTS", digest) == [0]
        assert connection.call("EVALSHA", digest, 0).text.startswith("NOSCRIPT ")


def test_a_script_without_keys_runs_at_the_first_backend_and_is_known_there(two: Weir):
    source = "redis.call('SET', 'undeclared', ARGV[1]) return redis.sha1hex('known where it ran')"
    with two.connect() as connection:
        connection.ok("EVAL", source, 0, "v")
        held = []
        for store in two.backends:
            with store.connect() as direct:
                held.append(direct.ok("GET", "undeclared"))
                direct.ok("DEL", "undeclared")
        assert held == [b"v", None]
        digest = hashlib.sha1(source.encode()).hexdigest()
        assert connection.ok("SCRIPT", "EXISTS", digest) == [0], "not all have it"
        assert not connection.call("EVALSHA", digest, 0, "v").is_error
        here, there = (names[0] for names in keys_by_backend(two, "evalsha").values())
        assert not connection.call("EVALSHA", digest, 1, here, "v").is_error
        assert connection.call("EVALSHA", digest, 1, there, "v").text.startswith("NOSCRIPT ")
        assert not connection.call("EVAL", source, 1, there, "v").is_error
        assert connection.ok("SCRIPT", "EXISTS", digest) == [1]


def test_functions_are_loaded_on_every_backend(two: Weir):
    library = "#!lua name=passing\nredis.register_function('passing_echo', function(k, a) return {k[1], a[1]} end)"
    with two.connect() as connection:
        assert connection.ok("FUNCTION", "LOAD", "REPLACE", library) == b"passing"
        for names in keys_by_backend(two, "function").values():
            for name in names[:5]:
                assert connection.ok("FCALL", "passing_echo", 1, name, "x") == [name.encode(), b"x"]
        assert connection.ok("FUNCTION", "DELETE", "passing") == b"OK"
        assert connection.call("FCALL", "passing_echo", 0).is_error


def test_a_walk_over_all_backends_meets_what_stays(two: Weir):
    """SCAN while keys come and go finds every key that is there throughout, with any COUNT."""
    chooser = random.Random(5)
    staying = {f"walk:stay:{i}".encode() for i in range(1000)}
    with two.connect() as connection, two.connect() as writer:
        connection.ok("FLUSHALL")
        assert all(not reply.is_error for reply in writer.pipeline([("SET", name, 1) for name in staying]))
        for size in (1, 10, 333, 100_000):
            found, cursor = set(), b"0"
            while True:
                cursor, names = connection.ok("SCAN", cursor, "COUNT", size, "MATCH", "walk:stay:*")
                found.update(names)
                if cursor == b"0":
                    break
                name = f"walk:brief:{chooser.randrange(500)}"
                writer.ok(*chooser.choice([("SET", name, 1), ("DEL", name)]))
            assert found == staying


def test_a_random_key_may_be_any_of_them(two: Weir):
    with two.connect() as connection:
        connection.ok("FLUSHALL")
        assert connection.ok("RANDOMKEY") is None
        several = {name.encode() for names in keys_by_backend(two, "drawn", 12).values() for name in names}
        # A key that shares a store with ten others fails to appear in one run of ten million.
        assert {reply.value for reply in connection.pipeline([("RANDOMKEY",)] * 400)} == several


@pytest.mark.parametrize("cursor", ["abc", "-", "--1", " 1", "99999999999999999999999", "1.5", "-1", "", "18446744073709551615"])
def test_a_cursor_that_nobody_gave_out(two: Weir, servers, cursor: str):
    with servers.redis().connect() as redis:
        is_cursor = not redis.call("SCAN", cursor).raw.startswith(b"-")
    with two.connect() as connection:
        connection.ok("FLUSHALL")
        reply = connection.call("SCAN", cursor)
        if not is_cursor:
            assert reply.raw == b"-ERR invalid cursor\r\n"
        elif not cursor:
            assert reply.raw == connection.call("SCAN", "0").raw
        else:
            # The number could be the cursor of a scan that has ended.
            assert reply.raw == b"*2\r\n$1\r\n0\r\n*0\r\n"
        assert connection.ok("PING") == b"PONG"


def test_connections_to_backends_are_opened_where_they_are_used(servers):
    """Each of four cores has half of one store's slots. Requests with keys need no other connections; requests without keys
    open them.
    """
    weir = servers.weir(servers.redis(), servers.redis(), flags=["--shards", "4"])

    def opened() -> list[int]:
        family = metrics.parse(weir.admin("/metrics")[1])["weir_backend_connections_opened_total"]
        return [int(value) for value in family.values()]

    clients = clients_of_every_shard(weir)
    for client in clients:
        replies = client.pipeline([("SET", f"lazy:{n}", n) for n in range(200)])
        assert all(reply.raw == b"+OK\r\n" for reply in replies)
    assert opened() == [1, 1, 1, 1]
    for client in clients:
        assert client.ok("DBSIZE") == 200
        client.close()
    assert opened() == [2, 2, 2, 2]


def test_what_asks_all_backends_says_when_one_is_gone(servers):
    weir = servers.weir(servers.redis(), servers.redis(), flags=["--shards", "2"])
    keys_by_backend(weir, "gone")
    weir.backends[0].kill()
    with weir.connect() as connection:
        until(lambda: connection.call("DBSIZE").is_error, "weir has noticed")
        for words in [("DBSIZE",), ("KEYS", "*"), ("FLUSHALL",), ("SCRIPT", "LOAD", "return 1")]:
            assert connection.call(*words).text.startswith("UNAVAILABLE "), words
        assert connection.ok("PING") == b"PONG"


def test_a_script_that_never_ends_is_given_up(servers):
    """A script that never ends gets an error after the backend's timeout. Until then, the other backend serves."""
    weir = servers.weir(servers.redis(), servers.redis(), flags=["--shards", "2", "--backend-timeout", "1s"])
    stuck, living = weir.backends
    held = keys_by_backend(weir, "stuck")
    with weir.connect() as connection, weir.connect() as neighbour:
        connection.send("EVAL", "while true do end", 1, held[stuck][0])
        for name in held[living][:20]:
            assert neighbour.ok("GET", name) == name.encode()
        reply = connection.read()
        assert reply.text.startswith("UNAVAILABLE "), reply
        assert connection.ok("GET", held[living][0]) == held[living][0].encode()
    stuck.signal(signal.SIGKILL)
    stuck.wait()
