"""Tests of perf/run from end to end: a small scenario with its table and files, and an interrupted run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.processes import ROOT, Storage
from harness.waiting import until

sys.path.insert(0, str(ROOT / "perf"))

from scenario import file, homes  # noqa: E402
from scenario.stage import Outcome, Stage, Variant  # noqa: E402

pytestmark = [pytest.mark.weir_only, pytest.mark.alone]
RUN = ROOT / "perf" / "run"
FAILED, USAGE, INTERRUPTED = 1, 2, 130
SECONDS_MAX = 120

SMALL = """\
shows = "A small load."
accept = [
    "point.offered within 1% of 200/s",
    "point.served >= 100%",
    "point.p99 >= 1ms",
    "storage.requests >= 400",
    "storage.reads('item:hot') <= 0",
    "weir.weir_no_such_figure_total <= 1",
    "point.late.served >= 100%",
]

[weir]
shards = 1
flags = ["--no-such-flag 5", "--max-clients 50"]

[quotas.tenants.acme]
password = "secret"

[[storage]]
flags = "--service-time point=1ms"

[load]

[[load.group]]
name = "point"
tenant = "acme"
password = "secret"
connections = 2
command = "GET item:hot"

[[load.group.phase]]
name = "early"
duration = "1s"
rate = 200

