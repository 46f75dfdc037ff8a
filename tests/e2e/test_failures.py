"""Tests of backends that die, hang or reply nonsense: every request gets exactly one reply, either its own or a clear error."""

from __future__ import annotations

import signal
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from harness import metrics
from harness.fake_store import FakeStore, accommodating
from harness.load import Load
from harness.placement import keys_by_backend
from harness.processes import Redis, Weir
from harness.relay import Relay
from harness.resp import Closed
from harness.waiting import until

pytestmark = pytest.mark.weir_only

REST = "(the rest may have happened)"
REFUSAL = "UNAVAILABLE"


def two_backends(servers, *flags: str):
    return servers.weir(servers.redis(), servers.redis(), flags=["--shards", "2", *flags])


def served(weir, *request: str):
    """Returns a probe that is true once the request is answered without an error."""

    def probe() -> bool:
        with weir.connect() as connection:
            return not connection.call(*request).is_error

    return probe


def test_a_backend_killed_and_restarted_under_load(servers):
    weir = two_backends(servers)
    victim = weir.backends[0]
    with Load(weir) as load:
        for _ in range(3):
            until(load.more("served", 500), "requests are served")
            victim.kill()
            until(load.more(REFUSAL), "requests for the dead backend are refused")
            until(load.more("served"), "the other backend still serves")
            victim.start()
            name = keys_of(weir, victim)[0]
            until(served(weir, "SET", name, f"{name}=0"), "the backend is found again")
        outcomes = load.finish()
    assert set(outcomes) <= {"served", REFUSAL}, outcomes


def keys_of(weir, backend: Redis) -> list[str]:
    """Returns keys of the backend, found while all backends are up."""
    until(lambda: all(store.answers_ping() for store in weir.backends), "all backends are up")

    def probe():
        try:
            return keys_by_backend(weir, "placed")
        except AssertionError:
            return None  # weir has not found all of them again yet

    return until(probe, "keys can be placed on every backend")[backend]


