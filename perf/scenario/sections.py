"""Where something stands in a TOML file, and the part of it that another program is to read."""

from __future__ import annotations

import re

from .expression import seconds

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*(\]\]?)\s*(?:#.*)?$")
_DURATION = re.compile(r"""^(\s*duration\s*=\s*)"([^"]*)"(.*)$""")


class Places:
    """The lines of a file. The TOML reader keeps no places, so they are found again."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.splitlines()

    def section(self, section: str) -> str:
        """The lines of a section and of those in it, all other lines empty, and its name gone from the headers.

        So every line keeps its number, and whoever reads this complains about the right one.
        """
        kept, inside = [], False
        for line in self.lines:
            if header := _HEADER.match(line):
                opening, name, closing = header.groups()
                inside = name == section or name.startswith(f"{section}.")
                name = name.removeprefix(section).removeprefix(".")
                line = f"{opening}{name}{closing}" if name else ""
            kept.append(line if inside else "")
        return "\n".join(kept) + "\n"

    def line_of(self, key: str, section: str, index: int) -> int:
        """Where a key of the index-th such section stands; its header if it does not, or line 1."""
        current, seen, header_line = "", -1, 1
        for number, line in enumerate(self.lines, start=1):
            if header := _HEADER.match(line):
                current = header[2]
                if current == section:
                    seen += 1
                    header_line = number if seen == index else header_line
                if not section and (current == key or current.startswith(f"{key}.")):
                    return number
            elif re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
                in_place = not current if not section else current == section and seen == index
                if in_place:
                    return number
        return header_line

    def line_with(self, text: str) -> int:
        return next((number for number, line in enumerate(self.lines, start=1) if text in line), 1)


def scaled(text: str, scale: float) -> str:
    """The same with every duration so many times as long."""

    def line(line: str) -> str:
        match = _DURATION.match(line)
        return f'{match[1]}"{seconds(match[2]) * scale * 1000:.0f}ms"{match[3]}' if match else line

    return "\n".join(map(line, text.splitlines())) + "\n"
