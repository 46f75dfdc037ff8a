"""Acceptance lines: `neighbours.flood.p99 <= 1.2x neighbours.calm.p99`. The language is described in perf/README.md.

    LINE    := MEASURE <= BAR | MEASURE >= BAR | MEASURE within N% of BAR
    BAR     := VALUE | MEASURE | N% of VALUE | N% of MEASURE | Nx MEASURE, each with an optional  + VALUE
    VALUE   := 99.9% | 20ms | 5s | 5000/s | 17
    MEASURE := SUBJECT[.PHASE].METRIC[(ARGUMENT)][{LABEL=TEXT, ...}]

A count is compared as what its bar is: a number, a rate (per second of its phase), or a share of what was offered.

    FIGURE  := MEASURE | MEASURE of VALUE

The figure of a scenario is a share: of what was offered, or of a value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What a value is a value of."""

    COUNT = "a count such as 17"
    RATE = "a rate such as 5000/s"
    SHARE = "a share such as 99.9%"
    TIME = "a time such as 20ms"


class Wrong(ValueError):
    """A line that means nothing, and what would."""


@dataclass(frozen=True)
class Value:
    """A number with its kind; times are in seconds, shares are parts of one."""

    number: float
    kind: Kind

    def __str__(self) -> str:
        return shown(self.number, self.kind)


@dataclass(frozen=True)
class Measure:
    """What is to be looked up."""

    path: tuple[str, ...]
    argument: str | None = None
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def metric(self) -> str:
        return self.path[-1]

    @property
    def subject(self) -> tuple[str, ...]:
        return self.path[:-1]

    def __str__(self) -> str:
        argument = "" if self.argument is None else f"({self.argument})"
        labels = ", ".join(f"{name}={text}" for name, text in self.labels)
        return ".".join(self.path) + argument + (f"{{{labels}}}" if labels else "")


@dataclass(frozen=True)
class Bar:
    """What a measure is held against: a factor of a value or of another measure, and something on top."""

    factor: float
    of: Value | Measure
    plus: Value | None = None


@dataclass(frozen=True)
class Line:
    """One line."""

    text: str
    measure: Measure
    relation: str  # "<=", ">=" or "within"
    bar: Bar
    tolerance: float = 0.0

    def measures(self) -> list[Measure]:
        return [self.measure, *([self.bar.of] if isinstance(self.bar.of, Measure) else [])]


_NUMBER = r"\d[\d_]*(?:\.\d+)?"
_VALUE = re.compile(rf"({_NUMBER})(%|us|ms|s|/s)?")
_MEASURE = re.compile(
    r"(?P<path>[A-Za-z_][\w-]*(?:\.[\w-]+)+)(?:\((?P<argument>[^()]*)\))?(?:\{(?P<labels>[^{}]*)\})?"
)
_LABEL = re.compile(r"""\s*(\w+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^"',\s]+))\s*""")
_RELATION = re.compile(rf"\s*(?:(<=|>=)|within\s+({_NUMBER})%\s+of)\s+")
_UNITS = {
    "%": (0.01, Kind.SHARE),
    "us": (1e-6, Kind.TIME),
    "ms": (1e-3, Kind.TIME),
    "s": (1.0, Kind.TIME),
    "/s": (1.0, Kind.RATE),
    None: (1.0, Kind.COUNT),
}
WANTED = "MEASURE <= BAR, MEASURE >= BAR or MEASURE within N% of BAR is expected, as in 'point.calm.p99 <= 20ms'"


def parse(text: str) -> Line:
    """A line; `Wrong` says what is wrong with it."""
    measure, rest = _measure(text.strip(), WANTED)
    relation = _RELATION.match(rest)
    if not relation:
        raise Wrong(f"'{rest.strip()}' follows {measure}: {WANTED}")
    bar = _bar(rest[relation.end() :].strip())
    if relation[1]:
        return Line(text.strip(), measure, relation[1], bar)
    return Line(text.strip(), measure, "within", bar, _number(relation[2]) / 100)