[[load.group.phase]]
name = "late"
duration = "1s"
rate = 200
"""
# Without the lines and flags with which it fails.
PASSING = "\n".join(
    line for line in SMALL.split("\n") if "reads(" not in line and "no_such" not in line and "flags = [" not in line
)


def start(folder: Path, text: str, *flags: str) -> subprocess.Popen:
    path = folder / "small.toml"
    path.write_text(text)
    # All processes of the run work in a folder of their own below this one.
    environment = {**os.environ, "TMPDIR": str(folder)}
    # A child of `nohup` ignores SIGHUP, and tests may be one.
    command = ["env", "--default-signal=HUP", sys.executable, str(RUN), str(path), "--out", str(folder / "out"), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def result(folder: Path) -> dict:
    return json.loads((folder / "out" / "small" / "result.json").read_text())


def left_behind(folder: Path) -> list[str]:
    """Returns processes that still work somewhere below this folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and str(folder) in os.readlink(process / "cwd"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def test_a_run_and_one_beside_it(tmp_path):
    run = start(tmp_path, SMALL, "--compare", "direct", "--keep")
    said, _ = run.communicate(timeout=SECONDS_MAX)
    assert run.returncode == FAILED, said
    found = result(tmp_path)
    assert [each["label"] for each in found["runs"]] == ["weir", "direct"] and not found["passed"]
    words = [line["verdict"] for line in found["runs"][0]["lines"]]
    assert words == ["PASS", "PASS", "PASS", "PASS", "FAIL", "not measured", "PASS"], said
    assert found["runs"][0]["lines"][4]["measured"] == found["runs"][0]["clients"][0]["offered"] * 2 == 400
    assert found["runs"][0]["left_out"] == ["--no-such-flag 5"]
    assert "this weir does not know, so was run without: --no-such-flag 5" in said
    table = (tmp_path / "out" / "small" / "result.md").read_text()
    for line in found["runs"][0]["lines"]:
        assert f"`{line['line']}`" in table and line["line"] in said
    page = (tmp_path / "out" / "small" / "report.html").read_text()
    assert "weir_requests_total" in page and "<svg" in page
    kept = tmp_path / "out" / "small" / "weir" / "servers" / "0-weir"
    assert "[tenants.acme]" in (kept / "quotas.toml").read_text() and "ready" in (kept / "output").read_text()
    assert left_behind(tmp_path) == []


def test_several_scenarios_before_several_targets_are_one_table(tmp_path):
    for name in ("small", "other"):
        (tmp_path / f"{name}.toml").write_text(SMALL)
    files = [str(tmp_path / f"{name}.toml") for name in ("small", "other")]
    out = tmp_path / "out"
    run = subprocess.run(
        [sys.executable, str(RUN), *files, "--targets", "weir,direct", "--quiet", "--out", str(out)],
        capture_output=True, text=True, timeout=SECONDS_MAX,
    )  # fmt: skip
    assert run.returncode == FAILED, run.stdout + run.stderr
    document = json.loads((out / "targets.json").read_text())
    for scenario in document["scenarios"]:
        weir, direct = scenario["runs"]
        assert (weir["variant"], direct["variant"]) == ("weir", "direct")
        assert len(weir["lines"]) == len(direct["lines"]) == 7 and weir["unknown"] == [] and len(weir["failing"]) == 2
        # In the run without weir there are neither weir's metrics nor its tenants.
        assert direct["unknown"] and all(line.startswith(("weir.", "tenants.")) for line in direct["unknown"]), direct
        assert not set(direct["failing"]) & set(direct["unknown"])
    table = (out / "targets.md").read_text()
    assert "| scenario | what happens | figure | weir | direct |" in table and "of 7 lines" in table, table


AROUND = """
[around]

[[around.group]]
name = "job"
connections = 1
command = "SET item:around 1"

[[around.group.phase]]
name = "early"
duration = "1s"
rate = 50

[[around.group.phase]]
name = "late"
duration = "1s"
rate = 100
"""


def test_groups_of_around_go_past_weir(tmp_path):
    accept = SMALL[SMALL.index("accept = [") : SMALL.index("[weir]")]
    lines = [
        "job.early.served within 1% of 50/s",
        "job.late.served within 1% of 100/s",
        "total.offered within 1% of 200/s",
        "storage.requests >= 550",
        "weir.weir_requests_total <= 450",
    ]
    text = SMALL.replace(accept, f"accept = {json.dumps(lines)}\n\n") + AROUND
    run = start(tmp_path, text, "--quiet")
    said, _ = run.communicate(timeout=SECONDS_MAX)
    words = [line["verdict"] for line in result(tmp_path)["runs"][0]["lines"]]
    assert words == ["PASS"] * 5, said
    assert left_behind(tmp_path) == []


def test_a_run_that_passes_ends_with_zero(tmp_path):
    run = start(tmp_path, PASSING, "--quiet")
    said, complaints = run.communicate(timeout=SECONDS_MAX)
    assert run.returncode == 0, said + complaints
    assert result(tmp_path)["passed"] and complaints == ""


def test_a_run_whose_event_was_refused_fails(tmp_path):
    event = '[[event]]\nat = "1s"\nstorage = "NO-SUCH-FAULT"\n\n[load]'
    run = start(tmp_path, PASSING.replace("[load]", event, 1), "--quiet")
    said, _ = run.communicate(timeout=SECONDS_MAX)
    found = result(tmp_path)["runs"][0]
    assert run.returncode == FAILED and not found["passed"], said
    assert {line["verdict"] for line in found["lines"]} == {"PASS"} and len(found["faults"]) == 1, found
    assert "weir: FAIL: STORAGE NO-SUCH-FAULT was answered with: ERR" in said


def test_a_run_whose_set_up_failed_fails(tmp_path):
    setup = '[load]\n[[load.setup]]\ncommand = "HSET item:hot {seq}"\ncount = 3\n'
    run = start(tmp_path, PASSING.replace("[load]\n", setup, 1), "--quiet")
    said, _ = run.communicate(timeout=SECONDS_MAX)
    found = result(tmp_path)["runs"][0]
    assert run.returncode == FAILED and not found["passed"], said
    assert {line["verdict"] for line in found["lines"]} == {"PASS"} and len(found["faults"]) == 1, found
    assert "weir: FAIL: set-up: 3 of 3 times 'HSET item:hot {seq}' failed: ERR wrong number of arguments" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_leaves_its_report_and_nothing_else(tmp_path, number):
    text = SMALL.replace('name = "late"\nduration = "1s"', 'name = "late"\nduration = "300s"')
    # Requests due at the interrupt may be cut off, so only the first phase is checked.
    text = text.replace("point.served >= 100%", "point.early.served >= 100%")
    run = start(tmp_path, text)
    # The second line of progress shows that the first phase is over.
    until(lambda: run.stderr.readline().strip().startswith("2s"), "two seconds are over")
    assert left_behind(tmp_path)
    run.send_signal(number)
    said, _ = run.communicate(timeout=SECONDS_MAX)
    assert run.returncode == INTERRUPTED, said
    found = result(tmp_path)
    assert found["interrupted"] and not found["passed"]
    served, late = found["runs"][0]["lines"][1], found["runs"][0]["lines"][6]
    assert served["verdict"] == "PASS" and late["verdict"] == "not measured" and "ended before 'late' did" in late["reason"]
    assert (tmp_path / "out" / "small" / "report.html").exists()
    assert "interrupted" in said
    assert left_behind(tmp_path) == []


def test_a_weir_that_does_not_start_is_reported(tmp_path):
    run = start(tmp_path, SMALL.replace('password = "secret"\n\n[[storage', 'pasword = "secret"\n\n[[storage'), "--quiet")
    said, _ = run.communicate(timeout=SECONDS_MAX)
    assert run.returncode == FAILED
    # The error names the line in the scenario file, because each line of the quotas keeps its number.
    assert "quotas.toml:17:" in said and "pasword" in said
    assert [line["verdict"] for line in result(tmp_path)["runs"][0]["lines"]] == ["not measured"] * 7
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["no-such"], "there is no scenario 'no-such'; there are: all-critical, "),
        (["none/such.toml"], "none/such.toml: "),
        ([], "which? all-critical, "),
        (["steady-state", "--target", "nginx"], "--target 'nginx': weir, direct, twemproxy or both is expected"),
        (["steady-state", "--seconds-scale", "0"], "--seconds-scale 0.0: a number above 0 is expected"),
        (["steady-state", "--shards", "99"], "--shards 99: a number from 1 to 64 is expected"),
        (["steady-state", "--all"], "one of them is expected"),
    ],
)
def test_what_is_asked_wrongly(words: list[str], complaint: str):
    run = subprocess.run([sys.executable, str(RUN), *words], capture_output=True, text=True, timeout=60)
    assert run.returncode == USAGE and complaint in run.stderr


