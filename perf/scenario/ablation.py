"""The table, the findings and the picture of perf/ablation: scenarios, each with one layer after the other switched off.

All are made from the document that is also written as JSON: for every scenario its runs by variant, each with the
scenario's figure, the lines that failed, and the faults of the run. A run with a fault was not the scenario's: the
table shows it, and no finding is drawn from it.
"""

from __future__ import annotations

from html import escape

from . import report
from .parts import Scenario
from .stage import Outcome

FULL, AGAIN = "weir", "weir again"
# Stands in the cell of a run with faults.
FAULTY = "faulty run"
# A figure has moved when it lies more than so many points outside of what the two runs with every layer show.
POINTS = 5.0

# Of the picture, in pixels.
LABEL, COLUMN, ROW, HEAD, FOOT, PAD = 170, 84, 42, 54, 46, 12
# A move of so many points, or more, has the strongest colour.
POINTS_STRONGEST = 50.0
HEADING = "Figure of each scenario, and acceptance lines that fail, without a layer; with the static limiter; without any layer"
STYLE = """
text{font-family:system-ui,sans-serif;font-size:12px;fill:#1f2937}
.page{fill:#fff}.small{font-size:10.5px}.soft{fill:#64748b}.cell{fill:#f1f5f9}.worse{fill:#dc2626}.better{fill:#2563eb}
.fails{fill:none;stroke:#b91c1c;stroke-width:2}
@media (prefers-color-scheme:dark){text{fill:#e5e7eb}.page{fill:#0f172a}.soft{fill:#94a3b8}.cell{fill:#1e293b}
.worse{fill:#ef4444}.better{fill:#3b82f6}.fails{stroke:#f87171}}
"""


def entry(outcome: Outcome) -> dict:
    """A run, for the document."""
    lines = [report.line(verdict) for verdict in outcome.verdicts]
    return {
        "variant": outcome.variant.label,
        "flags": [" ".join(words) for words in (*outcome.scenario.weir_flags, *outcome.variant.flags)],
        "figure": figure(outcome),
        "lines": lines,
        "failing": [line["line"] for line in lines if line["verdict"] != "PASS"],
        "left_out": outcome.left_out,
        "faults": outcome.faults,
        "notes": outcome.notes,
    }


def put_runs(document: dict, scenario: Scenario, runs: dict[str, dict]) -> None:
    """Puts runs, by the names of their variants, into the document in place of the scenario's earlier runs of the same variants."""
    told = next((each for each in document["scenarios"] if each["name"] == scenario.name), None)
    if told is None:
        shown = scenario.figure.text if scenario.figure else "lines that pass"
        told = {"name": scenario.name, "shows": scenario.shows, "figure": shown, "runs": []}
        document["scenarios"].append(told)
    kept = {run["variant"]: run for run in told["runs"]} | runs
    told["runs"] = [kept[label] for label in document["variants"] if label in kept]


def figure(outcome: Outcome) -> float | None:
    """The scenario's figure in percent; where its file names none, the share of lines that pass."""
    if outcome.scenario.figure is None:
        return 100.0 * sum(verdict.passed for verdict in outcome.verdicts) / len(outcome.verdicts)
    verdict = outcome.figure
    if verdict is None or verdict.measured is None:
        return None
    return 100.0 * verdict.measured.number / verdict.bar.number


class Row:
    """A scenario with its runs by variant."""

    def __init__(self, scenario: dict) -> None:
        self.name = scenario["name"]
        self.figure = scenario["figure"]
        self.runs = {run["variant"]: run for run in scenario["runs"]}
        self.usual = [self.runs[name] for name in (FULL, AGAIN) if self.is_sound(name)]

    def is_sound(self, variant: str) -> bool:
        """True if the variant ran as its file says."""
        return variant in self.runs and not self.runs[variant]["faults"]

    def moved(self, variant: str) -> float | None:
        """By how many points the figure lies outside of what weir with every layer shows; None where that is unknown."""
        usual = [each["figure"] for each in self.usual if each["figure"] is not None]
        if not self.is_sound(variant) or self.runs[variant]["figure"] is None or not usual:
            return None
        run = self.runs[variant]
        return max(0.0, run["figure"] - max(usual)) - max(0.0, min(usual) - run["figure"])

    def newly_failing(self, variant: str) -> list[str]:
        """Lines that fail in this variant, and in no run with every layer."""
        if not self.is_sound(variant) or not self.usual:
            return []
        excused = {line for run in self.usual for line in run["failing"]}
        return [line for line in self.runs[variant]["failing"] if line not in excused]

    def changed(self, variant: str) -> bool:
        return bool(self.newly_failing(variant)) or abs(self.moved(variant) or 0.0) > POINTS


