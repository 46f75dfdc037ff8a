"""Tests of TLS towards clients and stores: with redis-cli, redis-py, ioredis and node-redis, and with hostile peers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import select
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest
import redis

from harness import large_replies, metrics
from harness.certificates import Authority, Pair
from harness.ports import free_port
from harness.processes import TARGET, Redis, Weir
from harness.resp import Closed, Connection, encode
from harness.waiting import until

pytestmark = pytest.mark.weir_only

MODULES = TARGET / "e2e" / "node"
SCRIPT = Path(__file__).parent / "node" / "tls.mjs"
LARGE = bytes(number * 7 % 251 for number in range(65_536)) * 255
QUOTAS = """
[tenants.acme]
password = "a"
[tenants.cart]
password = "c"
"""


# Options of a redis-server that requires certificates.
WANTS_CERTIFICATES = ["--tls-auth-clients", "yes"]


class Certificates:
    """The certificate authorities of these tests, and their certificates."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder, "authority")
        self.strange = Authority(folder, "strange")
        self.server = self.authority.sign("server", "/CN=weir", "DNS:localhost,IP:127.0.0.1", rsa=True)
        self.second = self.authority.sign("second", "/CN=second", "DNS:localhost,IP:127.0.0.1")
        self.acme = self.authority.sign("acme", "/O=Shop/CN=acme")
        self.cart = self.authority.sign("cart", "/O=Shop", "DNS:cart,DNS:acme")
        self.nobody = self.authority.sign("nobody", "/CN=nobody")
        self.forged = self.strange.sign("forged", "/CN=acme")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


class SecureWeir(Weir):
    """A weir with a TLS port."""

    secure_port = 0
    # The TLS port of an earlier server, if this one replaces it.
    secure_port_kept: int | None = None

    def secured(self, pair: Pair, *flags: str) -> SecureWeir:
        self.pair, self.more = pair, flags
        return self

    def command(self) -> list[str]:
        self.secure_port = self.secure_port_kept or free_port()
        pair = ["--tls-cert", str(self.pair.certificate), "--tls-key", str(self.pair.key)]
        return [*super().command(), "--tls-listen", f"127.0.0.1:{self.secure_port}", *pair, *self.more]

    def tls(self, certificates: Certificates, own: Pair | None = None, **options) -> SecureConnection:
        return SecureConnection(self.secure_port, context(certificates, own), **options)

    def counted(self, name: str, label: str = "") -> float:
        """Returns the sum of a metric over all shards, or over those with the label."""
        found = metrics.parse(self.admin("/metrics")[1]).get(name, {})
        return sum(value for labels, value in found.items() if label in labels)

    def handshakes(self, outcome: str, whose: str = "weir_tls_handshakes_total") -> float:
        return self.counted(whose, f'outcome="{outcome}"')


class SecureConnection(Connection):
    """A raw client connection with TLS."""

    def __init__(self, port: int, trusting: ssl.SSLContext, **options) -> None:
        self.trusting = trusting
        super().__init__(port, **options)
        # The socket is connected, so the handshake happens here, within the socket's timeout.
        self.socket = trusting.wrap_socket(self.socket, server_hostname="localhost")

    def send_and_listen(self, data: bytes) -> None:
        """Sends while it receives, in one thread, because two threads may not use one TLS connection of Python's at a time."""
        patience, unsent = self.socket.gettimeout(), memoryview(data)
        self.socket.setblocking(False)
        while unsent:
            moved = False
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                unsent = unsent[self.socket.send(unsent[: 1 << 16]) :]
                moved = True
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                come = self.socket.recv(1 << 18)
                assert come, "it goes on"
                self.parser.feed(come)
                moved = True
            if not moved:
                assert any(select.select([self.socket], [self.socket], [], patience)), "it goes on"
        self.socket.settimeout(patience)

    def read(self):
        try:
            return super().read()
        except (ssl.SSLError, ConnectionResetError) as error:
            raise Closed(str(error)) from None


def context(certificates: Certificates, own: Pair | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(certificates.authority.certificate))
    if own is not None:
        made.load_cert_chain(own.certificate, own.key)
    return made


def started(servers, certificates: Certificates, *more: str, backends=(), storage=None, flags=None, pair=None) -> SecureWeir:
    weir = SecureWeir(*backends, flags=["--shards", "2", *(flags or [])], storage=storage)
    return servers.keep(weir.secured(pair or certificates.server, *more)).start()


@pytest.fixture
def weir(servers, certificates) -> SecureWeir:
    return started(servers, certificates, flags=["--max-request-bytes", "32MiB"])


