"""Tests of a takeover under load: no connection is refused, no request stays unanswered, and nothing is carried out twice."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import selectors
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from harness import metrics
from harness.cluster import Cluster
from harness.load import Sender
from harness.ports import free_port
from harness.processes import Redis, Weir, accepts, at_unix_socket, binary, with_files
from harness.resp import Closed, Connection, encode
from harness.successor import Successor, take_over
from harness.waiting import until

pytestmark = pytest.mark.weir_only

# The number of takeovers in CI; WEIR_TAKEOVERS=20 makes more.
TAKEOVERS = int(os.environ.get("WEIR_TAKEOVERS", "5"))
QUOTAS = '[tenants.acme]\npassword = "sesame"\n\n[tenants.zeta]\npassword = "poppy"\n'
# The first message of a successor; the library has the test of the protocol itself.
HELLO = b'{"message":"hello","protocol":%d,"version":"0"}\n'


def call(path: Path) -> socket.socket:
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    caller.settimeout(30)
    caller.connect(str(path))
    return caller


class Load:
    """Clients that increment counters. None of them reconnects when it is closed, so a close fails the test."""

    def __init__(self, weir: Weir, http_port: int) -> None:
        self.weir, self.http_port = weir, http_port
        self.over = threading.Event()
        self.problems: list[str] = []
        self.counts: dict[str, int] = {}
        self.threads = [
            *(self.thread(self.one_at_a_time, f"one:{i}") for i in range(4)),
            *(self.thread(self.pipeline, f"pipeline:{i}") for i in range(3)),
            *(self.thread(self.newcomers, f"new:{i}") for i in range(2)),
            self.thread(self.slow_sender, "slow:0"),
            self.thread(self.transactions, "multi:0"),
            self.thread(self.over_http, "http:0"),
        ]

    def thread(self, run, name: str) -> threading.Thread:
        def guarded() -> None:
            try:
                run(name)
            except Exception as error:
                self.problems.append(f"{name}: {error!r} after {self.counts[name]}")

        self.counts[name] = 0
        return threading.Thread(target=guarded, name=name)

    def start(self) -> None:
        for each in self.threads:
            each.start()
        until(lambda: self.problems or all(self.counts.values()), "every client is served")

    def more(self) -> None:
        """Waits until every client was served once more."""
        before = dict(self.counts)
        until(lambda: self.problems or all(self.counts[name] > count for name, count in before.items()), "load goes on")

    def end(self) -> None:
        self.over.set()
        for each in self.threads:
            each.join(60)

    def log_in(self) -> Connection:
        connection = self.weir.connect()
        assert connection.ok("AUTH", "acme", "sesame") == b"OK"
        return connection

    def one_at_a_time(self, name: str) -> None:
        with self.log_in() as connection:
            while not self.over.is_set():
                assert connection.ok("INCR", name) == self.counts[name] + 1
                self.counts[name] += 1

    def pipeline(self, name: str) -> None:
        """A client that always has requests in flight."""
        with self.log_in() as connection:
            connection.send_raw(encode("INCR", name) * 50)
            while not self.over.is_set():
                connection.send_raw(encode("INCR", name) * 50)
                self.read(connection, name, 50)
            self.read(connection, name, 50)

    def read(self, connection: Connection, name: str, count: int) -> None:
        for _ in range(count):
            reply = connection.read()
            assert reply.plain() == self.counts[name] + 1, reply
            self.counts[name] += 1

    def newcomers(self, name: str) -> None:
        while not self.over.is_set():
            with self.log_in() as connection:
                assert connection.ok("INCR", name) == self.counts[name] + 1
                self.counts[name] += 1

    def slow_sender(self, name: str) -> None:
        """A client whose requests arrive in pieces."""
        with self.log_in() as connection:
            while not self.over.is_set():
                request = encode("INCR", name)
                connection.send_raw(request[:9])
                self.over.wait(0.002)
                connection.send_raw(request[9:])
                self.read(connection, name, 1)

    def transactions(self, name: str) -> None:
        with self.log_in() as connection:
            while not self.over.is_set():
                assert connection.ok("MULTI") == b"OK"
                assert connection.ok("INCR", name) == b"QUEUED"
                self.over.wait(0.002)
                assert connection.ok("EXEC") == [self.counts[name] + 1]
                self.counts[name] += 1

    def over_http(self, name: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=30)
        connection.connect()
        # http.client would reconnect by itself otherwise.
        connection.auto_open = 0
        while not self.over.is_set():
            connection.request("POST", "/", f'["INCR","{name}"]', {"Authorization": "Bearer acme:sesame"})
            response = connection.getresponse()
            assert (response.status, response.read()) == (200, b'{"result":%d}' % (self.counts[name] + 1))
            self.counts[name] += 1
        connection.close()


def test_restarts_under_load(servers, tmp_path: Path):
    quotas = tmp_path / "quotas.toml"
    quotas.write_text(QUOTAS)
    http_port = free_port()
    flags = ["--quotas", str(quotas), "--http", f"127.0.0.1:{http_port}", "--unix", str(tmp_path / "clients")]
    backend = servers.redis()
    weir = servers.keep(Successor(backend, path=tmp_path / "takeover", flags=flags)).start()
    load = Load(weir, http_port)
    with weir.connect() as settled:
        settled.ok("HELLO", "3", "AUTH", "zeta", "poppy", "SETNAME", "settled;tier=batch")
        settled.ok("SELECT", 5)
        load.start()
        try:
            for round in range(TAKEOVERS):
                # The same number of shards, fewer, more: no listening socket may be closed while clients wait in its queue.
                weir = take_over(servers, weir, shards=[2, 1, 3][round % 3], flags=flags)
                load.more()
                assert load.problems == []
                assert weir.admin("/readyz")[0] == 200
                decided = [line["text"] for line in json.loads(weir.admin("/state.json")[1])["log"] if line["about"] == "takeover"]
                assert any("its sockets are here" in text for text in decided), decided
                # The client's state is unchanged: RESP version, tenant, name and settings.
                assert settled.call("GET", "nothing").raw == b"_\r\n"
                info = settled.call("CLIENT", "INFO").text
                assert "name=settled" in info and "user=zeta" in info and "resp=3" in info and "db=5" in info, info
        finally:
            load.end()
    assert load.problems == []
    with backend.connect() as direct:
        counted = {name: int(direct.ok("GET", name)) for name in load.counts}
        assert counted == load.counts
    print(f"{TAKEOVERS} takeovers, {sum(load.counts.values())} requests: {load.counts}")


def test_the_share_of_a_fleets_quota_goes_along(servers, tmp_path: Path):
    quotas = tmp_path / "quotas.toml"
    quotas.write_text('[tenants.acme]\npassword = "sesame"\nru_per_second = 100_000\n[tenants.zeta]\npassword = "poppy"\n')
    counters, store = servers.redis(), servers.redis()
    flags = ["--quotas", str(quotas), "--fleet", f"redis://{counters.address}", "--disable", "hot"]
    other = servers.weir(store, flags=flags)
    weir = servers.keep(Successor(store, path=tmp_path / "takeover", flags=flags)).start()

    def share(of: Weir) -> float:
        return json.loads(of.admin("/fleet")[1])["scopes"][0]["share"]

    client = weir.connect()
    client.ok("AUTH", "acme", "sesame")

    def asks_much() -> float:
        for _ in range(100):
            client.call("PING")
            client.call("GET", "key")
        return share(weir)

    until(lambda: asks_much() > 0.9, "all demand is at this host")
    weir = take_over(servers, weir, flags=flags)
    # Less than what the first answers of the store alone would lead to.
    assert asks_much() > 0.9
    until(lambda: json.loads(weir.admin("/fleet")[1])["exchanges"]["answered"] >= 6 or asks_much() < 0.5, "the share has held")
    assert share(weir) > 0.5
    until(lambda: json.loads(other.admin("/fleet")[1])["hosts"] == 2, "the process that has ended is no host any more")


def test_what_waits_to_be_accepted_is_served_by_the_successor(servers, tmp_path: Path):
    """Connections that weir has not accepted when the takeover begins, in the queues of sockets of which the successor has
    fewer.
    """
    weir = servers.keep(Successor(servers.redis(), path=tmp_path / "takeover", shards=4)).start()
    after = servers.keep(weir.after(shards=1))
    weir.signal(signal.SIGSTOP)
    try:
        waiting = [weir.connect() for _ in range(50)]
        for number, connection in enumerate(waiting):
            connection.send_raw(encode("INCR", "waiting"))
        after.launch()
    finally:
        weir.signal(signal.SIGCONT)
    replies = sorted(connection.read().plain() for connection in waiting)
    assert replies == list(range(1, 51))
    assert weir.wait() == 0
    assert all(connection.ok("PING") == b"PONG" for connection in waiting)


def test_sigusr2_starts_the_successor_and_the_service_manager_is_told(servers, tmp_path: Path):
    notify = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(notify))
        manager.settimeout(60)

        class Watched(Successor):
            def environment(self) -> dict[str, str]:
                more = {"NOTIFY_SOCKET": str(notify), "WATCHDOG_USEC": "600000"}
                return {**super().environment(), **more}

        weir = servers.keep(Watched(servers.redis(), path=tmp_path / "takeover")).start()
        # A slow start may pass a third of the watchdog's time before the process says that it is ready.
        said = {manager.recv(100)}
        while b"READY=1" not in said:
            said.add(manager.recv(100))
        assert said <= {b"READY=1", b"WATCHDOG=1"}
        with weir.connect() as client:
            client.ok("SET", "a", "1")
            weir.signal(signal.SIGUSR2)
            said = b""
            while not said.startswith(b"MAINPID="):
                said = manager.recv(100)
            successor = int(said.removeprefix(b"MAINPID="))
            try:
                assert successor != weir.pid
                assert weir.wait() == 0
                # The successor serves the watchdog of the first process, although that names another process id.
                heard = {manager.recv(100) for _ in range(6)}
                assert heard <= {b"READY=1", b"WATCHDOG=1"} and b"WATCHDOG=1" in heard
                assert client.ok("GET", "a") == b"1"
                assert f"process {successor}" in weir.output()
            finally:
                os.kill(successor, signal.SIGTERM)
                until(lambda: not accepts(weir.port), "the successor has ended")


def test_a_successor_that_dies_before_it_is_ready_changes_nothing(servers, tmp_path: Path):
    weir = servers.keep(Successor(servers.redis(), path=tmp_path / "takeover")).start()
    with weir.connect() as client:
        client.ok("SET", "a", "1")
        # A successor asks stores for their versions before it is ready, and this store does not answer.
        silent = servers.redis()
        silent.signal(signal.SIGSTOP)
        try:
            for _ in range(2):
                after = servers.keep(weir.after())
                after.storage = f"redis://{silent.address}"
                after.launch()
                until(lambda: f"process {after.pid} (version" in weir.output(), "it has the sockets")
                after.kill()
                until(lambda: f"process {after.pid} ended before it was ready" in weir.output(), "that is noticed")
        finally:
            silent.signal(signal.SIGCONT)
        assert client.ok("GET", "a") == b"1"
        for _ in range(20):
            with weir.connect() as newcomer:
                assert newcomer.ok("PING") == b"PONG"
    # A successor that stays alive takes over.
    take_over(servers, weir)


def test_one_successor_at_a_time(servers, tmp_path: Path):
    weir = servers.keep(Successor(servers.redis(), path=tmp_path / "takeover")).start()
    with call(weir.path) as first:
        first.send(HELLO % 5)
        assert b'"welcome"' in first.recv(1000)
        second = servers.keep(weir.after())
        second.launch()
        assert second.wait() == 1
        assert f"process {weir.pid} refuses the takeover: process {os.getpid()} is already taking over" in second.output()
    until(lambda: "ended before it was ready" in weir.output(), "the first has left")
    take_over(servers, weir)


def test_a_takeover_that_was_given_up_ends_the_successor(servers, tmp_path: Path):
    """The process that this test plays gives the takeover up before the successor is ready, and goes on serving."""
    path = tmp_path / "takeover"
    after = servers.keep(Successor(servers.redis(), path=path))
    after.port = free_port()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(1)
        listener.settimeout(30)
        after.launch()
        near, _ = listener.accept()
        with near:
            assert b'"hello"' in near.recv(1000)
            manager = {"socket": None, "watchdog_micros": None}
            near.send(json.dumps({"message": "welcome", "pid": os.getpid(), "version": "0", "manager": manager}).encode())
            own = {"message": "listener", "entrance": "takeover", "address": str(path)}
            socket.send_fds(near, [json.dumps(own).encode()], [listener.fileno()])
            near.send(b'{"message":"started"}')
            near.shutdown(socket.SHUT_RD)
            near.send(json.dumps({"message": "refused", "pid": os.getpid(), "why": "it was late"}).encode())
        assert after.wait() == 1
        assert f"process {os.getpid()} has given this takeover up and goes on: it was late" in after.output()
        assert path.exists() and not accepts(after.port)


def test_who_is_told_to_end_leaves_socket_files_to_a_successor_that_has_the_sockets(servers, tmp_path: Path):
    clients = tmp_path / "clients"
    flags = ["--unix", str(clients)]
    weir = servers.keep(Successor(servers.redis(), path=tmp_path / "takeover", flags=flags)).start()
    assert at_unix_socket(clients) == b"+PONG\r\n"
    # A successor asks stores for their versions before it is ready, and this store does not answer.
    silent = servers.redis()
    silent.signal(signal.SIGSTOP)
    try:
        after = servers.keep(weir.after(flags=flags))
        after.storage = f"redis://{silent.address}"
        after.launch()
        until(lambda: f"process {after.pid} (version" in weir.output(), "it has the sockets")
        assert weir.terminate() == 0
    finally:
        silent.signal(signal.SIGCONT)
    until(after.ready, "the successor is ready")
    until(lambda: at_unix_socket(clients) == b"+PONG\r\n", "it serves at the Unix socket")
    assert after.path.exists()
    assert after.terminate() == 0
    assert not after.path.exists() and not clients.exists()


def test_a_successor_that_ends_while_clients_move_leaves_no_socket_file(servers, tmp_path: Path):
    weir = servers.keep(Successor(servers.redis(), path=tmp_path / "takeover")).start()
    after = servers.keep(weir.after())
    with weir.connect() as open_transaction:
        assert open_transaction.ok("MULTI") == b"OK"
        after.start()
        until(lambda: "serves; clients move to it" in weir.output(), "it is taken over from")
        assert after.terminate() == 0
        assert not weir.path.exists()
        assert open_transaction.ok("EXEC") == []
    assert weir.wait() == 0


def test_one_signal_while_clients_move_is_not_the_second_one(servers, tmp_path: Path):
    weir = servers.keep(Successor(servers.redis(), path=tmp_path / "takeover", drain="60s")).start()
    after = servers.keep(weir.after())
    with weir.connect() as open_transaction:
        assert open_transaction.ok("MULTI") == b"OK"
        assert open_transaction.ok("SET", "a", "1") == b"QUEUED"
        after.start()
        until(lambda: "serves; clients move to it" in weir.output(), "it is taken over from")
        weir.signal(signal.SIGTERM)
        until(lambda: f"signal to stop while clients move to process {after.pid}" in weir.output(), "it is told to end")
        assert open_transaction.ok("EXEC") == [b"OK"]
        assert weir.wait() == 0
        assert open_transaction.ok("GET", "a") == b"1"


def test_clients_beyond_the_limit_of_open_files_are_told_of(servers, tmp_path: Path):
    weir = servers.keep(Successor(servers.redis(), path=tmp_path / "takeover")).start()
    files, clients = weir.descriptors() + 8, 200

    class Limited(Successor):
        def command(self) -> list[str]:
            return with_files(files, super().command())

    waiting = [weir.connect() for _ in range(clients)]
    assert all(each.ok("PING") == b"PONG" for each in waiting)
    after = servers.keep(Limited(*weir.backends, path=weir.path))
    after.port, after.admin_port_kept = weir.port, weir.admin_port
    after.launch()
    assert weir.wait() == 0
    until(lambda: "more clients could not be taken over" in after.output(), "the loss is told")
    for each in waiting:
        each.close()


def test_a_moved_client_that_is_closed_at_once_takes_no_seat(servers, tmp_path: Path):
    weir = servers.keep(Successor(servers.redis(), path=tmp_path / "takeover")).start()
    with weir.connect() as moved:
        moved.ok("SELECT", 5)
        # Database 5 does not exist in the successor, which has room for one client.
        after = take_over(servers, weir, flags=["--databases", "1", "--max-clients", "1"])
        assert moved.read_to_end() == []

    def serves() -> bool:
        with contextlib.suppress(Closed, OSError), after.connect() as newcomer:
            return newcomer.call("PING").text == "PONG"
        return False

    until(serves, "the only seat is free")


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "sent a message that is not valid"),
        (b"{}", "sent a message that is not valid"),
        (b"", "sent a message that is not valid"),
        (b'{"message":"ready"}', "sent an unexpected message"),
        (HELLO % 7, "which speaks 7 here, and this is 5"),
    ],
    ids=["http", "nothing", "empty", "too early", "version"],
)
def test_a_stranger_is_told_and_changes_nothing(servers, tmp_path: Path, says: bytes, why: str):
    weir = servers.keep(Successor(servers.redis(), path=tmp_path / "takeover")).start()
    with call(weir.path) as stranger:
        if says:
            stranger.send(says)
        else:
            stranger.shutdown(socket.SHUT_WR)
        heard = stranger.recv(1000)
        assert not heard or b'"refused"' in heard
    until(lambda: why in weir.output(), "it is a line")
    assert "nothing has changed" in weir.output()
    with weir.connect() as client:
        assert client.ok("PING") == b"PONG"


def test_only_the_same_user_takes_over(servers, tmp_path: Path):
    weir = servers.keep(Successor(servers.redis(), path=tmp_path / "takeover")).start()
    assert weir.path.stat().st_mode & 0o777 == 0o600
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    # Opens the folders to other users, so that only weir's own check stands in their way.
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o005)
    weir.path.chmod(0o666)
    script = f"import socket\ns=socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\ns.connect({str(weir.path)!r})\nprint(s.recv(100))"
    done = subprocess.run(["python3", "-c", script], user=65534, group=65534, capture_output=True, text=True, timeout=60)
    assert done.stdout == "b''\n", done.stderr
    until(lambda: "is of user 65534, and this one is of user 0" in weir.output(), "it is a line")


def test_flags_that_do_not_go_with_it(tmp_path: Path):
    path = str(tmp_path / "takeover")
    for flags, told in [
        ([], "--takeover does not go with --storage embedded"),
        (["--storage", "redis://127.0.0.1:1", "--unix", path], "--takeover and --unix are the same path"),
    ]:
        words = [str(binary("weir")), "--check", "--takeover", path, *flags]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and told in done.stderr, done.stderr


def test_an_end_without_a_successor_leaves_nothing(servers, tmp_path: Path):
    weir = servers.keep(Successor(servers.redis(), path=tmp_path / "takeover")).start()
    assert weir.path.exists()
    # A crash leaves the socket file, which the next weir replaces.
    weir.kill()
    assert weir.path.exists()
    weir.start()
    senders = [Sender(weir, f"end:{i}") for i in range(2)]
    threads = [threading.Thread(target=sender.run) for sender in senders]
    for each in threads:
        each.start()
    for sender in senders:
        until(sender.started.is_set, "every client is served")
    assert weir.terminate() == 0
    for each in threads:
        each.join(60)
    assert not weir.path.exists() and not accepts(weir.port)


def test_a_client_that_cannot_be_moved_has_until_the_drain_timeout(servers, tmp_path: Path):
    weir = servers.keep(Successor(servers.redis(), path=tmp_path / "takeover")).start()
    after = servers.keep(weir.after(drain="300ms"))
    with weir.connect() as open_transaction:
        assert open_transaction.ok("MULTI") == b"OK"
        assert open_transaction.ok("SET", "a", "1") == b"QUEUED"
        after.start()
        until(lambda: "serves; clients move to it" in weir.output(), "it is taken over from")
        # The client may finish its transaction, within the drain timeout, and then moves to the successor.
        assert open_transaction.ok("EXEC") == [b"OK"]
        assert weir.wait() == 0
        assert open_transaction.ok("GET", "a") == b"1"
        assert open_transaction.ok("MULTI") == b"OK"
        # With a shorter drain timeout the client is closed.
        take_over(servers, after)
        assert "the remaining clients are closed" in after.output()
        with pytest.raises((Closed, OSError)):
            open_transaction.ok("EXEC")


def test_clients_that_wait_for_nothing_move_however_short_the_drain_timeout_is(servers, tmp_path: Path):
    weir = servers.keep(Successor(servers.redis(), path=tmp_path / "takeover", drain="0")).start()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(weir.connect()) for _ in range(50)]
        assert all(client.ok("PING") == b"PONG" for client in clients)
        take_over(servers, weir)
        assert all(client.ok("PING") == b"PONG" for client in clients)


# The longest wait of a blocking call in seconds: longer than any test.
LONG = 120
# Blocking calls, each with the request that wakes it, and its reply.
WAITS = [
    (("BLPOP", "{w}a", "{w}b", 0), ("RPUSH", "{w}b", "x"), [b"{w}b", b"x"]),
    (("BRPOP", "{w}c", LONG), ("RPUSH", "{w}c", "x"), [b"{w}c", b"x"]),
    (("BLMOVE", "{w}d", "{w}e", "LEFT", "RIGHT", 0), ("RPUSH", "{w}d", "y"), b"y"),
    (("BRPOPLPUSH", "{w}f", "{w}g", LONG), ("RPUSH", "{w}f", "y"), b"y"),
    (("BLMPOP", LONG, 1, "{w}h", "LEFT"), ("RPUSH", "{w}h", "x"), [b"{w}h", [b"x"]]),
    (("BZPOPMIN", "{w}i", LONG), ("ZADD", "{w}i", 1, "m"), [b"{w}i", b"m", b"1"]),
    (("BZMPOP", 0, 1, "{w}j", "MIN"), ("ZADD", "{w}j", 1, "m"), [b"{w}j", [[b"m", b"1"]]]),
    (("XREAD", "BLOCK", 0, "STREAMS", "{w}k", "$"), ("XADD", "{w}k", "2-1", "f", "v"), [[b"{w}k", [[b"2-1", [b"f", b"v"]]]]]),
    (("XREAD", "BLOCK", LONG * 1000, "STREAMS", "{w}l", "0"), ("XADD", "{w}l", "1-1", "f", "v"), [[b"{w}l", [[b"1-1", [b"f", b"v"]]]]]),
    (("XREADGROUP", "GROUP", "g", "me", "BLOCK", 0, "STREAMS", "{w}n", ">"), ("XADD", "{w}n", "2-1", "f", "v"), [[b"{w}n", [[b"2-1", [b"f", b"v"]]]]]),
]  # fmt: skip


def blocked(weir: Weir) -> int:
    """Returns the number of calls that wait at the stores."""
    total = 0
    for store in weir.backends:
        with store.connect() as connection:
            total += int(connection.ok("INFO", "clients").decode().split("blocked_clients:")[1].split("\r\n")[0])
    return total


def taken_over(weir: Weir) -> float:
    return metrics.total(weir, "weir_waits_taken_over_total")


@pytest.mark.parametrize("stores", ["one store", "two stores", "cluster"])
def test_calls_that_wait_go_on_in_the_successor(servers, tmp_path: Path, stores: str):
    if stores == "cluster":
        cluster = Cluster(servers)
        backends, storage = cluster.nodes, cluster.storage
    else:
        backends, storage = [servers.redis() for _ in range(1 if stores == "one store" else 2)], None
    weir = servers.keep(Successor(*backends, path=tmp_path / "takeover", storage=storage)).start()
    waiters = [weir.connect() for _ in WAITS]
    with weir.connect() as other:
        other.ok("XADD", "{w}k", "1-1", "f", "old")
        other.ok("XGROUP", "CREATE", "{w}n", "g", "$", "MKSTREAM")
        for waiter, (words, _, _) in zip(waiters, WAITS):
            waiter.send(*words)
            # A request behind the blocking call, and the beginning of another.
            waiter.send_raw(encode("ECHO", "behind") + encode("ECHO", "later")[:7])
        until(lambda: blocked(weir) == len(WAITS), "the calls wait at their store")
        for shards in (1, 3):
            weir = take_over(servers, weir, shards=shards)
            assert taken_over(weir) == len(WAITS)
            until(lambda: blocked(weir) == len(WAITS), "the calls wait at their store again")
        for waiter, (words, wakes, reply) in zip(waiters, WAITS):
            other.ok(*wakes)
            first, second = waiter.read_many(2)
            assert (first.plain(), second.text) == (reply, "behind"), words
            waiter.send_raw(encode("ECHO", "later")[7:])
            assert waiter.read().text == "later"
        # The new process can unblock a call like any other.
        number = waiters[0].ok("CLIENT", "ID")
        waiters[0].send("BLPOP", "{w}a", 0)
        until(lambda: other.ok("CLIENT", "UNBLOCK", number) == 1, "it is unblocked")
        assert waiters[0].read().raw == b"*-1\r\n"
    for waiter in waiters:
        waiter.close()
    until(lambda: blocked(weir) == 0, "nothing waits any more")


def test_a_call_that_moves_keeps_its_time(servers, tmp_path: Path):
    weir = servers.keep(Successor(servers.redis(), path=tmp_path / "takeover")).start()
    with weir.connect() as mover, weir.connect() as late, weir.connect(protocol=3) as gone:
        late.ok("QOS", "SET", "DEADLINE", 8_000)
        gone.send("BLPOP", "none", 0)
        began = time.monotonic()
        mover.send("BLPOP", "none", 8)
        late.send("BRPOP", "none", 0)
        until(lambda: blocked(weir) == 3, "the calls wait at the store")
        weir = take_over(servers, weir)
        with weir.connect() as newcomer:
            # A store ends timed-out calls ten times a second, so calls that began together may end in any order.
            until(lambda: time.monotonic() - began > 1, "some of the time of the others is over")
            newcomer.send("BLPOP", "none", 8)
            gone.close()
            ended: dict[Connection, tuple[float, bytes]] = {}
            with selectors.DefaultSelector() as selector:
                for each in (mover, late, newcomer):
                    selector.register(each.socket, selectors.EVENT_READ, each)
                while len(ended) < 3:
                    for key, _ in selector.select(60):
                        ended[key.data] = (time.monotonic() - began, key.data.read().raw)
                        selector.unregister(key.data.socket)
        assert ended[mover][1] == ended[newcomer][1] == b"*-1\r\n"
        assert ended[late][1].startswith(b"-DEADLINE ")
        assert 7.9 < ended[mover][0] < ended[newcomer][0], ended
        assert 7.9 < ended[late][0] < ended[newcomer][0], ended
        until(lambda: blocked(weir) == 0, "the call of the client that left is over")
        assert mover.ok("PING") == b"PONG"


def test_a_wait_for_replicas_goes_on_in_the_successor(servers, tmp_path: Path):
    store = servers.redis()
    replica = servers.redis("--replicaof", "127.0.0.1", str(store.port))
    weir = servers.keep(Successor(store, path=tmp_path / "takeover")).start()
    with weir.connect() as client:
        until(lambda: client.ok("WAIT", 1, 100) == 1, "the replica has caught up")
        replica.signal(signal.SIGSTOP)
        try:
            client.ok("SET", "k", "late")
            client.send("WAIT", 1, 0)
            until(lambda: blocked(weir) == 1, "the call waits at the store")
            weir = take_over(servers, weir)
            assert taken_over(weir) == 1
            until(lambda: blocked(weir) == 1, "the call waits at the store again")
        finally:
            replica.signal(signal.SIGCONT)
        assert client.read().plain() == 1


def held_back(operator: Connection) -> int:
    """Returns the number of clients that a pause holds back; with administrator's rights also while all are paused."""
    return operator.ok("CLIENT", "LIST").decode().count(" flags=b ")


