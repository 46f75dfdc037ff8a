"""The table of a scenario: for people at a terminal, as Markdown, and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import bench

from .stage import Outcome
from .verdict import Verdict


# What --compare takes, and the labels of these runs.
COMPARED = ("static", "off", "direct", "twemproxy")


def passed(outcomes: list[Outcome]) -> bool:
    """Whether every run kept every line, but those that are only there to compare."""
    return bool(outcomes) and all(outcome.passed for outcome in outcomes if not outcome.variant.compared)


def cell(verdict: Verdict) -> str:
    return f"{verdict.word} {verdict.measured}" if verdict.measured is not None else verdict.word


def bar(verdicts: list[Verdict]) -> str:
    """What was held against, where that is not in the line already."""
    known = [verdict for verdict in verdicts if verdict.bar is not None]
    own = not known or isinstance(known[0].line.bar.of, type(known[0].bar))
    return "" if own else " / ".join(dict.fromkeys(str(verdict.bar) for verdict in known))


def terminal(outcomes: list[Outcome]) -> str:
    """The table with columns that line up."""
    scenario = outcomes[0].scenario
    rows = [("line", "bar", *(outcome.variant.label for outcome in outcomes))]
    for verdicts in zip(*(outcome.verdicts for outcome in outcomes)):
        rows.append((verdicts[0].line.text, bar(list(verdicts)), *map(cell, verdicts)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"{scenario.name}: {scenario.shows}", ""]
    lines += ["  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows]
    lines += [f"  {remark}" for remark in remarks(outcomes)]
    return "\n".join(lines) + "\n"


def remarks(outcomes: list[Outcome]) -> list[str]:
    """Why something was not measured, and everything else that a reader must know."""
    found = []
    for outcome in outcomes:
        label = outcome.variant.label
        if outcome.interrupted:
            found.append(f"{label}: interrupted; what was seen until then")
        if outcome.left_out:
            found.append(f"{label}: this weir does not know, so was run without: {', '.join(outcome.left_out)}")
        found += [f"{label}: FAIL: {fault}" for fault in dict.fromkeys(outcome.faults)]
        found += [f"{label}: {note}" for note in dict.fromkeys(outcome.notes)]
        reasons: dict[str, int] = {}
        for verdict in outcome.verdicts:
            if verdict.reason:
                reasons[verdict.reason] = reasons.get(verdict.reason, 0) + 1
        found += [f"{label}: not measured ({count}): {reason}" for reason, count in reasons.items()]
    return list(dict.fromkeys(found))


def markdown(outcomes: list[Outcome], command: str) -> str:
    scenario = outcomes[0].scenario
    labels = [outcome.variant.label for outcome in outcomes]
    lines = [
        f"# {scenario.name}",
        "",
        scenario.shows,
        "",
        f"`{command}` at {bench.commit_of(bench.ROOT)}.",
        "",
        "| line | bar | " + " | ".join(labels) + " |",
        "|---|---|" + "---|" * len(labels),
    ]
    for verdicts in zip(*(outcome.verdicts for outcome in outcomes)):
        cells = [cell(v) if v.passed else f"**{v.word}** {v.measured or ''}".strip() for v in verdicts]
        lines.append(f"| `{verdicts[0].line.text}` | {bar(list(verdicts))} | " + " | ".join(cells) + " |")
    if found := remarks(outcomes):
        lines += ["", *(f"* {remark}" for remark in found)]
    for outcome in outcomes:
        lines += ["", f"## What the clients saw: {outcome.variant.label}", "", *clients(outcome)]
    lines += ["", *(f"* {name}: {value}" for name, value in machine().items())]
    return "\n".join(lines) + "\n"


def clients(outcome: Outcome) -> list[str]:
    if outcome.load is None:
        return ["Nothing: weir-load left no report."]
    lines = [
        "| group | phase | offered/s | served | refused | by the client | failed | p50 | p99 | max |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in groups(outcome.load):
        share = lambda count, row=row: f"{count / row['offered']:.1%}" if row["offered"] else ""  # noqa: E731
        latency = " | ".join("" if (ms := row["latency_ms"][p]) is None else f"{ms:.1f} ms" for p in ("p50", "p99", "max"))
        lines.append(
            f"| {row['group']} | {row['phase']} | {row['offered'] / row['seconds']:,.0f} | {share(row['served'])} "
            f"| {share(row['refused'])} | {share(row['refused_by_client'])} | {share(row['failed'])} | {latency} |"
        )
    return lines


def groups(load: dict) -> list[dict]:
    """Every group and phase in a few figures."""
    rows = []
    for group in load["groups"]:
        for phase in group["phases"]:
            counts = phase["counts"]
            rows.append(
                {
                    "group": group["name"],
                    "phase": phase["name"],
                    "seconds": phase["duration_s"],
                    "offered": counts["offered"],
                    "served": counts["served"],
                    "refused": sum(counts[word] for word in ("throttled", "overloaded", "deadline", "unavailable")),
                    "refused_by_client": counts["refused_by_client"],
                    "failed": counts["errors"] + counts["timeouts"],
                    "latency_ms": phase["latency_ms"],
                }
            )
    return rows


def document(outcomes: list[Outcome], command: str) -> dict:
    """Everything, for programs."""
    scenario = outcomes[0].scenario
    return {
        "scenario": scenario.name,
        "shows": scenario.shows,
        "command": command,
        "commit": bench.commit_of(bench.ROOT),
        "machine": machine(),
        "passed": passed(outcomes),
        "interrupted": any(outcome.interrupted for outcome in outcomes),
        "runs": [
            {
                "label": outcome.variant.label,
                "target": outcome.variant.target,
                "shards": outcome.variant.shards,
                "flags": [" ".join(words) for words in (*scenario.weir_flags, *outcome.variant.flags)],
                "left_out": outcome.left_out,
                "passed": outcome.passed,
                "interrupted": outcome.interrupted,
                "faults": outcome.faults,
                "notes": outcome.notes,
                "lines": [line(verdict) for verdict in outcome.verdicts],
                "clients": groups(outcome.load) if outcome.load else [],
            }
            for outcome in outcomes
        ],
    }


def line(verdict: Verdict) -> dict:
    """A verdict; times in seconds, shares as parts of one. A recovery that never came is null, as JSON has no infinity."""
    finite = lambda value: None if value is None or value.number == float("inf") else value.number  # noqa: E731
    return {
        "line": verdict.line.text,
        "verdict": verdict.word,
        "measured": finite(verdict.measured),
        "bar": finite(verdict.bar),
        "kind": verdict.measured.kind.name.lower() if verdict.measured else None,
        "shown": str(verdict.measured) if verdict.measured else None,
        "reason": verdict.reason,
    }


def machine() -> dict[str, str]:
    found = bench.machine()
    return {name: found[name] for name in ("kernel", "cpu")}


def write(outcomes: list[Outcome], command: str, folder: Path, name: str) -> None:
    """NAME.json and NAME.md."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(document(outcomes, command), indent=1) + "\n")
    (folder / f"{name}.md").write_text(markdown(outcomes, command))
