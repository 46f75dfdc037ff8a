"""Tests of recorded results: they name the commit that was measured, so a tree that differs from its commit records nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.processes import ROOT

pytestmark = pytest.mark.weir_only

SECONDS_MAX = 60
RECORDING = [
    ["perf/run", "steady-state"], ["perf/run", "--all"], ["perf/ablation"], ["perf/soak"], ["perf/compare"], ["perf/http"],
    ["perf/cluster-cpu"], ["perf/floor"], ["perf/scale"], ["perf/calibrate"],
]  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with the scripts and the harness only, so that there is no program to measure."""
    tree = tmp_path / "tree"
    forgotten = shutil.ignore_patterns("__pycache__", "out")
    shutil.copytree(ROOT / "perf", tree / "perf", ignore=forgotten)
    shutil.copytree(ROOT / "tests" / "e2e" / "harness", tree / "tests" / "e2e" / "harness", ignore=forgotten)
    (tree / ".gitignore").write_text("__pycache__\n/perf/out\n")
    git(tree, "init", "--quiet")
    git(tree, "add", ".")
    git(tree, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "--message", "all")
    return tree


def git(tree: Path, *words: str) -> None:
    subprocess.run(["git", "-C", tree, *words], check=True)


def run(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(tree / words[0]), *words[1:]]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=SECONDS_MAX)


def would_record(tree: Path) -> bool:
    code = f"import sys; sys.path.insert(0, {str(tree / 'perf')!r}); import recording; print(recording.folder(True))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 or "--record: " in done.stderr, done.stderr
    return done.returncode == 0


@pytest.mark.parametrize("words", RECORDING, ids=" ".join)
def test_a_tree_with_changes_records_nothing(tree: Path, words: list[str]):
    before = sorted((path, path.read_bytes()) for path in (tree / "perf" / "results").rglob("*") if path.is_file())
    (tree / "perf" / "bench.py").open("a").write("# changed\n")
    (tree / "new").touch()
    done = run(tree, *words, "--record")
    assert done.returncode not in (0, None), done
    assert "--record: " in done.stderr and "M perf/bench.py" in done.stderr and "?? new" in done.stderr, done.stderr
    after = sorted((path, path.read_bytes()) for path in (tree / "perf" / "results").rglob("*") if path.is_file())
    assert before == after and len(before) > 10


def test_results_themselves_may_differ(tree: Path):
    assert would_record(tree)
    (tree / "perf" / "results" / "data-plane.md").write_text("measured anew")
    (tree / "perf" / "results" / "another.json").write_text("{}")
    assert would_record(tree)
    git(tree, "add", "perf/results")
    assert would_record(tree), "added, but not committed yet"
    (tree / "perf" / "compare").write_text("")
    assert not would_record(tree)
    git(tree, "add", ".")
    assert not would_record(tree), "added, but not committed yet"


def test_without_git_nothing_is_recorded(tree: Path):
    shutil.rmtree(tree / ".git")
    assert not would_record(tree)
