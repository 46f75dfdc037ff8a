"""Tests of what the scripts of perf check: a fault that a run has shown, or a run that has shown nothing, does not pass."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import signal
import sys
import threading
import types
from pathlib import Path

import pytest

from harness.ports import free_port
from harness.processes import ROOT
from harness.resp import Malformed, Reply

sys.path.insert(0, str(ROOT / "perf"))

from scenario import clock, file, stage  # noqa: E402
from scenario.measured import Snapshot  # noqa: E402
from scenario.stage import Interruption, Outcome, Stage, Variant  # noqa: E402
from soaking import verdict  # noqa: E402
from soaking.clients import HOT_VALUE, Popper, Reader, Subscriber, Tally, Transactor, Watcher  # noqa: E402

pytestmark = pytest.mark.weir_only


def bulk(text: str | None) -> Reply:
    return Reply(b"$", None if text is None else text.encode(), None, b"")


def array(*texts: str) -> Reply:
    return Reply(b"*", None, [bulk(text) for text in texts], b"")


NULL, OK, QUEUED = Reply(b"*", None, None, b""), Reply(b"+", b"OK", None, b""), Reply(b"+", b"QUEUED", None, b"")
LOST = Reply(b"-", b"UNAVAILABLE backend=a reason=connection-lost", None, b"")
REFUSED = Reply(b"-", b"OVERLOADED reason=queue backend=a", None, b"")


class Script:
    """A connection on which each request gets the next of these replies."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)

    def send_raw(self, data: bytes) -> None:
        pass

    def read(self) -> Reply:
        return self.replies.pop(0)


class Lists:
    """A connection that knows one list."""

    def __init__(self, *there: str) -> None:
        self.there = there

    def call(self, *words) -> Reply:
        return array(*self.there)


def client(kind: type):
    return kind(0, "soak:1", 1, 0.0, threading.Event(), tenant=False)


def queues(pushed: set[str], popped: list[str], there: list[str], popper: Tally | None = None) -> list[str]:
    popper = popper or Tally("pops")
    popper.popped = popped
    return verdict.queues(Lists(*there), [Tally("pushes", pushed=pushed), popper])


def test_elements_that_are_lost_or_doubled_are_found():
    pushed = {"a:1", "a:2", "a:3"}
    assert queues(pushed, ["a:1"], ["a:2", "a:3"]) == []
    assert "1 elements of 3 are gone" in queues(pushed, ["a:1"], ["a:2"])[0]
    assert queues(pushed, ["a:1"], ["a:1", "a:2", "a:3"]) == ["a:1 was popped, and is still there"]
    assert queues(pushed, ["a:1"], ["a:2", "a:2", "a:3"]) == ["a:2 is there 2 times"]
    assert queues(pushed, ["a:1"], ["a:2", "a:3", "a:4"]) == ["a:4 is there, and nobody pushed it"]


def test_only_calls_that_may_have_popped_excuse_lost_elements():
    popper = client(Popper)
    popper.turn(Script(REFUSED))
    assert len(queues({"a:1"}, [], [], popper.tally)) == 1
    popper.turn(Script(LOST))
    assert queues({"a:1"}, [], [], popper.tally) == []


def test_a_watcher_knows_what_its_counter_holds():
    watcher = client(Watcher)

    def turn(value: str | None, last: Reply) -> list[str]:
        watcher.turn(Script(OK, bulk(value), OK, QUEUED, last))
        wrong, watcher.tally.wrong = watcher.tally.wrong, []
        return wrong

    assert turn(None, array("OK")) == [] and turn("1", NULL) == [] and turn("1", LOST) == []
    # The last block was carried out, and then no further one may have been.
    assert turn("2", REFUSED) == [] and watcher.tally.sure == {"watched:soak:1": 2}
    assert "is 3 after 2 acknowledged" in turn("3", array("OK"))[0]
    assert "is 3 after 4 acknowledged" in turn("3", NULL)[0]


def test_a_reader_knows_what_hot_keys_hold():
    reader = client(Reader)
    reader.turn(Script(*[bulk(HOT_VALUE), bulk(None), REFUSED] * 3, bulk(HOT_VALUE)))
    assert reader.tally.wrong == []
    reader.turn(Script(*[bulk(HOT_VALUE)] * 9, bulk("h")))
    assert len(reader.tally.wrong) == 1