def test_redis_cli(weir, certificates):
    def cli(*arguments: str, ca: Path = certificates.authority.certificate) -> str:
        words = ["redis-cli", "-h", "localhost", "-p", str(weir.secure_port), "--tls", "--cacert", str(ca), *arguments]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        return done.stdout + done.stderr

    until(lambda: "TLS on 127.0.0.1:" in weir.output(), "it says where it listens")
    assert cli("PING") == "PONG\n"
    assert cli("SET", "a", "1") == "OK\n" and cli("GET", "a") == "1\n"
    assert "tls_clients:1" in cli("INFO", "clients")
    assert "certificate verify failed" in cli("PING", ca=certificates.strange.certificate)
    assert weir.handshakes("done") == 4 and weir.handshakes("certificate") >= 1


def test_redis_py(weir, certificates):
    url = f"rediss://localhost:{weir.secure_port}"
    with redis.Redis.from_url(url, ssl_ca_certs=str(certificates.authority.certificate)) as client:
        assert client.set("large", LARGE) and client.get("large") == LARGE
        with client.pipeline(transaction=True) as pipeline:
            assert pipeline.set("a", 1).incr("a").execute() == [True, 2]
    with redis.Redis.from_url(url) as client, pytest.raises(redis.ConnectionError, match="certificate verify failed"):
        client.ping()


def test_node_clients(weir, certificates):
    assert (MODULES / "node_modules").is_dir(), f"tests/run installs the Node clients under {MODULES}"
    words = [os.environ.get("NODE", "node"), SCRIPT, str(weir.secure_port), MODULES, certificates.authority.certificate]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "all passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_bytes_arrive_as_they_were_sent(weir, certificates, version):
    trusting = context(certificates)
    trusting.minimum_version = trusting.maximum_version = version
    with SecureConnection(weir.secure_port, trusting) as client:
        assert client.call("SET", "large", LARGE).text == "OK"
        assert client.call("GET", "large").value == LARGE
        # A pipeline with large and small requests, sent at once.
        sent = b"".join(encode("SET", f"k{n}", LARGE[: n * 37]) + encode("GET", f"k{n}") for n in range(1000))
        client.send_and_listen(sent)
        for number in range(1000):
            assert client.read().text == "OK"
            assert client.read().value == LARGE[: number * 37]
        # A request byte by byte.
        for byte in encode("PING"):
            client.send_raw(bytes([byte]))
        assert client.read().text == "PONG"
    assert weir.counted("weir_tls_broken_total") == 0
    until(lambda: weir.counted("weir_tls_clients") == 0, "its connection is gone")


def test_a_client_that_sends_no_more_gets_its_replies(weir, certificates):
    with weir.tls(certificates) as client:
        client.send_raw(b"".join(encode("ECHO", f"{number}") for number in range(2000)))
        # Sends close_notify, and reads on.
        with contextlib.suppress(ssl.SSLError, OSError):
            client.socket.setblocking(False)
            client.socket.unwrap()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with socket.create_connection(("127.0.0.1", weir.secure_port), timeout=30) as plain:
        tls = context(certificates).wrap_bio(incoming, outgoing, server_hostname="localhost")
        talk(plain, tls, incoming, outgoing, tls.do_handshake)
        tls.write(b"".join(encode("ECHO", f"{number}") for number in range(2000)))
        # Ends the TCP stream without close_notify, as a killed client does.
        plain.sendall(outgoing.read())
        plain.shutdown(socket.SHUT_WR)
        told = b""
        while True:
            chunk = plain.recv(1 << 16)
            incoming.write(chunk) if chunk else incoming.write_eof()
            with contextlib.suppress(ssl.SSLWantReadError):
                while part := tls.read(1 << 16):
                    told += part
            if not chunk or told.count(b"\r\n") == 4000:
                break
    assert told == b"".join(b"$%d\r\n%d\r\n" % (len(str(n)), n) for n in range(2000))


def talk(plain: socket.socket, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, step):
    """Carries bytes between both sides until a step of the TLS object is done."""
    while True:
        try:
            done = step()
            plain.sendall(outgoing.read())
            return done
        except ssl.SSLWantReadError:
            plain.sendall(outgoing.read())
            incoming.write(plain.recv(1 << 16))


def test_who_reads_too_slowly_is_closed_and_costs_no_more_than_allowed(servers, certificates):
    flags = ["--output-limit", "8MiB", "--max-reply-bytes", "4MiB", "--send-timeout", "2s"]
    weir = started(servers, certificates, flags=flags)
    with weir.tls(certificates, receive_buffer=4096) as client, weir.tls(certificates) as other:
        assert other.call("SET", "v", LARGE[: 1 << 20]).text == "OK"
        before = weir.resident_bytes()
        for _ in range(200):
            client.send("GET", "v")
        until(lambda: weir.counted("weir_clients_expelled_total", 'reason="unread"') == 1, "the slow one is closed")
        assert weir.resident_bytes() - before < 64 << 20
        assert other.call("PING").text == "PONG"


