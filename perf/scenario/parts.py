"""What a scenario consists of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .catalogue import Cast
from .expression import Line


@dataclass(frozen=True)
class Storage:
    """Stores that are alike."""

    name: str
    count: int
    flags: tuple[str, ...]
    script: str | None


@dataclass(frozen=True)
class Event:
    """What is said to stores, so many seconds after the load began."""

    at: float
    lasts: float
    on: str | None
    command: str
    undo: str | None

    @property
    def end(self) -> float:
        return self.at + self.lasts


@dataclass(frozen=True)
class Scenario:
    """A checked scenario."""

    name: str
    path: Path
    shows: str
    accept: tuple[Line, ...]
    # What tells best how the scenario went, as a share; its bar is the whole.
    figure: Line | None
    shards: tuple[int, ...]
    weir_flags: tuple[tuple[str, ...], ...]
    quotas: str | None
    storages: tuple[Storage, ...]
    events: tuple[Event, ...]
    # As weir-load reads it, line for line where it stands here, so that its complaints have the right line.
    load: str
    # A load in the same form that goes to the store itself, past weir.
    around: str | None
    cast: Cast
    # Group -> (phase, begin, end) in seconds.
    phases: dict[str, tuple[tuple[str, float, float], ...]]

    @property
    def seconds(self) -> float:
        return max(end for phases in self.phases.values() for _, _, end in phases)

    @property
    def borders(self) -> list[float]:
        """When a phase begins or ends."""
        return sorted({time for phases in self.phases.values() for _, begin, end in phases for time in (begin, end)})

    def window(self, phase: str, group: str | None = None) -> tuple[float, float]:
        """When a phase is: of this group, or of all that have it, which is then one time."""
        several = self.phases.values() if group is None else [self.phases[group]]
        return next((b, e) for phases in several for name, b, e in phases if name == phase)
