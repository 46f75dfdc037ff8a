"""What happens beside the load, at its time."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from .measured import Snapshot
from .parts import Scenario
from .servers import Cast

# From weir-load's word that it started to its first request: time to look at everybody before.
RUN_UP_SECONDS = 0.2
# When the last look is planned: after everything that was under way has ended.
END = float("inf")


class Clock:
    """Does what is due during the load: events, and looking at everybody at the borders of phases."""

    def __init__(self, cast: Cast, scenario: Scenario, keys: list[str], seen: list[Snapshot], faults: list[str]) -> None:
        self.cast = cast
        self.keys = keys
        self.seen, self.faults = seen, faults
        self.started = threading.Event()
        self.stopped = threading.Event()
        self.begun = 0.0
        due: list[tuple[float, Callable[[], None]]] = []
        for border in scenario.borders[1:]:
            due.append((border, lambda border=border: self._look(border)))
        for event in scenario.events:
            due.append((event.at, lambda event=event: self._say(event.on, event.command)))
            if event.undo:
                due.append((event.end, lambda event=event: self._say(event.on, event.undo)))
        # At a border, what was is looked at before anything changes.
        self.due = sorted(due, key=lambda pair: pair[0])
        self.thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def finish(self) -> None:
        """The load has ended."""
        self.stopped.set()
        began = self.started.is_set()
        self.started.set()
        self.thread.join()
        if began:
            self._look(END)

    def _run(self) -> None:
        try:
            self._carry_out()
        except Exception as error:
            # The remaining events do not happen, so the run is not the scenario's.
            self.faults.append(f"the clock ended: {error!r}")

    def _carry_out(self) -> None:
        self.started.wait()
        self.begun = time.monotonic() + RUN_UP_SECONDS
        if self.stopped.is_set():
            return
        self._look(0.0)
        for at, action in self.due:
            if self.stopped.wait(max(0.0, self.begun + at - time.monotonic())):
                return
            action()

    def _look(self, planned: float) -> None:
        # What is asked before the first request, or after the last, holds for that moment.
        at = max(0.0, time.monotonic() - self.begun)
        self.seen.append(self.cast.look(planned, at, self.keys))

    def _say(self, on: str | None, command: str) -> None:
        self.faults += self.cast.say(on, command)


class Pulse:
    """Notices when the machine had no time: latencies then are not only the doing of what is under test."""

    BEAT_SECONDS = 0.01
    NOTED_SECONDS = 0.05
    NOTED_SHARE = 0.2
    # Microseconds in which something that could run waited for a CPU; kernels may be built without it.
    PRESSURE = Path("/proc/pressure/cpu")

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.pauses: list[float] = []
        self.begun, self.waited = time.monotonic(), self._waited()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while True:
            before = time.monotonic()
            if self.stopped.wait(self.BEAT_SECONDS):
                return
            late = time.monotonic() - before - self.BEAT_SECONDS
            if late > self.NOTED_SECONDS:
                self.pauses.append(late)

    def _waited(self) -> float:
        try:
            found = re.search(r"^some .*total=(\d+)", self.PRESSURE.read_text(), re.MULTILINE)
        except OSError:
            return 0.0
        return int(found[1]) / 1e6 if found else 0.0

    def finish(self) -> list[str]:
        """What is to be known when the latencies are read."""
        self.stopped.set()
        self.thread.join()
        notes = []
        share = (self._waited() - self.waited) / (time.monotonic() - self.begun)
        if share > self.NOTED_SHARE:
            notes.append(f"for {share:.0%} of the time, something on this machine waited for a CPU: latencies hold that too")
        if self.pauses:
            longest, times = max(self.pauses) * 1000, len(self.pauses)
            notes.append(f"perf/run itself was held up for more than 50 ms {times} time(s), {longest:.0f} ms at most")
        return notes
