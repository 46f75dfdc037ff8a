"""Tests of MONITOR: weir shows requests as redis-server does, shows each client only what it may see, and limits its memory."""

from __future__ import annotations

import re
import time

import pytest
import redis

from harness import metrics
from harness.processes import Server, Weir
from harness.resp import Closed, Connection, encode
from harness.waiting import until

pytestmark = pytest.mark.weir_only

FLAGS = ["--shards", "2"]
LINE = re.compile(rb"\+(\d+)\.(\d{6}) \[(\d+) (127\.0\.0\.1:\d+|weir:0)\] (.*)\r\n")
LEFT_OUT = re.compile(rb'"\.\.\. (\d+) lines left out"')
SECRET = "open-sesame"

QUOTAS = f"""
[tenants.acme]
password = "{SECRET}-acme"
keys = ["acme:"]

[tenants.shop]
password = "{SECRET}-shop"
keys = ["shop:"]

[tenants.operator]
password = "{SECRET}-operator"
admin = true
"""

REQUESTS: list[tuple] = [
    ("SET", "k", bytes(range(256))),
    ("get", "k"),
    ("GET",),
    ("MGET", "k", "other", ""),
    ("DEL", "a", "b", "c"),
    ("EXISTS", *[f"k{number}" for number in range(100)]),
    ("SET", "k", "x" * 1024),
    ("SELECT", "3"),
    ("SELECT", "99"),
    ("SELECT", "x"),
    ("GET", "k"),
    ("SELECT", "0"),
    ("DBSIZE",),
    ("SCAN", "0", "COUNT", "10"),
    ("CONFIG", "GET", "save"),
    ("CLIENT", "LIST"),
    ("CLIENT", "ID"),
    ("CLIENT", "SETNAME", "me"),
    ("AUTH", SECRET),
    ("AUTH", "default", SECRET),
    ("HELLO", "3", "AUTH", "default", SECRET),
    ("HELLO", "3", "AUTH", "default", SECRET, "SETNAME", "me"),
    ("HELLO", "9"),
    ("HELLO", "2"),
    ("INFO", "server"),
    ("COMMAND", "COUNT"),
    ("PING",),
    ("PING", "quite \"quoted\" \\ \t\a"),
    ("ECHO", "x"),
    ("TIME",),
    ("OBJECT", "ENCODING", "k"),
    ("OBJECT", "HELP"),
    ("SLOWLOG", "LEN"),
    ("ROLE",),
    ("EVAL", "return 1", "0"),
    ("WAIT", "0", "1"),
    ("BLPOP", "list", "0.01"),
    ("SUBSCRIBE", "channel"),
    ("PING",),
    ("GET", "k"),
    ("UNSUBSCRIBE", "channel"),
    ("PUBLISH", "channel", "text"),
    ("MULTI",),
    ("SET", "k", "1"),
    ("CLIENT", "ID"),
    ("PING",),
    ("GET", "k"),
    ("EXEC",),
    ("EXEC",),
    ("MULTI",),
    ("GET", "k"),
    ("DISCARD",),
    ("MULTI",),
    ("GET",),
    ("GET", "k"),
    ("EXEC",),
    ("MULTI",),
    ("MONITOR",),
    ("PING",),
    ("EXEC",),
    ("MULTI",),
    ("SET", "k", "1"),
    ("SELECT", "2"),
    ("GET", "k"),
    ("EXEC",),
    ("SELECT", "0"),
    ("WATCH", "k"),
    ("MULTI",),
    ("INCR", "k"),
    ("EXEC",),
    ("UNWATCH",),
    ("FLUSHALL",),
    ("RESET",),
    ("QUIT",),
]


@pytest.fixture(scope="module")
def weir(module_servers) -> Weir:
    return module_servers.weir(module_servers.redis(), flags=FLAGS)


@pytest.fixture(scope="module")
def tenants(module_servers, tmp_path_factory) -> Weir:
    file = tmp_path_factory.mktemp("monitor") / "quotas.toml"
    file.write_text(QUOTAS)
    return module_servers.weir(module_servers.redis(), flags=[*FLAGS, "--quotas", str(file)])


def watching(server: Server, *login: str, protocol: int = 2, **options) -> Connection:
    connection = server.connect(**options)
    if protocol == 3:
        connection.ok("HELLO", "3")
    if login:
        connection.ok("AUTH", *login)
    assert connection.call("MONITOR").raw == b"+OK\r\n"
    return connection


def line_of(raw: bytes) -> tuple[int, bytes]:
    """Returns the database and the words of a line."""
    found = LINE.fullmatch(raw)
    assert found, raw
    assert abs(time.time() - float(found[1]) - float(found[2]) / 1e6) < 60
    return int(found[3]), found[5]