def test_what_is_no_tls_is_told_so_and_counted(weir, certificates):
    with Connection(weir.secure_port) as client:
        assert "this port expects TLS" in client.call("PING").text
        with pytest.raises(Closed):
            client.read()
    with socket.create_connection(("127.0.0.1", weir.secure_port), timeout=30) as client:
        client.sendall(b"\x16\x03\x01\x40\x00" + os.urandom(20_000))
        with contextlib.suppress(ConnectionResetError):
            while client.recv(4096):
                pass
    until(lambda: weir.handshakes("not_tls") + weir.handshakes("refused") == 2, "both are counted")
    # Garbage after the handshake, outside of TLS records.
    with weir.tls(certificates) as client:
        assert client.call("PING").text == "PONG"
        os.write(client.socket.fileno(), b"\x17\x03\x03\x40\x00" + os.urandom(0x4000))
        with pytest.raises(Closed):
            client.read()
    until(lambda: weir.counted("weir_tls_broken_total") == 1, "it is counted")
    with weir.tls(certificates) as client:
        assert client.call("PING").text == "PONG"


def test_who_was_signed_by_an_authority_that_is_trusted_no_more_is_closed(servers, certificates, tmp_path):
    quotas, trusted = tmp_path / "quotas.toml", tmp_path / "trusted.crt"
    quotas.write_text(QUOTAS)
    both = [authority.certificate.read_text() for authority in (certificates.authority, certificates.strange)]
    trusted.write_text("".join(both))
    flags = ["--tls-client-ca", str(trusted)]
    weir = started(servers, certificates, *flags, flags=["--quotas", str(quotas)])
    with contextlib.ExitStack() as stack:
        left = [stack.enter_context(weir.tls(certificates, certificates.forged)) for _ in range(100)]
        kept = [stack.enter_context(weir.tls(certificates, certificates.acme)) for _ in range(100)]
        assert all(client.call("GET", "a").value is None for client in (*left, *kept))
        trusted.write_text(both[0])
        for client in left:
            with pytest.raises(Closed):
                client.read()
        assert all(client.call("GET", "a").value is None for client in kept)
    assert weir.counted("weir_clients_expelled_total", 'reason="revoked"') == 100


def test_handshakes_that_do_not_end_are_closed_in_time_and_hold_nobody_up(servers, certificates):
    weir = started(servers, certificates, "--tls-handshake-timeout", "1s")
    silent = [socket.create_connection(("127.0.0.1", weir.secure_port), timeout=30) for _ in range(50)]
    for number, client in enumerate(silent):
        client.sendall(b"\x16\x03\x01\x02\x00\x01"[: number % 7])
    began = time.monotonic()
    until(lambda: weir.counted("weir_tls_handshakes_under_way") == 50, "all are taken in")
    for _ in range(10):
        with weir.tls(certificates) as client:
            assert client.call("PING").text == "PONG"
    assert weir.counted("weir_tls_handshakes_under_way") > 0 or time.monotonic() - began > 1, "they waited for nobody"
    until(lambda: weir.handshakes("timeout") == 50, "all are given up")
    assert all(client.recv(1) == b"" for client in silent)


def test_a_flood_of_handshakes_is_bounded_and_is_its_own_loss(servers, certificates):
    weir = started(servers, certificates, "--tls-handshake-timeout", "60s", "--tls-handshake-rate", "2000")
    flood = []
    for _ in range(700):
        client = socket.socket()
        client.bind(("127.0.0.2", 0))
        client.connect(("127.0.0.1", weir.secure_port))
        flood.append(client)
    until(lambda: weir.handshakes("crowded") == 700 - 512, "the oldest have made way")
    assert weir.counted("weir_tls_handshakes_under_way") == 512
    with weir.tls(certificates) as client:
        assert client.call("PING").text == "PONG"
    assert weir.output().count("handshakes are under way") == 1
    for client in flood:
        client.close()
    until(lambda: weir.counted("weir_tls_handshakes_under_way") == 0, "they are gone")


def test_no_more_handshakes_in_a_second_than_allowed(servers, certificates):
    weir = started(servers, certificates, "--tls-handshake-rate", "20")
    began = time.monotonic()
    for _ in range(61):
        with weir.tls(certificates) as client:
            assert client.call("PING").text == "PONG"
    # At most 20 handshakes were available at once.
    assert time.monotonic() - began > 1.9


def test_all_clients_count_against_one_limit(servers, certificates):
    weir = started(servers, certificates, flags=["--max-clients", "4"])
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            assert stack.enter_context(weir.tls(certificates)).call("PING").text == "PONG"
        with weir.tls(certificates) as fifth:
            assert fifth.read().text.startswith("OVERLOADED reason=clients limit=4 ")
        with weir.connect() as plain:
            assert plain.read().text.startswith("OVERLOADED reason=clients limit=4 ")


