"""One run of a scenario: servers up, load, events in time, servers down; whatever happens, what was seen is returned."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness.processes import binary

from . import homes
from .catalogue import STORAGE_OF_KEY
from .clock import Clock, Pulse
from .measured import Measured, Snapshot
from .parts import Scenario
from .servers import Cast, Dispatcher, known_flags
from .verdict import Verdict, judge

# Beyond the load's own time: set-up, drain, and a machine that has others to serve.
PATIENCE_SECONDS = 90.0
POLL_SECONDS = 0.05
STARTED = "weir-load: started"
# The layers that --disable switches off one by one, those apart that only matter before a cluster or for writes past weir.
LAYERS = ("rate", "shed", "queue", "window", "yields", "hot", "breaker")
# How weir-load's complaints about its set-up begin.
OF_SET_UP = ("set-up: ", "the set-up was not done ")
# Names of the files that weir-load leaves.
LOAD_JSON, LOAD_HTML, LOAD_TOML = "load.json", "report.html", "load.toml"
AROUND_JSON, AROUND_TOML = "around.json", "around.toml"


@dataclass(frozen=True)
class Variant:
    """What stands before the stores, and how it is set."""

    label: str
    target: str = "weir"
    shards: int = 2
    flags: tuple[tuple[str, ...], ...] = ()
    # It is there to show the difference, and need not pass.
    compared: bool = False


@dataclass
class Outcome:
    """What a run has shown."""

    scenario: Scenario
    variant: Variant
    load: dict | None = None
    snapshots: list[Snapshot] = field(default_factory=list)
    # Flags that this weir does not know.
    left_out: list[str] = field(default_factory=list)
    # Events and set-up commands that were refused, and processes that ended early or with an error: the run was not the
    # scenario's.
    faults: list[str] = field(default_factory=list)
    # Whatever else is worth knowing.
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    verdicts: list[Verdict] = field(default_factory=list)
    # The scenario's figure, held against the whole of which it is a share.
    figure: Verdict | None = None

    @property
    def passed(self) -> bool:
        return not self.interrupted and not self.faults and all(verdict.passed for verdict in self.verdicts)

    def hear(self, complaints: list[str], label: str = "") -> None:
        """Takes what weir-load complains of. Stores that the set-up has not filled are not those of the scenario."""
        for text in complaints:
            (self.faults if text.startswith(OF_SET_UP) else self.notes).append(label + text)


class Interruption:
    """Ctrl-C, SIGTERM and SIGHUP: the load is asked to end, and reports; a second signal ends it at once."""

    def __init__(self) -> None:
        self.count = 0
        # While nothing runs that could report, the first one ends the run where it is.
        self.gentle = False

    def install(self) -> Interruption:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)
        # A script that `nohup` has started goes on.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._handle)
        return self

    def _handle(self, *_: object) -> None:
        self.count += 1
        if not self.gentle:
            raise KeyboardInterrupt


class Stage:
    """Carries out runs of one scenario."""

    def __init__(
        self,
        scenario: Scenario,
        interruption: Interruption,
        quiet: bool = False,
        keep: bool = False,
        beside: Callable[[Dispatcher], Callable[[], None]] | None = None,
    ) -> None:
        self.scenario = scenario
        self.interruption = interruption
        self.quiet = quiet
        self.keep = keep
        # Called with weir when the load starts; what it returns is called when the load has ended.
        self.beside = beside
        lines = [measure for line in scenario.accept for measure in line.measures()]
        asked = [measure.argument for measure in lines if measure.metric in STORAGE_OF_KEY]
        self.keys = sorted({key for key in asked if key})

    def run(self, variant: Variant, folder: Path, compared: Path | None = None) -> Outcome:
        """One run; its files are left in the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in (LOAD_JSON, LOAD_HTML, AROUND_JSON):
            (folder / name).unlink(missing_ok=True)
        outcome = Outcome(self.scenario, variant)
        cast = Cast(self.scenario, variant.target, self._flags(variant, outcome))
        try:
            cast.start()
            self.interruption.gentle = True
            self._drive(cast, variant, folder, compared, outcome)
        except KeyboardInterrupt:
            # An interrupt that did not come by the handler ends the script all the same.
            self.interruption.count = max(1, self.interruption.count)
            outcome.notes.append("interrupted before the load began")
        except AssertionError as error:
            outcome.faults.append(" ".join(str(error).split()))
        finally:
            self.interruption.gentle = True
            cast.stop(folder / "servers" if self.keep else None)
            self.interruption.gentle = False
        outcome.interrupted = self.interruption.count > 0
        measured = Measured(self.scenario, outcome.load, outcome.snapshots)
        outcome.verdicts = [judge(line, measured.look_up) for line in self.scenario.accept]
        if self.scenario.figure:
            outcome.figure = judge(self.scenario.figure, measured.look_up)
        return outcome

    def _flags(self, variant: Variant, outcome: Outcome) -> list[str]:
        if variant.target != "weir":
            return []
        known, flags = known_flags(), ["--shards", str(variant.shards)]
        for words in (*self.scenario.weir_flags, *variant.flags):
            if words[0].partition("=")[0] in known:
                flags += words
            else:
                outcome.left_out.append(" ".join(words))
        return flags

    def _drive(self, cast: Cast, variant: Variant, folder: Path, compared: Path | None, outcome: Outcome) -> None:
        counts = {name: len(stores) for name, stores in cast.stores.items()}
        (folder / LOAD_TOML).write_text(homes.replace(self.scenario.load, counts, variant.shards))
        command = [*weir_load(cast.addresses(), folder / LOAD_TOML, folder / LOAD_JSON), "--html", str(folder / LOAD_HTML)]
        if cast.weir:
            command += ["--metrics", f"http://127.0.0.1:{cast.weir.admin_port}/metrics"]
        else:
            command.append("--plain")
        if compared and compared.exists():
            command += ["--compare", str(compared)]
        run = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, bufsize=1, process_group=0
        )
        said: list[str] = []
        clock = Clock(cast, self.scenario, self.keys, outcome.snapshots, outcome.faults)
        pulse = Pulse()
        ended: Callable[[], None] | None = None
        around: subprocess.Popen | None = None
        listener = threading.Thread(target=self._listen, args=(run, said, clock.started), daemon=True)
        listener.start()
        try:
            clock.start()
            if self.scenario.around and wait(clock.started, run):
                around = self._go_around(cast, folder)
            if self.beside and cast.weir and wait(clock.started, run):
                ended = self.beside(cast.weir)
            self._await(run, outcome)
            if around:
                self._await(around, outcome)
        finally:
            for process in (run, around):
                if process and process.poll() is None:
                    process.kill()
                if process:
                    process.wait()
            listener.join(POLL_SECONDS * 100)
            clock.finish()
            outcome.notes += pulse.finish()
            if ended:
                ended()
        if run.returncode:
            outcome.faults.append(f"weir-load ended with {run.returncode}: {' '.join(said[-3:])}")
        if around and around.returncode:
            outcome.faults.append(f"weir-load past weir ended with {around.returncode}")
        outcome.faults += cast.ended()
        self._read_reports(folder, around is not None, outcome)

    def _read_reports(self, folder: Path, went_around: bool, outcome: Outcome) -> None:
        """Takes what weir-load reports, also that past weir if there was one."""
        if not (folder / LOAD_JSON).exists():
            return
        load = json.loads((folder / LOAD_JSON).read_text())
        outcome.hear(load["complaints"])
        if (folder / AROUND_JSON).exists():
            around = json.loads((folder / AROUND_JSON).read_text())
            load["groups"] += around["groups"]
            outcome.hear(around["complaints"], "past weir: ")
        elif went_around:
            outcome.faults.append("weir-load past weir left no report")
        # A load that did not begin has shown nothing.
        outcome.load = load if load["took_s"] > 0 else None

    def _go_around(self, cast: Cast, folder: Path) -> subprocess.Popen:
        """Starts the load that goes to the store itself."""
        (folder / AROUND_TOML).write_text(self.scenario.around)
        stores = [store.address for store in cast.all_stores]
        command = [*weir_load(stores, folder / AROUND_TOML, folder / AROUND_JSON), "--plain"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0)

    def _listen(self, run: subprocess.Popen, said: list[str], started: threading.Event) -> None:
        for line in run.stderr:
            if line.startswith(STARTED):
                started.set()
            said.append(line.strip())
            if not self.quiet:
                print(f"  {line.rstrip()}", file=sys.stderr)

    def _await(self, run: subprocess.Popen, outcome: Outcome) -> None:
        deadline = time.monotonic() + self.scenario.seconds + PATIENCE_SECONDS
        told = 0
        while run.poll() is None:
            if self.interruption.count > told:
                told = self.interruption.count
                run.send_signal(signal.SIGINT if told == 1 else signal.SIGKILL)
            if time.monotonic() > deadline:
                outcome.faults.append("weir-load did not come to an end, and was ended")
                return
            time.sleep(POLL_SECONDS)


def weir_load(targets: list[str], scenario: Path, report: Path) -> list[str]:
    """The command of a load that leaves a report."""
    return [str(binary("weir-load")), "--target", ",".join(targets), "--scenario", str(scenario), "--json", str(report)]


def wait(started: threading.Event, run: subprocess.Popen) -> bool:
    """Whether the load started."""
    while run.poll() is None:
        if started.wait(POLL_SECONDS):
            return True
    return False