def lines_until(connection: Connection, mark: bytes) -> list[tuple[int, bytes]]:
    """Returns the lines that come before the line of the request with `mark`."""
    lines = []
    while (line := line_of(connection.read().raw))[1] != mark:
        lines.append(line)
    return lines


def shown(server: Server, requests: list[tuple], protocol: int) -> list[tuple[int, bytes]]:
    with watching(server, protocol=protocol) as monitor, server.connect() as client, server.connect() as last:
        for request in requests:
            client.call(*request)
        last.ok("ECHO", "the end")
        lines = lines_until(monitor, b'"ECHO" "the end"')
        # Lines of two connections may come from two cores, the earlier one later.
        if requests[-1] == ("QUIT",) and lines[-1] != (0, b'"QUIT"'):
            lines.append(line_of(monitor.read().raw))
        return lines


@pytest.mark.parametrize("protocol", [2, 3])
def test_lines_are_those_of_a_server(weir: Weir, module_servers, protocol: int):
    single = module_servers.redis()
    expected, found = (shown(server, REQUESTS, protocol) for server in (single, weir))
    assert found == expected
    assert not any(SECRET.encode() in words for _, words in found)


def test_a_client_library_takes_the_lines_apart(weir: Weir, module_servers):
    def commands(server: Server) -> list[tuple]:
        with redis.Redis(port=server.port) as client, client.monitor() as monitor:
            client.set("k", "v w")
            client.pipeline(transaction=True).get("k").get("k").execute()
            heard = []
            while not heard or heard[-1]["command"] != "EXEC":
                heard.append(monitor.next_command())
            return [(one["db"], one["client_type"], one["command"]) for one in heard if "CLIENT" not in one["command"]]

    assert commands(weir) == commands(module_servers.redis())


def test_a_client_of_the_unix_socket_is_shown_by_its_path(servers, tmp_path):
    paths = [tmp_path / name for name in ("redis.sock", "weir.sock")]
    single = servers.redis("--unixsocket", str(paths[0]))
    weir = servers.weir(servers.redis(), flags=[*FLAGS, "--unix", str(paths[1])])
    for server, path in zip((single, weir), paths):
        with watching(server) as monitor, redis.Redis(unix_socket_path=str(path)) as client:
            assert client.echo("here") == b"here"
            while not (raw := monitor.read().raw).endswith(b'"ECHO" "here"\r\n'):
                pass
            assert raw.split(b" ", 1)[1] == f'[0 unix:{path}] "ECHO" "here"\r\n'.encode()


def test_a_monitor_ends_with_reset_and_quit(weir: Weir):
    with watching(weir) as monitor, weir.connect() as client:
        assert b" flags=O " in client.ok("CLIENT", "LIST")
        assert monitor.call("RESET").raw == b"+RESET\r\n", "a monitor does not see its own end"
        until(lambda: gauge(weir, "weir_monitors") == 0, "the place is given back")
        client.ok("ECHO", "unseen")
        assert monitor.ok("PING") == b"PONG"
        assert monitor.call("MONITOR").raw == b"+OK\r\n"
        client.ok("ECHO", "seen")
        assert line_of(monitor.read().raw)[1] == b'"ECHO" "seen"'
        monitor.send("QUIT")
        assert monitor.read_to_end()[-1].raw == b"+OK\r\n"
    until(lambda: gauge(weir, "weir_monitors") == 0, "the place is given back")


def test_a_tenant_sees_its_own_requests_and_never_those_of_others(tenants: Weir):
    def login(name: str) -> tuple[str, str]:
        return name, f"{SECRET}-{name}"

    with watching(tenants, *login("acme")) as own, watching(tenants, *login("operator")) as all_:
        for number in range(50):
            for name in ("acme", "shop"):
                with tenants.connect() as client:
                    client.call("AUTH", name, f"{SECRET}-wrong")
                    client.call("QOS", "CALL", "AUTH", *login(name))
                    client.call("HELLO", "3", "AUTH", *login(name))
                    client.ok("SET", f"{name}:{number}", number)
                    client.call("GET", "acme:" if name == "shop" else "shop:")
        with tenants.connect() as last:
            last.ok("AUTH", *login("acme"))
            last.ok("ECHO", "the end")
        own_lines, all_lines = (lines_until(monitor, b'"ECHO" "the end"') for monitor in (own, all_))
    own_words, all_words = ([words for _, words in lines] for lines in (own_lines, all_lines))
    sets = [f'"SET" "acme:{number}" "{number}"'.encode() for number in range(50)]
    assert [words for words in own_words if words.startswith(b'"SET"')] == sets
    assert not any(b"shop" in words for words in own_words), own_words
    assert b'"SET" "shop:7" "7"' in all_words and b'"SET" "acme:7" "7"' in all_words
    assert b'"AUTH" "(redacted)" "(redacted)"' in all_words
    assert not any(SECRET.encode() in words for words in own_words + all_words)
    # A refused request was not carried out, so it is not shown.
    assert not any(b'"GET" "shop:"' in words for words in own_words + all_words)


