"""Tests that redis-cli and redis-benchmark work as they do with a redis-server."""

from __future__ import annotations

import re
import subprocess

import pytest

from test_clients_python import empty

BENCHMARK_TESTS_MIN = 18


def cli(weir, *words: str, options: tuple[str, ...] = (), stdin: str | None = None) -> str:
    run = subprocess.run(
        ["redis-cli", "-p", str(weir.port), *options, *words],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Error" not in run.stderr, run.stderr
    return run.stdout.strip()


@pytest.mark.parametrize("options", [(), ("-3",)], ids=["resp2", "resp3"])
def test_redis_cli(weir_over_redis, options: tuple[str, ...]):
    empty(weir_over_redis)
    assert cli(weir_over_redis, "PING", options=options) == "PONG"
    assert cli(weir_over_redis, "SET", "cli", "value", options=options) == "OK"
    assert cli(weir_over_redis, "GET", "cli", options=options) == "value"
    assert cli(weir_over_redis, "INCR", "cli", options=options).startswith("ERR value is not an integer")
    assert cli(weir_over_redis, "HSET", "cli:h", "a", "1", "b", "2", options=options) == "2"
    assert cli(weir_over_redis, "HGETALL", "cli:h", options=options).split() == ["a", "1", "b", "2"]
    assert "redis_version:" in cli(weir_over_redis, "INFO", "server", options=options)


def test_redis_cli_reads_commands_from_a_pipe(weir_over_redis):
    empty(weir_over_redis)
    lines = [f"SET cli:pipe:{i} {i}" for i in range(100)] + [f"GET cli:pipe:{i}" for i in range(100)]
    said = cli(weir_over_redis, stdin="\n".join(lines) + "\n").split()
    assert said == ["OK"] * 100 + [str(i) for i in range(100)]


def test_redis_cli_mass_insertion(weir_over_redis):
    empty(weir_over_redis)
    payload = "".join(
        f"*3\r\n$3\r\nSET\r\n${len(str(i)) + 5}\r\nmass:{i}\r\n${len(str(i))}\r\n{i}\r\n" for i in range(2000)
    )
    said = cli(weir_over_redis, options=("--pipe",), stdin=payload)
    assert "errors: 0, replies: 2000" in said


def test_redis_cli_scan(weir_over_redis):
    empty(weir_over_redis)
    cli(weir_over_redis, stdin="".join(f"SET cli:scan:{i} {i}\n" for i in range(200)))
    found = cli(weir_over_redis, options=("--scan", "--pattern", "cli:scan:*")).split()
    assert sorted(found) == sorted(f"cli:scan:{i}" for i in range(200))


@pytest.mark.parametrize(
    "options", [("-P", "1"), ("-P", "16", "-r", "1000"), ("-3", "-P", "4")], ids=["P1", "P16", "resp3"]
)
def test_redis_benchmark(weir_over_redis, options: tuple[str, ...]):
    """The default tests of redis-benchmark, which since 7.0 stops at the first error reply."""
    if (
        "-3" in options
        and "-3 " not in subprocess.run(["redis-benchmark", "--help"], capture_output=True, text=True).stdout
    ):
        options = tuple(option for option in options if option != "-3")  # before 7.0 it spoke RESP2 only
    empty(weir_over_redis)
    run = subprocess.run(
        ["redis-benchmark", "-p", str(weir_over_redis.port), "-n", "2000", "-c", "20", "--csv", *options],
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = run.stdout + run.stderr
    assert run.returncode == 0, said
    assert not re.search(r"error", said, re.IGNORECASE), said
    assert "WARNING" not in said, said
    assert len(run.stdout.splitlines()) >= BENCHMARK_TESTS_MIN, said
