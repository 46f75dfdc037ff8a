"""Tests of commands over HTTP: with curl, http.client and @upstash/redis, and with hostile requests."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from harness import metrics
from harness.placement import keys_by_backend
from harness.ports import free_port
from harness.processes import TARGET
from harness.waiting import until

pytestmark = pytest.mark.weir_only

MODULES = TARGET / "e2e" / "node"
QUOTAS = """
[default]
ru_per_second = 1_000_000
[tenants.acme]
password = "acme:secret"
ru_per_second = 1_000_000
keys = ["acme:", "{acme}"]
[tenants.shop]
password = "shop-token"
ru_per_second = 1_000_000
[tenants.tiny]
password = "tiny-token"
ru_per_second = 10
burst_seconds = 1
"""


class Client(http.client.HTTPConnection):
    """A persistent HTTP connection."""

    def ask(self, method: str, path: str, body: bytes | str | None = None, **headers: str):
        self.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = self.getresponse()
        return response.status, response.read(), response.headers

    def command(self, *words, path: str = "/", **headers: str):
        status, body, _ = self.ask("POST", path, json.dumps(words), **headers)
        return status, json.loads(body)


@pytest.fixture
def weir(servers, tmp_path):
    quotas = tmp_path / "quotas.toml"
    quotas.write_text(QUOTAS)
    return started(servers, "--quotas", str(quotas))


def started(servers, *flags: str):
    port = free_port()
    weir = servers.weir(servers.redis(), servers.redis(), flags=["--shards", "2", "--http", f"127.0.0.1:{port}", *flags])
    weir.http_port = port
    return weir


@pytest.fixture
def client(weir):
    with_client = Client("127.0.0.1", weir.http_port, timeout=30)
    yield with_client
    with_client.close()


def post(words, **headers: str) -> bytes:
    """Returns the bytes of a request for one command."""
    body = json.dumps(words).encode()
    lines = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": str(len(body))}
    lines.update((name.replace("_", "-"), value) for name, value in headers.items())
    return b"POST / HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode() + b"\r\n" + body


def raw(weir, data: bytes, end: bool = True) -> bytes:
    """Returns all responses until the connection ends."""
    with socket.create_connection(("127.0.0.1", weir.http_port), timeout=30) as connection:
        connection.sendall(data)
        if end:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while piece := connection.recv(65536):
            received += piece
        return received


def statuses(received: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


def test_keys_are_written_read_and_deleted(client, weir):
    assert client.ask("GET", "/v1/keys/none")[0] == 404
    value = bytes(range(256)) * 300
    assert client.ask("PUT", "/v1/keys/a%2Fb%20%C3%A4", value)[0] == 204
    status, body, headers = client.ask("GET", "/v1/keys/a%2Fb%20%C3%A4")
    assert (status, body, headers["content-type"]) == (200, value, "application/octet-stream")
    status, body, headers = client.ask("HEAD", "/v1/keys/a%2Fb%20%C3%A4")
    assert (status, body, headers["content-length"]) == (200, b"", str(len(value)))
    with weir.connect() as resp:
        assert resp.ok("GET", "a/b ä") == value, "it is the same key as in RESP"
        assert client.ask("PUT", "/v1/keys/t?ttl=1500ms", "x")[0] == 204
        assert 0 < resp.ok("PTTL", "t") <= 1500
        resp.ok("RPUSH", "list", "x")
    assert client.ask("GET", "/v1/keys/list")[0] == 409
    assert [client.ask("DELETE", "/v1/keys/t")[0] for _ in range(2)] == [204, 404]
    chunks = iter([b"abc", b"d" * 100_000])
    client.request("PUT", "/v1/keys/chunks", chunks, encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
    assert client.getresponse().read() == b""
    assert client.ask("GET", "/v1/keys/chunks")[1] == b"abc" + b"d" * 100_000


def test_commands_pipelines_and_transactions(client):
    assert client.command("SET", "k", 1) == (200, {"result": "OK"})
    assert client.command(["INCR", "k"], ["NOPE"], ["LPUSH", "k", "x"], path="/pipeline")[1][0] == {"result": 2}
    outcomes = client.command(["GET", "k"], ["LPUSH", "k", "x"], path="/multi-exec")[1]
    assert outcomes[0] == {"result": "2"} and "WRONGTYPE" in outcomes[1]["error"]
    status, body = client.command(["INCR", "k"], ["NOPE"], path="/multi-exec")
    assert status == 400 and "NOPE" in body["error"]
    assert client.command("GET", "k") == (200, {"result": "2"}), "nothing of it was done"
    assert client.command("MGET", *[f"many:{number}" for number in range(100)])[1] == {"result": [None] * 100}
    assert client.command("GET", "k", Upstash_Encoding="base64")[1] == {"result": base64.b64encode(b"2").decode()}
    for words in (["MULTI"], ["AUTH", "x"], ["HELLO", 3], ["CLIENT", "REPLY", "OFF"], ["QOS", "SET", "TIER", "batch"]):
        status, body = client.command(*words)
        assert status == 400 and "connection" in body["error"], words


def test_tenants_are_known_by_their_tokens_one_request_at_a_time(client):
    bearer = {"Authorization": "Bearer acme:secret"}
    assert client.ask("PUT", "/v1/keys/acme:1", "x", **bearer)[0] == 204
    assert client.ask("GET", "/v1/keys/shop:1", **bearer)[0] == 403
    named = "Basic " + base64.b64encode(b"acme:acme:secret").decode()
    assert client.ask("GET", "/v1/keys/shop:1", Authorization=named)[0] == 403
    assert client.ask("GET", "/v1/keys/shop:1", Authorization="Bearer shop-token")[0] == 404
    status, body, headers = client.ask("GET", "/v1/keys/acme:1", Authorization="Bearer wrong")
    assert status == 401 and headers["www-authenticate"].startswith("Bearer") and b"WRONGPASS" in body
    # A request without credentials is a stranger's, whatever earlier requests on the connection said.
    assert client.ask("GET", "/v1/keys/shop:1")[0] == 404
    assert client.ask("GET", "/v1/keys/k", **bearer, X_Weir_User="ann", X_Weir_Tier="batch", X_Weir_Deadline_Ms="5000")[0] == 403
    status, body, _ = client.ask("GET", "/v1/keys/acme:1", **bearer, X_Weir_Tier="urgent")
    assert status == 400 and b"urgent" in body


def test_each_request_names_its_database(servers, tmp_path):
    quotas = tmp_path / "quotas.toml"
    quotas.write_text(QUOTAS + '[tenants.cache]\npassword = "cache-token"\nru_per_second = 1_000\ndatabases = [3]\n')
    weir = started(servers, "--quotas", str(quotas))
    first, third = {"X_Weir_Database": "0"}, {"X_Weir_Database": "3"}
    client = Client("127.0.0.1", weir.http_port, timeout=30)
    for number in range(20):
        assert client.ask("PUT", f"/v1/keys/key:{number}", "first")[0] == 204
        assert client.ask("PUT", f"/v1/keys/key:{number}", "third", **third)[0] == 204
    for number in range(20):
        assert client.ask("GET", f"/v1/keys/key:{number}", **third)[1] == b"third"
        assert client.ask("GET", f"/v1/keys/key:{number}")[1] == b"first", "without the header it is database 0"
        assert client.ask("GET", f"/v1/keys/key:{number}", **first)[1] == b"first"
    with weir.connect() as resp:
        assert resp.ok("SELECT", 3) == b"OK" and resp.ok("GET", "key:7") == b"third"
    words = [["SET", "{t}a", "1"], ["INCR", "{t}a"]]
    assert json.loads(client.ask("POST", "/multi-exec", json.dumps(words), **third)[1]) == [{"result": "OK"}, {"result": 2}]
    assert client.ask("POST", "/", json.dumps(["GET", "{t}a"]))[1] == b'{"result":null}'
    assert client.ask("POST", "/pipeline", json.dumps([["GET", "{t}a"], ["DBSIZE"]]), **third)[1] == b'[{"result":"2"},{"result":21}]'
    status, body, _ = client.ask("GET", "/v1/keys/key:1", X_Weir_Database="16")
    assert status == 400 and b"DB index is out of range" in body
    for wrong in ("x", "", "1.0", "99999999999999999999"):
        assert client.ask("GET", "/v1/keys/key:1", X_Weir_Database=wrong)[0] == 400
    cache = {"Authorization": "Bearer cache-token"}
    assert client.ask("GET", "/v1/keys/key:7", **cache, **third)[1] == b"third"
    assert client.ask("GET", "/v1/keys/key:7", **cache)[0] == 403
    assert client.ask("GET", "/v1/keys/key:7", **cache, X_Weir_Database="4")[0] == 403
    assert client.ask("GET", "/v1/keys/key:7")[1] == b"first", "what another asked for is forgotten"
    client.close()


def test_strangers_are_told_to_say_who_they_are(servers, tmp_path):
    quotas = tmp_path / "quotas.toml"
    quotas.write_text('[tenants.acme]\npassword = "x"\nru_per_second = 1000\n')
    weir = started(servers, "--quotas", str(quotas))
    client = Client("127.0.0.1", weir.http_port, timeout=30)
    assert client.ask("GET", "/v1/keys/k")[0] == 401
    assert client.ask("GET", "/v1/keys/k", Authorization="Bearer x")[0] == 404
    # weir does not receive the body of a request without credentials.
    assert statuses(raw(weir, b"PUT /v1/keys/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n", end=False)) == [401]


def test_a_quota_that_is_used_up_is_told_with_the_time_to_come_back(client):
    token = {"Authorization": "Bearer tiny-token"}

    def refused():
        answer = client.ask("GET", "/v1/keys/k", **token)
        return answer if answer[0] == 429 else None

    _, body, headers = until(refused, "the quota is used up")
    problem = json.loads(body)
    assert problem["type"].endswith("#quota-exceeded") and problem["violated-policies"] == ["tenant"]
    assert headers["content-type"] == "application/problem+json"
    assert headers["ratelimit-policy"].startswith('"tenant";q=10;w=1') and headers["ratelimit"].startswith('"tenant";r=0;t=')
    assert int(headers["retry-after"]) >= 1
    time.sleep(int(headers["retry-after"]))
    assert client.ask("GET", "/v1/keys/k", **token)[0] == 404, "it was true"


def test_all_quotas_are_told_where_one_refuses(servers, tmp_path):
    quotas = tmp_path / "quotas.toml"
    quotas.write_text('''
[global]
ru_per_second = 100000
[tenants.acme]
password = "x"
ru_per_second = 1000
user_ru_per_second = 5
''')
    weir = started(servers, "--quotas", str(quotas))
    client = Client("127.0.0.1", weir.http_port, timeout=30)
    asked = {"Authorization": "Bearer x", "X_Weir_User": "ann"}

    def refused():
        answer = client.ask("GET", "/v1/keys/k", **asked)
        # A shard that holds nothing of a quota at the moment cannot say what is left of it.
        return answer if answer[0] == 429 and answer[2]["ratelimit"].count(";r=") == 3 else None

    _, body, headers = until(refused, "the user's quota is used up")
    problem = json.loads(body)
    assert problem["violated-policies"] == ["user"] and "also" not in problem["detail"]
    policies, states = (headers[name].split(", ") for name in ("ratelimit-policy", "ratelimit"))
    named = [policy.split(";")[:2] for policy in policies]
    assert named[0] == ['"user"', "q=5"], "what refused comes first"
    assert sorted(named[1:]) == [['"global"', "q=100000"], ['"tenant"', "q=1000"]]
    assert [state.split(";")[0] for state in states] == [name for name, _ in named]
    assert states[0].startswith('"user";r=0;t=') and all(0 < int(state.split("r=")[1]) for state in states[1:])
    # A command among many gets its own error, without the parts that belong into headers.
    many = json.dumps([["GET", "k"]] * 50)
    status, body, _ = client.ask("POST", "/pipeline", many, **asked)
    errors = [outcome["error"] for outcome in json.loads(body) if "error" in outcome]
    assert status == 200 and errors and all(error.startswith("THROTTLED scope=user ") and " also" not in error for error in errors)


def test_a_store_that_is_away_and_a_deadline_that_is_over(servers):
    weir = started(servers)
    client = Client("127.0.0.1", weir.http_port, timeout=30)
    for backend in weir.backends:
        backend.kill()
    status, body, headers = until(
        lambda: next((answer for answer in [client.ask("GET", "/v1/keys/k")] if answer[0] == 503), None), "it is told"
    )
    assert int(headers["retry-after"]) >= 1 and json.loads(body)["type"].endswith("#temporary-reduced-capacity")
    for backend in weir.backends:
        backend.start()
    until(lambda: client.ask("GET", "/v1/keys/k")[0] == 404, "all is served again")
    with weir.backends[0].connect() as a, weir.backends[1].connect() as b:
        a.ok("CLIENT", "PAUSE", "3000")
        b.ok("CLIENT", "PAUSE", "3000")
        assert client.ask("GET", "/v1/keys/k", X_Weir_Deadline_Ms="20")[0] == 504


def test_a_value_that_cannot_be_had_is_an_error_in_its_place(servers):
    weir = started(servers)
    living, dead = weir.backends
    held = keys_by_backend(weir, "split")
    there, gone = held[living][0], held[dead][0]
    client = Client("127.0.0.1", weir.http_port, timeout=30)
    dead.kill()
    until(lambda: client.ask("GET", f"/v1/keys/{gone}")[0] == 503, "weir has noticed")
    for encoding, value in (("none", there), ("base64", base64.b64encode(there.encode()).decode())):
        status, told = client.command("MGET", there, gone, Upstash_Encoding=encoding)
        assert status == 200 and told["result"][0] == value, told
        (error,) = told["result"][1].items()
        assert error[0] == "error" and error[1].startswith("UNAVAILABLE backend="), told


def test_requests_in_one_piece_are_answered_in_their_order(weir):
    get = b"GET /v1/keys/%d HTTP/1.1\r\nHost: localhost\r\n\r\n"
    put = b"PUT /v1/keys/%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n%02d"
    received = raw(weir, b"".join(put % (number, number) + get % number for number in range(99)))
    assert statuses(received) == [204, 200] * 99
    assert [piece[:2] for piece in received.split(b"\r\n\r\n") if piece[:2].isdigit()] == [b"%02d" % n for n in range(99)]


@pytest.mark.parametrize(
    "request_, status",
    [
        (b"GET /v1/keys/k HTTP/1.1\r\n\r\n", 400),
        (b"GET /v1/keys/k HTTP/1.1\nHost: x\n\n", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n[]   ", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", 411),
        (b"PUT /v1/keys/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"GET /v1/keys/" + b"k" * 20_000 + b" HTTP/1.1\r\n", 414),
        (b"PUT /v1/keys/k HTTP/1.1\r\nHost: localhost\r\nExpect: more\r\nContent-Length: 1\r\n\r\n", 417),
        (b"GET /v1/keys/k HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 100 + b"\r\n", 431),
        (b"GET /v1/keys/k HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 40_000, 431),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"*1\r\n$4\r\nPING\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_is_refused_and_ends_the_connection(weir, request_, status):
    received = raw(weir, request_ + b"GET /v1/keys/smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n", end=False)
    assert statuses(received) == [status]
    assert b"connection: close" in received


ACME, SHOP = {"Authorization": "Bearer acme:secret"}, {"Authorization": "Bearer shop-token"}


@pytest.mark.parametrize(
    "inner", [["MULTI"], ["EXEC"], ["DISCARD"], ["WATCH", "acme:k"], ["AUTH", "shop", "shop-token"], ["hello", 3], ["Quit"], ["RESET"],
              ["CLIENT", "REPLY", "OFF"], ["CLIENT", "SETNAME", "a;tier=batch"], ["SELECT", 0], ["QOS", "SET", "USER", "u"], ["SUBSCRIBE", "a"]],
)  # fmt: skip
def test_tenants_that_share_a_connection_leave_each_other_nothing(client, weir, inner):
    assert client.ask("PUT", "/v1/keys/shop:k", "of the shop", **SHOP)[0] == 204
    carriers = [[], ["QOS", "CALL"], ["qos", "Call", "TIER", "batch"], ["QOS", "CALL", "USER", "u", "DEADLINE", "900", "QOS", "call", "INFLIGHT", "wait"]]
    for carrier in carriers:
        hostile = [*carrier, *inner]
        assert client.command(*hostile, **ACME)[0] == 400, hostile
        assert client.command(["SET", "acme:k", "x"], hostile, path="/pipeline", **ACME)[0] == 400, "the whole of it"
        assert client.command(["SET", "acme:k", "x"], hostile, path="/multi-exec", **ACME)[0] == 400, "the whole of it"
        assert client.ask("GET", "/v1/keys/shop:k", **SHOP)[:2] == (200, b"of the shop")
        assert client.command("GET", "acme:k", **ACME) == (200, {"result": None})
        assert client.command("ACL", "WHOAMI", **ACME) == (200, {"result": "acme"})
        assert client.command("ACL", "WHOAMI", X_Weir_User="ann") == (200, {"result": "default/ann"})
        assert client.command("ACL", "WHOAMI") == (200, {"result": "default"})
        assert client.ask("PUT", "/v1/keys/shop:k2", "2", **SHOP)[0] == 204
        assert client.ask("GET", "/v1/keys/shop:k2", **SHOP)[:2] == (200, b"2")
        assert client.ask("GET", "/v1/keys/shop:k", **ACME)[0] == 403
        received = raw(weir, post(["ECHO", "1"], **ACME) + post(hostile, **ACME) + post(["ECHO", "2"], **SHOP))
        assert statuses(received) == [200, 400, 200] and received.endswith(b'{"result":"2"}'), received


def test_words_of_other_protocols_end_no_connection(servers):
    weir = started(servers)
    for word in ("POST", "host:", "QUIT", "SHUTDOWN NOSAVE", "MONITOR", "PSYNC ? -1"):
        received = raw(weir, post(word.split()) + post(["ECHO", "after"]))
        assert len(statuses(received)) == 2 and received.endswith(b'{"result":"after"}'), (word, received)


def test_many_words_and_long_keys_are_answered_where_requests_are_small(servers):
    weir = started(servers, "--max-request-bytes", "16KiB")
    received = raw(weir, post(["DEL", *[1] * 5000]) + post(["ECHO", "after"]))
    assert statuses(received) == [200, 200]
    received = raw(weir, b"GET /v1/keys/" + b"k" * 15_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n" + post(["ECHO", "after"]))
    assert statuses(received) == [404, 200]


def test_a_password_that_was_changed_is_refused_on_connections_that_are_open(servers, tmp_path):
    quotas = tmp_path / "quotas.toml"
    quotas.write_text(QUOTAS)
    weir = started(servers, "--quotas", str(quotas))
    client = Client("127.0.0.1", weir.http_port, timeout=30)
    assert client.command("PING", **SHOP)[0] == 200
    quotas.write_text(QUOTAS.replace("shop-token", "new-token"))
    weir.signal(signal.SIGHUP)
    # The connection is the one on which the last request was accepted.
    until(lambda: client.ask("GET", "/v1/keys/k", **SHOP)[0] == 401, "the password is not the one in force")
    assert client.ask("GET", "/v1/keys/k", Authorization="Bearer new-token")[0] == 404
    assert client.command("ACL", "WHOAMI", **ACME) == (200, {"result": "acme"}), "others are left alone"


def test_wrong_tokens_cut_off_nobody_else(weir):
    def get(token: str) -> bytes:
        return f"GET /v1/keys/none HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()

    received = raw(weir, (get("wrong") * 9 + get("shop-token")) * 5)
    assert statuses(received) == ([401] * 9 + [404]) * 5 and b"connection: close" not in received
    received = raw(weir, get("wrong") * 10 + get("shop-token"), end=False)
    assert statuses(received) == [401] * 10
    last = received[received.rfind(b"HTTP/1.1 ") :]
    assert received.count(b"connection: close") == 1 and b"connection: close" in last, "who waits behind it is told to ask elsewhere"


FOREIGN = [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}]


@pytest.mark.parametrize("guarded", [False, True])
def test_pages_of_other_sites_do_nothing(servers, tmp_path, guarded):
    quotas = tmp_path / "quotas.toml"
    quotas.write_text(QUOTAS)
    weir = started(servers, *(["--quotas", str(quotas)] if guarded else []))

    def ask(method: str, path: str, body=None, **headers: str) -> int:
        return Client("127.0.0.1", weir.http_port, timeout=30).ask(method, path, body, **headers)[0]

    stolen = json.dumps(["SET", "stolen", "1"])
    for headers in FOREIGN:
        headers = {name.replace("-", "_"): value for name, value in headers.items()}
        for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
            assert ask("POST", "/", stolen, Content_Type=kind, **headers) == 403
        assert ask("PUT", "/v1/keys/stolen", "1", **headers) == 403
        assert ask("DELETE", "/v1/keys/kept", **headers) == 403
        assert ask("GET", "/v1/keys/kept", **headers) == 403
        assert ask("HEAD", "/v1/keys/kept", **headers) == 403
        assert ask("OPTIONS", "/", Access_Control_Request_Method="POST", **headers) == 403
        assert ask("POST", "/", stolen, Content_Type="application/json", Authorization="Bearer shop-token", **headers) == 403
    for kind in ("text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        for path, body in (("/", stolen), ("/pipeline", f"[{stolen}]"), ("/multi-exec", f"[{stolen}]")):
            assert ask("POST", path, body, Content_Type=kind) == 415, kind
    # DNS rebinding: a foreign name that leads here, which the browser sends as Host.
    for host in ("evil.example", f"evil.example:{weir.http_port}", "127.0.0.1.evil.example", "localhost.evil.example", "evil"):
        assert ask("POST", "/", stolen, Host=host, Content_Type="application/json") == 421, host
        assert ask("GET", "/v1/keys/kept", Host=host) == 421 and ask("PUT", "/v1/keys/stolen", "1", Host=host) == 421
        if guarded:
            assert ask("GET", "/v1/keys/none", Host=host, Authorization="Bearer shop-token") == 404, "a token of its own"
            assert ask("GET", "/v1/keys/none", Host=host, Authorization="Bearer wrong") == 401
        else:
            assert ask("GET", "/v1/keys/none", Host=host, Authorization="Bearer any") == 421, "nobody looks at the token"
    absolute = b"GET http://evil.example/v1/keys/kept HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert statuses(raw(weir, absolute)) == [421]
    assert ask("GET", "/v1/keys/stolen") == 404
    for host in ("127.0.0.1", "localhost", f"LOCALHOST:{weir.http_port}", "[::1]:80", "192.168.1.2"):
        assert ask("GET", "/v1/keys/none", Host=host) == 404, host


def test_pages_that_may_ask(servers):
    weir = started(servers, "--http-allow-origin", "https://App.example:443,http://localhost:3000", "--http-allow-host", "weir.internal")
    client = Client("127.0.0.1", weir.http_port, timeout=30)
    for origin in ("https://app.example", "http://localhost:3000"):
        asked = {"Origin": origin, "Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "authorization,content-type"}
        status, body, headers = client.ask("OPTIONS", "/v1/keys/k", **asked)
        assert (status, body, headers["access-control-allow-origin"], headers["vary"]) == (204, b"", origin, "origin")
        assert "PUT" in headers["access-control-allow-methods"] and "authorization" in headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in headers
        assert client.ask("OPTIONS", "/pipeline", **asked)[2]["access-control-allow-methods"] == "POST"
        foreign = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
        assert client.ask("PUT", "/v1/keys/k", "v", **foreign)[0] == 204
        status, body, headers = client.ask("GET", "/v1/keys/k", **foreign)
        assert (status, body, headers["access-control-allow-origin"]) == (200, b"v", origin)
        assert "retry-after" in headers["access-control-expose-headers"]
        status, body = client.command("NOPE", Content_Type="application/json", **foreign)
        assert status == 400 and "NOPE" in body["error"]
        assert client.ask("POST", "/", '["SET","k","x"]', Content_Type="text/plain", **foreign)[0] == 415
        client.close()
    for origin in ("https://evil.example", "http://app.example", "https://app.example.evil.example", "http://localhost:3001", "null"):
        status, _, headers = client.ask("OPTIONS", "/", Origin=origin, Access_Control_Request_Method="POST")
        assert status == 403 and "access-control-allow-origin" not in headers, origin
        client.close()
    assert client.ask("OPTIONS", "/")[0] == 405
    assert "access-control-allow-origin" not in Client("127.0.0.1", weir.http_port, timeout=30).ask("GET", "/v1/keys/k")[2]
    for host, status in (("weir.internal:80", 200), ("WEIR.internal.", 200), ("weir.internal.evil.example", 421)):
        assert Client("127.0.0.1", weir.http_port, timeout=30).ask("GET", "/v1/keys/k", Host=host)[0] == status


@pytest.mark.parametrize(
    "request_, status",
    [
        (b"HEAD /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"HEAD /v1/keys/k HTTP/1.1\r\n\r\n", 400),
        (b"HEAD /v1/keys/%4 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"\r\nHEAD /v1/keys/k HTTP/1.1\nHost: localhost\n\n", 400),
        (b"HEAD /v1/keys/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n", 400),
        (b"HEAD /v1/keys/" + b"k" * 20_000, 414),
        (b"HEAD /v1/keys/k HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 100 + b"\r\n", 431),
        (b"HEAD /v1/keys/k HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 40_000, 431),
        (b"HEAD /v1/keys/k HTTP/2.0\r\n\r\n", 505),
        (b"HEAD /v1/keys/k HTTP/1.1\r\nHost: localhost\r\nExpect: more\r\n\r\n", 417),
        (b"HEAD /v1/keys/k HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 421),
        (b"HEAD /v1/keys/k HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\nConnection: close\r\n\r\n", 403),
        (b"HEAD /v1/keys/k HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\nConnection: close\r\n\r\n", 401),
        (b"HEAD /v1/keys/k HTTP/1.1\r\nHost: localhost\r\nX-Weir-Tier: urgent\r\nConnection: close\r\n\r\n", 400),
    ],
)
def test_a_request_for_a_head_is_never_answered_with_a_body(weir, request_, status):
    received = raw(weir, request_, end=False)
    assert statuses(received) == [status] and received.endswith(b"\r\n\r\n") and received.count(b"\r\n\r\n") == 1, received


def test_words_of_scripts_shape_no_headers(servers):
    weir = started(servers)
    client = Client("127.0.0.1", weir.http_port, timeout=30)
    for error in (
        'THROTTLED scope=a";evil=1 limit=1 remaining=0 retry_after_ms=99999999999999999',
        "THROTTLED scope=tenant name=x limit=5 remaining=0 retry_after_ms=5 also=tenant:1:1",
        "OVERLOADED reason=x retry_after_ms=18446744073709551615",
        "UNAVAILABLE reason=x retry_after_ms=5",
        "(THROTTLED scope=tenant limit=1 remaining=0 retry_after_ms=5",
        "NOAUTH x",
    ):
        script = f"return redis.error_reply('{error}')"
        status, body, headers = client.ask("POST", "/", json.dumps(["EVAL", script, 0]))
        assert status >= 400 and error.split()[0] in json.loads(body)["error"], body
        for name in ("ratelimit", "ratelimit-policy", "retry-after", "www-authenticate"):
            assert name not in headers, (error, name)


def test_a_body_is_asked_for_once_it_is_known_who_sends_it(weir):
    with socket.create_connection(("127.0.0.1", weir.http_port), timeout=30) as connection:
        head = b"PUT /v1/keys/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
        connection.sendall(head)
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"hello")
        assert statuses(connection.recv(1000)) == [204]


def test_a_client_that_does_not_read_grows_nothing(servers):
    weir = started(servers, "--output-limit", "2MiB", "--max-reply-bytes", "2MiB")
    client = Client("127.0.0.1", weir.http_port, timeout=30)
    assert client.ask("PUT", "/v1/keys/large", b"x" * 1_000_000)[0] == 204
    before = weir.resident_bytes()
    get = b"GET /v1/keys/large HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", weir.http_port), timeout=30) as careless:
        careless.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        careless.sendall(get * 200)
        until(lambda: client.ask("GET", "/v1/keys/none")[0] == 404, "others are served")
        for _ in range(50):
            client.ask("GET", "/v1/keys/large")
        assert weir.resident_bytes() - before < 100_000_000


def test_clients_beyond_the_limit_are_told_in_http(servers):
    weir = started(servers, "--max-clients", "3")
    clients = [Client("127.0.0.1", weir.http_port, timeout=30) for _ in range(3)]
    assert [client.ask("GET", "/v1/keys/k")[0] for client in clients] == [404] * 3
    answer = Client("127.0.0.1", weir.http_port, timeout=30).ask("GET", "/v1/keys/k")
    assert answer[0] == 503 and b"reason=clients" in answer[1]


def test_the_counters_know_such_requests_like_any_other(client, weir):
    def counted() -> float:
        return metrics.total(weir, "weir_requests_total")

    before = counted()
    for number in range(10):
        client.command("GET", f"k{number}")
    assert counted() - before == 10


def test_upstash_redis(servers, tmp_path):
    assert (MODULES / "node_modules" / "@upstash").is_dir(), f"tests/run installs the Node clients under {MODULES}"
    quotas = tmp_path / "quotas.toml"
    quotas.write_text('[tenants.acme]\npassword = "token"\nru_per_second = 1_000_000\n')
    weir = started(servers, "--quotas", str(quotas))
    script = Path(__file__).parent / "node" / "upstash.mjs"
    run = subprocess.run(
        [os.environ.get("NODE", "node"), script, f"http://127.0.0.1:{weir.http_port}", "token", MODULES],
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert run.returncode == 0 and "all passed" in run.stdout, run.stdout + run.stderr


def test_ports_that_clash_are_refused_with_the_flag(servers):
    from harness.processes import binary

    run = subprocess.run([str(binary("weir")), "--http", "127.0.0.1:7379", "--check"], capture_output=True, text=True, timeout=60)
    assert run.returncode != 0 and "--http and --listen are both 127.0.0.1:7379" in run.stderr + run.stdout