def test_a_client_that_is_not_served_in_the_calm_is_found():
    transactor, popper, dying = client(Transactor), client(Popper), Tally("dying")
    for each in (transactor, popper):
        each.tenant = True
        each.log_in(Script(OK))
    # Replies of weir itself, refusals, and a call that waited in vain are no service of a store.
    transactor.turn(Script(OK, QUEUED, QUEUED, REFUSED))
    popper.turn(Script(REFUSED))
    popper.turn(Script(NULL))
    tallies = [transactor.tally, popper.tally, dying]
    assert [tally.values for tally in tallies] == [4, 2, 0]
    assert verdict.unserved(tallies, calm=1.0) == [
        "transactions: not served in the calm at the end; never served",
        "pops: not served in the calm at the end; never served",
    ]
    transactor.turn(Script(OK, QUEUED, QUEUED, array("1", "1")))
    popper.turn(Script(array("queue:soak:1", "a:1")))
    assert verdict.unserved(tallies, calm=1.0) == []
    late = max(tally.last_value for tally in tallies) + 1
    first, second = verdict.unserved(tallies, calm=late)
    assert "last served at " in first and "last served at " in second


class Channel(Script):
    """A connection that is read in a session, which is over with the last reply."""

    def __init__(self, over: threading.Event, *replies: Reply) -> None:
        super().__init__(*replies)
        self.over = over
        self.socket = types.SimpleNamespace(settimeout=lambda seconds: None)

    def send(self, *words) -> None:
        pass

    def read(self) -> Reply:
        reply = super().read()
        if len(self.replies) <= 1:
            self.over.set()
        return reply


def test_a_subscriber_is_served_by_messages_alone():
    subscriber = client(Subscriber)
    told = [array("message", "channel:soak:1", str(number)) for number in range(3)]
    subscriber.session(Channel(subscriber.over, array("subscribe"), array("unsubscribe")))
    assert subscriber.tally.values == 2 and len(verdict.unserved([subscriber.tally], calm=1.0)) == 1
    subscriber.over.clear()
    # The last message comes before the reply to UNSUBSCRIBE.
    subscriber.session(Channel(subscriber.over, array("subscribe"), *told, array("unsubscribe")))
    assert verdict.by_kind([subscriber.tally])["subscriptions"]["messages"] == 3
    assert verdict.unserved([subscriber.tally], calm=1.0) == [] and subscriber.tally.wrong == []


def test_a_reply_too_many_is_found_at_the_end():
    reader = client(Reader)
    reader.over.set()
    for last in (bulk("soak:1:0"), REFUSED):
        reader.session(Script(last))
    assert reader.tally.wrong == []
    reader.session(Script(bulk(HOT_VALUE), bulk("soak:1:2")))
    assert len(reader.tally.wrong) == 1 and "where soak:1:2 was due" in reader.tally.wrong[0]


