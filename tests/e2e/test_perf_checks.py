"""Tests of what the scripts of perf check: a fault that a run has shown, or a run that has shown nothing, does not pass."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import threading

import pytest

from harness.ports import free_port
from harness.processes import ROOT
from harness.resp import Reply

sys.path.insert(0, str(ROOT / "perf"))

from scenario import file  # noqa: E402
from scenario.stage import Outcome, Variant  # noqa: E402
from soaking import verdict  # noqa: E402
from soaking.clients import HOT_VALUE, Popper, Reader, Tally, Watcher  # noqa: E402

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


def perf_cluster():
    loader = importlib.machinery.SourceFileLoader("perf_cluster", str(ROOT / "perf" / "cluster"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


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


def test_a_run_with_a_fault_does_not_pass_whatever_its_lines_say():
    outcome = Outcome(file.read(ROOT / "perf" / "scenarios" / "steady-state.toml"), Variant("weir"))
    outcome.notes.append("the machine was busy")
    assert outcome.passed
    outcome.faults.append("STORAGE STALL 1s was answered with: ERR")
    assert not outcome.passed
