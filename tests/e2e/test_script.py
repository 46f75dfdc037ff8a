"""Tests of weir-storage's scripts: known capacity, stalls, errors, outages, and its reports about requests.

Times are only bounded from below, because these tests are not about the speed of the machine.
"""

from __future__ import annotations

import subprocess
import time

import pytest

from harness.processes import Storage, binary
from harness.resp import Closed, Connection, encode
from harness.waiting import until

pytestmark = pytest.mark.weir_only


@pytest.fixture
def storage(servers):
    return lambda *options: servers.keep(Storage(*options)).start()


def figures(connection: Connection) -> dict[str, int]:
    flat = connection.ok("STORAGE", "STATS")
    return {name.decode(): count for name, count in zip(flat[::2], flat[1::2])}


def test_capacity_bounds_what_is_served(storage):
    server = storage("--servers", "2", "--service-time", "point=2ms", "--seed", "7")
    connections = [server.connect() for _ in range(4)]
    started = time.monotonic()
    for connection in connections:
        connection.send_raw(encode("GET", "k") * 50)
    for connection in connections:
        assert all(reply.is_null for reply in connection.read_many(50))
    assert time.monotonic() - started >= 200 / 2 * 0.002
    seen = figures(connections[0])
    assert (seen["requests"], seen["replies"], seen["concurrency_max"]) == (200, 200, 2)
    assert (seen["concurrency"], seen["queue"]) == (0, 0)
    assert 0 < seen["queue_max"] < 200


def test_names_of_figures(storage):
    with storage().connect(protocol=3) as connection:
        assert {name.decode() for name in connection.ok("STORAGE", "STATS")} == {
            "concurrency", "concurrency_max", "queue", "queue_max", "requests", "replies", "errors_injected",
            "requests_refused", "cluster_refusals", "requests_lost", "connections_refused", "reads_untracked",
        }


def test_a_stall_holds_replies_back(storage):
    server = storage()
    with server.connect() as connection, server.connect() as operator:
        started = time.monotonic()
        assert operator.ok("STORAGE", "STALL", "300ms") == b"OK"
        connection.send_raw(encode("SET", "k", "v") + encode("INCR", "n") + encode("GET", "k"))
        until(lambda: figures(operator)["queue"] == 3, "all three wait")
        replies = [reply.plain() for reply in connection.read_many(3)]
        assert time.monotonic() - started >= 0.3
        assert replies == [b"OK", 1, b"v"]


def test_a_share_of_errors(storage):
    server = storage("--seed", "11")
    with server.connect() as connection:
        assert connection.ok("STORAGE", "SET", "ERRORS", "LOADING", "0.3") == b"OK"
        replies = connection.pipeline([("GET", "k")] * 2000)
        errors = [reply.text for reply in replies if reply.is_error]
        assert 500 <= len(errors) <= 700
        assert set(errors) == {"LOADING Redis is loading the dataset in memory"}
        assert figures(connection)["errors_injected"] == len(errors)
        assert connection.ok("STORAGE", "READS", "k") == 2000 - len(errors)
        assert connection.ok("PING") == b"PONG"
        assert connection.ok("STORAGE", "RESET") == b"OK"
        assert not any(reply.is_error for reply in connection.pipeline([("GET", "k")] * 100))


def test_an_outage_closes_everything_and_is_over(storage):
    server = storage()
    with server.connect() as connection, server.connect() as operator:
        connection.ok("SET", "k", "v")
        started = time.monotonic()
        assert operator.ok("STORAGE", "OUTAGE", "500ms") == b"OK"
        for closed in (connection, operator):
            assert closed.read_to_end() == []
    refused = 0
    while True:
        try:
            with server.connect() as connection:
                assert connection.ok("GET", "k") == b"v"
                assert time.monotonic() - started >= 0.5
                assert refused > 0
                assert figures(connection)["connections_refused"] == refused
                return
        except (OSError, Closed):
            refused += 1


def test_counts_of_reads_are_exact(storage):
    with storage("--service-time", "all=10us").connect() as connection:
        connection.pipeline([("GET", f"k{i % 7}") for i in range(700)] + [("MGET", "k0", "k1", "other"), ("SET", "k0", "v"), ("PTTL", "k0")])
        assert [connection.ok("STORAGE", "READS", f"k{i}") for i in range(8)] == [101, 101, 100, 100, 100, 100, 100, 0]
        assert connection.ok("STORAGE", "TOP", 3) == [[b"k0", 101], [b"k1", 101], [b"k2", 100]]
        assert connection.ok("STORAGE", "COMMANDS") == [b"get", 700, b"mget", 1, b"pttl", 1, b"set", 1]
        assert connection.ok("STORAGE", "READS-RESET") == b"OK"
        assert connection.ok("STORAGE", "READS", "k0") == 0


