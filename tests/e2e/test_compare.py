"""Tests of perf/compare, perf/http and perf/cluster-cpu: their measurements, further peers, sizes of values, and the errors
for missing options.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import predixy_stand_in
from harness.processes import ROOT, Redis, binary
from harness.waiting import until

sys.path.insert(0, str(ROOT / "perf"))

import bench  # noqa: E402
import peers  # noqa: E402

pytestmark = pytest.mark.weir_only
COMPARE = ROOT / "perf" / "compare"
STAND_IN = ROOT / "tests" / "e2e" / "predixy_stand_in.py"
SECONDS_MAX = 120


def compare(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMPARE, *words], capture_output=True, text=True, timeout=SECONDS_MAX)


def measured_by(script: str, folder: Path, *words: str) -> dict:
    """Returns the results of a script for two rounds of few requests."""
    flags = ["--weir-binary", str(binary("weir")), "--rounds", "2", "--name", "tried", "--folder", str(folder)]
    run = subprocess.run(
        [ROOT / "perf" / script, *flags, *words], capture_output=True, text=True, timeout=SECONDS_MAX
    )
    assert run.returncode == 0, run.stderr
    return json.loads((folder / "tried.json").read_text())


def test_a_peer_is_measured_beside_the_others_at_every_size(tmp_path):
    run = compare(
        *("--targets", "weir", "--weir-binary", str(binary("weir")), "--peer", f"predixy={STAND_IN}"),
        *("--base", "predixy", "--sizes", "64,20000", "--depths", "1,4", "--rounds", "2", "--requests", "300"),
        *("--name", "tried", "--folder", str(tmp_path)),
    )
    assert run.returncode == 0, run.stderr
    found = json.loads((tmp_path / "tried.json").read_text())
    cases = {(row["value_bytes"], row["depth"], row["command"], row["target"]) for row in found["rows"]}
    expected = {
        (size, depth, command, target)
        for size in (64, 20_000)
        for depth in (1, 4)
        for command in ("SET", "GET")
        for target in ("weir", "predixy")
    }
    assert cases == expected
    assert len(found["ratios"]) == len(expected) / 2
    for row in found["rows"]:
        assert len(row["cpu_us_per_request"]) == 2 and min(row["cpu_us_per_request"]) > 0, row
        assert min(row["p99_ms"]) > 0, row
    assert "weir / predixy" in (tmp_path / "tried.md").read_text()


def test_http_is_measured_beside_resp(tmp_path):
    found = measured_by("http", tmp_path, "--seconds", "1", "--requests", "300")
    rows = {row["target"]: row for row in found["rows"]}
    assert list(rows) == ["RESP", "HTTP", "HTTP over TLS"] and rows["RESP"]["requests"] == [300, 300]
    for row in rows.values():
        assert all(len(row[figure]) == 2 and min(row[figure]) > 0 for figure in ("requests", "cpu_us_per_request", "p99_ms")), row
    for ratio in found["ratios"]:
        ours, base = (rows[ratio[name]]["cpu_us_per_request"] for name in ("target", "base"))
        assert ratio["cpu_ratio_range"] == sorted(mine / other for mine, other in zip(ours, base, strict=True))
    assert [(ratio["target"], ratio["base"]) for ratio in found["ratios"]] == [("HTTP", "RESP"), ("HTTP over TLS", "HTTP")]
    assert "HTTP / RESP" in (tmp_path / "tried.md").read_text()


def test_a_cluster_is_measured_beside_the_same_nodes_as_stores(tmp_path):
    found = measured_by("cluster-cpu", tmp_path, "--requests", "3000")
    cpu = {(row["command"], row["weir"]): row["cpu_us_per_request"] for row in found["rows"]}
    assert list(cpu) == [(command, weir) for command in ("GET", "SET") for weir in ("stores", "cluster", "stores, a second time")]
    assert all(len(told) == 2 and min(told) > 0 for told in cpu.values())
    for ratio in found["ratios"]:
        ours, base = cpu[ratio["command"], ratio["weir"]], cpu[ratio["command"], "stores"]
        assert ratio["cpu_ratio_range"] == sorted(mine / other for mine, other in zip(ours, base, strict=True))
    assert "| SET | cluster |" in (tmp_path / "tried.md").read_text()


def test_large_values_are_measured_with_fewer_keys_and_requests():
    usual, large = bench.Load("SET", 16), bench.Load("SET", 16, 256 * 1024)
    assert (usual.keys, usual.requests) == (bench.KEYS_MAX, bench.REQUESTS[16])
    assert large.keys * large.value_bytes == bench.STORED_BYTES_MAX
    assert large.requests * large.value_bytes == bench.MOVED_BYTES_MAX


def test_predixy_is_told_where_to_listen_and_all_stores():
    stores = [Redis(), Redis()]
    for number, store in enumerate(stores):
        store.port = 7000 + number
    predixy = peers.named(f"predixy={STAND_IN}", stores)
    try:
        predixy.port = 7617
        program, config = predixy.command()
        assert program == str(STAND_IN)
        with open(config) as file:
            bind, told = predixy_stand_in.settings(file.read().splitlines())
        assert bind == "127.0.0.1:7617"
        assert told == [store.address for store in stores]
    finally:
        for server in (predixy, *stores):
            server.discard()


@pytest.mark.parametrize(
    ("peer", "said"),
    [
        ("envoy=/usr/bin/true", "NAME is one of predixy"),
        ("predixy", "is no program"),
        ("predixy=/nowhere/predixy", "/nowhere/predixy is no program"),
        ("predixy=/etc/passwd", "/etc/passwd is no program"),
    ],
)
def test_a_peer_that_cannot_be_is_refused(peer, said):
    with pytest.raises(peers.Unknown, match=said):
        peers.named(peer, [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_told_to_end_takes_its_servers_along(tmp_path, number):
    flags = ["--targets", "weir", "--weir-binary", str(binary("weir")), "--rounds", "100000", "--folder", str(tmp_path)]
    # A shell has whatever it starts in the background ignore SIGINT, these tests among them.
    heeds = partial(signal.signal, number, signal.SIG_DFL)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    run = subprocess.Popen([COMPARE, *flags], preexec_fn=heeds, **quiet)
    try:
        children: list[str] = []

        def measured() -> bool:
            children[:] = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
            # Two stores and weir are up, and the load runs.
            return len(children) == 4

        until(measured, "the load runs")
        run.send_signal(number)
        run.wait(SECONDS_MAX)
    finally:
        run.kill()
    assert run.returncode != 0
    until(lambda: not any(Path(f"/proc/{child}").exists() for child in children), "nothing that it has started is left")


def test_a_peer_that_cannot_be_ends_the_run_with_one_line():
    run = compare("--targets", "twemproxy", "--peer", "predixy=/nowhere/predixy")
    assert run.returncode != 0
    assert "--peer" in run.stderr and "Traceback" not in run.stderr


def test_a_base_that_is_no_target_ends_the_run_with_one_line_that_names_those_that_are(tmp_path):
    run = compare(
        *("--targets", "weir,redis", "--weir-binary", f"a={binary('weir')}", "--weir-binary", f"b={binary('weir')}"),
        *("--base", "weir", "--rounds", "1", "--requests", "300", "--folder", str(tmp_path)),
    )
    assert run.returncode == 2
    assert run.stderr == "--base weir is no target of this run: weir-a, weir-b, redis\n"
    assert list(tmp_path.iterdir()) == [], "nothing was measured"


@pytest.mark.parametrize("words", [("--sizes", "64,large"), ("--depths", "0"), ("--sizes", "")])
def test_numbers_are_asked_for(words):
    run = compare(*words)
    assert run.returncode == 2 and words[0] in run.stderr, run.stderr