def perf_script(name: str) -> types.ModuleType:
    loader = importlib.machinery.SourceFileLoader(f"perf_{name}", str(ROOT / "perf" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


def perf_cluster() -> types.ModuleType:
    return perf_script("cluster")


def test_requests_that_were_given_up_have_failed():
    refused = {"throttled": 1, "overloaded": 2, "deadline": 4, "unavailable": 8}
    counts = {**refused, "errors": 16, "timeouts": 32, "served": 64}
    told = [{"counts": counts, "latency_ms": {"p99": p99}} for p99 in (None, 3.0, 2.0)]
    assert perf_script("scale").ends(told) == {"p99_ms": 3.0, "refused": 45, "failed": 144}


def test_a_witness_that_dies_is_no_witness_of_kept_promises():
    witness = perf_cluster().Witness(free_port(), 1, 100.0)
    witness.stop()
    assert len(witness.wrong) == 1 and "witness 1 ended: " in witness.wrong[0]


@pytest.mark.parametrize(
    ("was_away", "heir_ms", "weir_ms", "is_kept"),
    [(False, None, None, True), (True, 2000, 2200, True), (True, 2000, 2201, False), (True, 2000, None, False), (True, None, 9, False)],
)
def test_the_bar_of_slots_that_are_away_is_judged(was_away: bool, heir_ms: float | None, weir_ms: float | None, is_kept: bool):
    each = {"was_away": was_away, "heir_ms": heir_ms, "weir_ms": weir_ms}
    assert (perf_cluster().too_long_away(each) == []) == is_kept


def test_counters_rise_by_what_may_have_happened_at_most():
    refused = {"throttled": 1, "overloaded": 2, "deadline": 4, "unavailable": 800}
    incr = {"counts": {**refused, "errors": 16, "timeouts": 32, "served": 64}, "sends": {"lost": 3, "may_have_happened": 7}}
    too_often = perf_cluster().too_often
    assert too_often(incr, 64) == too_often(incr, 71) == []
    assert too_often(incr, 72) == ["counters went up by 72, and 64 were acknowledged, 7 unknown"]


def test_what_clients_find_wrong_before_a_soak_is_told(monkeypatch):
    soak = perf_script("soak")
    monkeypatch.setattr(soak, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(soak, "hire", lambda *_: {})
    monkeypatch.setattr(soak, "dismiss", lambda crews: {"stores": [Tally("reads", wrong=["reads, at 1.0 s: malformed"])]})
    monkeypatch.setattr(verdict, "settle", lambda weir: ["it is busy"])
    monkeypatch.setattr(verdict, "counters", lambda *_: [])
    wrong = soak.warm_up(types.SimpleNamespace(weirs={"stores": None}), seed=1)
    assert wrong == ["before: stores: reads, at 1.0 s: malformed", "before: stores: it is busy"]


def test_a_run_with_a_fault_does_not_pass_whatever_its_lines_say():
    outcome = Outcome(file.read(ROOT / "perf" / "scenarios" / "steady-state.toml"), Variant("weir"))
    outcome.notes.append("the machine was busy")
    assert outcome.passed
    outcome.faults.append("STORAGE STALL 1s was answered with: ERR")
    assert not outcome.passed


@pytest.mark.parametrize(
    ("complaints", "past_weir", "faults"),
    [
        (["cannot connect to 127.0.0.1:1: refused"], ["group 'job': 1 of 2 connections were ready"], []),
        (["set-up: 1 of 5 times 'SET a 1' failed: OOM"], [], ["set-up: 1 of 5 times 'SET a 1' failed: OOM"]),
        ([], ["the set-up was not done after 60s"], ["past weir: the set-up was not done after 60s"]),
    ],
)
def test_a_set_up_that_failed_is_a_fault(tmp_path: Path, complaints: list[str], past_weir: list[str], faults: list[str]):
    scenario = file.read(ROOT / "perf" / "scenarios" / "written-around.toml")
    for name, told in ((stage.LOAD_JSON, complaints), (stage.AROUND_JSON, past_weir)):
        (tmp_path / name).write_text(json.dumps({"groups": [name], "complaints": told, "took_s": 1.0}))
    outcome = Outcome(scenario, Variant("weir"))
    Stage(scenario, Interruption(), quiet=True)._read_reports(tmp_path, True, outcome)
    assert outcome.faults == faults and outcome.passed == (not faults)
    assert len(outcome.faults + outcome.notes) == len(complaints + past_weir)
    assert outcome.load["groups"] == [stage.LOAD_JSON, stage.AROUND_JSON]


class Stores:
    """Stores that are told something, of which some do not say a word that is RESP."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def look(self, planned: float, at: float, keys: list[str]) -> Snapshot:
        return Snapshot(planned, at)

    def say(self, name: str | None, command: str) -> list[str]:
        self.told.append(command)
        raise Malformed("not RESP")


def test_a_clock_that_ends_early_is_a_fault():
    moment = {"at": 0.0, "end": 0.0, "on": None, "undo": None}
    events = [types.SimpleNamespace(command=command, **moment) for command in ("STALL 1ms", "STALL 2ms")]
    stores, faults = Stores(), []
    ticking = clock.Clock(stores, types.SimpleNamespace(borders=[0.0, 1.0], events=events), [], [], faults)
    ticking.started.set()
    ticking.start()
    ticking.thread.join()
    ticking.finish()
    assert stores.told == ["STALL 1ms"] and faults == ["the clock ended: Malformed('not RESP')"]


def test_a_run_that_anything_interrupts_is_interrupted(tmp_path: Path, monkeypatch):
    class Interrupted:
        def __init__(self, *_: object) -> None:
            pass

        def start(self) -> None:
            raise KeyboardInterrupt

        def stop(self, keep: Path | None) -> None:
            pass

    monkeypatch.setattr(stage, "Cast", Interrupted)
    monkeypatch.setattr(stage, "known_flags", set)
    interruption = Interruption()
    scenario = file.read(ROOT / "perf" / "scenarios" / "steady-state.toml")
    outcome = Stage(scenario, interruption, quiet=True).run(Variant("weir"), tmp_path)
    assert outcome.interrupted and interruption.count == 1


@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_terminal_that_closes_ends_a_run_but_of_nohup(is_ignored: bool):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    interruption = Interruption()
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
        interruption.install()
        interruption.gentle = True
        signal.raise_signal(signal.SIGHUP)
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)
    assert interruption.count == (0 if is_ignored else 1)