def markdown(document: dict) -> str:
    rows = [Row(scenario) for scenario in document["scenarios"]]
    variants = document["variants"]
    lines = ["# Each layer switched off in turn", "", f"`{document['command']}` at {document['commit']}.", ""]
    for anew in document.get("anew", []):
        lines += [f"Measured anew: {', '.join(anew['variants'])}, with `{anew['command']}` at {anew['commit']}.", ""]
    if document["interrupted"]:
        lines += ["The run was interrupted: this is what it had by then.", ""]
    lines += [
        f"A cell holds the scenario's figure, and how many of its acceptance lines fail. `{FULL}` and `{AGAIN}` are two runs with every layer:",
        "what differs between them is noise.",
        "",
        "| scenario | figure | " + " | ".join(variants) + " |",
        "|---|---|" + "---|" * len(variants),
    ]
    for row in rows:
        cells = [cell(row, variant) for variant in variants]
        lines.append(f"| `{row.name}` | `{row.figure}` | " + " | ".join(cells) + " |")
    lines += faults(document)
    lines += ["", "![a heat map of this table](../../docs/design/ablation.svg)", ""] if document["recorded"] else [""]
    lines += ["## By layer", "", *findings(rows, variants)]
    lines += ["", "## Lines that fail", "", *failing(rows, variants)]
    lines += ["", *(f"* {name}: {value}" for name, value in document["machine"].items())]
    return "\n".join(lines) + "\n"


def cell(row: Row, variant: str) -> str:
    run = row.runs.get(variant)
    if run is None:
        return ""
    text = share(run["figure"])
    if run["failing"]:
        text += f", {len(run['failing'])} of {len(run['lines'])} fail"
    if run["faults"]:
        return f"**{text}, {FAULTY}**"
    return f"**{text}**" if row.newly_failing(variant) else text


def faults(document: dict) -> list[str]:
    """Lines below a table that name the faults of its runs; none if there are no faults."""
    found = [
        f"* `{scenario['name']}`, {run['variant']}: {fault}"
        for scenario in document["scenarios"]
        for run in scenario["runs"]
        for fault in dict.fromkeys(run["faults"])
    ]
    return ["", "Runs with faults, which were not as their files say:", "", *found] if found else []


def share(percent: float | None) -> str:
    return "not measured" if percent is None else f"{percent:.1f} %" if percent < 1000 else f"{percent:,.0f} %"


def findings(rows: list[Row], variants: list[str]) -> list[str]:
    """For each layer the scenarios that need it, and for one that none needs a sentence that says so."""
    lines = []
    for variant in variants:
        if variant in (FULL, AGAIN):
            continue
        seen = [row for row in rows if row.is_sound(variant) and row.usual]
        changed = [row for row in seen if row.changed(variant)]
        if not seen:
            was_run = any(variant in row.runs for row in rows)
            lines.append(f"* **{variant}**: not run{' without a fault' if was_run else ''}.")
        elif not changed:
            lines.append(
                f"* **{variant}**: changed nothing. In none of {len(seen)} scenarios does a further line fail, or the figure move by more "
                f"than {POINTS:g} points."
            )
        else:
            lines.append(f"* **{variant}**: changed {len(changed)} of {len(seen)} scenarios.")
            lines += [f"    * {told(row, variant)}" for row in changed]
    return lines


def told(row: Row, variant: str) -> str:
    parts = []
    moved = row.moved(variant) or 0.0
    if abs(moved) > POINTS:
        usual = [run["figure"] for run in row.usual if run["figure"] is not None]
        parts.append(f"`{row.figure}` {share(sum(usual) / len(usual))} -> {share(row.runs[variant]['figure'])}")
    if row.runs[variant]["figure"] is None:
        parts.append(f"`{row.figure}` not measured")
    fails = row.newly_failing(variant)
    if fails:
        parts.append(f"{len(fails)} more of {len(row.runs[variant]['lines'])} lines fail")
    return f"`{row.name}`: {'; '.join(parts)}"