@pytest.mark.parametrize(("mode", "is_ended"), [("WRITE", True), ("ALL", True), ("WRITE", False)])
def test_a_pause_lasts_on_in_the_successor(servers, tmp_path: Path, mode: str, is_ended: bool):
    """A pause holds for clients that move and for new ones, until it is ended or its time is over."""
    store = servers.redis()
    # The pause is longer than clients may take to move, so one that it kept in the old process would be closed there.
    weir = servers.keep(Successor(store, path=tmp_path / "takeover", drain="3s")).start()
    millis = 600_000 if is_ended else 6_000
    with weir.connect() as operator, weir.connect() as writer, weir.connect() as idle, store.connect() as direct:
        began = time.monotonic()
        operator.ok("CLIENT", "PAUSE", millis, mode)
        writer.send_raw(encode("SET", "k", "held") + encode("PING", "behind"))
        until(lambda: held_back(operator) == 1, "the write waits")
        weir = take_over(servers, weir)
        with weir.connect() as newcomer:
            idle.send("APPEND", "m", "moved")
            newcomer.send("APPEND", "m", "new")
            if is_ended:
                until(lambda: held_back(operator) == 3, "all writes wait in the new process")
                # A second takeover finds the same pause.
                weir = take_over(servers, weir)
                until(lambda: held_back(operator) == 3, "all writes wait in the next one")
                assert direct.ok("EXISTS", "k", "m") == 0
                assert operator.ok("CLIENT", "UNPAUSE") == b"OK"
            assert writer.read_many(2)[1].text == "behind"
            for each in (idle, newcomer):
                assert each.read().plain() > 0
            # The time of the pause goes on while clients move.
            assert is_ended or millis / 1000 - 0.1 < time.monotonic() - began, "it did not end early"
        assert (direct.ok("GET", "k"), direct.ok("STRLEN", "m")) == (b"held", len("movednew"))