def gauge(weir: Weir, name: str) -> float:
    return sum(metrics.parse(weir.admin("/metrics")[1])[name].values())


def test_monitors_have_a_number(servers):
    weir = servers.weir(servers.redis(), flags=[*FLAGS, "--monitors", "3"])
    monitors = [watching(weir) for _ in range(3)]
    with weir.connect() as client:
        refused = b"-OVERLOADED reason=monitors limit=3 (--monitors) retry_after_ms=1000\r\n"
        assert client.call("MONITOR").raw == refused
        assert gauge(weir, "weir_monitors") == 3
        monitors.pop().close()
        until(lambda: gauge(weir, "weir_monitors") == 2, "the place is given back")
        assert client.call("MONITOR").raw == b"+OK\r\n"
    none = servers.weir(servers.redis(), flags=["--monitors", "0"])
    with none.connect() as client:
        assert client.call("MONITOR").text.startswith("ERR MONITOR is not supported by weir: it ")
        assert client.ok("PING") == b"PONG"


def test_no_login_takes_a_tenant_beyond_its_part_of_the_monitors(servers, tmp_path):
    file = tmp_path / "quotas.toml"
    file.write_text(f"[default]\n{QUOTAS}")
    weir = servers.weir(servers.redis(), flags=[*FLAGS, "--quotas", str(file), "--monitors", "16"])
    refused = b"-OVERLOADED reason=monitors limit=16 (--monitors) retry_after_ms=1000\r\n"
    acme = ("acme", f"{SECRET}-acme")

    def reply(monitor: Connection, *request: str) -> bytes:
        monitor.send(*request)
        while LINE.fullmatch(raw := monitor.read().raw):
            pass
        return raw

    monitors = [watching(weir) for _ in range(4)]
    assert [reply(monitor, "AUTH", *acme) for monitor in monitors] == [b"+OK\r\n"] * 4
    late = watching(weir)
    for login in (("AUTH", *acme), ("HELLO", "2", "AUTH", *acme)):
        assert reply(late, *login) == refused
    late.send("ECHO", "still a stranger")
    assert line_of(late.read().raw)[1] == b'"ECHO" "still a stranger"'
    with watching(weir, "operator", f"{SECRET}-operator"):
        assert gauge(weir, "weir_monitors") == 6, "places are left for others"


def test_a_monitor_that_does_not_read_holds_little_and_is_told_what_it_missed(servers):
    weir = servers.weir(servers.redis(), flags=FLAGS)
    requests = 200_000
    with watching(weir, receive_buffer=4096) as slow, weir.connect() as client, weir.connect() as other:
        payload = encode("SET", "k", "x" * 200)
        for _ in range(requests // 500):
            client.send_raw(payload * 500)
            assert all(reply.raw == b"+OK\r\n" for reply in client.read_many(500))
        listed = other.ok("CLIENT", "LIST").decode()
        [held] = re.findall(r" flags=O .* omem=(\d+) ", listed)
        assert int(held) < 600_000, listed
        until(lambda: gauge(weir, "weir_monitor_lines_left_out_total") > 0, "lines are left out")
        other.ok("ECHO", "nearly the end")
        lines = left_out = 0
        # The line of the mark may be left out itself, so the mark is sent until it appears.
        while True:
            other.ok("ECHO", "the end")
            words = line_of(slow.read().raw)[1]
            if told := LEFT_OUT.fullmatch(words):
                left_out += int(told[1])
            elif words == b'"ECHO" "the end"':
                break
            lines += words.startswith(b'"SET"')
        assert left_out > 0 and lines < requests
        # Marks that were left out count too.
        assert lines + left_out >= requests, (lines, left_out)
        assert other.ok("PING") == b"PONG"


def test_a_slow_monitor_is_closed_like_any_client_that_does_not_read(servers):
    weir = servers.weir(servers.redis(), flags=[*FLAGS, "--send-timeout", "1s"])
    with watching(weir, receive_buffer=4096) as slow, weir.connect() as client:
        payload = encode("SET", "k", "x" * 900) * 500

        def is_closed() -> bool:
            client.send_raw(payload)
            client.read_many(500)
            return gauge(weir, "weir_monitors") == 0

        until(is_closed, "the monitor is closed")
        with pytest.raises(Closed):
            while True:
                slow.read()
