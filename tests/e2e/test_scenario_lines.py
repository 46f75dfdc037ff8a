"""Tests of perf/run's scenario files and acceptance lines: their meaning, their verdicts, and helpful errors. Servers start
only for checks of files.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from harness.ports import free_port
from harness.processes import ROOT, binary

sys.path.insert(0, str(ROOT / "perf"))

from scenario import file, homes  # noqa: E402
from scenario.expression import Kind, Wrong, parse, parse_figure  # noqa: E402
from scenario.measured import Measured, Snapshot, samples  # noqa: E402
from scenario.servers import known_flags  # noqa: E402
from scenario.verdict import Figure, NotMeasured, judge  # noqa: E402

pytestmark = pytest.mark.weir_only
USAGE = 2

GOOD = """\
shows = "Nothing much."
accept = [
    "point.p99 <= 20ms",
]

[weir]
shards = 2
flags = ["--max-clients 100"]

[quotas.tenants.acme]
password = "secret"

[[storage]]
name = "main"
flags = "--servers 4"

[[event]]
at = "2s"
lasts = "1s"
storage = "STALL {lasts}"

[load]

[[load.group]]
name = "point"
command = "GET a"

[[load.group.phase]]
name = "calm"
duration = "2s"
rate = 10

[[load.group.phase]]
name = "over"
duration = "8s"
rate = 10
"""


def figures(**known: Figure):
    def look_up(measure):
        if str(measure) not in known:
            raise NotMeasured("nobody knows")
        return known[str(measure)]

    return look_up


SHOWN = {
    "a.served": Figure(990, Kind.COUNT, 10, 1000),
    "b.served": Figure(500, Kind.COUNT, 5, 500),
    "a.p99": Figure(0.012, Kind.TIME),
    "b.p99": Figure(0.010, Kind.TIME),
    "a.goodput": Figure(99, Kind.RATE),
    "a.served(20ms)": Figure(900, Kind.COUNT, 10, 1000),
    "storage.reads(k)": Figure(1, Kind.COUNT, 10),
    "weir.x{reason=late, shard=0}": Figure(7, Kind.COUNT, 10),
    "a.recovery(50ms)": Figure(math.inf, Kind.TIME),
    "idle.served": Figure(0, Kind.COUNT, 10, 0),
    "weir.depth": Figure(40, Kind.COUNT),
    "storage.queue_max": Figure(38, Kind.COUNT),
}


@pytest.mark.parametrize(
    ("line", "word", "measured"),
    [
        ("a.served >= 99%", "PASS", 0.99),
        ("a.served >= 99.1%", "FAIL", 0.99),
        ("a.served <= 990", "PASS", 990),
        ("a.served >= 99/s", "PASS", 99),
        ("a.served >= 99% of b.served", "PASS", 99),  # counts are compared per second: 99/s of 100/s
        ("a.served >= 100% of b.served", "FAIL", 99),
        ("a.p99 <= 12ms", "PASS", 0.012),
        ("a.p99 <= 11_999us", "FAIL", 0.012),
        ("a.p99 <= 1.2x b.p99", "PASS", 0.012),
        ("a.p99 <= 1.1x b.p99", "FAIL", 0.012),
        ("a.p99 <= 1.1x b.p99 + 1ms", "PASS", 0.012),
        ("a.p99 >= b.p99", "PASS", 0.012),
        ("a.goodput within 1% of 100/s", "PASS", 99),
        ("a.goodput within 0.5% of 100/s", "FAIL", 99),
        ("a.goodput >= 99% of 100/s", "PASS", 99),
        ("a.served(20ms) >= 90%", "PASS", 0.9),
        ("storage.reads('k') <= 1", "PASS", 1),
        ("storage.reads('k') <= 0.05/s", "FAIL", 0.1),
        ('weir.x{reason="late", shard=0} <= 7', "PASS", 7),
        ("a.recovery(50ms) <= 5s", "FAIL", math.inf),
        ("idle.served >= 99%", "not measured", None),
        ("c.served >= 99%", "not measured", None),
        ("a.served >= 99% of c.served", "not measured", None),
        ("idle.served >= 99% of idle.served", "not measured", None),
        ("idle.served within 5% of idle.served", "not measured", None),
        ("a.served >= 99% of idle.served", "not measured", None),
        ("idle.served <= 110% of idle.served", "PASS", 0),
        ("idle.served >= 0", "PASS", 0),
        # Gauges and maxima have no rate.
        ("weir.depth <= 40", "PASS", 40),
        ("weir.depth <= 40/s", "not measured", None),
        ("weir.depth <= 1.1x storage.queue_max", "PASS", 40),
        ("weir.depth <= storage.queue_max", "FAIL", 40),
        ("storage.queue_max <= 4% of a.served", "PASS", 38),
        ("a.goodput >= weir.depth", "not measured", None),
    ],
)
def test_lines_hold_or_do_not(line: str, word: str, measured: float | None):
    verdict = judge(parse(line), figures(**SHOWN))
    assert verdict.word == word
    assert (verdict.measured.number if verdict.measured else None) == pytest.approx(measured)
    assert verdict.passed == (word == "PASS") and bool(verdict.reason) == (word == "not measured")


@pytest.mark.parametrize(
    ("figure", "share"),
    [("a.served", 0.99), ("a.served of 100/s", 0.99), ("a.goodput of 200/s", 0.495), ("storage.reads('k') of 2", 0.5)],
)
def test_figures_are_shares(figure: str, share: float):
    verdict = judge(parse_figure(figure), figures(**SHOWN))
    assert verdict.measured.number / verdict.bar.number == pytest.approx(share)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("", "does not start with a measure"),
        ("p99 <= 5ms", "does not start with a measure"),
        ("a.p99", "MEASURE <= BAR"),
        ("a.p99 < 5ms", "'< 5ms' follows a.p99"),
        ("a.p99 <= ", "MEASURE <= BAR"),
        ("a.p99 <= 5 parsecs", "'5 parsecs' is no value: one such as 99.9%, 20ms"),
        ("a.p99 within 5ms", "MEASURE <= BAR"),
        ("a.p99 <= 1.2x b.p99 more", "'more' follows b.p99"),
        ("a.p99 <= b.p99 + much", "'much' is no value"),
        ("weir.x{late} <= 1", "'late' is no label"),
    ],
)
def test_lines_that_mean_nothing(line: str, complaint: str):
    with pytest.raises(Wrong) as caught:
        parse(line)
    assert complaint in str(caught.value)


def test_a_good_file():
    scenario = file.parse(GOOD, Path("good.toml"))
    assert (scenario.shards, scenario.weir_flags, scenario.seconds) == ((2,), (("--max-clients", "100"),), 10)
    assert scenario.borders == [0, 2, 10] and scenario.window("over") == (2, 10)
    assert (scenario.events[0].command, scenario.events[0].end) == ("STALL 1000ms", 3)
    assert scenario.quotas.strip() == '[tenants.acme]\npassword = "secret"'
    # Each line of the load keeps its line number, so that errors of weir-load name the right one.
    for ours, theirs in zip(GOOD.splitlines(), scenario.load.splitlines(), strict=True):
        assert theirs in ("", ours.replace("load.", ""))


def test_a_scale_stretches_time_but_not_rates():
    scenario = file.parse(GOOD, Path("good.toml"), 0.5)
    assert (scenario.seconds, scenario.events[0].at, scenario.events[0].command) == (5, 1, "STALL 500ms")
    assert 'duration = "1000ms"' in scenario.load and "rate = 10\n" in scenario.load


def test_events_come_before_the_end_of_the_last_group():
    longer = GOOD.replace('at = "2s"', 'at = "10s"') + AROUND
    assert file.parse(longer, Path("good.toml")).events[0].at == 10
    with pytest.raises(file.FileError, match="'11s': the load has ended then: a time before 11s is expected"):
        file.parse(longer.replace('at = "10s"', 'at = "11s"'), Path("bad.toml"), 0.001)
    assert file.parse(longer.replace('at = "10s"', 'at = "10999ms"'), Path("good.toml"), 0.001).events[0].at < 0.011


def test_a_load_without_groups():
    text = GOOD[: GOOD.index("[load]")] + "[load]\ngroup = []\n"
    with pytest.raises(file.FileError, match="at least one \\[\\[load.group\\]\\] is expected"):
        file.parse(text, Path("bad.toml"))


INLINE = 'phase = [{ name = "calm", duration = "2s", rate = 10 }, { name = "over", duration = "8s", rate = 10 }]\n'
UNSCALED = "--seconds-scale does not change all durations of 'point'"


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        (GOOD[GOOD.index("[[load.group.phase]]") :], INLINE, UNSCALED),
        ('duration = "8s"', "duration = '8s'", f"24: duration: {UNSCALED}"),
        ('duration = "8s"', '"duration" = "8s"', UNSCALED),
        # Without a duration, groups without phases take 10 s.
        (GOOD[GOOD.index("[[load.group.phase]]") :], "rate = 10\n", UNSCALED),
        ('flags = "--servers 4"', 'script = ""', "15: script: --seconds-scale does not change the times of a script"),
    ],
)
def test_a_scale_that_would_not_stretch_everything_is_refused(before: str, after: str, complaint: str):
    text = GOOD.replace(before, after)
    assert file.parse(text, Path("good.toml")).seconds == 10
    with pytest.raises(file.FileError) as caught:
        file.parse(text, Path("bad.toml"), 0.5)
    assert complaint in str(caught.value), caught.value


@pytest.mark.parametrize("name", file.names())
@pytest.mark.parametrize("scale", [0.1, 0.5, 3])
def test_scenarios_can_be_shortened_and_stretched(name: str, scale: float):
    assert file.read(file.find(name), scale).seconds == pytest.approx(file.read(file.find(name)).seconds * scale)


# The group `job` goes past weir, and its phase `over` is as long as that of the group `point`.
AROUND = """
[[around.group]]
name = "job"

