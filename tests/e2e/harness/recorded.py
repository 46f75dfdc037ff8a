"""What weir's /metrics said while a scenario ran, as text: `perf/record-alerts` writes it, and the tests of alerts play it to promtool.

    # ...                                   where it is from
    interval 5                              seconds between samples; the first one is taken when the load begins
    window onset 100 150                    a phase of the load, or `event` for what was done to stores: begin and end in seconds
    store sick 127.0.0.1:7001               a [[storage]] of the scenario, and where it was
    weir_queue_full{...} 0*12 1*3 _         a series and its samples, those in a row that are alike as one; `_`: it was not there
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

ABSENT = "_"


@dataclass
class Recording:
    """The samples of one run."""

    about: str
    interval: int
    windows: list[tuple[str, float, float]] = field(default_factory=list)
    stores: list[tuple[str, str]] = field(default_factory=list)
    # For each name with its labels as on the page, one text per sample.
    series: dict[str, list[str]] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        return max((len(values) for values in self.series.values()), default=0)

    def add(self, page: dict[str, str]) -> None:
        """Adds one sample of all series."""
        number = self.samples
        for name in {**self.series, **page}:
            self.series.setdefault(name, [ABSENT] * number).append(page.get(name, ABSENT))

    def window(self, name: str) -> tuple[float, float]:
        return next((begin, end) for known, begin, end in self.windows if known == name)

    def addresses(self, name: str) -> list[str]:
        """Returns the addresses of the stores with that name."""
        return [address for known, address in self.stores if known == name]

    def write(self, path: Path) -> None:
        lines = [f"# {self.about}", f"interval {self.interval}"]
        lines += [f"window {name} {begin:g} {end:g}" for name, begin, end in self.windows]
        lines += [f"store {name} {address}" for name, address in self.stores]
        for name, values in sorted(self.series.items()):
            runs = [(value, len(list(run))) for value, run in groupby(values)]
            lines.append(" ".join([name, *(f"{value}*{count}" if count > 1 else value for value, count in runs)]))
        path.write_text("\n".join(lines) + "\n")

    @classmethod
    def read(cls, path: Path) -> Recording:
        about, *lines = path.read_text().splitlines()
        found = cls(about.removeprefix("# "), 0)
        for line in lines:
            if "{" in line or line.startswith("up "):
                # Labels may contain spaces, values do not.
                name, brace, values = line.rpartition("} ")
                name, values = (name + "}", values) if brace else line.split(" ", 1)
                runs = (run.partition("*") for run in values.split(" "))
                found.series[name] = [value for value, _, count in runs for _ in range(int(count or 1))]
                continue
            match line.split(" "):
                case ["interval", seconds]:
                    found.interval = int(seconds)
                case ["window", name, begin, end]:
                    found.windows.append((name, float(begin), float(end)))
                case ["store", name, address]:
                    found.stores.append((name, address))
                case _:
                    raise AssertionError(f"{path}: {line[:80]!r} means nothing")
        return found
