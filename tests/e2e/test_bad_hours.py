"""Runs scenarios of `perf/scenarios` in shortened form, and checks those of their lines that hold on a busy machine too: counts
and shares.

Latencies need a quiet machine and the full duration: `perf/run --all` checks them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.processes import ROOT

pytestmark = [pytest.mark.weir_only, pytest.mark.paced]
RUN = ROOT / "perf" / "run"
# The duration of a run as a share of the scenario's own.
SECONDS_SCALE = 0.5
# A store that was ejected often is out for up to four seconds and returns over two; these times do not shrink with the scenario.
SECONDS_SCALES = {"faulty-host": 1}
SECONDS_MAX = 120
# Lines about percentiles, the time to recovery, and counts of requests served within a time.
NEEDS_A_QUIET_MACHINE = re.compile(r"\.p\d|\.max\b|recovery|\(\d+m?s\)")
BAD_HOURS = ("viral-key", "many-hot-keys", "hot-and-written", "written-around", "hot-in-two-dialects", "hot-counter", "tenant-flood", "near-quota", "reports-beside", "faulty-host", "quota-accuracy")


@pytest.mark.parametrize("name", BAD_HOURS)
def test_counts_and_shares_of_a_bad_hour_hold(name: str, tmp_path: Path):
    scale = str(SECONDS_SCALES.get(name, SECONDS_SCALE))
    command = [sys.executable, str(RUN), name, "--quiet", "--seconds-scale", scale, "--out", str(tmp_path)]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS_MAX, env={**os.environ, "TMPDIR": str(tmp_path)}, check=False
    )
    runs = json.loads((tmp_path / name / "result.json").read_text())["runs"]
    assert all(not each["faults"] for each in runs), run.stdout
    held_to = [line for each in runs for line in each["lines"] if not NEEDS_A_QUIET_MACHINE.search(line["line"])]
    assert len(held_to) >= 2, "some lines remain"
    assert [line for line in held_to if line["verdict"] != "PASS"] == [], run.stdout
