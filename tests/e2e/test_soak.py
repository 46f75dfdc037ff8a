"""Runs perf/soak for some seconds: clients of every kind check weir's promises while stores and weir are disturbed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.processes import ROOT, binary

pytestmark = [pytest.mark.weir_only, pytest.mark.alone]
SECONDS_MAX = 150


def test_a_short_soak(tmp_path: Path):
    flags = ["--minutes", "0.3", "--pause", "0.2", "--drain", "2", "--seed", "3", "--out", str(tmp_path)]
    command = [str(ROOT / "perf" / "soak"), *flags]
    environment = {**os.environ, "WEIR_BINARIES": str(binary("weir").parent)}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=SECONDS_MAX, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "soak.json").read_text())
    assert found["wrong"] == [] and not found["interrupted"]
    for weir in found["weirs"].values():
        for kind, row in weir["clients"].items():
            # The reply to SUBSCRIBE is a value, too.
            served = row["messages"] if kind == "subscriptions" else row["values"]
            assert served > 0 or row["died"] > 0, (kind, row)
        assert sum(row["died"] for row in weir["clients"].values()) > 0
    assert {each["kind"] for each in found["disturbances"]} > {"taken over"}
