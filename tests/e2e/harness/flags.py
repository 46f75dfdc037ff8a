"""weir's flags, as its `--help-all` lists them."""

from __future__ import annotations

import re
import subprocess

from .processes import binary


def defaults() -> dict[str, str | None]:
    """Returns each flag's name without dashes, and its default; None if it has none."""
    told = subprocess.run([binary("weir"), "--help-all"], check=True, capture_output=True, text=True).stdout
    # Descriptions are indented further, and a line of them may begin with the name of another flag.
    entry = r"^ {2,6}(?:-\w, )?--([a-z-]+)"
    entries = re.findall(rf"{entry}(.*?)(?={entry}|\Z)", told, re.DOTALL | re.MULTILINE)
    found = {}
    for flag, text, *_ in entries:
        default = re.search(r"\[default: ([^\]]*)\]", text)
        found[flag] = default and default[1]
    return {flag: default for flag, default in found.items() if flag not in ("help", "help-all", "version")}