def test_a_certificate_is_read_again_when_it_changes(servers, certificates, tmp_path):
    pair = Pair(tmp_path / "own.crt", tmp_path / "own.key")

    def put(source: Pair) -> None:
        pair.key.write_bytes(source.key.read_bytes())
        pair.certificate.write_bytes(source.certificate.read_bytes())

    def shown() -> str:
        with weir.tls(certificates) as client:
            return dict(part[0] for part in client.socket.getpeercert()["subject"])["commonName"]

    put(certificates.server)
    weir = started(servers, certificates, pair=pair)
    with weir.tls(certificates) as old:
        assert shown() == "weir"
        put(certificates.second)
        until(lambda: shown() == "second", "the other one is in force")
        pair.certificate.write_text("nonsense")
        until(lambda: "the files in force are unchanged" in weir.output(), "it is told")
        assert shown() == "second" and weir.counted("weir_tls_reloads_total", 'outcome="wrong"') >= 1
        pair.certificate.write_bytes(certificates.server.certificate.read_bytes())
        until(lambda: "not the key of the first certificate" in weir.output(), "it is told")
        put(certificates.server)
        until(lambda: shown() == "weir", "the first one is in force again")
        before = weir.counted("weir_tls_reloads_total", 'outcome="taken"')
        weir.signal(signal.SIGHUP)
        until(lambda: weir.counted("weir_tls_reloads_total", 'outcome="taken"') > before, "it is read again")
        assert old.call("PING").text == "PONG", "connections are left alone"


def test_a_certificate_that_was_revoked_is_refused(servers, certificates, tmp_path):
    quotas, lists = tmp_path / "quotas.toml", tmp_path / "revoked.crl"
    quotas.write_text(QUOTAS)
    authority = certificates.authority
    lists.write_bytes(authority.revoke("none").read_bytes())
    flags = ["--tls-client-ca", str(authority.certificate), "--tls-client-crl", str(lists)]
    weir = started(servers, certificates, *flags, flags=["--quotas", str(quotas)])

    def answers(pair: Pair) -> bool:
        with contextlib.suppress(Closed, OSError), weir.tls(certificates, pair) as client:
            return client.call("GET", "a").value is None
        return False

    # Session tickets of both TLS versions, issued before the revocation.
    known = [context(certificates, certificates.acme) for _ in range(2)]
    known[1].maximum_version = ssl.TLSVersion.TLSv1_2
    tickets = []
    for trusting in known:
        with SecureConnection(weir.secure_port, trusting) as client:
            assert client.call("GET", "a").value is None
            tickets.append(client.socket.session)
    with (
        weir.tls(certificates, certificates.cart) as old,
        weir.tls(certificates, certificates.acme) as busy,
        weir.tls(certificates, certificates.nobody) as other,
    ):
        assert old.call("GET", "a").value is None and answers(certificates.acme)
        assert other.call("AUTH", "acme", "a").text == "OK"
        lists.write_bytes(authority.revoke("two", certificates.acme, certificates.cart).read_bytes())
        # Requests are answered until weir notices the revocation.
        counted = 0
        with contextlib.suppress(Closed, ConnectionError):
            while True:
                busy.send_raw(encode("INCR", "count") * 50)
                for _ in range(50):
                    counted += 1
                    assert busy.read().value == b"%d" % counted
        with pytest.raises(Closed):
            old.read()
        assert not answers(certificates.acme) and not answers(certificates.cart)
        assert other.call("GET", "a").value is None, "others are left alone"
        assert weir.counted("weir_clients_expelled_total", 'reason="revoked"') == 2
        assert "2 of the certificates that clients have shown would be refused by now" in weir.output()
    for trusting, ticket in zip(known, tickets, strict=True):
        assert ticket is not None
        with socket.create_connection(("127.0.0.1", weir.secure_port), timeout=30) as raw:
            with pytest.raises((ssl.SSLError, ConnectionError, Closed)):
                with trusting.wrap_socket(raw, server_hostname="localhost", session=ticket) as resumed:
                    resumed.sendall(encode("GET", "a"))
                    if not resumed.recv(1):
                        raise Closed("at once")
    before = weir.counted("weir_tls_reloads_total", 'outcome="wrong"')
    lists.write_text("nonsense")
    until(lambda: weir.counted("weir_tls_reloads_total", 'outcome="wrong"') > before, "it is told")
    assert "--tls-client-crl" in weir.output() and not answers(certificates.acme)
    lists.write_bytes(authority.revoke("cart", certificates.cart).read_bytes())
    until(lambda: answers(certificates.acme), "it is in force")
    assert not answers(certificates.cart)
    # Certificates of an authority without a list cannot be checked, so they are refused.
    lists.write_bytes(certificates.strange.revoke("strange").read_bytes())
    until(lambda: not answers(certificates.acme), "it is in force")
    assert weir.handshakes("certificate") >= 4