def parse_figure(text: str) -> Line:
    """A figure, as the line whose bar is the whole of which it is a share."""
    wanted = "MEASURE or MEASURE of VALUE is expected, as in 'clients.over.goodput(250ms) of 2000/s'"
    measure, rest = _measure(text.strip(), wanted)
    of = re.match(r"\s+of\s+", rest)
    if rest and not of:
        raise Wrong(f"'{rest.strip()}' follows {measure}: {wanted}")
    whole = _value(rest[of.end() :].strip()) if of else Value(1.0, Kind.SHARE)
    return Line(text.strip(), measure, ">=", Bar(1.0, whole))


def _bar(text: str) -> Bar:
    text, plus_sign, more = text.partition(" + ")
    plus = _value(more.strip()) if plus_sign else None
    if share := re.match(rf"({_NUMBER})%\s+of\s+", text):
        return Bar(_number(share[1]) / 100, _operand(text[share.end() :]), plus)
    if times := re.match(rf"({_NUMBER})x\s+", text):
        of = _operand(text[times.end() :])
        return Bar(_number(times[1]), of, plus)
    return Bar(1.0, _operand(text), plus)


def _operand(text: str) -> Value | Measure:
    text = text.strip()
    if not text:
        raise Wrong(f"there is no bar: {WANTED}")
    if text[0].isdigit():
        return _value(text)
    measure, rest = _measure(text, "a value such as 20ms, or a measure such as point.calm.p99, is expected")
    if rest.strip():
        raise Wrong(f"'{rest.strip()}' follows {measure}, and nothing may: '+ 2ms' could")
    return measure


def _value(text: str) -> Value:
    match = _VALUE.fullmatch(text)
    if not match:
        raise Wrong(f"'{text}' is no value: one such as 99.9%, 20ms, 5s, 5000/s or 17 is expected")
    factor, kind = _UNITS[match[2]]
    return Value(_number(match[1]) * factor, kind)


def _measure(text: str, wanted: str) -> tuple[Measure, str]:
    match = _MEASURE.match(text)
    if not match:
        raise Wrong(f"'{text}' does not start with a measure such as point.p99: {wanted}")
    labels = []
    for part in (match["labels"] or "").split(",") if match["labels"] is not None else []:
        label = _LABEL.fullmatch(part)
        if not label:
            raise Wrong(f"'{part.strip()}' is no label: one such as reason=overloaded is expected")
        labels.append((label[1], next(text for text in label.groups()[1:] if text is not None)))
    argument = match["argument"]
    if argument is not None:
        argument = argument.strip().strip("'\"")
    return Measure(tuple(match["path"].split(".")), argument, tuple(labels)), text[match.end() :]


def _number(text: str) -> float:
    return float(text.replace("_", ""))


def seconds(text: str) -> float:
    """A duration as weir's own files write it."""
    match = re.fullmatch(rf"({_NUMBER})(us|ms|s|m|h)", text.strip())
    if not match:
        raise Wrong(f"'{text}' is no duration: one such as 500ms, 10s or 1m is expected")
    return _number(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}[match[2]]


def shown(number: float, kind: Kind) -> str:
    """A value for people."""
    if number == float("inf"):
        return "never"
    match kind:
        case Kind.SHARE:
            return f"{number * 100:.4g} %" if 0 < number < 0.999 else f"{number * 100:.6g} %"
        case Kind.TIME if number < 1:
            return f"{number * 1e3:.3g} ms" if number < 0.1 else f"{number * 1e3:.0f} ms"
        case Kind.TIME:
            return f"{number:.2f} s"
        case Kind.RATE:
            return f"{number:,.0f}/s" if number >= 100 else f"{number:.3g}/s"
        case Kind.COUNT:
            return f"{number:,.0f}" if number == int(number) else f"{number:,.3f}"
