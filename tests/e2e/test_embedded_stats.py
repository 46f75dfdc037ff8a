"""Tests of the statistics of commands and errors: the embedded store counts as redis-server does."""

from __future__ import annotations

import re

import pytest

from harness.processes import Storage

pytestmark = pytest.mark.weir_only

LINES = [
    "SET text value", "GET text", "GET", "INCR text", "INCR a b", "LPUSH text x", "NOSUCH", "CLIENT ID", "CLIENT SETNAME", "CLIENT NOSUCH", "MULTI", "SET text 1", "INCR text", "LPUSH text 1",
    "EXEC", "MULTI", "GET", "EXEC", "EXEC", "XADD s 1-1 f v", "XGROUP CREATECONSUMER s g c", "EVALSHA x 0", "GEOADD text 0 0 m", "EXPIRE text 0", "OBJECT ENCODING nothing",
]  # fmt: skip
SCRIPTS = [
    "return redis.call('incr', 'text2', 'x')", "redis.call('set', 'text2', 'x') return redis.pcall('incr', 'text2')", "return redis.call('nosuch')",
    "return redis.error_reply('MINE words')", "return redis.error_reply('')", "return {err = 'OTHER words'}", "local r = redis.pcall('lpush', 'text2', 1) return 1", "error('own')",
]  # fmt: skip


def figures(connection) -> tuple[dict[str, str], dict[str, str]]:
    """Returns calls, rejections and failures by command, and the number of errors by code."""
    text = connection.call("INFO", "commandstats", "errorstats").value.decode()
    commands = {}
    for name, calls, rest in re.findall(r"cmdstat_([^:]+):calls=(\d+),usec=\d+,usec_per_call=[\d.]+,(\S+)", text):
        commands[name] = f"{calls},{rest}"
    return commands, dict(re.findall(r"errorstat_([^:]+):count=(\d+)", text))


def test_what_is_counted_is_the_same(model):
    store = Storage("--scriptable=false").start()
    try:
        shown = []
        for server in (store, model):
            with server.connect() as connection:
                connection.call("FLUSHALL")
                connection.ok("CONFIG", "RESETSTAT")
                for line in LINES:
                    connection.call(*line.split())
                for script in SCRIPTS:
                    connection.call("EVAL", script, "0")
                connection.call("EVAL_RO", "return redis.call('set', 'a', 'b')", "0")
                shown.append(figures(connection))
                names = connection.call("LATENCY", "HISTOGRAM").plain()[::2]
                calls = [connection.call("LATENCY", "HISTOGRAM", name).plain()[1][1] for name in (b"set", b"client|id")]
                shown[-1] += (sorted(names), calls)
                assert connection.call("LATENCY", "HISTOGRAM", "client").plain()[0] == b"client|id"
        for ours, theirs in zip(*shown, strict=True):
            assert ours == theirs
    finally:
        store.discard()


def test_times_are_shown_by_percentile():
    store = Storage("--scriptable=false").start()
    try:
        with store.connect() as connection:
            connection.call("EVAL", "for i = 1, 3000000 do end", "0")
            text = connection.call("INFO", "all").value.decode()
            found = re.search(r"latency_percentiles_usec_eval:p50=([\d.]+),p99=([\d.]+),p99\.9=([\d.]+)", text)
            assert found and float(found[1]) > 1_000
            assert int(re.search(r"cmdstat_eval:calls=1,usec=(\d+)", text)[1]) > 1_000
    finally:
        store.discard()
