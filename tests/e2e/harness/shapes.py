"""Reads the command shapes in shapes/*.shapes, and compares replies by their rules. shapes/README.md describes the format."""

from __future__ import annotations

import codecs
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from .resp import Reply, encode

SECONDS_APART = 2
FOLDER = Path(__file__).resolve().parent.parent / "shapes"


@dataclass(frozen=True)
class Step:
    """One line of a shape."""

    line: int
    text: str
    mark: str  # "" exact, "~" any order, "^" nearly, "?" types only, "!" straight to every store, ">" inline

    def request(self, tag: bytes) -> bytes:
        if self.mark == ">":
            return self.text.encode().replace(b"@", b"{%s}" % tag) + b"\r\n"
        return encode(*self.words(tag))

    def words(self, tag: bytes) -> list[bytes]:
        words = [word.encode("latin-1") for word in split(self.text)]
        return [b"{%s}%s" % (tag, word[1:]) if word.startswith(b"@") else word for word in words]


def split(line: str) -> list[str]:
    """Splits a line into words, with one character per byte."""
    return [codecs.escape_decode(word.encode())[0].decode("latin-1") for word in shlex.split(line)]


@dataclass(frozen=True)
class Shape:
    """One block of a file: commands that build on each other, with a hash tag of their own."""

    family: str
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        first = self.steps[0]
        return f"{self.family}:{first.line}:{first.text[:32]}"


def load(folder: Path = FOLDER) -> list[Shape]:
    return [shape for path in sorted(folder.glob("*.shapes")) for shape in _blocks(path)]


def _blocks(path: Path) -> list[Shape]:
    shapes, steps = [], []
    for number, line in enumerate([*path.read_text().splitlines(), ""], start=1):
        if line.startswith("#"):
            continue
        if not line.strip():
            if steps:
                shapes.append(Shape(path.stem, tuple(steps)))
            steps = []
            continue
        mark, text = (line[0], line[2:]) if line[0] in "~^?!>" and line[1:2] == " " else ("", line)
        steps.append(Step(number, text, mark))
    return shapes


def agree(expected: Reply, found: Reply, mark: str) -> bool:
    """True if two replies agree as far as the mark requires."""
    if mark == "^" and expected.kind == found.kind == b":":
        return abs(int(expected.value) - int(found.value)) <= SECONDS_APART
    return comparable(expected, mark) == comparable(found, mark)


def without_fields(reply: Reply, names: set[bytes]) -> Reply:
    """The reply without the fields of these names, in maps and in arrays of names and values. Its raw bytes stay."""
    children, kept = reply.children or [], []
    skipping = False
    for child in children:
        if skipping or child.value in names:
            skipping = not skipping
        else:
            kept.append(without_fields(child, names))
    return reply if reply.children is None else replace(reply, children=kept)


def comparable(reply: Reply, mark: str):
    """Returns the part of a reply that must be equal on both sides."""
    if mark == "~":
        return _unordered(reply)
    if mark == "?":
        return _outline(reply)
    return reply.raw


def _unordered(reply: Reply):
    if reply.children is None:
        return reply.raw
    width = 2 if reply.kind == b"%" else 1
    raws = [child.raw for child in reply.children]
    groups = [tuple(raws[i : i + width]) for i in range(0, len(raws), width)]
    return reply.kind, sorted(groups)


def _outline(reply: Reply):
    kind = "null" if reply.is_null else reply.kind.decode()
    if reply.children is None:
        return kind
    return kind, [_outline(child) for child in reply.children]
