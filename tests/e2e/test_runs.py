"""Tests of the scripts that run all tests: a step that fails ends them, and leaves nothing behind that goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from harness.processes import ROOT
from harness.waiting import until

pytestmark = pytest.mark.weir_only

SECONDS_MAX = 60


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


def environment(folder: Path) -> dict[str, str]:
    """Returns an environment in which programs of the folder `bin` stand for others."""
    return {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


def test_miri_ends_with_a_run_that_fails_early(tmp_path: Path):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    told = tmp_path / "told"
    # A child of Miri's script, as cargo is.
    program(tmp_path / ".ci" / "miri", f"sleep 300 & echo $! >{told}; wait")
    # The first step fails when Miri runs.
    program(tmp_path / "bin" / "cargo", f"until [ -s {told} ]; do sleep 0.05; done; exit 7")
    done = subprocess.run([tmp_path / ".ci" / "run"], env=environment(tmp_path), capture_output=True, timeout=SECONDS_MAX)
    child = int(told.read_text())

    def ended() -> bool:
        status = Path(f"/proc/{child}/status")
        return not status.exists() or "State:\tZ" in status.read_text()

    try:
        assert done.returncode == 7, done.stderr
        until(ended, "the child of Miri ends")
    finally:
        if not ended():
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("section", ["e2e", "stand-in", "setup"])
def test_clients_that_cannot_be_installed_end_the_run_and_are_tried_again(tmp_path: Path, section: str):
    e2e = tmp_path / "tests" / "e2e"
    (e2e / "node").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "run", tmp_path / "tests" / "run")
    for file in ("requirements.txt", "requirements-arq.txt", "node/package.json", "node/package-lock.json"):
        (e2e / file).write_text("")
    # Python is there, with all that is asked of it; what npm installs cannot be had.
    program(tmp_path / "bin" / "python3", 'if [ "$1" = -m ]; then mkdir -p "${@: -1}/bin"; for each in pip python; do ln -sf /bin/true "${@: -1}/bin/$each"; done; fi')
    for name in ("ruby", "php", "cargo", "apt-get", "sudo", "service"):
        program(tmp_path / "bin" / name, "exit 0")
    program(tmp_path / "bin" / "npm", "exit 9")
    given = {**environment(tmp_path), "CARGO_TARGET_DIR": "built"}
    done = subprocess.run([tmp_path / "tests" / "run", section], env=given, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 9 and "== end to end" not in done.stdout, done.stdout + done.stderr
    # A folder for builds that is named relatively is that of the checkout.
    assert (tmp_path / "built/e2e/venv/stamp").exists() and not (tmp_path / "built/e2e/node/stamp").exists()


def test_the_usage_is_whole(tmp_path: Path):
    done = subprocess.run([ROOT / "tests" / "run", "nothing"], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 2 and done.stdout.endswith("is there, nothing is fetched.\n"), done.stdout
