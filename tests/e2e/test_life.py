"""Tests of weir's life: start, monitoring, reload and drain."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import os
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness import metrics
from harness.load import Sender
from harness.ports import free_port
from harness.processes import Weir, accepts, at_unix_socket, with_files
from harness.resp import Closed, Connection, encode
from harness.waiting import until

pytestmark = pytest.mark.weir_only

DRAIN_SECONDS = 10


@pytest.fixture
def weir(servers) -> Weir:
    return servers.weir(servers.redis(), flags=["--shards", "2", "--drain-timeout", f"{DRAIN_SECONDS}s"])


def test_the_start_up_report(weir: Weir):
    """The report names the addresses, the CPUs, the stores and the limits."""
    for word in (f"127.0.0.1:{weir.port}", f"127.0.0.1:{weir.admin_port}", weir.backends[0].address, "2 shards"):
        until(lambda word=word: word in weir.output(), f"the start-up report has {word!r}\n{weir.output()}")


def test_no_flags_at_all_serve_from_memory(servers):
    """weir with the embedded store and all defaults except the ports."""
    weir = servers.weir()
    with weir.connect() as connection:
        assert connection.ok("SET", "a", "1") == b"OK"
        assert connection.ok("GET", "a") == b"1"
    until(lambda: "embedded" in weir.output(), "the start-up report names the storage")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_drain_under_load(servers, weir: Weir, number: signal.Signals):
    """During a drain every request gets its reply, or the connection closes at the end of a reply. Every number that was
    counted was replied.
    """
    senders = [Sender(weir, f"drain:{i}") for i in range(12)]
    with ThreadPoolExecutor(len(senders)) as pool:
        running = [pool.submit(sender.run) for sender in senders]
        for sender in senders:
            until(sender.started.is_set, "every client is served")
        start = time.monotonic()
        weir.signal(number)
        code = weir.wait(DRAIN_SECONDS + 10)
        assert time.monotonic() - start < DRAIN_SECONDS + 5
        # Each client continues until its connection is closed, so all of them end now.
        for each in running:
            each.result()
    assert code == 0, weir.output()
    with weir.backends[0].connect() as direct:
        for sender in senders:
            assert sender.closed, "the client was not told"
            assert sender.refused == 0, f"{sender.refused} requests were refused while draining"
            counted = int(direct.ok("GET", sender.name))
            assert counted == sender.served, f"{sender.name}: {counted} were carried out, {sender.served} were answered"


def test_a_drain_waits_for_what_is_in_flight(weir: Weir):
    """A request that waits for a slow backend still gets its reply, and new connections are not accepted meanwhile."""
    backend = weir.backends[0]
    with weir.connect() as connection, weir.connect() as idle:
        connection.ok("SET", "inflight", "1")
        assert idle.ok("PING") == b"PONG"
        backend.signal(signal.SIGSTOP)
        try:
            connection.send_raw(encode("INCR", "inflight") * 100)
            until(lambda: waiting_in_socket(backend.pid, backend.port), "the requests have reached the backend")
            weir.signal(signal.SIGTERM)
            until(lambda: not accepts(weir.port), "new connections are refused")
            assert not weir.exited()
        finally:
            backend.signal(signal.SIGCONT)
        replies = connection.read_to_end()
        assert [int(reply.value) for reply in replies] == list(range(2, 102))
        assert idle.read_to_end() == []
    assert weir.wait(DRAIN_SECONDS + 5) == 0


def test_a_drain_answers_what_waits_in_sockets(weir: Weir):
    """Requests that are in the kernel's receive buffer when the drain begins are read and answered in order."""
    requests = 3_000
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(weir.connect()) for _ in range(8)]
        assert all(client.ok("PING") == b"PONG" for client in clients)
        weir.signal(signal.SIGSTOP)
        try:
            for number, client in enumerate(clients):
                client.send_raw(encode("INCR", f"inflight:{number}") * requests)
                until(lambda client=client: unsent(client.socket) == 0, "it has all arrived")
            weir.signal(signal.SIGTERM)
        finally:
            weir.signal(signal.SIGCONT)
        for client in clients:
            assert [reply.plain() for reply in client.read_to_end()] == list(range(1, requests + 1))
    assert weir.wait(DRAIN_SECONDS + 5) == 0


