"""One table of several scenarios, each played before several targets (weir, another proxy, the stores themselves)."""

from __future__ import annotations

from . import ablation
from .stage import Outcome

# Subjects of lines about weir's own metrics, which say nothing of other targets.
OF_WEIR = ("weir", "tenants")


def entry(outcomes: list[Outcome]) -> dict:
    """A scenario with its runs by target, for the document."""
    scenario = outcomes[0].scenario
    shown = scenario.figure.text if scenario.figure else "lines that pass"
    return {"name": scenario.name, "shows": scenario.shows, "figure": shown, "runs": [run(outcome) for outcome in outcomes]}


def run(outcome: Outcome) -> dict:
    found = ablation.entry(outcome)
    is_weir = outcome.variant.target == "weir"
    lines = [] if is_weir else [verdict.line for verdict in outcome.verdicts]
    unknown = [line.text for line in lines if any(measure.path[0] in OF_WEIR for measure in line.measures())]
    return found | {"unknown": unknown, "failing": [line for line in found["failing"] if line not in unknown]}


def cell(run: dict) -> str:
    count = len(run["lines"]) - len(run["unknown"])
    failing = f"{len(run['failing'])} of {count} lines fail" if run["failing"] else f"all {count} lines hold"
    text = f"{ablation.share(run['figure'])}; {failing}"
    return f"**{text}; {ablation.FAULTY}**" if run["faults"] else text


def markdown(document: dict) -> str:
    labels = [run["variant"] for run in document["scenarios"][0]["runs"]]
    lines = [
        "# Bad hours before several targets", "",
        f"`{document['command']}` at {document['commit']}.", "",
        "The same stores and the same load; a cell holds the scenario's figure, and how many of its acceptance lines hold. Lines that "
        "look at weir's metrics are left out for other targets.", "",
        "| scenario | what happens | figure | " + " | ".join(labels) + " |",
        "|---" * (3 + len(labels)) + "|",
    ]  # fmt: skip
    for scenario in document["scenarios"]:
        cells = " | ".join(cell(run) for run in scenario["runs"])
        lines.append(f"| `{scenario['name']}` | {scenario['shows']} | `{scenario['figure']}` | {cells} |")
    lines += ablation.faults(document)
    lines += ["", "## Lines that fail", ""]
    for scenario in document["scenarios"]:
        for run in scenario["runs"]:
            verdicts = {line["line"]: line for line in run["lines"]}
            lines += [f"* {scenario['name']}, {run['variant']}: `{text}`: {measured(verdicts[text])}" for text in run["failing"]]
    lines += [""] + [f"* {name}: {value}" for name, value in document["machine"].items()]
    return "\n".join(lines) + "\n"


def measured(line: dict) -> str:
    return line["shown"] or line["reason"] or line["verdict"]