def post_quotas(weir: Weir, text: str) -> None:
    status, reply, _ = weir.admin_request("POST", "/config/quotas", text.encode(), {})
    assert status == 200, reply


def quotas_of(weir: Weir) -> tuple[str, set[str]]:
    """Returns the source of the quotas in force, and their tenants."""
    page = json.loads(weir.admin("/config/quotas")[1])
    return page["source"], {tenant["name"] for tenant in page["tenants"]}


def test_posted_quotas_stay_in_force_in_the_successor(servers, tmp_path: Path):
    file = tmp_path / "quotas.toml"
    file.write_text(QUOTAS)
    flags = ["--quotas", str(file)]
    weir = servers.keep(Successor(servers.redis(), path=tmp_path / "takeover", flags=flags)).start()
    # Long enough for several messages.
    many = "".join(f'[tenants.t{number}]\npassword = "many-{number}"\n' for number in range(2_000))
    post_quotas(weir, f'{many}[tenants.late]\npassword = "secret"\nkeys = ["late:"]\n')
    with weir.connect() as client:
        assert client.ok("AUTH", "late", "secret") == b"OK"
        for _ in range(2):
            weir = take_over(servers, weir, flags=flags)
            assert client.ok("SET", "late:k", 1) == b"OK"
            assert client.call("GET", "k").text.startswith("NOPERM"), "it is confined as before"
            source, tenants = quotas_of(weir)
            assert source == "takeover" and "late" in tenants and "acme" not in tenants
            with weir.connect() as newcomer:
                assert newcomer.ok("AUTH", "late", "secret") == b"OK"
                assert newcomer.ok("AUTH", "t1999", "many-1999") == b"OK"
                assert newcomer.call("AUTH", "acme", "sesame").text.startswith("WRONGPASS")
        assert "secret" not in weir.output() and "POST /config/quotas to the process before" in weir.output()
        # Another file is newer than what was posted, and its tenants are all that are left.
        file.write_text('[tenants.zeta]\npassword = "poppy"\n')
        until(lambda: quotas_of(weir)[0] == "change", "the file is read")
        weir = take_over(servers, weir, flags=flags)
        assert quotas_of(weir) == ("start", {"zeta"})


