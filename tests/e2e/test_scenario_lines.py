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


def measured(line: str, load: dict | None, snapshots: list[Snapshot] | None = None):
    scenario = file.parse(GOOD.replace("point.p99 <= 20ms", line), Path("good.toml"))
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


@pytest.mark.parametrize("command, line", [("READS-RESET", "reads('k')"), ("RESET", "reads('k')"), ("RESET", "requests")])
@pytest.mark.parametrize("at, number", [(2, 90), (4, 90), (9.9, 90), (1.9, 80), (10, 80)])
def test_counters_count_from_the_reset_within_a_phase(command: str, line: str, at: float, number: int):
    """A store that resets its figures right after a snapshot may have counted more since than before."""
    assert counted_with_event(command, line, at) == number


def test_a_store_that_forgets_reads_of_keys_has_its_other_figures_still():
    assert counted_with_event("READS-RESET", "requests", 4) == 80


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
    scenario = file.parse(GOOD.replace("point.p99 <= 20ms", f"storage.over.{line} <= 90").replace("[load]", event, 1), Path("good.toml"))
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
