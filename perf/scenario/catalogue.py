"""Everything that an acceptance line may ask for: which subjects have which metrics, and of what kind these are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from .expression import Kind, Line, Measure, Value, Wrong, seconds

# What weir-load counts, and sums of it.
COUNTS = (
    "offered", "sent", "served", "throttled", "overloaded", "deadline", "unavailable", "errors", "timeouts",
    "refused_by_client", "retries", "lost",
)  # fmt: skip
SUMS = {
    "refused": ("throttled", "overloaded", "deadline", "unavailable"),
    "failed": ("errors", "timeouts"),
}
LATENCIES = ("p50", "p90", "p99", "p99_9", "p99_99", "max")
# How long a served request may have taken to be counted by served(TIME) and goodput(TIME), in milliseconds: what weir-load tells.
WITHIN_MS = (10, 20, 50, 100, 200, 250, 500, 1000, 2000, 5000)
STORAGE_COUNTS = (
    "requests", "replies", "errors_injected", "requests_refused", "requests_lost", "connections_refused",
)  # fmt: skip
STORAGE_MAXIMA = ("queue_max", "concurrency_max")
# Of one key, in parentheses.
STORAGE_OF_KEY = ("reads", "reads_in_flight_max", "reads_per_second_max")
# Of a tenant: request units by what became of them, and the family of /metrics that counts them.
TENANT_OUTCOMES = {f"{outcome}_ru": outcome for outcome in ("admitted", "throttled", "shed", "cached")}
TENANT_FAMILY = "weir_tenant_request_units_total"
RECOVERY = "recovery"
# Names that mean something in a line, so no group may have them.
SUBJECTS = ("total", "storage", "weir", "tenants")


@dataclass(frozen=True)
class Cast:
    """Who takes part in a scenario."""

    # Group -> names of its phases.
    groups: dict[str, tuple[str, ...]]
    storages: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    has_events: bool = False
    # Groups that go to the store itself, past weir.
    around: frozenset[str] = frozenset()
    # Group -> (phase, begin, end) in seconds.
    spans: dict[str, tuple[tuple[str, float, float], ...]] = field(default_factory=dict)
    phases: frozenset[str] = field(default=frozenset())

    def __post_init__(self) -> None:
        names = {phase for phases in self.groups.values() for phase in phases}
        object.__setattr__(self, "phases", frozenset(names))

    @property
    def through_weir(self) -> list[str]:
        """The groups whose requests weir gets."""
        return [group for group in self.groups if group not in self.around]

    def have_one_time(self, phase: str, groups: Iterable[str]) -> bool:
        """True if the phases of this name in these groups begin and end together."""
        times = [(begin, end) for group in groups for name, begin, end in self.spans.get(group, ()) if name == phase]
        return all(math.dist(time, times[0]) < 1e-6 for time in times)


def check(line: Line, cast: Cast) -> None:
    """Complains about a line that no run could ever answer."""
    kind = kind_of(line.measure, cast)
    bar = line.bar
    if isinstance(bar.of, Measure):
        other = kind_of(bar.of, cast)
        if (kind is Kind.TIME) != (other is Kind.TIME):
            raise Wrong(f"{line.measure} is {kind.value}, and {bar.of} is {other.value}: two of one kind are expected")
        if bar.plus and not fits(kind, bar.plus.kind):
            raise Wrong(f"'+ {bar.plus}' is added to {kind.value}: the same kind is expected")
        return
    for value in (bar.of, bar.plus):
        if isinstance(value, Value) and not fits(kind, value.kind):
            raise Wrong(f"{line.measure} is {kind.value}, and its bar is {value.kind.value}: {_bars(kind)} is expected")
    if line.measure.subject[0] in ("storage", "weir", "tenants") and bar.of.kind is Kind.SHARE:
        raise Wrong(f"{line.measure} has no share of what was offered: a count or a rate such as 5/s is expected")


def fits(kind: Kind, bar: Kind) -> bool:
    return kind is bar or (kind is Kind.COUNT and bar in (Kind.RATE, Kind.SHARE))


def _bars(kind: Kind) -> str:
    return {
        Kind.COUNT: "a count, a rate such as 5/s or a share such as 99%",
        Kind.TIME: "a time such as 20ms, or 1.2x another time,",
    }.get(kind, kind.value)


def kind_of(measure: Measure, cast: Cast) -> Kind:
    """The kind of a measure; complains about what does not exist."""
    first, *rest = measure.subject
    if first == "weir":
        _phase(measure, rest, cast)
        return Kind.COUNT
    if first == "tenants":
        return _of_tenant(measure, rest, cast)
    if measure.labels:
        raise Wrong(f"{measure}: only weir's own metrics have labels")
    if first == "storage":
        return _of_storage(measure, rest, cast)
    if first != "total" and first not in cast.groups:
        known = ", ".join([*cast.groups, *SUBJECTS])
        raise Wrong(f"there is no group '{first}'; there are: {known}")
    return _of_group(measure, first, rest, cast)


def _of_group(measure: Measure, group: str, rest: list[str], cast: Cast) -> Kind:
    metric = measure.metric
    groups = cast.through_weir if group == "total" else [group]
    phases = {phase for name in groups for phase in cast.groups[name]}
    if rest and (len(rest) > 1 or rest[0] not in phases):
        raise Wrong(f"{group} has no phase '{'.'.join(rest)}'; there are: {', '.join(sorted(phases))}")
    if rest:
        _one_time(measure, rest[0], groups, cast)
    if metric == RECOVERY:
        if group == "total" or rest or measure.argument is None:
            raise Wrong("recovery is of a group, without a phase, and says what is well again: clients.recovery(50ms)")
        if not cast.has_events:
            raise Wrong("recovery counts from the end of the last [[event]], and there is none")
        if group in cast.around:
            raise Wrong(f"{measure}: recovery is of a group that goes through weir, and '{group}' goes past it")
        seconds(measure.argument)
        return Kind.TIME
    if metric in LATENCIES:
        _no_argument(measure)
        if group == "total" and rest:
            raise Wrong(f"{measure}: percentiles of all groups together are known for the whole run only")
        return Kind.TIME
    if metric in ("served", "goodput") and measure.argument is not None:
        within_ms(measure.argument)
        return Kind.COUNT if metric == "served" else Kind.RATE
    if metric == "goodput":
        return Kind.RATE
    if metric in COUNTS or metric in SUMS:
        _no_argument(measure)
        return Kind.COUNT
    known = ", ".join([*COUNTS, *SUMS, "goodput", *LATENCIES, RECOVERY])
    raise Wrong(f"{group} has no metric '{metric}'; there are: {known}")


def _of_storage(measure: Measure, rest: list[str], cast: Cast) -> Kind:
    metric, rest = measure.metric, list(rest)
    if rest and rest[0] in cast.storages:
        rest.pop(0)
    _phase(measure, rest, cast, cast.storages)
    if metric in STORAGE_OF_KEY:
        if not measure.argument:
            raise Wrong(f"{metric} is of one key: storage.{metric}('item:viral') is expected")
    elif metric in STORAGE_COUNTS or metric in STORAGE_MAXIMA:
        _no_argument(measure)
    else:
        known = ", ".join([*STORAGE_COUNTS, *STORAGE_MAXIMA, *(f"{name}('KEY')" for name in STORAGE_OF_KEY)])
        raise Wrong(f"storage has no metric '{metric}'; there are: {known}")
    if rest and metric.endswith("_max"):
        raise Wrong(f"{measure}: a maximum is of the whole run, or since an event said RESET: leave the phase out")
    return Kind.COUNT


def _of_tenant(measure: Measure, rest: list[str], cast: Cast) -> Kind:
    if not rest or rest[0] not in cast.tenants:
        raise Wrong(f"{measure} names no tenant of [quotas]; there are: {', '.join(cast.tenants) or 'none'}")
    _phase(measure, rest[1:], cast)
    _no_argument(measure)
    if measure.metric not in TENANT_OUTCOMES:
        raise Wrong(f"a tenant has no metric '{measure.metric}'; there are: {', '.join(TENANT_OUTCOMES)}")
    return Kind.COUNT


def _phase(measure: Measure, rest: list[str], cast: Cast, others: tuple[str, ...] = ()) -> None:
    if rest and (len(rest) > 1 or rest[0] not in cast.phases):
        known = ", ".join([*others, *sorted(cast.phases)])
        raise Wrong(f"{measure}: '{'.'.join(rest)}' is none of {known}")
    if rest:
        _one_time(measure, rest[0], cast.groups, cast)


def _one_time(measure: Measure, phase: str, groups: Iterable[str], cast: Cast) -> None:
    if not cast.have_one_time(phase, groups):
        several = f"phases of the name '{phase}' begin or end at different times"
        raise Wrong(f"{measure}: the {several}: one time is expected")


def _no_argument(measure: Measure) -> None:
    if measure.argument is not None:
        raise Wrong(f"{measure.metric} takes nothing in parentheses, and '{measure.argument}' stands there")


def within_ms(argument: str) -> int:
    """The bound of served(TIME), one of those that weir-load counts by."""
    millis = seconds(argument) * 1000
    if millis not in WITHIN_MS:
        known = ", ".join(f"{bound}ms" for bound in WITHIN_MS)
        raise Wrong(f"'{argument}': what was served within so long is counted for {known}")
    return int(millis)