def failing(rows: list[Row], variants: list[str]) -> list[str]:
    lines = []
    for row in rows:
        for variant in variants:
            if variant in row.runs and row.runs[variant]["failing"]:
                shown = {line["line"]: line["shown"] or "not measured" for line in row.runs[variant]["lines"]}
                told_lines = "; ".join(f"`{line}` ({shown[line]})" for line in row.runs[variant]["failing"])
                lines.append(f"* `{row.name}`, {variant}: {told_lines}")
    return lines or ["None."]


def svg(document: dict) -> str:
    """The table as a heat map: red where a figure fell, blue where it rose, a frame where further lines fail."""
    rows = [Row(scenario) for scenario in document["scenarios"]]
    variants = document["variants"]
    width = 2 * PAD + LABEL + COLUMN * len(variants)
    height = HEAD + ROW * len(rows) + FOOT
    title = "Scenarios with each layer switched off in turn"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
        f"<title>{title}</title><style>{STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
        f'<text class="soft" x="{PAD}" y="18">{HEADING}</text>',
    ]
    for column, variant in enumerate(variants):
        name = {FULL: "nothing", AGAIN: "nothing, again"}.get(variant, variant.removeprefix("no "))
        parts.append(f'<text x="{middle(column)}" y="{HEAD - 10}" text-anchor="middle">{escape(name)}</text>')
    for place, row in enumerate(rows):
        top = HEAD + place * ROW
        parts.append(f'<text x="{PAD}" y="{top + 18}">{escape(row.name)}</text>')
        parts.append(f'<text class="small soft" x="{PAD}" y="{top + 32}">{escape(fit(row.figure))}</text>')
        parts += [square(row, variant, column, top) for column, variant in enumerate(variants) if variant in row.runs]
    foot = HEAD + ROW * len(rows) + 20
    shades = f"Red: the figure fell; blue: it rose; strongest from {POINTS_STRONGEST:g} points."
    legend = f"{shades} A frame: lines fail that pass with every layer."
    parts.append(f'<text class="small soft" x="{PAD}" y="{foot}">{legend}</text>')
    parts.append(f'<text class="small soft" x="{PAD}" y="{foot + 15}">{escape(document["command"])}, at {document["commit"]}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def middle(column: int) -> float:
    return PAD + LABEL + column * COLUMN + COLUMN / 2


def fit(text: str) -> str:
    room = 29
    return text if len(text) <= room else text[: room - 1] + "\u2026"


def square(row: Row, variant: str, column: int, top: int) -> str:
    run = row.runs[variant]
    moved = 0.0 if variant in (FULL, AGAIN) else row.moved(variant) or 0.0
    left = PAD + LABEL + column * COLUMN
    place = f'x="{left + 1}" y="{top + 1}" width="{COLUMN - 2}" height="{ROW - 2}" rx="4"'
    parts = [f'<rect class="cell" {place}/>']
    if abs(moved) > POINTS:
        strength = 0.15 + 0.6 * min(1.0, abs(moved) / POINTS_STRONGEST)
        parts.append(f'<rect class="{"worse" if moved < 0 else "better"}" fill-opacity="{strength:.2f}" {place}/>')
    if row.newly_failing(variant):
        parts.append(f'<rect class="fails" x="{left + 2}" y="{top + 2}" width="{COLUMN - 4}" height="{ROW - 4}" rx="3"/>')
    shown = "?" if run["figure"] is None else share(run["figure"])
    parts.append(f'<text x="{middle(column)}" y="{top + 18}" text-anchor="middle">{shown}</text>')
    count = len(run["failing"])
    note = FAULTY if run["faults"] else f"{count} of {len(run['lines'])} fail" if count else "all pass"
    parts.append(f'<text class="small{"" if count else " soft"}" x="{middle(column)}" y="{top + 33}" text-anchor="middle">{note}</text>')
    told = [f"fails: {line}" for line in run["failing"]] + [f"fault: {fault}" for fault in run["faults"]]
    hover = escape("\n".join([f"{row.name}, {variant}: {row.figure} {shown}", *told]))
    return f"<g><title>{hover}</title>{''.join(parts)}</g>"
