"""Runs the tour in README.md: its commands, unchanged, must print what the page says."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from harness.ports import free_port
from harness.processes import ROOT, binary

pytestmark = pytest.mark.weir_only

SECONDS_MAX = 60
BLOCK = re.compile(r"^```(sh)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# The line that separates the output of two blocks.
BETWEEN = "=== next block ==="


def tour() -> list[tuple[str, str]]:
    """Returns the commands of each block, and the output that the page shows for it."""
    section = re.search(r"^## Five minutes\n(.*?)^## ", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert section, "README.md has the tour"
    blocks = [(language == "sh", text) for language, text in BLOCK.findall(section[1])]
    commands = [text for is_shell, text in blocks if is_shell]
    said = [text for is_shell, text in blocks if not is_shell]
    assert [is_shell for is_shell, _ in blocks] == [True, False] * len(commands), "each block is followed by what it says"
    return list(zip(commands, said))


def pattern(said: str) -> re.Pattern[str]:
    """Returns a pattern for the expected output, in which an ellipsis stands for anything within a line."""
    return re.compile(re.escape(said).replace(re.escape("..."), ".*"))


def test_the_tour_does_what_it_says(tmp_path):
    steps = tour()
    assert len(steps) >= 4
    # The commands run the tested binary, on free ports.
    changes = {"cargo run --release --": str(binary("weir")), "7379": str(free_port()), "7381": str(free_port())}
    script = f"\necho '{BETWEEN}'\n".join(commands for commands, _ in steps) + "\nkill %1 && wait\n"
    for written, own in changes.items():
        assert written in script, written
        script = script.replace(written, own)
    addresses = {"WEIR_LISTEN": f"127.0.0.1:{changes['7379']}", "WEIR_ADMIN": f"127.0.0.1:{changes['7381']}"}
    with (tmp_path / "log").open("wb") as log:
        shell = subprocess.Popen(
            ["bash", "-c", script], cwd=tmp_path, env={**os.environ, **addresses}, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
        try:
            told, _ = shell.communicate(timeout=SECONDS_MAX)
        finally:
            # weir is ended too if the tour stopped early.
            subprocess.run(["kill", "--", f"-{shell.pid}"], stderr=subprocess.DEVNULL)
    found = told.split(f"{BETWEEN}\n")
    log = (tmp_path / "log").read_text()
    assert len(found) == len(steps), f"{told}\n{log}"
    for (commands, said), own in zip(steps, found):
        assert pattern(said).fullmatch(own), f"{commands}\nREADME.md says:\n{said}\nfound:\n{own}\n{log}"
    assert "\nTHROTTLED scope=tenant name=acme " in found[-1], "it ends in a refusal"
