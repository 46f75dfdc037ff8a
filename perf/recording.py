"""Where results go: by default where nothing stays, and with --record beside the others, from a tree that its commit describes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import bench

RESULTS = bench.ROOT / "perf" / "results"
OUT = bench.ROOT / "perf" / "out"
CHANGES_SHOWN = 5


def folder(record: bool, root: Path = bench.ROOT) -> Path:
    """The folder for results. Ends the program where they are to stay but would name a commit that is not what was measured."""
    if record:
        demand_clean_tree(root)
    chosen = RESULTS if record else OUT
    chosen.mkdir(exist_ok=True)
    return chosen


def demand_clean_tree(root: Path = bench.ROOT) -> None:
    if changed := changes(root):
        shown = "\n".join(f"    {line}" for line in changed[:CHANGES_SHOWN])
        more = f"\n    and {len(changed) - CHANGES_SHOWN} more" if len(changed) > CHANGES_SHOWN else ""
        raise SystemExit(
            "--record: a recorded result names the commit that it was measured at, and this tree differs from it.\n"
            f"Commit or stash first:\n{shown}{more}"
        )


def changes(root: Path) -> list[str]:
    """What git status tells, results aside: they are what recording changes."""
    command = ["git", "-C", str(root), "status", "--porcelain", "--", ".", ":(exclude)perf/results"]
    told = subprocess.run(command, capture_output=True, text=True)
    if told.returncode:
        raise SystemExit(f"--record: git cannot tell the state of {root}: {told.stderr.strip()}")
    return told.stdout.splitlines()