def test_a_certificate_of_a_client_names_its_tenant(servers, certificates, tmp_path):
    quotas = tmp_path / "quotas.toml"
    quotas.write_text(QUOTAS)
    flags = ["--quotas", str(quotas)]
    weir = started(servers, certificates, "--tls-client-ca", str(certificates.authority.certificate), flags=flags)
    for own, tenant in [(certificates.acme, "acme"), (certificates.cart, "cart")]:
        with weir.tls(certificates, own) as client:
            assert client.call("SET", "a", "1").text == "OK"
            assert f" user={tenant} " in client.call("CLIENT", "INFO").text
            assert client.call("RESET").text == "RESET"
            assert client.call("GET", "a").text == "1"
    # The authority knows the certificate, but it names no tenant, so the client must log in.
    with weir.tls(certificates, certificates.nobody) as client:
        assert client.call("GET", "a").text.startswith("NOAUTH")
        assert client.call("AUTH", "acme", "a").text == "OK"
        assert client.call("GET", "a").text == "1"
    for own in (None, certificates.forged):
        with pytest.raises((ssl.SSLError, Closed, ConnectionResetError)), weir.tls(certificates, own) as client:
            client.call("PING")
    until(lambda: weir.handshakes("certificate") == 2, "both are counted")


def test_another_process_takes_over(servers, certificates, tmp_path):
    store = servers.redis()
    flags = ["--takeover", str(tmp_path / "takeover")]
    before = started(servers, certificates, backends=[store], flags=flags)
    with before.tls(certificates) as client, before.tls(certificates) as busy:
        assert client.call("SET", "a", "1").text == "OK"
        assert busy.call("MULTI").text == "OK"
        after = SecureWeir(store, flags=["--shards", "2", *flags]).secured(certificates.server)
        after.port, after.admin_port_kept, after.secure_port_kept = before.port, before.admin_port, before.secure_port
        servers.keep(after).launch()
        # weir owes the client no reply, and ends the TLS stream properly.
        assert client.socket.recv(1) == b""
        with after.tls(certificates) as again:
            assert again.call("GET", "a").text == "1"
        assert busy.call("INCR", "a").text == "QUEUED"
        assert busy.call("EXEC").plain() == [2]
        assert busy.socket.recv(1) == b""
    assert before.wait() == 0, before.output()
    with after.tls(certificates) as again:
        assert again.call("GET", "a").text == "2"
    until(lambda: "go on here" in after.output(), "it is told that it has all")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"--tls-cert": "missing"}, r"--tls-cert .*missing: No such file"),
        ({"--tls-key": "other"}, r"--tls-key .*: it is not the key of the first certificate in "),
        ({"--tls-client-ca": "empty"}, r"--tls-client-ca .*: no certificate is in it"),
    ],
)
def test_files_that_are_wrong_are_told_at_the_start(servers, certificates, tmp_path, change, complaint):
    (tmp_path / "empty").write_text("")
    (tmp_path / "other").write_bytes(certificates.second.key.read_bytes())
    server = certificates.server
    flags = {"--tls-listen": "127.0.0.1:0", "--tls-cert": str(server.certificate), "--tls-key": str(server.key)}
    flags |= {flag: str(tmp_path / name) for flag, name in change.items()}
    probe = Weir(flags=[word for pair in flags.items() for word in pair])
    servers.keep(probe)
    for more in ([], ["--check"]):
        done = subprocess.run([*probe.command(), *more], capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and re.search(complaint, done.stderr), done.stderr


class SecureHttp(http.client.HTTPSConnection):
    """A client of commands over HTTPS."""

    def __init__(self, port: int, trusting: ssl.SSLContext) -> None:
        super().__init__("localhost", port, context=trusting, timeout=30)

    def ask(self, *words: str, **headers: str) -> tuple[int, dict]:
        self.request("POST", "/", json.dumps(words), headers)
        response = self.getresponse()
        return response.status, json.loads(response.read())


def serving_http(servers, certificates, *flags: str) -> tuple[SecureWeir, int]:
    port = free_port()
    return started(servers, certificates, "--tls-http", f"127.0.0.1:{port}", *flags), port


def test_the_keys_over_http_with_tls(servers, certificates):
    weir, port = serving_http(servers, certificates)
    client = SecureHttp(port, context(certificates))
    assert client.ask("SET", "a", "1") == (200, {"result": "OK"})
    client.request("PUT", "/v1/keys/large", LARGE)
    response = client.getresponse()
    assert (response.status, response.read()) == (204, b"")
    client.request("GET", "/v1/keys/large")
    assert client.getresponse().read() == LARGE
    # The same keys are visible over the other ports.
    with weir.tls(certificates) as resp, weir.connect() as plain:
        assert resp.call("GET", "a").value == b"1" and plain.call("STRLEN", "large").plain() == len(LARGE)
    words = ["curl", "-sS", "--cacert", str(certificates.authority.certificate), f"https://localhost:{port}/v1/keys/a"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "1"), done.stderr
    # Requests in a row on one connection keep their order, however their bytes arrive.
    asked = b"".join(f"GET /v1/keys/{key} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for key in ("a", "none", "a"))
    with context(certificates).wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost") as raw:
        for at in range(0, len(asked), 7):
            raw.sendall(asked[at : at + 7])
        heads = b""
        while heads.count(b"HTTP/1.1 ") < 3 or not heads.endswith(b"1"):
            heads += raw.recv(4096)
        assert [head[:3] for head in heads.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404", b"200"]


def test_a_certificate_names_the_tenant_over_http(servers, certificates, tmp_path):
    quotas = tmp_path / "quotas.toml"
    quotas.write_text(QUOTAS + 'keys = ["cart:"]\n')
    flags = ["--tls-client-ca", str(certificates.authority.certificate), "--quotas", str(quotas)]
    weir, port = serving_http(servers, certificates, *flags)
    cart = SecureHttp(port, context(certificates, certificates.cart))
    assert cart.ask("SET", "cart:1", "x") == (200, {"result": "OK"})
    assert cart.ask("SET", "other", "x")[0] == 403
    assert cart.ask("SET", "other", "x", Authorization="Bearer acme:a") == (200, {"result": "OK"})
    assert cart.ask("GET", "other", Authorization="Bearer wrong")[0] == 401
    assert cart.ask("GET", "cart:1") == (200, {"result": "x"})
    assert SecureHttp(port, context(certificates, certificates.nobody)).ask("GET", "cart:1")[0] == 401
    # A browser sends its certificate whichever page makes the request, so a certificate alone does not allow it.
    for headers, status in [
        ({"Origin": "https://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example", "Authorization": "Bearer acme:a"}, 200),
        ({"Content-Type": "text/plain", "Authorization": "Bearer acme:a"}, 200),
        ({"Origin": "https://evil.example", "Authorization": "Bearer acme:a"}, 403),
        ({"Content-Type": "application/json"}, 200),
    ]:
        asking = SecureHttp(port, context(certificates, certificates.cart))
        assert asking.ask("SET", "cart:1", "y" if status == 200 else "stolen", **headers)[0] == status, headers
    assert cart.ask("GET", "cart:1") == (200, {"result": "y"})
    for own_one in (None, certificates.forged):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            SecureHttp(port, context(certificates, own_one)).ask("GET", "cart:1")
    until(lambda: weir.handshakes("certificate") >= 2, "both are counted")


def test_handshakes_for_http_are_bounded_like_others(servers, certificates):
    weir, port = serving_http(servers, certificates, "--tls-handshake-timeout", "1s")
    with socket.create_connection(("127.0.0.1", port), timeout=30) as plain:
        plain.sendall(b"GET /v1/keys/a HTTP/1.1\r\nHost: x\r\n\r\n")
        told = b"".join(iter(lambda: plain.recv(4096), b""))
        assert told.startswith(b"HTTP/1.1 400 ") and b"https://" in told
    with contextlib.ExitStack() as stack:
        # Clients that send nothing, half a handshake, or one byte at a time are closed when their time is over, and delay no
        # other.
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)) for _ in range(700)]
        for number, connection in enumerate(slow):
            with contextlib.suppress(OSError):
                connection.sendall(b"\x16\x03\x01\x02\x00"[: number % 6])
        assert SecureHttp(port, context(certificates)).ask("PING") == (200, {"result": "PONG"})
        until(lambda: weir.handshakes("timeout") + weir.handshakes("crowded") >= 700, "their time is over")
        assert weir.counted("weir_tls_handshakes_under_way") == 0
    assert weir.handshakes("not_tls") == 1


