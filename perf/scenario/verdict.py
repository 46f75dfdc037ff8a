"""Whether an acceptance line holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .expression import Kind, Line, Measure, Value


@dataclass(frozen=True)
class Figure:
    """What a measure came to. A count knows how long was counted, and how much was offered, where that has a meaning: a
    gauge and a maximum do not.
    """

    number: float
    kind: Kind
    seconds: float | None = None
    offered: float | None = None

    def as_kind(self, kind: Kind) -> float | None:
        """The same in the terms of its bar; None where that cannot be said."""
        if kind is self.kind:
            return self.number
        if self.kind is Kind.COUNT and kind is Kind.RATE and self.seconds:
            return self.number / self.seconds
        if self.kind is Kind.COUNT and kind is Kind.SHARE and self.offered:
            return self.number / self.offered
        return None


@dataclass(frozen=True)
class Verdict:
    """What became of a line."""

    line: Line
    passed: bool
    measured: Value | None = None
    bar: Value | None = None
    # Why nothing was measured.
    reason: str = ""

    @property
    def word(self) -> str:
        return "PASS" if self.passed else "FAIL" if self.measured is not None else "not measured"


class NotMeasured(LookupError):
    """This run cannot tell; the text says why."""


def judge(line: Line, look_up: Callable[[Measure], Figure]) -> Verdict:
    """Whether a line holds; `look_up` raises NotMeasured for what is not known."""
    try:
        found = look_up(line.measure)
        kind, reference = _reference(line, found, look_up)
        measured = found.as_kind(kind)
        if measured is None:
            raise NotMeasured(_lack(found, kind))
    except NotMeasured as error:
        return Verdict(line, False, reason=str(error))
    bar = reference * line.bar.factor + (line.bar.plus.number if line.bar.plus else 0.0)
    if line.relation == "<=":
        passed = measured <= bar
    elif line.relation == ">=":
        passed = measured >= bar
    else:
        passed = abs(measured - bar) <= line.tolerance * bar
    return Verdict(line, passed, Value(measured, kind), Value(bar, kind))


def _reference(line: Line, found: Figure, look_up: Callable[[Measure], Figure]) -> tuple[Kind, float]:
    of = line.bar.of
    if isinstance(of, Value):
        return of.kind, of.number
    other = look_up(of)
    kinds = {found.kind, other.kind}
    # Two counts are compared per second, because their phases may differ in length, or as they are where one has none.
    has_rate = kinds != {Kind.COUNT} or None not in (found.seconds, other.seconds)
    rate = Kind.COUNT in kinds and Kind.TIME not in kinds and has_rate
    kind = line.bar.plus.kind if line.bar.plus else Kind.RATE if rate else found.kind
    reference = other.as_kind(kind)
    if reference is None:
        raise NotMeasured(f"{of}: {_lack(other, kind)}")
    # Zero is as much as any part of zero, and would pass although nothing happened.
    if reference <= 0 and line.relation != "<=":
        raise NotMeasured(f"{of} is 0: nothing is measured against it")
    return kind, reference


def _lack(figure: Figure, kind: Kind) -> str:
    """Why a figure cannot be told in the terms of its bar."""
    if figure.kind is Kind.COUNT and kind is Kind.SHARE:
        return "nothing was offered"
    if figure.kind is Kind.COUNT and kind is Kind.RATE:
        return "a gauge or a maximum has no rate" if figure.seconds is None else "no time went by"
    return f"it is {figure.kind.value}, and its bar is {kind.value}"
