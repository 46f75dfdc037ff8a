"""Tests of CLIENT PAUSE: which requests wait, compared with a plain redis-server."""

from __future__ import annotations

import contextlib

import pytest

from harness.processes import Server
from harness.resp import Connection
from harness.waiting import until

pytestmark = pytest.mark.weir_only

READS = "#!lua flags=no-writes\nreturn 'it reads'"


@pytest.fixture(scope="module", params=["redis-server", "one store", "three stores"])
def server(request, module_servers) -> Server:
    """A plain redis-server; and weir, which must behave in the same way."""
    if request.param == "redis-server":
        return module_servers.redis()
    stores = {"one store": 1, "three stores": 3}[request.param]
    return module_servers.weir(*[module_servers.redis() for _ in range(stores)], flags=["--shards", "2"])


@pytest.fixture
def operator(server: Server):
    with server.connect() as connection:
        yield connection
        connection.ok("CLIENT", "UNPAUSE")


def blocked(operator: Connection) -> int:
    lines = operator.ok("INFO", "clients").decode().split("\r\n")
    return int(next(line for line in lines if line.startswith("blocked_clients:")).split(":")[1])


def test_a_pause_may_stand_in_a_transaction(server: Server, operator: Connection):
    replies = operator.pipeline(
        [
            ("MULTI",),
            ("SET", "{p}a", 1),
            ("CLIENT", "PAUSE", 600_000, "WRITE"),
            ("CLIENT", "PAUSE", "x"),
            ("SET", "{p}b", 2),
            ("EXEC",),
        ]
    )
    assert [reply.text for reply in replies[:-1]] == ["OK"] + ["QUEUED"] * 4
    told = [child.text for child in replies[-1].children]
    assert told == ["OK", "OK", "ERR timeout is not an integer or out of range", "OK"]
    with server.connect() as writer:
        assert [writer.ok("GET", "{p}a"), writer.ok("GET", "{p}b")] == [b"1", b"2"]
        writer.send("SET", "{p}c", 3)
        until(lambda: blocked(operator) == 1, "it waits")
        assert operator.ok("GET", "{p}c") is None
        # weir ends the pause while it carries out the transaction, whose other requests may see writes that waited.
        replies = operator.pipeline([("MULTI",), ("GET", "{p}a"), ("CLIENT", "UNPAUSE"), ("EXEC",)])
        assert replies[-1].plain() == [b"1", b"OK"]
        assert writer.read().plain() == b"OK"
        assert writer.ok("GET", "{p}c") == b"3"
        writer.ok("DEL", "{p}a", "{p}b", "{p}c")


def test_a_transaction_that_is_refused_pauses_nobody(server: Server, operator: Connection):
    replies = operator.pipeline([("MULTI",), ("CLIENT", "PAUSE", 600_000), ("SET", "k"), ("EXEC",)])
    assert replies[-1].text == "EXECABORT Transaction discarded because of previous errors."
    with server.connect() as writer:
        assert writer.ok("SET", "k", "v") == b"OK"


def test_scripts_that_declare_that_they_write_nothing_do_not_wait(server: Server, operator: Connection):
    digest = operator.ok("SCRIPT", "LOAD", READS + " -- by its digest").decode()
    operator.ok("CLIENT", "PAUSE", 600_000, "WRITE")
    with server.connect() as reader:
        for words in [("EVAL", READS, 0), ("EVAL_RO", "return 'it reads'", 0), ("EVALSHA", digest, 0), ("EVALSHA_RO", digest, 0)]:
            assert reader.ok(*words) == b"it reads", words
        replies = reader.pipeline([("MULTI",), ("EVAL", READS, 0), ("EVALSHA", digest.upper(), 0), ("EXEC",)])
        assert replies[-1].plain() == [b"it reads"] * 2
        assert blocked(operator) == 0


def test_other_scripts_wait_while_writes_do(server: Server, operator: Connection):
    digest = operator.ok("SCRIPT", "LOAD", "return 'it may write'").decode()
    operator.ok("CLIENT", "PAUSE", 600_000, "WRITE")
    requests = [
        [("EVAL", "return 'it may write'", 0)],
        [("EVAL", "#!lua\nreturn 'it may write'", 0)],
        [("EVAL", "#!lua flags=allow-oom\nreturn 'it may write'", 0)],
        [("EVALSHA", digest, 0)],
        [("MULTI",), ("EVAL", READS, 0), ("EVAL", "return 'it may write'", 0), ("EXEC",)],
    ]
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(server.connect()) for _ in requests]
        for number, (writer, lines) in enumerate(zip(waiting, requests)):
            for words in lines:
                writer.send(*words)
            until(lambda: blocked(operator) == number + 1, f"{lines} waits")  # noqa: B023
        operator.ok("CLIENT", "UNPAUSE")
        for writer, lines in zip(waiting, requests):
            told = [writer.read().plain() for _ in lines][-1]
            assert told in (b"it may write", [b"it reads", b"it may write"])


@pytest.mark.parametrize("is_direct", [True, False], ids=["redis-server", "weir"])
def test_a_command_that_only_the_store_knows_waits_as_a_write_does(servers, is_direct: bool):
    server = servers.redis("--rename-command", "APPEND", "MYAPP")
    if not is_direct:
        server = servers.weir(server, flags=["--shards", "2"])
    with server.connect() as operator, server.connect() as writer:
        operator.ok("CLIENT", "PAUSE", 600_000, "WRITE")
        writer.send("MYAPP", "k", "x")
        until(lambda: blocked(operator) == 1, "it waits")
        assert operator.call("GET", "k").is_null
        operator.ok("CLIENT", "UNPAUSE")
        assert writer.read().plain() == 1
        # A client that is subscribed in RESP2 may not send it either.
        writer.ok("SUBSCRIBE", "c")
        assert "only (P|S)SUBSCRIBE" in writer.call("MYAPP", "k", "x").text
        assert operator.ok("GET", "k") == b"x"
    with server.connect(protocol=3) as tracker, server.connect() as writer:
        tracker.ok("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "k", "NOLOOP")
        assert tracker.ok("MYAPP", "k", "y") == 2
        writer.ok("MYAPP", "k", "z")
        assert tracker.read().plain() == [b"invalidate", [b"k"]]
        assert tracker.ok("PING", "nothing else") == b"nothing else"