def test_who_has_connected_before_a_drain_is_answered(weir: Weir):
    """Clients whose connections the kernel has accepted, but weir has not when the drain begins, are served."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(weir.connect())
        assert first.ok("PING") == b"PONG"
        weir.signal(signal.SIGSTOP)
        try:
            newcomers = [stack.enter_context(weir.connect()) for _ in range(60)]
            for number, client in enumerate(newcomers):
                client.send_raw(encode("INCR", f"newcomer:{number}"))
                until(lambda client=client: unsent(client.socket) == 0, "it has arrived")
            weir.signal(signal.SIGTERM)
        finally:
            weir.signal(signal.SIGCONT)
        for client in newcomers:
            assert [reply.plain() for reply in client.read_to_end()] == [1]
    assert weir.wait(DRAIN_SECONDS + 5) == 0


def test_a_client_that_goes_on_sending_loses_no_reply_by_a_drain(weir: Weir):
    """A kernel that receives more bytes for a closed socket resets the connection and drops replies that are under way, so
    weir must read on.
    """
    value, rounds = b"v" * 100_000, 60
    with weir.connect() as connection:
        connection.ok("SET", "large", value)
        ended = threading.Event()
        connection.send_raw(encode("GET", "large") * rounds)

        def go_on() -> None:
            with contextlib.suppress(OSError):
                while not ended.is_set():
                    connection.socket.sendall(encode("PING") * 100)

        assert connection.read().value == value
        weir.signal(signal.SIGTERM)
        sender = threading.Thread(target=go_on)
        sender.start()
        try:
            replies = connection.read_to_end()
        finally:
            ended.set()
            sender.join()
    assert [reply.value for reply in replies[: rounds - 1]] == [value] * (rounds - 1)
    assert all(reply.text == "PONG" for reply in replies[rounds - 1 :])
    assert weir.wait(DRAIN_SECONDS + 5) == 0


def unsent(connection: socket.socket) -> int:
    """Returns the number of bytes that the other side's kernel has not received yet."""
    return int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def waiting_in_socket(pid: int, port: int) -> bool:
    """True if bytes wait in a receive queue of the process that listens on the port."""
    wanted = f":{port:04X}"
    with open(f"/proc/{pid}/net/tcp") as table:
        for line in list(table)[1:]:
            fields = line.split()
            if fields[1].endswith(wanted) and fields[3] == "01" and int(fields[4].split(":")[1], 16):
                return True
    return False


@contextlib.contextmanager
def a_read_in_flight(weir: Weir, connection: Connection) -> Iterator[None]:
    """Within the `with` block, the backend is stopped, and has a read of the connection in its socket whose reply is 1."""
    backend = weir.backends[0]
    connection.ok("SET", "a", "1")
    backend.signal(signal.SIGSTOP)
    try:
        connection.send("GET", "a")
        until(lambda: waiting_in_socket(backend.pid, backend.port), "the request has reached the backend")
        yield
    finally:
        backend.signal(signal.SIGCONT)


def test_a_drain_ends_at_its_limit(servers):
    """A backend that never answers does not delay the end of the drain beyond its limit."""
    weir = servers.weir(servers.redis(), flags=["--drain-timeout", "1s"])
    with weir.connect() as connection, a_read_in_flight(weir, connection):
        start = time.monotonic()
        weir.signal(signal.SIGTERM)
        code = weir.wait(20)
        assert 0.9 < time.monotonic() - start < 15
        assert code in (0, 1), weir.output()
        replies = connection.read_to_end()
        # The outcome of the request is unknown, so weir does not claim that it was carried out.
        assert [reply.text.split()[0] for reply in replies] in ([], ["UNAVAILABLE"], ["OVERLOADED"]), replies