def test_clients_over_http_count_against_the_same_limit(servers, certificates):
    weir, port = serving_http(servers, certificates, "--max-clients", "2")
    clients = [SecureHttp(port, context(certificates)) for _ in range(3)]
    assert [client.ask("PING")[0] for client in clients[:2]] == [200, 200]
    assert clients[2].ask("PING")[0] == 503
    with weir.connect() as plain:
        assert plain.read().text.startswith("OVERLOADED reason=clients limit=2 ")


class SecureRedis(Redis):
    """A redis-server with a TLS port, and a plain port for the test itself."""

    secure_port = 0

    def secured(self, certificates: Certificates, *options: str) -> SecureRedis:
        pair = certificates.server
        self.files = ["--tls-cert-file", str(pair.certificate), "--tls-key-file", str(pair.key)]
        self.files += ["--tls-ca-cert-file", str(certificates.authority.certificate), "--tls-auth-clients", "no"]
        self.files += options
        return self

    def command(self) -> list[str]:
        self.secure_port = self.secure_port or free_port()
        return [*super().command(), "--tls-port", str(self.secure_port), *self.files]


def secure_redis(servers, certificates, *options: str) -> SecureRedis:
    return servers.keep(SecureRedis().secured(certificates, *options)).start()


def test_stores_with_tls(servers, certificates):
    stores = [secure_redis(servers, certificates) for _ in range(2)]
    storage = "rediss://" + ",".join(f"localhost:{store.secure_port}" for store in stores)
    authority = str(certificates.authority.certificate)
    weir = started(servers, certificates, storage=storage, flags=["--storage-tls-ca", authority])
    with weir.tls(certificates) as client, weir.connect() as plain, weir.connect(protocol=3) as newer:
        assert client.call("SET", "large", LARGE).text == "OK"
        assert plain.call("GET", "large").value == LARGE and newer.call("GET", "large").value == LARGE
        for number in range(200):
            assert plain.call("SET", f"k{number}", number).text == "OK"
        assert plain.call("DBSIZE").plain() == 201
        assert client.call("MGET", *(f"k{n}" for n in range(200))).plain() == [str(n).encode() for n in range(200)]
        version = stores[0].connect().call("INFO", "server").text
        assert re.search(r"redis_version:\S+", version)[0] in plain.call("INFO", "server").text
        # A store that dies and returns.
        stores[0].kill()
        until(lambda: any(plain.call("GET", f"k{n}").is_error for n in range(200)), "it is missed")
        stores[0].start()
        until(lambda: not any(plain.call("GET", f"k{n}").is_error for n in range(200)), "it is found again")
    done = weir.handshakes("done", "weir_tls_store_handshakes_total")
    assert done >= 4


