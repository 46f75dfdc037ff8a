"""weir's flags, as its `--help-all` lists them."""

from __future__ import annotations

import re
import subprocess

from .processes import binary


def defaults() -> dict[str, str | None]:
    """Each flag, without its dashes, and its default, if it has one."""
    told = subprocess.run([binary("weir"), "--help-all"], check=True, capture_output=True, text=True).stdout
    # Text stands further to the right, and may begin a line with the name of another flag.
    entry = r"^ {2,6}(?:-\w, )?--([a-z-]+)"
    entries = re.findall(rf"{entry}(.*?)(?={entry}|\Z)", told, re.DOTALL | re.MULTILINE)
    found = {}
    for flag, text, *_ in entries:
        default = re.search(r"\[default: ([^\]]*)\]", text)
        found[flag] = default and default[1]
    return {flag: default for flag, default in found.items() if flag not in ("help", "help-all", "version")}