def test_flags_are_passed_on_where_weir_knows_them(tmp_path, monkeypatch):
    (tmp_path / "small.toml").write_text(SMALL)
    stage = Stage(file.read(tmp_path / "small.toml"), interruption=None)
    variant = Variant("weir", shards=3, flags=(("--disable", "rate,shed"), ("--limiter", "static")))
    for known, passed_on in [
        ({"--shards", "--max-clients"}, ["--shards", "3", "--max-clients", "50"]),
        ({"--max-clients", "--disable", "--limiter"},
         ["--shards", "3", "--max-clients", "50", "--disable", "rate,shed", "--limiter", "static"]),
    ]:  # fmt: skip
        monkeypatch.setattr("scenario.stage.known_flags", lambda known=known: known)
        outcome = Outcome(stage.scenario, variant)
        assert stage._flags(variant, outcome) == passed_on
        assert ("--disable rate,shed" in outcome.left_out) == ("--disable" not in known)


def test_homes_live_where_weir_puts_them(servers):
    backends = [servers.keep(Storage()).start() for _ in range(3)]
    weir = servers.weir(*backends, flags=["--shards", "2"])
    placeholders = " ".join(f"{{home:{name}:{number}}}" for name in ("a", "b") for number in range(4))
    tags = [tag.strip("{}") for tag in homes.replace(placeholders, {"a": 1, "b": 2}, 2).split()]
    with weir.connect() as connection:
        for tag in tags:
            assert connection.ok("SET", f"{{{tag}}}:key", tag) == b"OK"
    held = []
    for backend in backends:
        with backend.connect() as connection:
            held.append([tag for tag in tags if connection.ok("EXISTS", f"{{{tag}}}:key")])
    assert held == [tags[:4], [tags[4], tags[6]], [tags[5], tags[7]]]