def test_large_replies_of_many_connections_with_tls_take_turns(servers, certificates):
    storage = f"rediss://localhost:{secure_redis(servers, certificates).secure_port}"
    authority = str(certificates.authority.certificate)
    flags = [*large_replies.FLAGS, "--storage-tls-ca", authority]
    large_replies.take_turns(started(servers, certificates, storage=storage, flags=flags))


def test_a_store_that_is_not_the_right_one_is_as_good_as_away(servers, certificates):
    store = secure_redis(servers, certificates)
    plain = servers.redis()
    address = f"127.0.0.1:{store.secure_port}"
    cases = [
        (address, [str(certificates.strange.certificate)], "certificate: UnknownIssuer"),
        (address, [str(certificates.authority.certificate), "--storage-tls-name", "elsewhere"], "not valid for name"),
        (plain.address, [str(certificates.authority.certificate)], "no TLS with it"),
    ]
    for server, trust, complaint in cases:
        weir = started(servers, certificates, storage=f"rediss://{server}", flags=["--storage-tls-ca", *trust])
        with weir.connect() as client:
            assert client.call("GET", "a").text.startswith("UNAVAILABLE")
        until(lambda: complaint in weir.output(), f"it says {complaint}")
        assert f"store {server.split(':')[0]}" in weir.output()
        weir.terminate()


def test_a_store_is_known_by_the_name_that_was_given(servers, certificates):
    store = secure_redis(servers, certificates)
    trust = ["--storage-tls-ca", str(certificates.authority.certificate), "--storage-tls-name", "localhost"]
    weir = started(servers, certificates, storage=f"rediss://127.0.0.1:{store.secure_port}", flags=trust)
    with weir.connect() as client:
        assert client.call("SET", "a", "1").text == "OK"


def own(pair: Pair) -> list[str]:
    return ["--storage-tls-cert", str(pair.certificate), "--storage-tls-key", str(pair.key)]


def test_a_store_that_wants_a_certificate_is_shown_one(servers, certificates):
    store = secure_redis(servers, certificates, *WANTS_CERTIFICATES)
    trust = ["--storage-tls-ca", str(certificates.authority.certificate)]
    storage = f"rediss://localhost:{store.secure_port}"
    weir = started(servers, certificates, storage=storage, flags=[*trust, *own(certificates.nobody)])
    with weir.connect() as client:
        assert client.call("SET", "a", LARGE).text == "OK" and client.call("GET", "a").value == LARGE
    until(lambda: re.search(r"redis_version:\S+", weir.connect().call("INFO", "server").text), "its version is known")
    for flags in ([], own(certificates.forged)):
        weir = started(servers, certificates, storage=storage, flags=[*trust, *flags])
        with weir.connect() as client:
            assert client.call("GET", "a").text.startswith("UNAVAILABLE")
        until(lambda: "store localhost: " in weir.output() and "--storage-tls-cert" in weir.output(), "it is told why")


