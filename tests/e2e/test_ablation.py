"""Tests of perf/ablation: its table, findings and picture say which layers made a difference. No server is started."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest

from harness.processes import ROOT

sys.path.insert(0, str(ROOT / "perf"))

from scenario import ablation, beside  # noqa: E402

pytestmark = pytest.mark.weir_only


def run(variant: str, figure: float | None, *failing: str) -> dict:
    verdict = lambda line: "FAIL" if line in failing else "PASS"  # noqa: E731
    lines = [{"line": line, "verdict": verdict(line), "shown": "7 ms"} for line in ("a.p99 <= 5ms", "b.p99 <= 5ms")]
    return {"variant": variant, "figure": figure, "lines": lines, "failing": list(failing), "faults": []}


def document(*runs: dict, name: str = "flood") -> dict:
    names = ["weir", "weir again", "no rate", "no shed"]
    scenario = {"name": name, "figure": "a.served(20ms)", "runs": list(runs)}
    common = {"command": "perf/ablation flood", "commit": "abc", "machine": {"cpu": "two"}, "recorded": False, "interrupted": False}
    return {**common, "variants": names, "scenarios": [scenario]}


USUAL = (run("weir", 98.0), run("weir again", 99.0, "b.p99 <= 5ms"))


def test_a_layer_matters_where_a_further_line_fails_or_the_figure_leaves_the_noise():
    told = ablation.markdown(document(*USUAL, run("no rate", 90.0), run("no shed", 97.0, "a.p99 <= 5ms", "b.p99 <= 5ms")))
    assert "* **no rate**: changed 1 of 1 scenarios." in told and "`a.served(20ms)` 98.5 % -> 90.0 %" in told
    # The other line fails with every layer too, so it is no finding.
    assert "* **no shed**: changed 1 of 1 scenarios." in told and "`flood`: 1 more of 2 lines fail" in told
    assert "* `flood`, no shed: `a.p99 <= 5ms` (7 ms); `b.p99 <= 5ms` (7 ms)" in told
    assert "| `flood` | `a.served(20ms)` | 98.0 % | 99.0 %, 1 of 2 fail | 90.0 % | **97.0 %, 2 of 2 fail** |" in told


def test_a_variant_that_is_measured_anew_takes_the_place_of_its_earlier_run():
    told = document(*USUAL, run("no rate", 40.0), run("no shed", 99.0))
    told["anew"] = [{"variants": ["no rate"], "command": "perf/ablation --anew 'no rate'", "commit": "def"}]
    flood, other = SimpleNamespace(name="flood", shows="", figure=None), SimpleNamespace(name="other", shows="", figure=None)
    ablation.put_runs(told, flood, {"no rate": run("no rate", 97.0)})
    ablation.put_runs(told, other, {"no shed": run("no shed", 3.0), "weir": run("weir", 4.0)})
    runs = {scenario["name"]: [(each["variant"], each["figure"]) for each in scenario["runs"]] for scenario in told["scenarios"]}
    assert runs["flood"] == [("weir", 98.0), ("weir again", 99.0), ("no rate", 97.0), ("no shed", 99.0)]
    assert runs["other"] == [("weir", 4.0), ("no shed", 3.0)]
    assert "Measured anew: no rate, with `perf/ablation --anew 'no rate'` at def.\n" in ablation.markdown(told)


def test_a_layer_that_matters_nowhere_is_told():
    told = ablation.markdown(document(*USUAL, run("no rate", 93.1, "b.p99 <= 5ms"), run("no shed", 103.9)))
    for layer in ("no rate", "no shed"):
        assert f"* **{layer}**: changed nothing. In none of 1 scenarios" in told


def test_a_run_with_a_fault_is_shown_and_no_finding():
    fault = "STORAGE STALL 1s was answered with: ERR"
    faulty = {**run("no rate", 40.0, "a.p99 <= 5ms"), "faults": [fault, fault]}
    told = ablation.markdown(document(*USUAL, faulty, run("no shed", 99.0)))
    assert told.count(f"* `flood`, no rate: {fault}\n") == 1 and "**40.0 %, 1 of 2 fail, faulty run**" in told
    assert "* **no rate**: not run without a fault." in told and "* **no shed**: changed nothing." in told
    assert told.index("Runs with faults") < told.index("## By layer")
    picture = ablation.svg(document(*USUAL, faulty))
    assert f"fault: {fault}" in picture and 'class="worse"' not in picture and 'class="fails"' not in picture


def test_a_faulty_run_with_every_layer_is_no_measure_for_the_others():
    first, again = ({**run(name, 10.0), "faults": ["weir ended with 1"]} for name in ("weir", "weir again"))
    told = ablation.markdown(document(first, again, run("no rate", 90.0, "a.p99 <= 5ms")))
    assert "| **10.0 %, faulty run** | **10.0 %, faulty run** | 90.0 %, 1 of 2 fail |" in told
    assert "changed" not in told
    told = ablation.markdown(document(USUAL[0], again, run("no rate", 90.0)))
    assert "`a.served(20ms)` 98.0 % -> 90.0 %" in told


def test_a_table_of_targets_shows_faults():
    runs = [{**run(name, 98.0), "unknown": []} for name in ("weir", "direct")]
    found = document(*runs)
    found["scenarios"][0]["shows"] = "A flood."
    assert "fault" not in beside.markdown(found)
    runs[1]["faults"] = ["weir-load ended with 1: "]
    told = beside.markdown(found)
    assert "| 98.0 %; all 2 lines hold | **98.0 %; all 2 lines hold; faulty run** |" in told
    assert "* `flood`, direct: weir-load ended with 1: " in told[: told.index("## Lines that fail")]


def test_an_interrupted_run_tells_what_it_has():
    found = {**document(USUAL[0]), "interrupted": True}
    told = ablation.markdown(found)
    assert "The run was interrupted" in told and "| `flood` | `a.served(20ms)` | 98.0 % |  |  |  |" in told
    assert "* **no rate**: not run." in told
    ElementTree.fromstring(ablation.svg(found))


def test_the_picture_has_a_square_for_each_run_and_marks_what_changed():
    found = document(*USUAL, run("no rate", 40.0, "a.p99 <= 5ms"), run("no shed", None), name="<flood>")
    picture = ElementTree.fromstring(ablation.svg(found))
    of = lambda name: [each for each in picture.iter() if each.get("class") == name]  # noqa: E731
    assert [len(of(name)) for name in ("cell", "worse", "better", "fails")] == [4, 1, 0, 1]
    assert "prefers-color-scheme:dark" in ablation.svg(found)