def test_reads_in_flight_of_a_key_are_told(storage):
    """A test of hot keys can ask how many reads of a key were at the store at the same time."""
    server = storage("--servers", "4", "--service-time", "point=20ms")
    readers = [server.connect() for _ in range(6)]
    with server.connect(protocol=3) as operator:
        key = lambda name: {field.decode(): count for field, count in operator.ok("STORAGE", "KEY", name).items()}  # noqa: E731
        operator.ok("STORAGE", "STALL", "200ms")
        for reader in readers:
            reader.send("GET", "viral")
        readers[0].send("GET", "other")
        until(lambda: key("viral")["in_flight"] == 6, "all have arrived")
        assert key("viral")["reads"] == 0, "none has been carried out yet"
        assert all(reader.read().is_null for reader in readers)
        until(lambda: key("viral")["in_flight"] == 0, "all are answered")
        assert key("viral") == {"reads": 6, "in_flight": 0, "in_flight_max": 6, "per_second_max": key("viral")["per_second_max"]}
        assert 3 <= key("viral")["per_second_max"] <= 6, "in one second, or on both sides of a second's end"
        assert operator.ok("STORAGE", "TOP", 1, "IN-FLIGHT") == [[b"viral", 6]]
        readers[0].read()
        times = {name.decode(): value for name, value in operator.ok("STORAGE", "SERVICE-TIMES").items()}
        assert times["count"] == 7 and times["p50_ns"] == pytest.approx(20e6, rel=0.002) == times["max_ns"]


def test_slow_and_refused_connections(storage):
    server = storage()
    with server.connect() as operator:
        operator.ok("STORAGE", "SLOW-ACCEPT", "200ms")
        started = time.monotonic()
        with server.connect() as late:
            assert late.ok("PING") == b"PONG"
            assert time.monotonic() - started >= 0.2
        operator.ok("STORAGE", "SET", "REFUSE", "ON")
        with server.connect() as refused, pytest.raises(Closed):
            refused.call("PING")
        operator.ok("STORAGE", "RESET")
        with server.connect() as connection:
            assert connection.ok("PING") == b"PONG"


def test_a_script_file(storage, tmp_path):
    script = tmp_path / "script.toml"
    script.write_text(
        '[[phases]]\nat = "0"\nerrors = { kind = "BUSY", share = 1.0 }\nduration = "300ms"\n'
        '[[phases]]\nat = "300ms"\nservice_time = "point=50ms"\n'
    )
    with storage("--script", str(script)).connect() as connection:
        until(lambda: not connection.call("GET", "k").is_error, "the first phase is over")
        started = time.monotonic()
        connection.ok("GET", "k")
        assert time.monotonic() - started >= 0.05


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ('[[phases]]\nat = "5"\nstall = "1s"\n', "line 2"),
        ('[[phases]]\nat = "5s"\n', "line 1: it changes nothing"),
        ("", "no [[phases]]"),
    ],
)
def test_a_bad_script_file_is_refused(tmp_path, script: str, complaint: str):
    path = tmp_path / "script.toml"
    path.write_text(script)
    run = subprocess.run([binary("weir-storage"), "--script", path], capture_output=True, text=True, timeout=60)
    assert run.returncode != 0
    assert complaint in run.stderr and str(path) in run.stderr, run.stderr


def test_not_scriptable(storage, servers):
    for connection in (
        storage("--scriptable=false").connect(),
        storage("--scriptable=false", "--servers", "2").connect(),
        servers.weir(flags=["--shards", "1"]).connect(),
    ):
        with connection:
            reply = connection.call("STORAGE", "STALL", "1s")
            assert reply.is_error and "STORAGE is refused" in reply.text and "--scriptable" in reply.text, reply


def test_behind_weir(storage, servers):
    """The storage has seen all that weir sends, and weir survives an outage of it."""
    server = storage("--servers", "8", "--service-time", "all=1ms")
    weir = servers.weir(server, flags=["--shards", "2"])
    with weir.connect() as client, server.connect() as operator:
        client.pipeline([("GET", "k")] * 100)
        assert operator.ok("STORAGE", "READS", "k") == 100
        assert client.ok("STORAGE", "READS", "k") == 100
        operator.ok("STORAGE", "OUTAGE", "200ms")
        until(lambda: not client.call("GET", "k").is_error, "weir is connected again")