def test_lost_connections_never_repeat_a_write(servers):
    """The backend drops weir's connections but keeps its data; a counter shows whether an INCR was sent twice."""
    weir = two_backends(servers)
    names = [f"once:{i}" for i in range(20)]
    stopping = threading.Event()

    def work(client: int) -> tuple[dict[str, int], dict[str, int]]:
        counted, refused = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
        with weir.connect() as connection:
            while not stopping.is_set():
                for name, reply in zip(names, connection.pipeline([("INCR", name) for name in names])):
                    if reply.is_error:
                        assert reply.text.startswith(REFUSAL), reply
                        refused[name] += 1
                    else:
                        counted[name] += 1
        return counted, refused

    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(work, client) for client in range(6)]
        with weir.backends[0].connect() as a, weir.backends[1].connect() as b, weir.connect() as through:
            for _ in range(20):
                goal = until(lambda: counted_on(through), "the backends are found again") + 20
                until(lambda: counted_on(through) >= goal, "the load goes on")
                a.ok("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                b.ok("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        stopping.set()
        results = [each.result() for each in running]
    until(served(weir, "MGET", *names), "all keys can be read")
    with weir.connect() as connection:
        for name in names:
            until(served(weir, "GET", name), f"{name} can be read")
            value = int(connection.ok("GET", name))
            counted = sum(counts[name] for counts, _ in results)
            refused = sum(refusals[name] for _, refusals in results)
            assert counted <= value <= counted + refused, (
                f"{name}: {value} after {counted} acknowledged, {refused} refused"
            )
            assert counted > 0, f"{name} was never counted"
    assert sum(sum(refusals.values()) for _, refusals in results) > 0, "no connection was lost with something on it"


def counted_on(connection) -> int:
    """Returns the counter's next value, or 0 while the store does not answer."""
    reply = connection.call("INCR", "progress")
    return 0 if reply.is_error else int(reply.value)


def test_one_dead_backend_fails_only_its_keys(servers):
    weir = two_backends(servers)
    dead, living = weir.backends
    held = keys_by_backend(weir, "split")
    there, gone = held[living][:10], held[dead][:10]
    dead.kill()
    with weir.connect() as connection:
        until(lambda: connection.call("GET", gone[0]).is_error, "weir has noticed")
        mixed = [name for pair in zip(there, gone) for name in pair]
        reply = connection.call("MGET", *mixed)
        assert reply.kind == b"*" and len(reply.children) == len(mixed), reply
        for name, child in zip(mixed, reply.children):
            if name in there:
                assert child.value == name.encode(), (name, child)
            else:
                assert child.kind == b"-" and child.text.startswith(f"{REFUSAL} backend={dead.address}"), (name, child)
        refused = connection.call("MSET", there[0], "new", gone[0], "new")
        assert refused.is_error and refused.text.startswith(REFUSAL), refused
        # Part of the request was carried out, so the error must say that.
        assert refused.text.endswith(REST), refused
        assert connection.ok("GET", there[0]) == b"new"
        assert connection.ok("MGET", *there[1:]) == [name.encode() for name in there[1:]]
        for word, name in zip(("DEL", "UNLINK"), there[1:3]):
            refused = connection.call(word, name, gone[1])
            assert refused.text.startswith(REFUSAL) and refused.text.endswith(REST), refused
        assert connection.ok("EXISTS", *there[:3]) == 1, "what could be deleted was"
        for word in ("EXISTS", "TOUCH"):
            refused = connection.call(word, *there[3:], gone[1])
            assert refused.text.startswith(REFUSAL) and not refused.text.endswith(REST), refused
        assert connection.call("DEL", gone[0], gone[1]).text.startswith(REFUSAL)
        assert connection.ok("EXISTS", *there[3:]) == len(there[3:])


def test_clients_get_what_can_be_had_of_many_keys(servers):
    weir = two_backends(servers)
    dead, living = weir.backends
    held = keys_by_backend(weir, "split")
    there, gone = held[living][0], held[dead][0]
    dead.kill()
    for protocol in (2, 3):
        with redis.Redis(host="127.0.0.1", port=weir.port, socket_timeout=30, protocol=protocol) as client:
            first, error, last = client.mget(there, gone, there)
            assert first == last == there.encode()
            assert isinstance(error, redis.exceptions.ResponseError) and str(error).startswith(REFUSAL), error
            with pytest.raises(redis.exceptions.ResponseError, match="the rest may have happened"):
                client.delete(there, gone)
            client.set(there, there)


def test_a_refusal_says_which_backend_and_when_to_come_back(servers):
    weir = servers.weir(servers.redis())
    backend = weir.backends[0]
    backend.kill()
    with weir.connect() as connection:
        refused = until(lambda: (reply := connection.call("GET", "a")).is_error and reply, "weir has noticed")
    assert refused.text.startswith(f"{REFUSAL} backend={backend.address} reason="), refused


def test_weir_starts_without_its_backend_and_finds_it_later(servers):
    backend = servers.redis()
    backend.kill()
    weir = servers.keep(servers.weir_class(backend))
    weir.ready_path = "/healthz"
    weir.start()
    with weir.connect() as connection:
        assert connection.ok("PING") == b"PONG"
        assert connection.call("GET", "a").text.startswith(REFUSAL)
        backend.start()
        until(lambda: not connection.call("SET", "a", "1").is_error, "the backend is found")
        assert connection.ok("GET", "a") == b"1"


def test_a_hanging_backend_holds_up_only_its_own_requests(servers):
    weir = two_backends(servers, "--backend-timeout", "1m")
    hanging, living = weir.backends
    held = keys_by_backend(weir, "hang")
    hanging.signal(signal.SIGSTOP)
    try:
        with weir.connect() as waiting, weir.connect() as other:
            waiting.send("GET", held[hanging][0])
            for name in held[living][:50] * 4:
                assert other.ok("GET", name) == name.encode()
            hanging.signal(signal.SIGCONT)
            assert waiting.read().value == held[hanging][0].encode(), "it only had to wait"
    finally:
        hanging.signal(signal.SIGCONT)


def test_a_connection_that_is_dead_on_the_way_is_opened_anew_long_before_the_timeout(servers):
    """A device on the way forgets weir's connections to a store, without a word to either side."""
    redis = servers.redis()
    with Relay(redis.port) as relay:
        weir = servers.weir(storage=f"redis://{relay.address}", flags=["--backend-timeout", "10m"])
        with weir.connect() as connection, weir.connect() as waiting:
            connection.ok("SET", "a", "1")
            assert waiting.call("BLPOP", "q", "0.001").value is None
            relay.sever()
            waiting.send("BLPOP", "q", "0")
            refused = connection.call("SET", "a", "1")
            assert "reason=connection-lost" in refused.text or "reason=stalled" in refused.text, refused
            until(lambda: not connection.call("SET", "a", "1").is_error, "the store is reached again")
            assert "reason=connection-lost" in waiting.read().text, "nor does a call wait for ever"
            assert metrics.total(weir, "weir_backend_connections_lost_total") >= 2


@pytest.mark.parametrize("request_words", [("SET", "a", "1"), ("BLPOP", "q", "0.001")], ids=["shared", "a client's own"])
def test_the_new_primary_behind_the_same_address_is_found(servers, request_words: tuple[str, ...]):
    """An address leads to the new primary, but open connections go on to the former one, which is a replica now."""
    former, new = servers.redis(), servers.redis()
    with Relay(former.port) as relay, former.connect() as direct:
        weir = servers.weir(storage=f"redis://{relay.address}")
        with weir.connect() as connection:
            assert not connection.call(*request_words).is_error
            direct.ok("REPLICAOF", "127.0.0.1", new.port)
            relay.store_port = new.port
            assert connection.call(*request_words).text.startswith("READONLY ")
            until(lambda: not connection.call(*request_words).is_error, "the new primary is found")
            assert metrics.total(weir, "weir_backend_connections_lost_total") == 0
            assert metrics.total(weir, "weir_backend_connections_opened_total") >= 2


def test_a_client_that_leaves_does_not_leave_its_reply_to_another(servers):
    weir = two_backends(servers)
    hanging = weir.backends[0]
    names = keys_by_backend(weir, "leave")[hanging]
    for _ in range(20):
        hanging.signal(signal.SIGSTOP)
        leaver = weir.connect()
        for name in names[:20]:
            leaver.send("GET", name)
        leaver.close()
        with weir.connect() as stayer:
            for name in names[20:40]:
                stayer.send("GET", name)
            hanging.signal(signal.SIGCONT)
            assert [reply.value for reply in stayer.read_many(20)] == [name.encode() for name in names[20:40]]


BREAKS = {
    "closes at once": lambda _: None,
    "closes inside a bulk": lambda _: (b"$100\r\nonly a part", None),
    "closes inside an array": lambda _: (b"*3\r\n$1\r\na\r\n", None),
    "is not RESP": lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "has a hostile length": lambda _: b"$99999999999999999999\r\n",
    "has a negative length": lambda _: b"*-7\r\n",
    "closes deep inside arrays": lambda _: (b"*1\r\n" * 100_000, None),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_backend_that_breaks_its_reply(servers, name: str):
    """A GET whose reply the store breaks off or garbles gets an error, and never a part of the reply."""

    def handler(words: list[bytes]):
        return BREAKS[name](words) if words[0].upper() == b"GET" else accommodating(words)

    with FakeStore(handler) as store:
        weir = servers.weir(storage=f"redis://{store.address}")
        with weir.connect() as connection:
            for _ in range(10):
                replies = connection.pipeline([("GET", "a"), ("GET", "b"), ("PING",)])
                assert [reply.text.split(" ")[0] for reply in replies] == [REFUSAL, REFUSAL, "PONG"], replies


def test_a_reply_too_many_from_a_backend_reaches_nobody(servers):
    """A backend that replies twice is out of step: weir gives its connection up before a client can get another's reply."""

    def handler(words: list[bytes]):
        if words[0].upper() != b"GET":
            return accommodating(words)
        return b"$%d\r\n%s\r\n" % (len(words[1]), words[1]) + (b"+STRAY\r\n" if words[1] == b"twice" else b"")

    with FakeStore(handler) as store:
        weir = servers.weir(storage=f"redis://{store.address}")
        with weir.connect() as connection:
            own = 0
            for _ in range(20):
                reply = connection.call("GET", "twice")
                assert reply.value == b"twice" or reply.text.startswith(REFUSAL), reply
                own += reply.value == b"twice"
            assert own > 0, "the first of two replies is the request's own"
            until(served(weir, "GET", "once"), "the store is found again")
            for i in range(50):
                assert connection.call("GET", f"after:{i}").value == b"after:%d" % i


def test_a_backend_that_refuses_one_dialect_serves_clients_of_the_other(servers):
    """Only requests of clients that speak RESP3 are refused by a store that speaks RESP2 alone."""

    def handler(words: list[bytes]):
        if words[0].upper() == b"HELLO":
            return b"-NOPROTO unsupported protocol version\r\n"
        return b"$1\r\nv\r\n" if words[0].upper() == b"GET" else accommodating(words)

    with FakeStore(handler) as store:
        weir = servers.weir(storage=f"redis://{store.address}")
        with weir.connect(protocol=3) as new, weir.connect() as old:
            refused = 0
            # Five failures in a row would set a store aside.
            while refused < 6:
                reply = new.call("GET", "a")
                assert reply.text.startswith(REFUSAL) and "reason=ejected" not in reply.text, reply
                refused += "reason=login-refused" in reply.text
                assert old.ok("GET", "a") == b"v"
            assert "is set aside" not in weir.output()


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_store_that_turns_a_clients_own_connection_away_is_named(servers, protocol: int):
    store = servers.redis()
    weir = servers.weir(store, flags=["--shards", "1"])
    with weir.connect(protocol=protocol) as client, store.connect() as direct:
        client.ok("SET", "k", "v")
        direct.ok("CONFIG", "SET", "maxclients", 1)
        until(lambda: "reason=turned-away" in client.call("BLPOP", "q", 1).text, "the reason is named")
        until(lambda: "turns connections away: ERR max number of clients reached" in weir.output(), "the log has it")
        direct.ok("CONFIG", "SET", "maxclients", 1000)
        assert client.call("BLPOP", "q", 0.01).plain() is None


def test_the_backends_own_password_is_used_and_never_shown(servers):
    backend = servers.redis("--requirepass", "backend-secret")
    weir = servers.keep(servers.weir_class(backend, storage=f"redis://:backend-secret@{backend.address}")).start()
    with weir.connect() as connection:
        assert connection.ok("SET", "a", "1") == b"OK"
        said = [
            connection.call("INFO").raw,
            connection.call("CLIENT", "LIST").raw,
            connection.call("CONFIG", "GET", "*").raw,
        ]
        with_wrong = servers.keep(servers.weir_class(backend, storage=f"redis://:wrong-secret@{backend.address}"))
        with_wrong.ready_path = "/healthz"
        with_wrong.start()
        with with_wrong.connect() as unlucky:
            refused = unlucky.call("GET", "a")
        assert refused.is_error and refused.text.startswith(REFUSAL), refused
        said.append(refused.raw)
    status, metrics = weir.admin("/metrics")
    assert status == 200
    for text in [*said, metrics.encode(), weir.output().encode(), with_wrong.output().encode()]:
        assert b"backend-secret" not in text and b"wrong-secret" not in text, text


def test_a_restarted_backend_under_open_connections(servers):
    """Client connections survive a restart of the backend."""
    weir = servers.weir(servers.redis(), flags=["--shards", "2"])
    backend = weir.backends[0]
    connections = [weir.connect() for _ in range(50)]
    for round_number in range(3):
        for i, connection in enumerate(connections):
            until(lambda: not connection.call("SET", f"open:{i}", f"{round_number}").is_error, "the backend is found")
        backend.kill()
        backend.start()
    for connection in connections:
        try:
            assert connection.ok("PING") == b"PONG"
        except Closed as error:
            raise AssertionError(f"a client lost its connection with the backend's: {error}") from None
        connection.close()


class Elsewhere(Redis):
    """A redis-server on another's port, at another address of this machine."""

    ADDRESS = "127.0.0.2"

    def __init__(self, port: int) -> None:
        super().__init__("--bind", self.ADDRESS)
        self.port = port

    def ready(self) -> bool:
        try:
            with socket.create_connection((self.ADDRESS, self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(100).startswith(b"+PONG")
        except OSError:
            return False


class Naming(Weir):
    """A weir with a host table (/etc/hosts) of its own, which a test rewrites."""

    def __init__(self, hosts: Path, *flags: str, storage: str) -> None:
        super().__init__(flags=[*flags], storage=storage)
        self.hosts = hosts

    def command(self) -> list[str]:
        script = 'mount --bind "$0" /etc/hosts && exec "$@"'
        return ["unshare", "--map-root-user", "--mount", "sh", "-c", script, str(self.hosts), *super().command()]


def test_a_store_whose_name_leads_elsewhere_is_found_there(servers, tmp_path: Path):
    before = servers.redis()
    after = servers.keep(Elsewhere(before.port)).start()
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost store.example\n")
    flags = ["--shards", "2", "--storage-lookup", "20ms"]
    weir = servers.keep(Naming(hosts, *flags, storage=f"redis://store.example:{before.port}")).start()
    with weir.connect() as client, before.connect() as former:
        assert client.ok("SET", "kept", "before") == b"OK" and former.ok("GET", "kept") == b"before"
        hosts.write_text(f"127.0.0.1 localhost\n{after.ADDRESS} store.example\n")
        until(lambda: client.call("GET", "kept").value is None, "the other store is asked")
        assert client.ok("SET", "kept", "after") == b"OK" and former.ok("GET", "kept") == b"before"
        until(lambda: len(former.ok("CLIENT", "LIST").splitlines()) == 1, "nobody is at the former one any more")
        moves = metrics.total(weir, "weir_backend_moves_total")
        assert moves == 2, "by one of each core"
        line = f"store.example:{before.port} was at {before.address} and is at {after.ADDRESS}:{before.port} now"
        until(lambda: line in weir.output(), "the move is logged")
        # A name that cannot be resolved any more does not disconnect a store that works.
        hosts.write_text("127.0.0.1 localhost\n")
        assert all(client.ok("GET", "kept") == b"after" for _ in range(100))
        # Under load, each request gets one reply, and a lost write has an unknown outcome at worst.
        hosts.write_text("127.0.0.1 localhost store.example\n")
        sent = known = 0
        while former.call("GET", "counted").value is None:
            replies = client.pipeline([("INCR", "counted")] * 100)
            sent += len(replies)
            lost = [reply.text for reply in replies if reply.is_error]
            assert [text for text in lost if "reason=store-moved" not in text] == []
            known += len(replies) - len(lost)
        counts = [int(former.ok("GET", "counted")), 0]
        with socket.create_connection((after.ADDRESS, after.port), timeout=30) as other:
            other.sendall(b"GET counted\r\n")
            counts[1] = int(other.recv(100).split(b"\r\n")[1] or 0)
        assert known <= sum(counts) <= sent


def test_weir_starts_without_an_address_for_its_store_and_finds_it_later(servers, tmp_path: Path):
    store = servers.redis()
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    weir = Naming(hosts, "--shards", "2", "--storage-lookup", "20ms", storage=f"redis://store.example:{store.port}")
    servers.keep(weir).start()
    assert f"the server 'store.example:{store.port}' cannot be found" in weir.output()
    with weir.connect() as client, store.connect() as direct:
        assert client.call("SET", "a", "1").text.startswith("UNAVAILABLE backend=store.example")
        hosts.write_text("127.0.0.1 localhost store.example\n")
        until(lambda: client.call("SET", "a", "1").text == "OK", "it is found")
        assert direct.ok("GET", "a") == b"1"
    fixed = Naming(tmp_path / "fixed", "--storage-lookup", "0", storage="redis://store.example:6379")
    fixed.hosts.write_text("127.0.0.1 localhost\n")
    servers.keep(fixed).launch()
    assert fixed.wait() == 1 and "the server 'store.example:6379' cannot be found" in fixed.output()


def test_clients_that_reset_take_no_fresh_connection_with_them(servers):
    """A closed descriptor's number is reused at once, so no operation may be under way for its former owner."""
    # The concurrency window would not send so many requests to the store at once.
    weir = servers.weir(servers.redis(), flags=["--shards", "1", "--disable", "window"])
    with weir.connect() as connection:
        connection.call("SET", "large", "x" * (1 << 20))
    no_linger = struct.pack("ii", 1, 0)
    for round_number in range(6):
        doomed = [socket.create_connection(("127.0.0.1", weir.port)) for _ in range(15)]
        for each in doomed:
            each.sendall(b"GET large\r\n" * 20)
        # The kernel is sending replies that nobody reads when the connections are reset.
        assert all(each.recv(1) == b"$" for each in doomed)
        # While weir is stopped, all resets and new connections happen at once from its point of view.
        weir.signal(signal.SIGSTOP)
        for each in doomed:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
            each.close()
        fresh = [weir.connect() for _ in doomed]
        weir.signal(signal.SIGCONT)
        for _ in range(20):
            for connection in fresh:
                assert connection.call("PING").text == "PONG", f"round {round_number}"
        for connection in fresh:
            connection.close()
