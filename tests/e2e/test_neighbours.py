"""Tests that one client cannot harm others: memory of all clients together, limits on connections, and what a burst leaves
behind.
"""

from __future__ import annotations

import select
import threading
from pathlib import Path

import pytest

from harness.metrics import parse
from harness.processes import Weir
from harness.resp import Closed, Connection, encode
from harness.waiting import until

pytestmark = [pytest.mark.weir_only, pytest.mark.alone]
MEBIBYTE = 1 << 20

QUOTAS = """
[tenants.acme]
password = "a"
[tenants.root]
password = "r"
admin = true
"""


def with_quotas(servers, folder: Path, text: str, *flags: str) -> Weir:
    path = folder / "quotas.toml"
    path.write_text(text)
    return servers.weir(servers.redis(), flags=["--quotas", str(path), *flags])


def expelled(weir: Weir, reason: str) -> float:
    samples = parse(weir.admin("/metrics")[1])["weir_clients_expelled_total"]
    return sum(value for labels, value in samples.items() if f'reason="{reason}"' in labels)


def is_closed(connection: Connection) -> bool:
    connection.socket.settimeout(0.02)
    try:
        return connection.socket.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_requests_that_never_end_are_bounded_together(servers):
    """Forty clients send nearly all of a large value. The clients that hold most memory are closed, and all others are served."""
    weir = servers.weir(
        servers.redis(), flags=["--shards", "2", "--max-clients-bytes", "64MiB", "--login-timeout", "0"]
    )
    with weir.connect() as good:
        good.ok("SET", "neighbour", "fine")
        before = weir.resident_bytes()
        begun = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$16000000\r\n" + b"x" * (15 * MEBIBYTE)
        clients = [weir.connect() for _ in range(40)]
        for client in clients:
            try:
                client.send_raw(begun)
            except (Closed, OSError):
                pass  # It was closed while it sent.
        assert good.ok("GET", "neighbour") == b"fine"
        until(lambda: expelled(weir, "memory") > 30, "those who hold most are closed")
        assert good.ok("GET", "neighbour") == b"fine"
        # Freed memory returns to the system a moment later. Of the 600 MiB that were sent, at most this much was ever held.
        grown = weir.resident_bytes() - before
        assert grown < 256 * MEBIBYTE, f"grew by {grown // MEBIBYTE} MiB"
        until(lambda: weir.resident_bytes() - before < 128 * MEBIBYTE, "memory is given back")
        for client in clients:
            client.close()


def test_names_are_short(servers):
    weir = servers.weir(servers.redis(), flags=["--shards", "1"])
    with weir.connect() as client:
        before = weir.resident_bytes()
        for request in (
            ("CLIENT", "SETNAME", b"n" * MEBIBYTE),
            ("CLIENT", "SETINFO", "LIB-NAME", b"n" * MEBIBYTE),
            ("CLIENT", "SETINFO", "LIB-VER", b"n" * MEBIBYTE),
            ("HELLO", "2", "SETNAME", b"n" * MEBIBYTE),
        ):
            reply = client.call(*request)
            assert reply.is_error and "at most" in reply.text and len(reply.text) < 200, reply
        assert client.ok("CLIENT", "SETNAME", "n" * 300) == b"OK"
        assert weir.resident_bytes() - before < 32 * MEBIBYTE


def test_silent_strangers_are_closed_and_make_way(servers, tmp_path):
    weir = with_quotas(servers, tmp_path, QUOTAS, "--shards", "1", "--max-clients", "10", "--login-timeout", "1m")
    strangers = [weir.connect() for _ in range(10)]
    with weir.connect() as known:
        assert known.ok("AUTH", "acme", "a") == b"OK", "there is always room for whoever can log in"
        assert known.ok("SET", "k", "v") == b"OK"
        more = [weir.connect() for _ in range(20)]
        assert known.ok("GET", "k") == b"v", "who is known makes way for nobody"
        assert expelled(weir, "login") >= 20
        for stranger in strangers + more:
            stranger.close()
    quick = with_quotas(servers, tmp_path, QUOTAS, "--shards", "1", "--login-timeout", "100ms")
    with quick.connect() as silent, quick.connect() as known:
        assert known.ok("AUTH", "acme", "a") == b"OK"
        until(lambda: is_closed(silent), "who does not log in is closed")
        assert known.ok("PING") == b"PONG"


def test_a_tenant_leaves_seats_for_others(servers, tmp_path):
    weir = with_quotas(servers, tmp_path, "[default]\n" + QUOTAS, "--shards", "2", "--max-tenant-clients", "5")
    many = [weir.connect() for _ in range(8)]
    told = [client.call("PING") for client in many]
    assert sum(not reply.is_error for reply in told) == 5
    for reply in told:
        assert not reply.is_error or reply.text.startswith("OVERLOADED reason=clients scope=tenant name=default limit=5 ")
    with weir.connect() as other:
        assert other.ok("AUTH", "acme", "a") == b"OK"
    for client in many:
        client.close()


