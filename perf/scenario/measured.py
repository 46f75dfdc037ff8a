"""What a run has shown, looked up as acceptance lines ask for it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from .catalogue import LATENCIES, RECOVERY, STORAGE_OF_KEY, SUMS, TENANT_FAMILY, TENANT_OUTCOMES, within_ms
from .expression import Kind, Measure, seconds
from .parts import Scenario
from .verdict import Figure, NotMeasured

# Well again: so much of what was offered is served, for so many seconds in a row.
RECOVERED_SHARE = 0.95
RECOVERED_SECONDS = 3
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Samples = list[tuple[str, dict[str, str], float]]


@dataclass
class Snapshot:
    """What weir and the stores said at one moment."""

    # Seconds since the load began; as planned, and as it came to be.
    planned: float
    at: float
    metrics: Samples | None = None
    # Name of a [[storage]] -> for each of its stores, its figures.
    storages: dict[str, list[dict[str, int]]] = field(default_factory=dict)
    # The same by key.
    keys: dict[str, dict[str, list[dict[str, int]]]] = field(default_factory=dict)


def samples(page: str) -> Samples:
    """The samples of a metrics page."""
    found = []
    for line in page.splitlines():
        if match := _SAMPLE.match(line):
            found.append((match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])))
    return found


class Measured:
    """One run."""

    def __init__(self, scenario: Scenario, load: dict | None, snapshots: list[Snapshot]) -> None:
        self.scenario = scenario
        self.load = load
        self.snapshots = snapshots

    def look_up(self, measure: Measure) -> Figure:
        first, *rest = measure.subject
        match first:
            case "weir":
                return self._weir(measure, rest)
            case "tenants":
                return self._tenant(measure, rest)
            case "storage":
                return self._storage(measure, rest)
            case _:
                return self._group(measure, first, rest)

    def _group(self, measure: Measure, name: str, rest: list[str]) -> Figure:
        if self.load is None:
            raise NotMeasured("weir-load left no report")
        if measure.metric == RECOVERY:
            return Figure(self._recovery(name, seconds(measure.argument)), Kind.TIME)
        tally, length = self._tally(name, rest)
        if measure.metric in LATENCIES:
            millis = tally["latency_ms"].get(measure.metric)
            if millis is None:
                raise NotMeasured("nothing was served")
            return Figure(millis / 1000, Kind.TIME)
        # Repetitions and lost requests are no ends of requests, so they may stand beside the counts.
        counts = {**tally["counts"], **tally.get("sends", {})}
        metric = "served" if measure.metric == "goodput" else measure.metric
        count = sum(counts[part] for part in SUMS.get(metric, (metric,)))
        if measure.argument is not None:
            slow = tally["slow"].get(f"over_{within_ms(measure.argument)}ms")
            if slow is None:
                raise NotMeasured(f"this weir-load does not count what took more than {measure.argument}")
            count -= slow
        if measure.metric == "goodput":
            if measure.argument is None and "goodput_per_s" in tally:
                # It does not count what was served after the load.
                return Figure(tally["goodput_per_s"], Kind.RATE)
            return Figure(count / length if length else 0.0, Kind.RATE)
        return Figure(count, Kind.COUNT, length, counts["offered"])

    def _tally(self, name: str, rest: list[str]) -> tuple[dict, float]:
        if name == "total":
            past = self.scenario.cast.around
            groups = [group for group in self.load["groups"] if group["name"] not in past]
        else:
            groups = [group for group in self.load["groups"] if group["name"] == name]
        if not rest:
            return (self.load["total"], self.load["duration_s"]) if name == "total" else (groups[0], groups[0]["duration_s"])
        self._took(rest[0], None if name == "total" else name)
        phases = [phase for group in groups for phase in group["phases"] if phase["name"] == rest[0]]
        if len(phases) == 1:
            return phases[0], phases[0]["duration_s"]
        added = {
            part: {key: sum(phase[part][key] for phase in phases) for key in phases[0][part]}
            for part in ("counts", "sends", "slow")
            if part in phases[0]
        }
        rates = [phase.get("goodput_per_s") for phase in phases]
        if None not in rates:
            added["goodput_per_s"] = sum(rates)
        return {**added, "latency_ms": {}}, phases[0]["duration_s"]

    def _took(self, phase: str, group: str | None = None) -> tuple[float, float]:
        """When a phase was; an interrupted run may not have come to its end."""
        begin, end = self.scenario.window(phase, group)
        if self.load is None or (self.load["interrupted"] and self.load["duration_s"] < end - 0.001):
            raise NotMeasured(f"the run ended before '{phase}' did")
        return begin, end

    def _recovery(self, name: str, bound: float) -> float:
        """From the end of the last event to the first second from which the group is served again, in time."""
        trouble = max(event.end for event in self.scenario.events)
        end = max(stop for _, _, stop in self.scenario.phases[name])
        if self.load["duration_s"] < trouble + 1:
            raise NotMeasured("the run ended before the trouble did")
        rows = {row["second"]: row["groups"][name] for row in self.load["seconds"]}
        last = math.floor(min(end, self.load["duration_s"]) + 1e-9) - 1

        def well(second: int) -> bool:
            counts, p99 = rows[second]["counts"], rows[second]["latency_ms"]["p99"]
            # A second in which nothing was asked for says nothing.
            enough = counts["offered"] > 0 and counts["served"] >= RECOVERED_SHARE * counts["offered"]
            return enough and (p99 is None or p99 <= bound * 1000)

        for second in range(math.floor(trouble), last + 1):
            stretch = range(second, second + RECOVERED_SECONDS)
            if stretch[-1] <= last and all(number in rows and well(number) for number in stretch):
                return max(0.0, second - trouble)
        return math.inf

    def _between(self, rest: list[str]) -> tuple[Snapshot | None, Snapshot, float]:
        """The snapshots at the ends of a phase, or of the run, and the time between them."""
        if not self.snapshots:
            raise NotMeasured("nobody was asked")
        if not rest:
            first, last = self.snapshots[0], self.snapshots[-1]
            # What was still under way at the end was asked for before it.
            return first, last, self.load["duration_s"] if self.load else last.at - first.at
        begin, end = self._took(rest[0])
        first, last = self._snapshot(begin), self._snapshot(end)
        if first is None or last is None:
            raise NotMeasured(f"nobody was asked at the ends of '{rest[0]}'")
        return first, last, last.at - first.at

    def _snapshot(self, planned: float) -> Snapshot | None:
        return next((each for each in self.snapshots if math.isclose(each.planned, planned, abs_tol=1e-6)), None)

    def _weir(self, measure: Measure, rest: list[str]) -> Figure:
        first, last, length = self._between(rest)
        if last.metrics is None:
            raise NotMeasured("no weir took part, or it did not answer")
        if first.metrics is None and measure.metric.endswith("_total"):
            raise NotMeasured("weir did not answer at its begin")
        wanted = dict(measure.labels)

        def read(snapshot: Snapshot) -> float | None:
            found = [
                value
                for name, labels, value in snapshot.metrics or ()
                if name == measure.metric and wanted.items() <= labels.items()
            ]
            return sum(found) if found else None

        after = read(last)
        if after is None:
            raise NotMeasured("this weir's metrics page has no such figure")
        if not measure.metric.endswith("_total"):
            # A gauge is as it was at the end, however long the phase was.
            return Figure(after, Kind.COUNT)
        # Counters count up, from the begin of the phase.
        return Figure(after - (read(first) or 0.0), Kind.COUNT, length)

    def _tenant(self, measure: Measure, rest: list[str]) -> Figure:
        labels = (("tenant", rest[0]), ("outcome", TENANT_OUTCOMES[measure.metric]))
        return self._weir(Measure(("weir", TENANT_FAMILY), labels=labels), rest[1:])

    def _storage(self, measure: Measure, rest: list[str]) -> Figure:
        named = rest[0] if rest and rest[0] in self.scenario.cast.storages else None
        first, last, length = self._between(rest[1:] if named else rest)
        of_key = measure.metric in STORAGE_OF_KEY

        def read(snapshot: Snapshot, names: list[str]) -> list[int]:
            by_name = snapshot.keys.get(measure.argument, {}) if of_key else snapshot.storages
            figures = [figure for name in names for figure in by_name.get(name, [])]
            return [figure[measure.metric] for figure in figures if measure.metric in figure]

        specs = [spec for spec in self.scenario.storages if named in (None, spec.name)]
        names = [spec.name for spec in specs]
        after, before = read(last, names), read(first, names)
        if not after:
            raise NotMeasured("this weir-storage does not tell it")
        stores = sum(spec.count for spec in specs)
        if len(before) != stores or len(after) != stores:
            raise NotMeasured(f"of {stores} stores {len(before)} answered at its begin, and {len(after)} at its end")
        if measure.metric.endswith("_max"):
            return Figure(max(after), Kind.COUNT)
        # A store that forgot its figures meanwhile counts from nothing.
        remembering = [name for name in names if not self._forgot(name, first, last, of_key)]
        return Figure(sum(after) - sum(read(first, remembering)), Kind.COUNT, length)

    def _forgot(self, name: str, first: Snapshot, last: Snapshot, of_key: bool) -> bool:
        """True if an event between two snapshots sets figures of these stores to nothing: all, or those of keys."""
        commands = ("RESET", "READS-RESET") if of_key else ("RESET",)
        events = [event for event in self.scenario.events if event.on in (None, name)]
        said = [(event.at, event.command) for event in events]
        # Nothing is said when the load has ended.
        said += [(event.end, event.undo) for event in events if event.undo and event.end < self.scenario.seconds]
        return any(first.planned <= at < last.planned for at, command in said if command.strip().upper() in commands)
