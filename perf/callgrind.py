"""Runs one case of the instruction benchmark under callgrind, and reads what it wrote down.

Instructions are counted in the deciding code alone: valgrind runs one thread at a time and does not let go of one that
sleeps in io_uring.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import bench

MEASURED = "instructions::measured"
LINE = re.compile(r"(fl|fi|fe|fn|cfi|cfl|cfn|ob|cob)=\((\d+)\)(?: (.*))?$")


@dataclass(frozen=True)
class Place:
    """Code: the function that it was compiled into, that function's file, and the file that the code itself is from."""

    function: str
    home: str
    file: str


@dataclass
class Counts:
    """Instructions of each place, and those of calls with all that they called in turn, by caller and callee."""

    own: Counter[Place] = field(default_factory=Counter)
    calls: Counter[tuple[Place, str]] = field(default_factory=Counter)


def build(profile: str | None = None) -> Path:
    """The benchmark, as `cargo bench` builds it, but without the binaries: it is of the deciding code alone. With a profile, as
    `cargo test` builds it in that profile, with all else that the tests need."""
    if profile is None:
        how = ["bench", "-p", "weir", "--no-default-features"]
    else:
        how = ["test", "--profile", profile]
    built = subprocess.run(
        ["cargo", *how, "--quiet", "--bench", "instructions", "--no-run", "--message-format", "json"],
        check=True,
        capture_output=True,
        text=True,
        cwd=bench.ROOT,
    ).stdout
    messages = [json.loads(line) for line in built.splitlines()]
    targets = [message for message in messages if message.get("target", {}).get("name") == "instructions"]
    return Path(next(message["executable"] for message in targets if message["executable"]))


def cases(program: Path) -> list[str]:
    """The names of its cases; a case's number is its place."""
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()[1:]
    return [line.removesuffix("runs").strip() for line in lines]


def run(program: Path, case: int, counts: Path) -> int:
    """Writes callgrind's counts of a case to a file, and tells how many requests they are of."""
    command = ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={counts}"]
    # The second one is for the suffix that compilers give a name; the function that warms up goes by another name.
    command += [f"--toggle-collect={MEASURED}", f"--toggle-collect={MEASURED}::h*"]
    try:
        done = subprocess.run([*command, program, "--case", str(case)], check=True, stdout=subprocess.PIPE, text=True)
    except FileNotFoundError:
        raise SystemExit("valgrind is not installed; it is Debian's package valgrind") from None
    return int(re.search(r"measured (\d+) requests", done.stdout)[1])


def read(path: Path) -> Counts:
    """What callgrind wrote: its format names files and functions once, and by number from then on."""
    counts = Counts()
    files: dict[str, str] = {}
    functions: dict[str, str] = {}
    function = home = file = callee = ""
    called = False
    for line in path.read_text().splitlines():
        if named := LINE.match(line):
            kind, number, name = named.groups()
            table = functions if kind in ("fn", "cfn") else files
            if kind in ("ob", "cob"):
                continue
            if name is not None:
                table[number] = name
            name = table[number]
            if kind == "fl":
                home = file = name
            elif kind in ("fi", "fe"):
                file = name
            elif kind == "fn":
                function, file = name, home
            elif kind == "cfn":
                callee = name
        elif line.startswith("calls="):
            called = True
        elif line[:1].isdigit() or line[:1] in ("+", "-", "*"):
            place, cost = Place(function, home, file), int(line.split()[1])
            if called:
                counts.calls[place, callee] += cost
            else:
                counts.own[place] += cost
            called = False
    return counts