def test_a_file_that_the_old_process_has_not_read_holds_in_the_successor(servers, tmp_path: Path):
    files = [tmp_path / "old.toml", tmp_path / "new.toml"]
    files[0].write_text(QUOTAS)
    files[1].write_text('[tenants.zeta]\npassword = "poppy"\n')
    weir = servers.keep(Successor(servers.redis(), path=tmp_path / "takeover", flags=["--quotas", str(files[0])])).start()
    post_quotas(weir, '[tenants.late]\npassword = "secret"\n[tenants.zeta]\npassword = "poppy"\n')
    with weir.connect() as late, weir.connect() as zeta:
        late.ok("AUTH", "late", "secret")
        zeta.ok("AUTH", "zeta", "poppy")
        weir = take_over(servers, weir, flags=["--quotas", str(files[1])])
        assert quotas_of(weir) == ("start", {"zeta"})
        assert "it holds, and not the quotas that were posted there" in weir.output()
        assert late.call("GET", "k").text.startswith("NOAUTH"), "its tenant is gone"
        assert zeta.ok("SET", "k", 1) == b"OK"


class Workers:
    """Clients that pop while others push. None reconnects."""

    def __init__(self, weir: Weir, store: Redis) -> None:
        self.weir, self.store = weir, store
        self.over = threading.Event()
        self.problems: list[str] = []
        self.pushed = 0
        self.popped: list[bytes] = []
        self.moved: list[bytes] = []
        self.scored: list[bytes] = []
        self.read: list[list[bytes]] = [[], [], []]
        work = [
            *(lambda timeout=timeout: self.pop(timeout) for timeout in (0, 0, 0, 0, 0.03, 0.2, 1, LONG)),
            *[self.move] * 3,
            *[self.pop_scored] * 3,
            *(lambda read=read: self.follow(read) for read in self.read[:2]),
            self.follow_in_group,
        ]  # fmt: skip
        self.threads = [threading.Thread(target=self.guarded, args=(each,)) for each in work]
        self.producer = threading.Thread(target=self.guarded, args=(self.produce,))

    def guarded(self, run) -> None:
        try:
            run()
        except Exception as error:
            self.problems.append(f"{run}: {error!r}")

    def produce(self) -> None:
        with self.store.connect() as direct:
            while not self.over.is_set():
                number = self.pushed
                direct.pipeline([
                    ("RPUSH", "{q}list", number), ("RPUSH", "{q}from", number), ("ZADD", "{q}zset", number, number), ("XADD", "{q}stream", f"{number + 1}-1", "n", number),
                ])  # fmt: skip
                self.pushed += 1
                self.over.wait(0.0005)

    def pop(self, timeout: float) -> None:
        with self.weir.connect() as connection:
            while (reply := connection.ok("BLPOP", "{q}list", timeout)) is None or reply[1] != b"end":
                if reply is not None:
                    self.popped.append(reply[1])
                else:
                    assert timeout > 0, "nil for who waits for ever"

    def move(self) -> None:
        with self.weir.connect(protocol=3) as connection:
            while (element := connection.ok("BLMOVE", "{q}from", "{q}to", "LEFT", "RIGHT", 0)) != b"end":
                self.moved.append(element)

    def pop_scored(self) -> None:
        with self.weir.connect() as connection:
            while not (member := connection.ok("BZPOPMIN", "{q}zset", 0)[1]).startswith(b"end"):
                self.scored.append(member)

    def follow(self, read: list[bytes]) -> None:
        last = "0"
        with self.weir.connect() as connection:
            while not read or read[-1] != b"end":
                entries = connection.ok("XREAD", "BLOCK", 0, "STREAMS", "{q}stream", last)[0][1]
                read.extend(fields[1] for _, fields in entries)
                last = entries[-1][0]

    def follow_in_group(self) -> None:
        with self.weir.connect() as connection:
            while not self.read[2] or self.read[2][-1] != b"end":
                entries = connection.ok("XREADGROUP", "GROUP", "g", "me", "NOACK", "BLOCK", 0, "STREAMS", "{q}stream", ">")[0][1]
                self.read[2].extend(fields[1] for _, fields in entries)

    def start(self) -> None:
        with self.store.connect() as direct:
            direct.ok("XGROUP", "CREATE", "{q}stream", "g", "0", "MKSTREAM")
        for each in (*self.threads, self.producer):
            each.start()
        self.more()

    def more(self) -> None:
        """Waits until each worker has received at least one more element or entry."""
        counts = [self.popped, self.moved, self.scored, *self.read]
        before = [len(each) for each in counts]
        until(lambda: self.problems or all(len(each) > was for each, was in zip(counts, before)), "work goes on")

    def end(self) -> None:
        self.over.set()
        self.producer.join(60)
        with self.store.connect() as direct:
            for number in range(len(self.threads)):
                direct.ok("RPUSH", "{q}list", "end")
                direct.ok("RPUSH", "{q}from", "end")
                direct.ok("ZADD", "{q}zset", "inf", f"end{number}")
            direct.ok("XADD", "{q}stream", "*", "n", "end")
        for each in self.threads:
            each.join(60)