def test_an_idle_server_ends_at_once(weir: Weir):
    with weir.connect() as idle:
        assert idle.ok("PING") == b"PONG"
        start = time.monotonic()
        assert weir.terminate() == 0
        assert time.monotonic() - start < DRAIN_SECONDS, "nothing was in flight, so nothing had to be waited for"
        assert idle.read_to_end() == []


def test_a_weir_that_ends_leaves_the_unix_socket_of_the_next_one(servers, tmp_path: Path):
    """A second weir is started at the same path while the first one still drains."""
    path = tmp_path / "clients"
    first = servers.weir(servers.redis(), flags=["--unix", str(path), "--drain-timeout", f"{DRAIN_SECONDS}s"])
    with first.connect() as connection, a_read_in_flight(first, connection):
        first.signal(signal.SIGTERM)
        until(lambda: at_unix_socket(path) is None, "nobody listens there")
        second = servers.weir(servers.redis(), flags=["--unix", str(path)])
        assert at_unix_socket(path) == b"+PONG\r\n"
        assert not first.exited()
    assert first.wait(DRAIN_SECONDS + 10) == 0
    assert at_unix_socket(path) == b"+PONG\r\n"
    assert second.terminate() == 0
    assert not path.exists()


@pytest.mark.parametrize("flag", ["--unix", "--takeover"])
def test_a_file_that_is_no_socket_is_kept(servers, tmp_path: Path, flag: str):
    path = tmp_path / "quotas.toml"
    path.write_text("[default]\n")
    weir = servers.keep(servers.weir_class(servers.redis(), flags=[flag, str(path)]))
    weir.port = free_port()
    weir.launch()
    assert weir.wait() == 1
    assert f"{flag} {path}: cannot listen there: a file is there that is not a socket" in weir.output()
    assert path.read_text() == "[default]\n"


def test_a_weir_that_lacks_a_core_does_not_serve(servers):
    """With too few descriptors for all cores, weir ends with a message. It never says that it is ready."""

    class Limited(Weir):
        def command(self) -> list[str]:
            return with_files(150, super().command())

    weir = servers.keep(Limited(flags=["--shards", "16"]))
    weir.port = free_port()
    weir.launch()
    assert weir.wait() == 1
    assert "too few files may be open" in weir.output() or "Too many open files" in weir.output()
    assert "is ready" not in weir.output()


def test_a_signal_is_heeded_as_soon_as_anybody_is_answered(servers):
    def answers() -> bool:
        with contextlib.suppress(Closed, OSError), weir.connect() as client:
            return client.call("PING").text == "PONG"
        return False

    for _ in range(20):
        weir = servers.keep(servers.weir_class())
        weir.port = free_port()
        weir.launch()
        until(answers, "it answers")
        weir.signal(signal.SIGHUP)
        assert weir.terminate() == 0, weir.output()
        assert "stopped" in weir.output()


def test_readiness_goes_before_the_connections_do(weir: Weir):
    """During a drain, /readyz fails and /healthz does not, so that a load balancer stops sending."""
    with weir.connect() as connection:
        with a_read_in_flight(weir, connection):
            weir.signal(signal.SIGTERM)
            until(lambda: weir.admin("/readyz")[0] == 503, "/readyz says no")
            assert weir.admin("/healthz")[0] == 200
        assert [reply.value for reply in connection.read_to_end()] == [b"1"]
    assert weir.wait(DRAIN_SECONDS + 5) == 0


def test_a_second_start_on_the_same_port(servers, weir: Weir):
    """After weir has ended, another start can use the same port at once."""
    with weir.connect() as connection:
        connection.ok("SET", "a", "1")
    assert weir.terminate() == 0
    weir.start()
    with weir.connect() as connection:
        assert connection.ok("GET", "a") == b"1"


def test_reload_without_a_quota_file_does_no_harm(weir: Weir):
    with weir.connect() as connection:
        weir.signal(signal.SIGHUP)
        for i in range(100):
            assert connection.ok("SET", "a", i) == b"OK"
        assert not weir.exited()