@pytest.mark.parametrize("login", [None, ("acme", "a"), ("root", "r")], ids=["stranger", "tenant", "admin"])
def test_a_browsers_post_is_not_carried_out(servers, tmp_path, login):
    weir = with_quotas(servers, tmp_path, QUOTAS, "--shards", "1")
    with weir.connect() as client, weir.connect() as witness:
        if login:
            client.ok("AUTH", *login)
        client.send_raw(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n\r\nSET stolen 1\r\n")
        replies = client.read_to_end()
        assert [reply.is_error for reply in replies] == [True] and "HTTP" in replies[0].text
        witness.ok("AUTH", "root", "r")
        assert witness.ok("EXISTS", "stolen") == 0


def test_a_burst_leaves_no_memory_behind(servers):
    weir = servers.weir(servers.redis(), flags=["--shards", "2"])
    with weir.connect() as client:
        client.ok("SET", "large", b"x" * 100_000)
        client.ok("SET", "small", b"x" * 1_000)
        before = weir.resident_bytes()

        def burst() -> None:
            with weir.connect() as one:
                for _ in range(5):
                    one.send_raw((encode("GET", "large") + encode("GET", "small") * 10) * 40)
                    one.read_many(40 * 11)

        threads = [threading.Thread(target=burst) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: weir.resident_bytes() - before < 32 * MEBIBYTE, "the memory of the burst is given back", 60)
        assert len(client.ok("GET", "large")) == 100_000


@pytest.mark.parametrize("stores", [1, 2])
def test_a_request_with_very_many_keys_shares_its_core(servers, stores):
    """Splitting the keys of one request and joining its values takes several turns, in which other clients are served."""
    weir = servers.weir(*[servers.redis() for _ in range(stores)], flags=["--shards", "1"])
    keys = [f"k{number}" for number in range(100_000)]
    with weir.connect() as greedy, weir.connect() as neighbour:
        for start in range(0, len(keys), 10_000):
            some = keys[start : start + 10_000 : 3]
            assert greedy.ok("MSET", *[word for key in some for word in (key, "v" + key)]) == b"OK"
        asked = keys + keys[:1_000]
        greedy.send_raw(encode("MGET", *asked) + encode("GET", "k3"))
        answered = 0
        while not select.select([greedy.socket], [], [], 0)[0]:
            assert neighbour.ok("PING") == b"PONG"
            answered += 1
        # Each turn splits or joins a few thousand keys, and ends with replies to others.
        assert answered >= 10, f"{answered} answers while {len(asked)} keys were read"
        values = greedy.read().plain()
        assert values == [b"v" + key.encode() if int(key[1:]) % 10_000 % 3 == 0 else None for key in asked]
        assert greedy.read().plain() == b"vk3"
        assert greedy.ok("DEL", *asked) == sum(value is not None for value in values[: len(keys)])
        steps = parse(weir.admin("/metrics")[1])["weir_requests_in_steps_total"]
        assert sum(steps.values()) == 12, "one MGET, one DEL, and ten MSETs of 6,669 words or so"


def test_filters_at_a_store_are_few_for_each_tenant_and_for_all(servers, tmp_path):
    """A tenant with as many patterns and key prefixes as it may have cannot keep another from having some."""
    text = QUOTAS + '[tenants.other]\npassword = "o"\n'
    weir = with_quotas(servers, tmp_path, text, "--shards", "2", "--private-links", "50")
    patterns, prefixes = 4_096 * 4 // 5, 1_024 * 4 // 5

    def client(name: str) -> Connection:
        connection = weir.connect()
        connection.ok("HELLO", 3, "AUTH", name, name[0])
        return connection

    def subscribe(connection: Connection, first: int, count: int):
        connection.send("PSUBSCRIBE", *(f"{number:05}:*" for number in range(first, first + count)))
        replies = [connection.read()]
        if isinstance(replies[0].plain(), list):
            replies += [connection.read() for _ in range(count - 1)]
        return replies

    def track(connection: Connection, first: int, count: int):
        words = [word for number in range(first, first + count) for word in ("PREFIX", f"{number:05}")]
        return connection.call("CLIENT", "TRACKING", "ON", "BCAST", *words)

    clients = [client("acme") for _ in range(4)]
    for index, each in enumerate(clients):
        assert len(subscribe(each, index * patterns // 4, patterns // 4)) == patterns // 4
        assert track(each, index * prefixes // 4, prefixes // 4).plain() in ("OK", b"OK")
    with client("acme") as one_more, client("other") as other:
        assert subscribe(one_more, 10_000, 1_000)[0].text.startswith(f"ERR too many patterns: the clients of a tenant may have {patterns}, ")
        assert track(one_more, 10_000, 500).text.startswith(f"ERR too many prefixes: the clients of a tenant may have {prefixes}, ")
        assert len(subscribe(other, 0, 100)) == 100
        assert track(other, 0, 100).plain() in ("OK", b"OK")
        counts = parse(weir.admin("/metrics")[1])["weir_filters"]
        for kind, least in [("pattern", 4 * (patterns // 4) + 100), ("prefix", 4 * (prefixes // 4) + 100)]:
            assert sum(value for labels, value in counts.items() if f'kind="{kind}"' in labels) == least
        for each in clients:
            each.close()
        until(lambda: isinstance(subscribe(one_more, 10_000, 1_000)[0].plain(), list), "the patterns of closed clients are gone")
        assert track(one_more, 10_000, 500).plain() in ("OK", b"OK")


@pytest.mark.parametrize("store", ["redis", "embedded"])
def test_keys_that_a_client_watches_are_few(servers, store: str):
    """Redis compares each key that a client watches with all others of it."""
    weir = servers.weir(*([servers.redis()] if store == "redis" else []))
    with weir.connect() as client:
        assert client.call("WATCH", *(f"k{number}" for number in range(1_025))).text.startswith("ERR too many watched keys")
        client.ok("WATCH", *(f"k{number}" for number in range(1_024)))
        assert client.call("WATCH", "k").text.startswith("ERR too many watched keys")
        with weir.connect() as other:
            other.ok("SET", "k1023", "changed")
        client.ok("MULTI")
        assert client.call("GET", "k0").plain() in ("QUEUED", b"QUEUED")
        assert client.call("EXEC").plain() is None, "the earlier watch holds"
        client.ok("WATCH", "k")


def test_requests_that_multiply_work_are_refused(servers):
    """A few words of some requests make a store repeat the work for a whole collection. Beyond a limit, weir refuses them
    wherever they come, and at the limit the store answers within a moment.
    """
    weir = servers.weir(servers.redis())
    members = [f"m{number}" for number in range(1_000)]
    multiplying = [
        ("SRANDMEMBER set -", 16_384, lambda count: ("SRANDMEMBER", "set", -count)),
        ("HRANDFIELD hash -", 16_384, lambda count: ("HRANDFIELD", "hash", -count, "WITHVALUES")),
        ("ZRANDMEMBER zset -", 16_384, lambda count: ("ZRANDMEMBER", "zset", -count)),
        ("MGET", 1_024, lambda count: ("MGET", "text", *["text"] * count)),
        ("HMGET", 1_024, lambda count: ("HMGET", "hash", "m1", *["m1"] * count)),
        ("SINTER", 16, lambda count: ("SINTER", "set", *["set"] * count)),
        ("SUNIONSTORE", 16, lambda count: ("SUNIONSTORE", "to", "set", *["set"] * count)),
        ("ZUNION", 16, lambda count: ("ZUNION", count + 1, "zset", *["zset"] * count)),
        ("BITOP", 16, lambda count: ("BITOP", "XOR", "to", "text", *["text"] * count)),
        ("PFCOUNT", 16, lambda count: ("PFCOUNT", "hll", *["hll"] * count)),
        ("XREAD", 16, lambda count: ("XREAD", "STREAMS", *["stream"] * (count + 1), *["0"] * (count + 1))),
        (
            "XREAD BLOCK",
            16,
            lambda count: ("XREAD", "BLOCK", 1, "STREAMS", *["stream"] * (count + 1), *["0"] * (count + 1)),
        ),
        (
            "XREADGROUP BLOCK",
            16,
            lambda count: (
                *("XREADGROUP", "GROUP", "g", "c", "BLOCK", 1, "STREAMS"),
                *["stream"] * (count + 1),
                *["0"] * (count + 1),
            ),
        ),
        ("SORT", 64, lambda count: ("SORT", "list", *["GET", "#"] * count)),
        ("SCAN", 1_024, lambda count: ("SCAN", 0, "MATCH", "x" * count)),
        ("KEYS", 1_024, lambda count: ("KEYS", "x" * count)),
        ("PUBLISH", 4_096, lambda count: ("PUBLISH", "x" * count, "text")),
    ]
    with weir.connect() as client, weir.connect() as other:
        client.call("SADD", "set", *members)
        client.call("HSET", "hash", *(word for member in members for word in (member, "value")))
        client.call("ZADD", "zset", *(word for number, member in enumerate(members) for word in (number, member)))
        client.ok("SET", "text", "value")
        client.call("PFADD", "hll", *members)
        client.call("XADD", "stream", "*", "field", "value")
        client.ok("XGROUP", "CREATE", "stream", "g", "0")
        client.call("RPUSH", "list", *range(100))
        for name, most, request in multiplying:
            assert not client.call(*request(most)).is_error, f"{name} at its limit"
            assert client.call(*request(most + 1)).text.startswith("ERR "), f"{name} beyond its limit"
            assert client.call("QOS", "CALL", "TIER", "batch", *request(most + 1)).text.startswith("ERR "), name
            client.ok("MULTI")
            assert client.call(*request(most + 1)).text.startswith("ERR "), f"{name} in a transaction"
            assert client.call("EXEC").text.startswith("EXECABORT"), name
            other.ok("SET", "text", "value")
        assert client.call("BLPOP", *(f"k{number}" for number in range(1_025)), 0).text.startswith("ERR BLPOP may wait at")
        client.ok("MULTI")
        client.call("GET", "text")
        assert client.call("EXEC").plain() in (["value"], [b"value"])