[[around.group.phase]]
name = "calm"
duration = "2s"

[[around.group.phase]]
name = "over"
duration = "8s"

[[around.group.phase]]
name = "later"
duration = "1s"
"""
# The phase `over` of the group `other` is shorter than that of the group `point`.
OTHER = """
[[load.group]]
name = "other"

[[load.group.phase]]
name = "calm"
duration = "2s"

[[load.group.phase]]
name = "over"
duration = "4s"
"""
TIMES = "phases of the name 'over' begin or end at different times"


@pytest.mark.parametrize(
    ("more", "line", "complaint"),
    [
        (OTHER, "total.over.served >= 99%", TIMES),
        (OTHER, "point.served >= total.over.served", TIMES),
        (OTHER, "storage.over.requests <= 5/s", TIMES),
        (OTHER, "weir.over.x_total <= 5/s", TIMES),
        (OTHER, "tenants.acme.over.admitted_ru <= 5/s", TIMES),
        (OTHER, "point.over.served >= 99%", None),
        (OTHER, "total.calm.served >= 99%", None),
        (OTHER.replace('"calm"', '"over"'), "other.over.served >= 99%", TIMES),
        (AROUND, "total.over.served >= 99%", None),
        (AROUND, "storage.over.requests <= 5/s", None),
        (AROUND.replace("8s", "7s"), "total.over.served >= 99%", None),
        (AROUND.replace("8s", "7s"), "storage.over.requests <= 5/s", TIMES),
        (AROUND, "total.later.served >= 99%", "total has no phase 'later'; there are: calm, over"),
        (AROUND, "job.recovery(50ms) <= 5s", "recovery is of a group that goes through weir, and 'job' goes past it"),
    ],
)
def test_phases_of_several_groups_count_together_where_they_have_one_time(more: str, line: str, complaint: str | None):
    text = GOOD.replace("point.p99 <= 20ms", line) + more
    if complaint is None:
        file.parse(text, Path("good.toml"))
        return
    with pytest.raises(file.FileError) as caught:
        file.parse(text, Path("bad.toml"))
    assert complaint in str(caught.value), caught.value


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("shows =", "show =", "1: show: 'show' means nothing in the file: shows, accept"),
        ('"point.p99 <= 20ms"', '"pint.p99 <= 20ms"', "3: 'pint.p99 <= 20ms': there is no group 'pint'; there are: point"),
        ("point.p99", "point.clam.p99", "3: 'point.clam.p99 <= 20ms': point has no phase 'clam'; there are: calm, over"),
        ("point.p99", "point.p98", "point has no metric 'p98'; there are: offered"),
        ("<= 20ms", "<= 20%", "point.p99 is a time such as 20ms, and its bar is a share"),
        ("point.p99 <= 20ms", "point.served <= 20ms", "3: 'point.served <= 20ms': point.served is a count"),
        ("point.p99 <= 20ms", "point.served <= point.p99", "two of one kind are expected"),
        ("point.p99 <= 20ms", "point.served(30ms) >= 1%", "counted for 10ms, 20ms"),
        ("point.p99 <= 20ms", "point.recovery <= 5s", "clients.recovery(50ms)"),
        ("point.p99 <= 20ms", "storage.reads <= 5", "reads is of one key"),
        ("point.p99 <= 20ms", "storage.hits <= 5", "storage has no metric 'hits'; there are: requests"),
        ("point.p99 <= 20ms", "storage.over.queue_max <= 5", "leave the phase out"),
        ("point.p99 <= 20ms", "tenants.acne.admitted_ru <= 5/s", "names no tenant of [quotas]; there are: acme"),
        ("point.p99 <= 20ms", "tenants.acme.ru <= 5/s", "a tenant has no metric 'ru'; there are: admitted_ru"),
        ("point.p99 <= 20ms", "weir.never.x_total <= 5", "'never' is none of calm, over"),
        ("[weir]", 'figure = "point.p99"\n[weir]', "6: 'point.p99': point.p99 is a time such as 20ms, and its bar is a share"),
        ("[weir]", 'figure = "point.served / 5"\n[weir]', "'/ 5' follows point.served: MEASURE or MEASURE of VALUE is expected"),
        ("[weir]", "figure = 5\n[weir]", "6: figure: one text is expected"),
        ("shards = 2", "shards = 0", "7: shards: 0: a number from 1 to 64 is expected"),
        ('["--max-clients 100"]', '["max-clients"]', "8: flags: 'max-clients': a list of flags is expected"),
        ('at = "2s"', 'at = "2"', "18: at: '2' is no duration: one such as 500ms"),
        ('at = "2s"', 'at = "10s"', "18: at: '10s': the load has ended then: a time before 10s is expected"),
        ('at = "2s"', 'at = "1h"', "18: at: '1h': the load has ended then"),
        ('{lasts}"', '{lasts}"\nundo = 5', "21: undo: 5: what follows STORAGE is expected, as in undo = "),
        ('{lasts}"', '{lasts}"\nundo = " "', "21: undo: ' ': what follows STORAGE is expected"),
        ('at = "2s"', 'on = "other"\nat = "2s"', "18: on: there is no [[storage]] 'other'; there are: main"),
        ('name = "point"', 'name = "weir"', "25: name: 'weir' means something else in acceptance lines"),
        ('duration = "2s"', 'duration = "soon"', "duration: of 'point': 'soon' is no duration"),
        ("GET a", "GET {home:other}a", "26: {home:other}: there is no [[storage]] 'other'; there are: main"),
        ("[load]", "[load", "this is not TOML: "),
        ("[[load.group]]", "[[ load . group ]]", "each header on a line of its own"),
        ("[load]", "[around]\n[load]", "around: at least one [[around.group]] is expected"),
        ("[load]", "[[around.group]]\nname = 'point'\n[load]", "name: there are two groups of the name 'point'"),
        ("[load]", "[[storage]]\nname = 'b'\n[[around.group]]\nname = 'b'\n[load]", "one [[storage]] with a count of 1 is expected"),
    ],
)  # fmt: skip
def test_complaints_say_where_and_what_would_be_right(before: str, after: str, complaint: str):
    assert before in GOOD
    with pytest.raises(file.FileError) as caught:
        file.parse(GOOD.replace(before, after, 1), Path("bad.toml"))
    assert str(caught.value).startswith("bad.toml:") and complaint in str(caught.value), caught.value


def tally(offered: int, served: int, p99: float | None = 5.0) -> dict:
    names = ("sent", "throttled", "overloaded", "deadline", "unavailable", "errors", "timeouts", "refused_by_client",
             "retries", "lost")  # fmt: skip
    counts = {**dict.fromkeys(names, 0), "offered": offered, "served": served}
    return {"counts": counts, "latency_ms": {"p99": p99}, "slow": {"over_20ms": served // 10}}


def run_of(seconds: list[tuple[int, float | None]], interrupted: bool = False) -> dict:
    """Returns a report as weir-load would write it; each second has the number served out of 10, and a p99."""
    rows = [{"second": n, "groups": {"point": tally(10, *second)}} for n, second in enumerate(seconds)]
    group = {"name": "point", "duration_s": float(len(seconds)), **tally(100, 90), "phases": [
        {"name": "calm", "duration_s": 2, **tally(20, 20)}, {"name": "over", "duration_s": 8, **tally(80, 70)}]}  # fmt: skip
    return {"duration_s": float(len(seconds)), "interrupted": interrupted, "groups": [group], "total": tally(100, 90),
            "seconds": rows}  # fmt: skip


def measured(line: str, load: dict | None, snapshots: list[Snapshot] | None = None, more: str = ""):
    scenario = file.parse(GOOD.replace("point.p99 <= 20ms", line) + more, Path("good.toml"))
    return judge(scenario.accept[0], Measured(scenario, load, snapshots or []).look_up)


def test_recovery_is_the_first_of_three_good_seconds_after_the_trouble():
    # The stall ends at 3 s.
    good, slow, lost = (10, 5.0), (10, 80.0), (5, 5.0)
    line = "point.recovery(50ms) <= 2s"
    assert measured(line, run_of([good] * 10)).measured.number == 0
    assert measured(line, run_of([good] * 3 + [slow, lost] + [good] * 5)).measured.number == 2
    late = measured(line, run_of([good] * 3 + [slow, good, good, lost] + [good] * 3))
    assert (late.measured.number, late.passed) == (4, False)
    never = measured(line, run_of([good] * 8 + [lost] * 2))
    assert never.passed  # three good seconds came before
    assert math.isinf(measured(line, run_of([good] * 3 + [lost] * 7)).measured.number)
    idle = run_of([good] * 3 + [lost] * 7)
    for row in idle["seconds"][3:]:
        row["groups"]["point"] = tally(0, 0, None)
    assert math.isinf(measured(line, idle).measured.number)  # where nothing is asked for, nothing is well


def test_what_an_interrupted_run_has_shown():
    load = run_of([(10, 5.0)] * 4, interrupted=True)
    assert measured("point.calm.served >= 100%", load).passed
    over = measured("point.over.served >= 100%", load)
    assert over.word == "not measured" and "ended before 'over' did" in over.reason
    assert measured("point.served >= 1%", None).reason == "weir-load left no report"


def test_the_end_of_a_phase_is_that_of_its_group():
    load = run_of([(10, 5.0)] * 7, interrupted=True)
    phase = {"name": "over", "duration_s": 4, **tally(40, 40)}
    load["groups"].append({"name": "other", "duration_s": 6.0, **tally(60, 60), "phases": [phase]})
    assert measured("other.over.served >= 100%", load, more=OTHER).passed
    assert measured("point.over.served >= 1%", load, more=OTHER).word == "not measured"


def test_the_total_of_a_phase_is_of_groups_that_go_through_weir():
    load = run_of([(10, 5.0)] * 10)
    phase = {"name": "over", "duration_s": 8, **tally(9, 9)}
    load["groups"].append({"name": "job", "duration_s": 10.0, **tally(9, 9), "phases": [phase]})
    for line, number in [("total.over.offered <= 80", 80), ("total.offered <= 100", 100), ("job.over.offered <= 9", 9)]:
        verdict = measured(line, load, more=AROUND)
        assert verdict.passed and verdict.measured.number == number, line


def test_counters_count_from_the_begin_of_a_phase():
    def seen(at: float, late: int, requests: int) -> Snapshot:
        page = f'# TYPE x_total counter\nx_total{{shard="0",reason="late"}} {late}\nx_total{{shard="1",reason="late"}} 1\n'
        page += f'weir_tenant_request_units_total{{tenant="acme",outcome="admitted"}} {late * 2}.5\n'
        page += 'weir_tenant_request_units_total{tenant="acme",outcome="throttled"} 7\n'
        return Snapshot(at, at, samples(page), {"main": [{"requests": requests, "queue_max": 9}]})

    snapshots = [seen(0, 0, 0), seen(2, 5, 10), seen(10, 45, 90)]
    load = run_of([(10, 5.0)] * 10)
    for line, number in [
        ("weir.over.x_total{reason=late} <= 40", 40),
        ("weir.over.x_total{reason=late} <= 5/s", 5),
        ("weir.x_total <= 45", 45),
        ("storage.over.requests <= 10/s", 10),
        ("storage.main.requests <= 90", 90),
        ("storage.queue_max <= 9", 9),
        ("tenants.acme.over.admitted_ru within 1% of 10/s", 10),
        ("tenants.acme.throttled_ru <= 0", 0),
    ]:
        verdict = measured(line, load, snapshots)
        assert verdict.passed and verdict.measured.number == number, line
    for line in ("weir.y_total <= 1", "storage.reads('k') <= 1", "tenants.acme.shed_ru <= 1/s"):
        assert measured(line, load, snapshots).word == "not measured", line


def test_a_gauge_is_not_divided_by_the_length_of_its_phase():
    snapshots = [Snapshot(at, at, samples(f"weir_depth {depth}\n")) for at, depth in ((0, 0), (2, 40), (10, 50))]
    load = run_of([(10, 5.0)] * 10)
    for line, is_kept in [("1.25x weir.calm.weir_depth", True), ("1.2x weir.calm.weir_depth", False), ("50", True)]:
        verdict = measured(f"weir.over.weir_depth <= {line}", load, snapshots)
        assert verdict.passed == is_kept and verdict.measured.number == 50, line


def test_goodput_of_several_groups_leaves_out_what_was_served_after_the_phase():
    load = run_of([(10, 5.0)] * 10)
    load["groups"][0]["phases"][0]["goodput_per_s"] = 9.0
    other = {"name": "calm", "duration_s": 2, "goodput_per_s": 3.0, **tally(9, 9)}
    load["groups"].append({"name": "other", "duration_s": 6.0, **tally(9, 9), "phases": [other]})
    assert measured("total.calm.goodput <= 12/s", load, more=OTHER).measured.number == 12
    assert measured("total.calm.served <= 29", load, more=OTHER).measured.number == 29


@pytest.mark.parametrize("command, line", [("READS-RESET", "reads('k')"), ("RESET", "reads('k')"), ("RESET", "requests")])
@pytest.mark.parametrize("at, number", [(2, 90), (4, 90), (9.9, 90), (1.9, 80), (10, 80)])
def test_counters_count_from_the_reset_within_a_phase(command: str, line: str, at: float, number: int):
    """A store that resets its figures right after a snapshot may have counted more since than before."""
    assert counted_with_event(command, line, at) == number


def test_a_store_that_forgets_reads_of_keys_has_its_other_figures_still():
    assert counted_with_event("READS-RESET", "requests", 4) == 80


@pytest.mark.parametrize(
    ("event", "numbers"),
    [
        ('at = "4s"\nstorage = "RESET"', (90, 90, 180)),
        ('at = "4s"\non = "ill"\nstorage = "RESET"', (80, 90, 170)),
        ('at = "1s"\non = "ill"\nstorage = "RESET"', (80, 80, 160)),
        ('at = "1s"\nlasts = "3s"\non = "ill"\nstorage = "STALL 1s"\nundo = " reset "', (80, 90, 170)),
        # An undo that is due when the load ends is not said.
        ('at = "4s"\nlasts = "6s"\non = "ill"\nstorage = "STALL 1s"\nundo = "RESET"', (80, 80, 160)),
    ],
)
def test_only_stores_that_were_told_to_forget_count_from_nothing(event: str, numbers: tuple[int, int, int]):
    more = f'\n[[storage]]\nname = "ill"\n[[event]]\n{event}\n'
    snapshots = [
        Snapshot(at, at, storages={name: [{"requests": count}] for name in ("main", "ill")})
        for at, count in [(0, 0), (2, 10), (math.inf, 90)]
    ]
    snapshots.insert(2, Snapshot(10, 10, storages=snapshots[2].storages))
    for subject, number in zip(("storage.main.over", "storage.ill.over", "storage.over"), numbers):
        verdict = measured(f"{subject}.requests <= 900", run_of([(10, 5.0)] * 10), snapshots, more)
        assert verdict.measured.number == number, subject
    # The whole run begins with figures of 0, so that nothing differs.
    assert measured("storage.requests <= 900", run_of([(10, 5.0)] * 10), snapshots, more).measured.number == 180


def test_stores_that_did_not_answer_are_missed():
    several = GOOD.replace('name = "main"\n', 'name = "main"\ncount = 2\n')
    scenario = file.parse(several.replace("point.p99 <= 20ms", "storage.over.requests <= 90"), Path("good.toml"))

    def judged(*stores: int):
        snapshots = [Snapshot(at, at, storages={"main": [{"requests": 5}] * count}) for at, count in zip((0, 2, 10), stores)]
        return judge(scenario.accept[0], Measured(scenario, run_of([(10, 5.0)] * 10), snapshots).look_up)

    assert judged(2, 2, 2).passed
    for stores in [(2, 2, 1), (2, 1, 2), (1, 1, 1), (2, 2, 0)]:
        assert judged(*stores).word == "not measured", stores


def counted_with_event(command: str, line: str, at: float) -> float:
    """Returns a count in the second phase, which is 10 before it and 90 at its end, with a reset in between."""
    event = f'[[event]]\nat = "{at}s"\nstorage = "{command}"\n\n[load]'
    text = GOOD.replace("point.p99 <= 20ms", f"storage.over.{line} <= 90").replace("[load]", event, 1)
    text += '\n[[load.group.phase]]\nname = "after"\nduration = "1s"\nrate = 10\n'
    scenario = file.parse(text, Path("good.toml"))
    snapshots = [
        Snapshot(at, at, storages={"main": [{"requests": count}]}, keys={"k": {"main": [{"reads": count}]}})
        for at, count in [(0, 0), (2, 10), (10, 90)]
    ]
    return judge(scenario.accept[0], Measured(scenario, run_of([(10, 5.0)] * 10), snapshots).look_up).measured.number



def test_homes_are_where_they_are_said_to_be():
    text = homes.replace("GET {home:b:0} {home:b:1} {home:b:2} {home:a}", {"a": 2, "b": 2}, shards=2)
    tags = [word.strip("{}") for word in text.split()[1:]]
    slots = [homes.slot_of(tag) for tag in tags]
    assert [homes.backend_of(slot, 4) for slot in slots] == [2, 3, 2, 0]
    assert [homes.core_of(slot, 2) for slot in slots] == [1, 1, 1, 0]
    # Two cores share the middle one of three stores, and four cores the last one of two.
    assert [list(homes.cores_of(backend, 3, 2)) for backend in range(3)] == [[0], [0, 1], [1]]
    text = homes.replace("{home:b:0} {home:b:1} {home:b:2}", {"a": 1, "b": 1}, shards=4)
    assert [homes.core_of(homes.slot_of(word.strip("{}")), 4) for word in text.split()] == [2, 3, 2]
    assert homes.slot_of("123456789") == 0x31C3


@pytest.mark.parametrize("name", file.names())
def test_scenarios_are_right(name: str, tmp_path: Path):
    """Each part of a scenario (lines, weir's flags and quotas, load) is accepted by the program that reads it."""
    scenario = file.read(file.find(name))
    assert scenario.seconds < 60
    if scenario.quotas is not None:
        (tmp_path / "quotas.toml").write_text(scenario.quotas)
        flags = [word for words in scenario.weir_flags if words[0] in known_flags() for word in words]
        check = [binary("weir"), "--check", "--quotas", tmp_path / "quotas.toml", *flags]
        done = subprocess.run(check, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    (tmp_path / "load.toml").write_text(homes.replace(scenario.load, {s.name: s.count for s in scenario.storages}, 2))
    # No server listens there: errors in the file are reported before any connection.
    load = [binary("weir-load"), "--scenario", tmp_path / "load.toml", "--target", f"127.0.0.1:{free_port()}", "--connect-timeout", "1ms"]
    done = subprocess.run(load, capture_output=True, text=True, timeout=60)
    assert done.returncode not in (0, USAGE), done.stderr
