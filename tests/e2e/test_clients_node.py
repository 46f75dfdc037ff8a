"""Runs the checks of node/clients.mjs with node-redis and ioredis."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from harness.processes import TARGET
from test_clients_python import empty

SCRIPT = Path(__file__).parent / "node" / "clients.mjs"
MODULES = TARGET / "e2e" / "node"


def test_node_clients(weir_over_redis):
    assert (MODULES / "node_modules").is_dir(), f"tests/run installs the Node clients under {MODULES}"
    empty(weir_over_redis)
    run = subprocess.run(
        [os.environ.get("NODE", "node"), SCRIPT, str(weir_over_redis.port), MODULES],
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "all passed" in run.stdout
