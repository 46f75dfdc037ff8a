"""Memory and descriptors of weirs, by the second."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from harness.processes import Weir

SECOND = 1.0
# Of this time at the end, at most of the second half, the first and the last fifth are compared.
LOOKED_AT_SECONDS = 600.0
PARTS = 5


@dataclass(frozen=True)
class Sample:
    at: float
    pid: int
    resident: int
    descriptors: int


class Watch(threading.Thread):
    """Samples every weir each second; of one that is taken over, the process that serves then."""

    def __init__(self, weirs: Callable[[], dict[str, Weir]], began: float) -> None:
        super().__init__(daemon=True)
        self.weirs, self.began = weirs, began
        self.samples: dict[str, list[Sample]] = {name: [] for name in weirs()}
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(SECOND):
            for name, weir in self.weirs().items():
                try:
                    sample = Sample(time.monotonic() - self.began, weir.pid, weir.resident_bytes(), weir.descriptors())
                except (OSError, AssertionError):
                    continue  # that process has just ended
                self.samples[name].append(sample)

    def end(self) -> None:
        self.stopping.set()
        self.join()


def growth(samples: list[Sample], seconds: float) -> dict | None:
    """Resident memory in the last fifth of the time that is looked at, over that in its first fifth; None where that was more than one
    process. It is the second half, and of a long run the last ten minutes: the allocator keeps what a burst has once needed."""
    looked_at = min(seconds / 2, LOOKED_AT_SECONDS)
    late = [sample for sample in samples if sample.at >= seconds - looked_at]
    length = looked_at / PARTS
    first = [sample.resident for sample in late if sample.at < seconds - looked_at + length]
    last = [sample.resident for sample in late if sample.at >= seconds - length]
    if not first or not last or len({sample.pid for sample in late}) != 1:
        return None
    begin, end = statistics.median(first), statistics.median(last)
    return {"minutes": looked_at / 60, "begin_mib": mebibytes(begin), "end_mib": mebibytes(end), "ratio": round(end / begin, 4)}


def generations(samples: list[Sample], age: float) -> list[float]:
    """Resident memory of each process in turn at the same age, in MiB; of those that lived so long."""
    found: dict[int, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.pid, []).append(sample)
    at_age = [[each.resident for each in process if each.at - process[0].at >= age] for process in found.values()]
    return [mebibytes(later[0]) for later in at_age if later]


def thinned(samples: list[Sample], most: int = 240) -> list[list[float]]:
    """Seconds, MiB and descriptors, for the record."""
    step = max(1, len(samples) // most)
    return [[round(each.at, 1), mebibytes(each.resident), each.descriptors] for each in samples[::step]]


def mebibytes(count: float) -> float:
    return round(count / (1 << 20), 2)
