"""Tests of long-running scripts in the embedded store: other clients get -BUSY, and may end the script."""

from __future__ import annotations

import contextlib
import time

import pytest

from harness.processes import Storage, Weir
from harness.resp import Connection

pytestmark = pytest.mark.weir_only

ENDLESS = "while true do end"
WRITES = "redis.call('set', KEYS[1], 'v') while true do end"


@pytest.fixture(scope="module", params=["store", "weir"])
def server(request):
    server = Storage("--scriptable=false").start() if request.param == "store" else Weir().start()
    with server.connect() as connection:
        connection.ok("CONFIG", "SET", "busy-reply-threshold", "10")
    yield server
    server.discard()


def until_busy(connection: Connection) -> None:
    """Sends requests until the store replies -BUSY. The script's effort would end it after about half a second."""
    deadline = time.monotonic() + 20
    while not (reply := connection.call("PING")).text.startswith("BUSY"):
        assert time.monotonic() < deadline, reply
    assert connection.call("GET", "x").text.startswith("BUSY")


def until_free(connection: Connection) -> None:
    """Sends requests until the store answers again; weir itself learns of that with its next request."""
    deadline = time.monotonic() + 20
    while (reply := connection.call("PING")).text != "PONG":
        assert time.monotonic() < deadline, reply


@contextlib.contextmanager
def running(server, *words: str):
    """Yields a connection whose script runs, and another one, once the store replies -BUSY."""
    with server.connect() as runner, server.connect() as other:
        for _ in range(5):
            runner.send(*words)
            with contextlib.suppress(AssertionError):
                until_busy(other)
                break
            runner.read()
        yield runner, other


def test_a_script_is_ended(server):
    with running(server, "EVAL", ENDLESS, "0") as (runner, other):
        assert other.call("FUNCTION", "KILL").text.startswith("BUSY")
        assert other.call("SCRIPT", "KILL").text == "OK"
        assert "Script killed by user" in runner.read().text
        until_free(other)
        assert runner.call("EVAL", "return 1", "0").raw == b":1\r\n"
        assert other.call("SCRIPT", "KILL").text.startswith("NOTBUSY")


def test_a_function_is_ended(server):
    with server.connect() as connection:
        connection.ok("FUNCTION", "LOAD", "REPLACE", f"#!lua name=l\nredis.register_function('f', function() {ENDLESS} end)")
    with running(server, "FCALL", "f", "0") as (runner, other):
        assert other.call("SCRIPT", "KILL").text.startswith("BUSY")
        assert b"running_script" in other.call("FUNCTION", "STATS").raw
        assert other.call("FUNCTION", "KILL").text == "OK"
        assert "Script killed by user" in runner.read().text


def test_a_script_that_has_written_runs_to_its_own_end(server):
    with running(server, "EVAL", WRITES, "1", "k") as (runner, other):
        assert other.call("SCRIPT", "KILL").text.startswith("UNKILLABLE")
        assert runner.read().is_error
        until_free(other)
        assert other.call("GET", "k").value == b"v"


def test_a_script_below_the_threshold_keeps_nobody_from_anything(server):
    with server.connect() as runner, server.connect() as other:
        runner.ok("CONFIG", "SET", "busy-reply-threshold", "5000")
        runner.send("EVAL", "for i = 1, 20000000 do end return 1", "0")
        assert other.call("GET", "nothing").raw == b"$-1\r\n"
        assert runner.read().raw == b":1\r\n"
        runner.ok("CONFIG", "SET", "busy-reply-threshold", "10")