def test_what_stores_are_shown_changes_with_its_files(servers, certificates, tmp_path):
    store = secure_redis(servers, certificates, *WANTS_CERTIFICATES)
    pair, authority = Pair(tmp_path / "own.crt", tmp_path / "own.key"), tmp_path / "ca.crt"

    def put(source: Pair, trusted: Authority) -> None:
        pair.key.write_bytes(source.key.read_bytes())
        pair.certificate.write_bytes(source.certificate.read_bytes())
        authority.write_bytes(trusted.certificate.read_bytes())

    def answers() -> bool:
        with weir.connect() as client:
            return not client.call("GET", "a").is_error

    def taken() -> float:
        return metrics.parse(weir.admin("/metrics")[1])["weir_tls_reloads_total"]['{outcome="taken"}']

    put(certificates.forged, certificates.authority)
    # Without --tls-listen, the files for stores are watched nevertheless.
    flags = ["--shards", "2", "--storage-tls-ca", str(authority), *own(pair)]
    weir = servers.keep(Weir(storage=f"rediss://localhost:{store.secure_port}", flags=flags)).start()
    assert not answers()
    put(certificates.acme, certificates.authority)
    until(answers, "the right one is shown")
    pair.key.write_bytes(certificates.forged.key.read_bytes())
    until(lambda: "--storage-tls-key" in weir.output() and "are unchanged" in weir.output(), "half of a pair is told")
    store.kill()
    store.start()
    until(answers, "what was in force is")
    before = taken()
    put(certificates.acme, certificates.strange)
    until(lambda: taken() > before, "another authority is trusted")
    store.kill()
    store.start()
    until(lambda: not answers(), "who is not vouched for by it is not asked")
    put(certificates.acme, certificates.authority)
    until(answers, "the authority is the right one again")
    before = taken()
    weir.signal(signal.SIGHUP)
    until(lambda: taken() > before, "they are read again")


@pytest.mark.parametrize("flag", ["--storage-tls-ca", "--storage-tls-cert", "--storage-tls-key"])
def test_files_for_stores_that_are_wrong_are_told_at_the_start(servers, certificates, tmp_path, flag):
    (tmp_path / "nonsense").write_text("nonsense")
    files = {"--storage-tls-ca": certificates.authority.certificate}
    files |= {"--storage-tls-cert": certificates.acme.certificate, "--storage-tls-key": certificates.acme.key}
    probe = servers.keep(Weir(storage="rediss://localhost:1"))
    for path, complaint in ((tmp_path / "nonsense", "(PEM"), (certificates.nobody.key, "it is not the key of the first")):
        if flag == "--storage-tls-key" or path.name == "nonsense":
            words = [str(word) for pair in (files | {flag: path}).items() for word in pair]
            done = subprocess.run([*probe.command(), *words, "--check"], capture_output=True, text=True, timeout=60)
            assert done.returncode != 0 and f"{flag} {path}: " in done.stderr and complaint in done.stderr, done.stderr


@pytest.mark.parametrize("more", [[], WANTS_CERTIFICATES], ids=["", "that wants certificates"])
def test_a_cluster_with_tls(servers, certificates, more):
    options = ["--tls-cluster", "yes", "--tls-replication", "yes", "--cluster-enabled", "yes", *more]
    # A node would choose a bus port in the range of outgoing connections, so the test chooses it.
    buses = [free_port() for _ in range(3)]
    nodes = [secure_redis(servers, certificates, *options, "--cluster-port", str(bus)) for bus in buses]
    pair = certificates.second
    words = ["redis-cli", "--tls", "--cacert", str(certificates.authority.certificate)]
    words += ["--cert", str(pair.certificate), "--key", str(pair.key), "--cluster", "create"]
    words += [f"127.0.0.1:{node.secure_port}@{bus}" for node, bus in zip(nodes, buses, strict=True)] + ["--cluster-yes"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    for node in nodes:
        until(lambda: "cluster_state:ok" in node.connect().call("CLUSTER", "INFO").text, "the cluster is whole")
    trust = ["--storage-tls-ca", str(certificates.authority.certificate), *(own(pair) if more else [])]
    weir = started(servers, certificates, storage=f"clusters://127.0.0.1:{nodes[0].secure_port}", flags=trust)
    with weir.tls(certificates) as client:
        for number in range(300):
            assert client.call("SET", f"k{number}", number).text == "OK"
        assert client.call("MGET", *(f"k{n}" for n in range(300))).plain() == [str(n).encode() for n in range(300)]
    sizes = [node.connect().call("DBSIZE").plain() for node in nodes]
    assert sum(sizes) == 300 and all(sizes)


@pytest.mark.parametrize("more", [[], WANTS_CERTIFICATES], ids=["", "that wants certificates"])
def test_a_fleet_counts_in_a_store_with_tls(servers, certificates, tmp_path, more):
    quotas = tmp_path / "quotas.toml"
    quotas.write_text("[default]\nru_per_second = 1000\n" + QUOTAS)
    store = secure_redis(servers, certificates, *more)
    trust = ["--storage-tls-ca", str(certificates.authority.certificate), "--quotas", str(quotas)]
    trust += own(certificates.acme) if more else []
    weir = started(servers, certificates, flags=[*trust, "--fleet", f"rediss://localhost:{store.secure_port}"])
    assert "fleet: quotas are shared" in weir.output()
    until(lambda: store.connect().call("HLEN", "{weir:weir}:hosts").plain() == 1, "the host is there")
