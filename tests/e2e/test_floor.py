"""Tests of weir-floor, which forwards requests of several clients in order and unchanged. perf/floor compares weir with it, so
it must do the work that any forwarder has to do.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.processes import ROOT, Redis, binary
from harness.resp import Closed, Connection, encode
from harness.waiting import until

sys.path.insert(0, str(ROOT / "perf"))

from peers import Floor  # noqa: E402

pytestmark = pytest.mark.weir_only

CLIENTS = 8
REQUESTS = 3000
BATCH_MAX = 400
SECONDS_MAX = 10
SCRIPT_SECONDS_MAX = 120
# A value that takes many receive buffers, more than the ring has.
LARGE_BYTES = 8_000_000


@pytest.fixture
def store(servers) -> Redis:
    return servers.redis()


@pytest.fixture
def floor(servers, store: Redis) -> Floor:
    return servers.keep(Floor(store)).start()


def session(port: int, client: int) -> None:
    """Sends pipelines of requests on keys of its own, and checks each reply."""
    rng = random.Random(client)
    values: dict[str, bytes] = {}
    with Connection(port) as connection:
        left = REQUESTS
        while left:
            batch, expected = [], []
            for _ in range(rng.randint(1, min(BATCH_MAX, left))):
                name = f"{client}:{rng.randrange(20)}"
                match rng.randrange(4):
                    case 0:
                        # Bytes that look like the ends and beginnings of messages.
                        values[name] = bytes(rng.choices(b"\r\n*$+-:0123456789", k=rng.randrange(300)))
                        batch.append(encode("SET", name, values[name]))
                        expected.append(b"+OK\r\n")
                    case 1:
                        held = [values.get(f"{client}:{number}") for number in range(3)]
                        batch.append(encode("MGET", *(f"{client}:{number}" for number in range(3))))
                        expected.append(b"*3\r\n" + b"".join(map(bulk, held)))
                    case 2:
                        batch.append(encode("NO-SUCH", name))
                        expected.append(b"-ERR unknown command")
                    case _:
                        batch.append(encode("GET", name))
                        expected.append(bulk(values.get(name)))
            left -= len(batch)
            connection.send_raw(b"".join(batch))
            for reply, wanted in zip(connection.read_many(len(batch)), expected, strict=True):
                assert reply.raw.startswith(wanted) if wanted.startswith(b"-") else reply.raw == wanted


def bulk(value: bytes | None) -> bytes:
    return b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value)


def test_pipelines_of_several_clients_are_answered_in_order(floor: Floor):
    with ThreadPoolExecutor(CLIENTS) as threads:
        for done in [threads.submit(session, floor.port, client) for client in range(CLIENTS)]:
            done.result()


def test_a_large_value_comes_back_as_it_was(floor: Floor):
    value = random.Random(1).randbytes(LARGE_BYTES)
    with floor.connect() as connection, floor.connect() as other:
        assert connection.call("SET", "large", value).raw == b"+OK\r\n"
        other.send("GET", "large")
        assert connection.call("GET", "large").value == value
        assert other.read().value == value


def test_a_client_that_leaves_takes_nobodys_replies(floor: Floor):
    with floor.connect() as stays:
        for _ in range(20):
            with floor.connect() as leaves:
                leaves.send_raw(encode("GET", "absent") * 500)
            assert stays.call("ECHO", "here").value == b"here"
    until(lambda: floor.descriptor_kinds()["socket"] == 2, "the sockets of clients that left are closed")


def test_an_inline_command_ends_its_connection_alone(floor: Floor):
    with floor.connect() as stays, floor.connect() as inline:
        inline.send_raw(b"PING\r\n")
        with pytest.raises(Closed):
            inline.read()
        assert stays.call("PING").raw == b"+PONG\r\n"
    assert "inline" in floor.output()


def test_it_ends_with_its_store_and_says_so(floor: Floor, store: Redis):
    store.kill()
    assert floor.wait(SECONDS_MAX) == 1
    assert "weir-floor: the store has closed the connection" in floor.output()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "nowhere"], "'nowhere' for '--listen <ADDRESS>'"),
        (["--storage", "127.0.0.1:1"], "127.0.0.1:1 (--storage): Connection refused"),
        (["--shards", "2"], "unexpected argument '--shards'"),
    ],
)
def test_wrong_arguments_are_named(words: list[str], said: str):
    run = subprocess.run([binary("weir-floor"), *words], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert run.returncode != 0
    assert said in run.stderr


def test_help_says_what_it_is_for():
    run = subprocess.run([binary("weir-floor"), "--help"], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert run.returncode == 0
    assert "--listen" in run.stdout and "--storage" in run.stdout and "For measurements only" in run.stdout


def measured_by(script: str, folder: Path, *words: str) -> tuple[dict, str]:
    """Returns the results of a script for one short round, and the table that it writes."""
    command = [ROOT / "perf" / script, "--rounds", "1", "--name", "tried", "--folder", folder, *words]
    environment = {**os.environ, "WEIR_BINARIES": str(binary("weir-floor").parent)}
    run = subprocess.run(command, capture_output=True, text=True, timeout=SCRIPT_SECONDS_MAX, env=environment)
    assert run.returncode == 0, run.stderr
    return json.loads((folder / "tried.json").read_text()), (folder / "tried.md").read_text()


def test_weir_is_measured_beside_it(tmp_path: Path):
    found, table = measured_by("floor", tmp_path, "--depths", "1,4", "--requests", "3000", "--no-instructions")
    rows = {(row["depth"], row["target"]): row for row in found["rows"]}
    targets = ["weir-floor", "weir", "weir, layers off", "twemproxy", "weir-floor, a second one"]
    assert list(rows) == [(depth, target) for depth in (1, 4) for target in targets]
    for (depth, _), row in rows.items():
        base = rows[depth, "weir-floor"]
        assert row["requests"] == 3000 and len(row["cpu_us"]) == 1 and row["cpu_us"][0] > 0, row
        assert row["cpu_ratio"] == pytest.approx(row["cpu_us"][0] / base["cpu_us"][0])
        assert row["user_us_mean"] + row["system_us_mean"] == pytest.approx(row["cpu_us"][0])
    assert "1.15" in table and "layers, user" in table


def test_sizes_are_measured_one_by_one_and_drawn(tmp_path: Path):
    found, table = measured_by("scale", tmp_path, "--dimensions", "users,keys", "--size-max", "1000", "--rate", "2000")
    rows = {(row["dimension"], row["target"], row["size"]): row for row in found["rows"]}
    assert list(rows) == [("users", "weir", 1000), ("keys", "weir", 1000), ("keys", "twemproxy", 1000)]
    for row in rows.values():
        assert row["problem"] is None and row["cpu_us"] > 0 and row["peak_mib"] >= row["resident_mib"] > 0, row
    # Of the users' requests, every second one only names a user and does not reach the store.
    asked = [rows["users", "weir", 1000]["requests_per_second"], rows["keys", "weir", 1000]["requests_per_second"]]
    assert asked == [pytest.approx(1000, rel=0.3), pytest.approx(2000, rel=0.3)]
    assert "What breaks first" in table
    assert (tmp_path / "tried.svg").read_text().count("<polyline") == 2 * (1 + 2)
