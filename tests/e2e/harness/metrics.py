"""Parses the Prometheus text format, version 0.0.4, as strictly as a scraper does. `promtool` checks it too where it is
installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"^({NAME})(\{{.*\}})? (\S+)( -?\d+)?$")
LABELS = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
TYPES = {"counter", "gauge", "histogram", "summary", "untyped"}
SUFFIXES = ("_bucket", "_sum", "_count")


def parse(text: str) -> dict[str, dict[str, float]]:
    """Returns {metric name: {label text: value}}. Raises on the first line that a scraper would refuse."""
    assert text.endswith("\n"), "the last line does not end"
    types: dict[str, str] = {}
    helped: set[str] = set()
    found: dict[str, dict[str, float]] = {}
    closed: set[str] = set()
    current = ""
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"line {number}: {line!r}"
        if not line:
            continue
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            assert re.fullmatch(NAME, name) and name not in helped, f"{where}: a second HELP, or no name"
            helped.add(name)
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in TYPES and name not in types, f"{where}: a second TYPE, or no such type"
            assert name not in found, f"{where}: TYPE after a sample"
            types[name] = kind
            continue
        if line.startswith("#"):
            continue
        sample = SAMPLE.match(line)
        assert sample, f"{where}: not a sample"
        name, labels, value = sample.group(1), sample.group(2) or "", float(sample.group(3))
        inner = labels[1:-1]
        assert "".join(match.group(0) for match in LABELS.finditer(inner)) == inner, f"{where}: bad labels"
        keys = [match.group(1) for match in LABELS.finditer(inner)]
        assert len(keys) == len(set(keys)), f"{where}: a label twice"
        family = family_of(name, types)
        assert family in types and family in helped, f"{where}: no TYPE or HELP for {family}"
        if family != current:
            assert family not in closed, f"{where}: the lines of {family} are not together"
            closed.add(current)
            current = family
        assert labels not in found.setdefault(name, {}), f"{where}: twice"
        assert types[family] != "counter" or name.endswith("_total"), (
            f"{where}: a counter whose name does not end in _total"
        )
        assert types[family] != "counter" or value >= 0, f"{where}: a negative counter"
        found[name][labels] = value
    return found


def total(weir, name: str, label: str = "") -> float:
    """Returns the sum of a metric of a running weir over all labels, or over those whose text contains `label`, such as
    `reason="lost"`.
    """
    values = parse(weir.admin("/metrics")[1])[name]
    return sum(value for labels, value in values.items() if label in labels)


def family_of(name: str, types: dict[str, str]) -> str:
    for suffix in SUFFIXES:
        base = name.removesuffix(suffix)
        if base != name and types.get(base) in ("histogram", "summary"):
            return base
    return name


def promtool(text: str) -> str | None:
    """Returns promtool's complaints about a metrics page; None where promtool is not installed."""
    if shutil.which("promtool") is None:
        return None
    run = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    return (run.stdout + run.stderr).strip()