def test_metrics(weir: Weir):
    with weir.connect() as connection:
        for i in range(100):
            connection.ok("SET", f"m:{i}", "v")
            connection.ok("GET", f"m:{i}")
        connection.call("NOSUCHCOMMAND")

        def counted() -> bool:
            found = metrics.parse(weir.admin("/metrics")[1])
            return any(value >= 200 for samples in found.values() for value in samples.values())

        until(counted, "the requests are counted")
    status, text = weir.admin("/metrics")
    assert status == 200
    found = metrics.parse(text)
    assert all(name.startswith(("weir_", "process_")) for name in found), sorted(found)
    assert any("connections" in name or "clients" in name for name in found), sorted(found)
    assert metrics.promtool(text) in (None, ""), metrics.promtool(text)


def test_counters_only_grow(weir: Weir):
    def counters() -> dict[tuple[str, str], float]:
        found = metrics.parse(weir.admin("/metrics")[1])
        return {
            (name, labels): value
            for name, samples in found.items()
            if name.endswith("_total")
            for labels, value in samples.items()
        }

    with weir.connect() as connection:
        before = counters()
        for i in range(200):
            connection.ok("SET", f"g:{i}", "v")
        until(lambda: counters() != before, "something is counted")
        after = counters()
    fallen = {key: (value, after.get(key)) for key, value in before.items() if after.get(key, 0) < value}
    assert len(before) > 10 and not fallen, fallen


def test_admin_pages(weir: Weir):
    assert weir.admin("/healthz")[0] == 200
    assert weir.admin("/readyz")[0] == 200
    assert weir.admin("/no-such-page")[0] == 404
    connection = http.client.HTTPConnection("127.0.0.1", weir.admin_port, timeout=10)
    connection.request("HEAD", "/healthz")
    assert connection.getresponse().status in (200, 405)
    connection.close()
    connection = http.client.HTTPConnection("127.0.0.1", weir.admin_port, timeout=10)
    connection.request("POST", "/metrics", body="x")
    assert connection.getresponse().status in (404, 405)
    connection.close()