def test_what_is_pushed_during_takeovers_is_delivered_once(servers, tmp_path: Path):
    store = servers.redis()
    weir = servers.keep(Successor(store, path=tmp_path / "takeover")).start()
    workers = Workers(weir, store)
    workers.start()
    try:
        moved = 0
        for round in range(TAKEOVERS):
            weir = take_over(servers, weir, shards=[1, 3, 2][round % 3])
            moved += taken_over(weir)
            workers.more()
            assert workers.problems == []
    finally:
        workers.end()
    assert workers.problems == []
    wanted = [b"%d" % number for number in range(workers.pushed)]
    for delivered in (workers.popped, workers.moved, workers.scored):
        assert sorted(delivered, key=int) == wanted
    for read in workers.read:
        assert read == [*wanted, b"end"], "in order, without a gap"
    with store.connect() as direct:
        assert [each for each in direct.ok("LRANGE", "{q}to", 0, -1) if each != b"end"] == wanted
    assert metrics.total(weir, "weir_blocked_orphans_total") == 0
    print(f"{TAKEOVERS} takeovers, {workers.pushed} pushes, {moved:.0f} calls moved")


def test_a_client_that_does_more_than_wait_stays_until_its_call_is_over(servers, tmp_path: Path):
    store = servers.redis()
    weir = servers.keep(Successor(store, path=tmp_path / "takeover", drain="60s")).start()
    with weir.connect() as watcher, weir.connect() as leaver, weir.connect() as caller, store.connect() as direct:
        for connection in (watcher, leaver):
            connection.ok("WATCH", "k")
        watcher.send("BLPOP", "list", 0)
        leaver.send("BLPOP", "left", 0)
        caller.send("QOS", "CALL", "TIER", "batch", "BLPOP", "list", 0)
        until(lambda: blocked(weir) == 3, "the calls wait at the store")
        after = servers.keep(weir.after()).start()
        # weir notices meanwhile that a client has left, and nothing is popped for it.
        leaver.close()
        until(lambda: blocked(weir) == 2, "the call of the client that left is over")
        direct.ok("RPUSH", "left", "x")
        assert direct.ok("LLEN", "left") == 1
        direct.ok("RPUSH", "list", "x", "y")
        assert sorted(each.read().plain()[1] for each in (watcher, caller)) == [b"x", b"y"]
        watcher.ok("UNWATCH")
        assert weir.wait() == 0
        assert watcher.ok("GET", "k") is None and caller.ok("GET", "k") is None
        assert taken_over(after) == 0
