"""Tests of weir-calibrate: it fits weights to the CPU time of a real redis-server, and leaves the server as it was."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from harness.attempts import best_of_some
from harness.ports import free_port
from harness.processes import Redis, binary
from test_script import Storage

pytestmark = pytest.mark.weir_only

SECONDS_MAX = 120
SHAPES = 60
FLAGS = re.compile(r"^--ru-base 1 --ru-kib-in [0-9.]+ --ru-kib-out [0-9.]+ --ru-row [0-9.]+ --ru-key [0-9.]+$", re.MULTILINE)
SHORT = ("--seconds", "1", "--rounds", "1")


def command(target: str, *flags: str) -> list[str]:
    return [str(binary("weir-calibrate")), "--target", target, *flags]


def run(target: str, *flags: str, code: int = 0, **options) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(target, *flags), capture_output=True, text=True, timeout=SECONDS_MAX, **options)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def keys(redis: Redis) -> int:
    with redis.connect() as connection:
        return connection.ok("DBSIZE")


@pytest.mark.parametrize("cost", ["cpu", "commandstats"])
def test_weights_are_fitted_foretell_what_was_held_out_and_are_printed_as_flags(servers, tmp_path, cost):
    redis = servers.redis()
    files = {kind: tmp_path / f"fit.{kind}" for kind in ("json", "svg", "html")}
    paths = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
    told, report = None, {}

    def fits() -> None:
        """Measures and checks that the fit explains at least half of the variance; perf/results has the fit of a quiet
        machine.
        """
        nonlocal told, report
        told = run(redis.address, "--seconds", "6", "--rounds", "3", "--cost", cost, *paths)
        report = json.loads(files["json"].read_text())
        assert 0.5 < report["r_squared"]["held_out"] <= 1

    best_of_some(fits)
    flags = FLAGS.findall(told.stdout)
    assert flags == [report["flags"]] and "R2 " in told.stdout and "round 4 of 4" in told.stderr
    assert all(weight > 0 for name, weight in report["weights_us"].items() if name in ("base", "row")), report["weights_us"]
    assert report["weights_ru"]["row"] == pytest.approx(report["weights_us"]["row"] / report["weights_us"]["base"])
    assert len(report["shapes"]) == SHAPES and sum(shape["held_out"] for shape in report["shapes"]) == SHAPES // 3
    assert all(len(shape["rounds_us"]) == 3 for shape in report["shapes"])
    # Features as weir counts them: a GET of n bytes has them in its reply, and a range has its rows.
    shapes = {shape["name"]: shape for shape in report["shapes"]}
    for name, shape in shapes.items():
        if found := re.fullmatch(r"GET (\d+) B", name):
            assert shape["rows"] == 0 and shape["kib_out"] == pytest.approx(int(found[1]) / 1024, abs=0.02)
        if found := re.fullmatch(r"(?:LRANGE|SMEMBERS|ZRANGE|MGET) (\d+) x \d+ B", name):
            assert shape["rows"] == int(found[1])
        several = re.fullmatch(r"MSET (\d+) x \d+ B", name)
        written = int(several[1]) if several else 0
        assert shape["keys"] == (written if written > 1 else 0)
    drawing = xml.parse(files["svg"]).getroot()
    assert len(drawing.findall("{http://www.w3.org/2000/svg}circle")) == SHAPES + 2
    page = files["html"].read_text()
    assert "<svg" in page and page.count("<tr>") == SHAPES + 1 and not re.search(r"(src|href)\s*=", page)
    assert keys(redis) == 0
    # weir accepts the flags that the tool prints.
    pasted = subprocess.run([str(binary("weir")), *flags[0].split(), "--check"], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert pasted.returncode == 0, pasted.stdout + pasted.stderr


def test_the_same_seed_asks_for_the_same(servers, tmp_path):
    redis, names = servers.redis(), []
    for seed in ("5", "5", "6"):
        path = tmp_path / "fit.json"
        run(redis.address, *SHORT, "--seed", seed, "--quiet", "--json", str(path))
        names.append([(shape["name"], shape["held_out"]) for shape in json.loads(path.read_text())["shapes"]])
    assert names[0] == names[1] != names[2]


def test_a_server_that_holds_keys_is_left_alone_unless_that_is_meant(servers):
    redis = servers.redis()
    with redis.connect() as connection:
        connection.ok("SET", "theirs", "precious")
    told = run(redis.address, *SHORT, code=1)
    assert f"{redis.address} is not empty (DBSIZE 1)" in told.stderr and "--yes-not-empty" in told.stderr
    run(redis.address, *SHORT, "--yes-not-empty")
    with redis.connect() as connection:
        assert connection.ok("GET", "theirs") == b"precious" and connection.ok("DBSIZE") == 1


def test_a_server_that_does_not_tell_how_much_it_holds_is_left_alone(servers):
    redis = servers.redis()
    with redis.connect() as connection:
        connection.ok("ACL", "SETUSER", "default", "-dbsize")
    told = run(redis.address, *SHORT, code=1)
    assert f"{redis.address} refuses DBSIZE: -NOPERM" in told.stderr


def test_an_interrupted_run_leaves_no_key_behind(servers):
    redis = servers.redis()
    calibrate = subprocess.Popen(command(redis.address, "--seconds", "60"), stderr=subprocess.PIPE, text=True)
    try:
        next(line for line in calibrate.stderr if "round 1" in line)
        assert keys(redis) > SHAPES
        calibrate.send_signal(signal.SIGINT)
        _, told = calibrate.communicate(timeout=SECONDS_MAX)
    finally:
        calibrate.kill()
    assert calibrate.returncode == 1 and "interrupted" in told
    assert keys(redis) == 0


def test_a_server_that_others_use_is_not_measured(servers):
    redis = servers.redis()
    over = threading.Event()

    def use() -> None:
        with redis.connect() as connection:
            while not over.is_set():
                connection.pipeline([("GET", "k")] * 50)

    user = threading.Thread(target=use)
    user.start()
    try:
        told = run(redis.address, "--seconds", "30", code=1)
    finally:
        over.set()
        user.join()
    assert "someone else is using it" in told.stderr
    assert keys(redis) == 0


def test_a_server_that_dies_is_told_and_so_is_what_may_be_left(servers):
    redis = servers.redis()
    calibrate = subprocess.Popen(command(redis.address, "--seconds", "60"), stderr=subprocess.PIPE, text=True)
    try:
        next(line for line in calibrate.stderr if "round 1" in line)
        redis.kill()
        _, told = calibrate.communicate(timeout=SECONDS_MAX)
    finally:
        calibrate.kill()
    assert calibrate.returncode == 1
    assert redis.address in told and "keys that begin with weir-calibrate:" in told, told


def test_a_password_comes_from_the_environment(servers):
    redis = servers.redis("--requirepass", "sesame")
    told = run(redis.address, *SHORT, code=1)
    assert f"{redis.address} refuses INFO: -NOAUTH" in told.stderr
    run(redis.address, *SHORT, env={"WEIR_CALIBRATE_PASSWORD": "sesame"})
    told = run(redis.address, *SHORT, "--password", "wrong", code=1)
    assert "refuses AUTH: -WRONGPASS" in told.stderr and "wrong\n" not in told.stderr


def test_what_is_no_redis_server_is_told(servers):
    missing = f"127.0.0.1:{free_port()}"
    assert f"cannot connect to {missing}: Connection refused" in run(missing, *SHORT, code=1).stderr
    storage = servers.keep(Storage()).start()
    told = run(storage.address, *SHORT, code=1)
    assert f"{storage.address} does not tell its own cost" in told.stderr and "redis-server" in told.stderr


@pytest.mark.parametrize("flags, complaint", [
    (["--seconds", "0"], "a whole number from 1 to 3600 is expected"),
    (["--pipeline", "many"], "a whole number from 1 to 1024 is expected"),
    (["--cost", "money"], "[possible values: cpu, commandstats]"),
    (["--target", "nowhere"], "--target nowhere: HOST:PORT such as 127.0.0.1:6379 is expected"),
    (["--target", "192.0.2.1:6379"], "give --yes-remote to allow that"),
    (["--json", "nowhere/fit.json"], "there is no folder nowhere"),
])
def test_what_makes_no_sense_is_told_before_anything_is_sent(flags, complaint, tmp_path: Path):
    done = subprocess.run([str(binary("weir-calibrate")), *flags], capture_output=True, text=True, timeout=SECONDS_MAX, cwd=tmp_path)
    assert done.returncode == 2 and complaint in done.stderr, done.stderr