@pytest.mark.parametrize(
    "payload",
    [
        b"\0" * 1000,
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 10_000,
        b"GET /metrics HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    ],
    ids=["zeros", "long path", "odd version", "RESP", "many headers", "bad length"],
)
def test_the_admin_port_survives_garbage(weir: Weir, payload: bytes):
    with socket.create_connection(("127.0.0.1", weir.admin_port), timeout=30) as connection:
        try:
            connection.sendall(payload)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass
        except OSError:
            pass  # refused by closing: an answer as well
    assert weir.admin("/healthz")[0] == 200


def test_a_silent_admin_client_holds_up_nobody(weir: Weir):
    with socket.create_connection(("127.0.0.1", weir.admin_port)) as silent:
        silent.sendall(b"GET /metr")
        assert weir.admin("/healthz")[0] == 200
        assert weir.admin("/metrics")[0] == 200


def info(connection, *section: str) -> dict[str, str]:
    lines = connection.ok("INFO", *section).decode().splitlines()
    return dict(line.split(":", 1) for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize("protocol", [2, 3])
def test_info(weir: Weir, protocol: int):
    with weir.connect(protocol=protocol) as connection:
        text = connection.ok("INFO").decode()
        assert "# Server\r\n" in text and "weir" in text.lower()
        fields = info(connection)
        assert fields["redis_version"][0].isdigit()
        assert fields["redis_mode"] == "standalone"
        assert fields["role"] == "master"
        assert fields["loading"] == "0"
        assert fields["process_id"] == str(weir.pid)
        assert fields["tcp_port"] == str(weir.port)
        assert "redis_version" in info(connection, "server")
        assert info(connection, "replication")["role"] == "master"
        assert info(connection, "persistence")["loading"] == "0"
        assert "redis_version" not in info(connection, "replication")
        assert connection.ok("INFO", "nosuchsection") in (b"", b"\r\n")


def test_hello_says_what_clients_look_for(weir: Weir):
    with weir.connect() as connection:
        fields = dict(zip(*[iter(connection.ok("HELLO"))] * 2))
        assert fields[b"proto"] == 2 and fields[b"role"] == b"master" and fields[b"mode"] == b"standalone"
        fields = connection.ok("HELLO", "3")
        assert fields[b"proto"] == 3 and fields[b"server"] == b"redis" and fields[b"modules"] == []
        assert isinstance(fields[b"id"], int) and fields[b"version"][:1].isdigit()
        assert connection.call("GET", "none").raw == b"_\r\n"
        fields = dict(zip(*[iter(connection.ok("HELLO", "2"))] * 2))
        assert fields[b"proto"] == 2
        assert connection.call("GET", "none").raw == b"$-1\r\n"
        assert connection.call("HELLO", "4").text.startswith("NOPROTO ")
        assert connection.call("HELLO", "x").is_error
        assert connection.call("GET", "none").raw == b"$-1\r\n"


CANNOT_PASS = [
    ("PSYNC", "?", "-1"),
    ("REPLICAOF", "NO", "ONE"),
    ("SHUTDOWN",),
    ("MIGRATE", "127.0.0.1", "1", "a", "0", "1"),
    ("FAILOVER",),
    ("CLUSTER", "RESET"),
]


@pytest.mark.parametrize("words", CANNOT_PASS, ids=" ".join)
def test_what_cannot_pass_says_so(weir: Weir, words: tuple[str, ...]):
    """The error comes at once and names the command, the connection stays open, and the error is not one that clients retry by
    themselves.
    """
    with weir.connect() as connection:
        connection.ok("SET", "still", "here")
        reply = connection.call(*words)
        assert reply.is_error, reply
        assert words[0].lower() in reply.text.lower(), f"{reply} does not name {words[0]}"
        retried = ("LOADING", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "ERR max number of clients")
        assert not reply.text.startswith(retried), reply
        assert connection.ok("GET", "still") == b"here"
    assert not weir.exited()


NEEDS_A_PRIVATE_LINK = [
    ("SUBSCRIBE", "channel"),
    ("PSUBSCRIBE", "*"),
    ("SSUBSCRIBE", "channel"),
    ("BLPOP", "a", "1"),
    ("BRPOP", "a", "1"),
    ("BLMOVE", "a", "b", "LEFT", "LEFT", "1"),
    ("BRPOPLPUSH", "a", "b", "1"),
    ("BZPOPMIN", "a", "1"),
    ("BLMPOP", "1", "1", "a", "LEFT"),
    ("XREAD", "BLOCK", "1", "STREAMS", "a", "0"),
    ("XREADGROUP", "GROUP", "g", "c", "BLOCK", "1", "STREAMS", "a", ">"),
    ("WATCH", "a"),
]


def test_without_private_links_what_needs_one_says_so(servers):
    weir = servers.weir(servers.redis(), flags=["--private-links", "0"])
    with weir.connect() as connection:
        for words in NEEDS_A_PRIVATE_LINK:
            reply = connection.call(*words)
            assert reply.is_error and reply.text.startswith(f"ERR {words[0]} is not supported by weir"), reply
            assert connection.ok("PING") == b"PONG"


def test_a_database_that_does_not_exist_is_refused_in_the_words_of_redis(weir: Weir):
    with weir.connect() as connection:
        assert connection.call("SELECT", "99").raw == b"-ERR DB index is out of range\r\n"
        assert connection.ok("SELECT", "0") == b"OK"


def test_handshake_commands(weir: Weir):
    """The commands that real clients send first."""
    with weir.connect(protocol=3) as connection:
        assert connection.ok("CLIENT", "SETINFO", "LIB-NAME", "tests") == b"OK"
        assert connection.ok("CLIENT", "SETINFO", "LIB-VER", "1.0") == b"OK"
        assert connection.ok("CLIENT", "SETNAME", "tester") == b"OK"
        assert connection.ok("CLIENT", "GETNAME") == b"tester"
        assert connection.ok("CLIENT", "ID") > 0
        assert b"name=tester" in connection.ok("CLIENT", "INFO")
        assert connection.ok("CLIENT", "NO-EVICT", "ON") == b"OK"
        assert connection.ok("CLIENT", "NO-TOUCH", "ON") == b"OK"
        assert connection.call("CLIENT", "MAINT_NOTIFICATIONS", "ON").is_error
        assert connection.ok("COMMAND", "COUNT") > 100
        assert len(connection.ok("COMMAND")) == connection.ok("COMMAND", "COUNT")
        described = connection.ok("COMMAND", "INFO", "get", "nosuchcommand")
        assert (
            described[0][0] == b"get"
            and described[0][1] == 2
            and described[0][3:6] == [1, 1, 1]
            and described[1] is None
        )
        assert connection.call("COMMAND", "DOCS", "get").kind == b"%"
        for parameter in ("save", "appendonly", "maxmemory", "databases"):
            assert not connection.call("CONFIG", "GET", parameter).is_error
        assert connection.ok("SELECT", "0") == b"OK"
        assert connection.call("RESET").text == "RESET"
        assert connection.call("GET", "none").raw == b"$-1\r\n", "RESET goes back to RESP2"
        assert connection.ok("CLIENT", "GETNAME") in (None, b"")


@pytest.mark.parametrize("container", ["OBJECT", "XINFO", "XGROUP", "MEMORY", "CLIENT", "COMMAND", "SCRIPT"])
def test_help_lists_the_subcommands(weir: Weir, container: str):
    with weir.connect() as connection:
        lines = connection.ok(container, "HELP")
        assert lines[0].startswith(container.encode()) and b"HELP" in lines and len(lines) > 3


def test_client_ids_are_unique(weir: Weir):
    connections = [weir.connect() for _ in range(100)]
    ids = [connection.ok("CLIENT", "ID") for connection in connections]
    assert len(set(ids)) == len(ids)
    for connection in connections:
        connection.close()


def test_two_addresses(servers):
    """--listen may be given more than once."""
    second = free_port()
    weir = servers.weir(servers.redis(), flags=["--listen", f"127.0.0.1:{second}", "--shards", "2"])
    for port in (weir.port, second):
        with type(weir.connect())(port) as connection:
            assert connection.ok("PING") == b"PONG"


def test_a_unix_socket_in_front(servers, tmp_path):
    path = tmp_path / "weir.sock"
    weir = servers.weir(servers.redis(), flags=["--unix", str(path), "--shards", "2"])
    run = subprocess.run(["redis-cli", "-s", path, "SET", "unix", "1"], capture_output=True, text=True, timeout=30)
    assert run.stdout == "OK\n", run
    with weir.connect() as connection:
        assert connection.ok("GET", "unix") == b"1"


def test_port_zero_takes_any_free_port(servers):
    weir = servers.keep(servers.weir_class(servers.redis()))
    usual = weir.command
    weir.command = lambda: [word if word != f"127.0.0.1:{weir.port}" else "127.0.0.1:0" for word in usual()]
    weir.start()
    line = until(
        lambda: next((line for line in weir.output().splitlines() if "listening on" in line), None), "it says where"
    )
    weir.port = int(line.rsplit(":", 1)[1])
    assert weir.port != 0
    with weir.connect() as connection:
        assert connection.ok("PING") == b"PONG"


def test_flags_have_environment_twins(servers):
    weir = servers.keep(servers.weir_class(servers.redis()))
    usual = weir.environment
    weir.environment = lambda: {**usual(), "WEIR_SHARDS": "3"}
    weir.start()
    until(lambda: "3 shards" in weir.output(), "the start-up report names the shards")


def test_a_unix_socket_behind(servers, tmp_path):
    path = tmp_path / "redis.sock"
    backend = servers.redis("--unixsocket", str(path))
    weir = servers.keep(servers.weir_class(backend, storage=f"unix:{path}")).start()
    with weir.connect() as connection:
        assert connection.ok("SET", "a", "1") == b"OK"
    with backend.connect() as direct:
        assert direct.ok("GET", "a") == b"1"


def test_ended_without_mercy_it_leaves_nothing_behind(weir: Weir):
    """After kill -9, weir starts again without any cleanup."""
    with weir.connect() as connection:
        connection.ok("SET", "a", "1")
        weir.kill()
        with pytest.raises(Closed):
            connection.call("GET", "a")
    weir.start()
    with weir.connect() as connection:
        assert connection.ok("GET", "a") == b"1"
    assert os.path.exists(f"/proc/{weir.pid}")


@pytest.mark.weir_only
def test_silent_connections_hold_no_place_of_the_admin_port(servers):
    weir = servers.weir()
    silent = [socket.create_connection(("127.0.0.1", weir.admin_port)) for _ in range(200)]
    # Some clients have sent half of a request.
    for each in silent[::3]:
        try:
            each.sendall(b"GET /healthz HT")
        except OSError:
            pass  # it had to make room already
    assert weir.admin("/healthz")[0] == 200
    for _ in range(20):
        silent += [socket.create_connection(("127.0.0.1", weir.admin_port)) for _ in range(70)]
        assert weir.admin("/healthz")[0] == 200
    for each in silent:
        each.close()


@pytest.mark.weir_only
def test_the_admin_port_answers_to_its_own_names_only(servers):
    weir = servers.weir(flags=["--admin-host", "weir.internal,scraper"])
    for host, status in [
        ("127.0.0.1", 200),
        ("localhost:7381", 200),
        ("[::1]", 200),
        ("10.0.0.9:80", 200),
        ("weir.internal:1", 200),
        ("Scraper", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:7381", 421),
        ("a:b", 400),
    ]:
        for path in ("/healthz", "/config/quotas", "/metrics"):
            got, body, _ = weir.admin_request("GET", path, headers={"Host": host})
            assert got == status, (host, path, body)
    got, body, _ = weir.admin_request("POST", "/config/quotas", b"", {"Host": "evil.example"})
    assert got == 421 and "--admin-host" in body


@pytest.mark.weir_only
def test_the_admin_port_can_be_had_again_at_once(servers):
    """The side that closes first keeps the connection in TIME_WAIT, and here that is weir."""
    weir = servers.weir(flags=["--shards", "1"])
    with socket.create_connection(("127.0.0.1", weir.admin_port), timeout=30) as asking:
        asking.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        while asking.recv(4096):
            pass
    weir.terminate()
    until(lambda: remembers(weir.admin_port), "the system remembers the connection")
    weir.admin_port_kept = weir.admin_port
    weir.start()
    assert weir.admin("/healthz")[0] == 200


def remembers(port: int) -> bool:
    """True if a local end of a TCP connection at the port is in TIME_WAIT."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(int(row[1].rpartition(":")[2], 16) == port and row[3] == "06" for row in rows)


def test_signals_in_a_loop_do_not_flood_the_log(servers, tmp_path):
    quotas = tmp_path / "quotas.toml"
    quotas.write_text("[tenants.a]\npassword = 'secret'\n")
    weir = servers.weir(flags=["--quotas", str(quotas)])
    before = len(weir.output(1 << 20).splitlines())
    for _ in range(3_000):
        weir.signal(signal.SIGHUP)
    assert weir.admin("/healthz")[0] == 200
    quotas.write_text("[tenants.b]\npassword = 'secret'\n")
    until(lambda: "tenants" in weir.admin("/config/quotas")[1] and '"b"' in weir.admin("/config/quotas")[1], "the last one counts")
    assert len(weir.output(1 << 20).splitlines()) - before <= 12


@pytest.mark.weir_only
def test_questions_about_weir_do_not_crowd_out_quotas(servers, tmp_path):
    quotas = tmp_path / "quotas.toml"
    quotas.write_text("[default]\nru_per_second = 1000000\n")
    weir = servers.weir(flags=["--quotas", str(quotas), "--shards", "2"])
    with weir.connect() as curious, weir.connect() as neighbour:
        asked = 12_000
        for _ in range(asked):
            curious.send("INFO")
        for _ in range(200):
            assert not neighbour.call("SET", "k", "v").is_error
        silent = metrics.parse(weir.admin("/metrics")[1])["weir_quota_pools_silent_total"]
        assert sum(silent.values()) == 0
