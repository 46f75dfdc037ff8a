"""Reads a scenario file. Every complaint has file, line, what stands there and what would be right."""

from __future__ import annotations

import math
import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path

from . import catalogue, expression, homes, sections
from .catalogue import Cast
from .expression import Line, Wrong, seconds
from .parts import Event, Scenario, Storage

FOLDER = Path(__file__).resolve().parent.parent / "scenarios"
KEYS = {
    "": ("shows", "accept", "figure", "weir", "quotas", "storage", "event", "load", "around"),
    "weir": ("shards", "flags"),
    "storage": ("name", "count", "flags", "script"),
    "event": ("at", "lasts", "on", "storage", "undo"),
    "load": ("duration", "setup", "group"),
    "around": ("duration", "setup", "group"),
}
STORAGES_MAX = 64
SHARDS_MAX = 64
# Scaled durations are written in whole milliseconds, so times that lie closer together are the same.
SECONDS_APART = 0.001


class FileError(Exception):
    """What is wrong with a scenario file, in one line."""


def find(name: str) -> Path:
    """The file of a scenario: one of perf/scenarios by name, or any by its path."""
    path = Path(name)
    if path.suffix == ".toml" or "/" in name:
        return path
    if (known := FOLDER / f"{name}.toml").exists():
        return known
    raise FileError(f"there is no scenario '{name}'; there are: {', '.join(names())}, or a path to a file")


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read(path: Path, scale: float = 1.0) -> Scenario:
    """A scenario; with a scale, everything takes so many times as long, at the same rates."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: {error}") from None
    return parse(text, path, scale)


def parse(text: str, path: Path, scale: float = 1.0) -> Scenario:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileError(f"{path}: this is not TOML: {error}") from None
    return _Reader(text, path, scale).scenario(found)


def durations(load: dict, group: dict) -> list[tuple[str, float]]:
    """Name and seconds of each phase of a group of this load."""
    whole = {"name": "all", "duration": load.get("duration", "10s")}
    phases = group.get("phase") or [whole]
    return [
        (phase.get("name", str(number)), seconds(str(phase.get("duration"))))
        for number, phase in enumerate(phases, start=1)
    ]


class _Reader:
    def __init__(self, text: str, path: Path, scale: float) -> None:
        self.places, self.path, self.scale = sections.Places(text), path, scale

    def scenario(self, found: dict) -> Scenario:
        self.only(found, "")
        shows = self.wanted(found, "shows", str, "one sentence is expected, as in shows = \"...\"")
        weir = found.get("weir", {})
        if not isinstance(weir, dict):
            raise self.error("weir", "a section [weir] is expected")
        self.only(weir, "weir")
        storages = self.storages(found.get("storage", []))
        phases = self.load(found.get("load"), "load")
        around = found.get("around")
        past = self.around(around, storages, phases) if around is not None else {}
        phases |= past
        events = self.events(found.get("event", []), storages, max(spans[-1][2] for spans in phases.values()))
        self.homes(storages)
        quotas, tenants = self.quotas(found.get("quotas"))
        groups = {name: tuple(span[0] for span in spans) for name, spans in phases.items()}
        names = tuple(storage.name for storage in storages)
        cast = Cast(groups, names, tenants, bool(events), around=frozenset(past), spans=phases)
        return Scenario(
            name=self.path.stem,
            path=self.path,
            shows=shows,
            accept=self.accept(found.get("accept"), cast),
            figure=self.figure(found.get("figure"), cast),
            shards=self.shards(weir.get("shards", 2)),
            weir_flags=self.flags("weir", weir.get("flags", [])),
            quotas=quotas,
            storages=storages,
            events=events,
            load=self.load_text("load", found["load"]),
            around=None if around is None else self.load_text("around", around),
            cast=cast,
            phases=phases,
        )

    def accept(self, lines: object, cast: Cast) -> tuple[Line, ...]:
        wanted = "a list of lines is expected, as in accept = [\"point.p99 <= 20ms\"]"
        if not isinstance(lines, list) or not lines or not all(isinstance(line, str) for line in lines):
            raise self.error("accept", wanted)
        return tuple(self.line(text, self.places.line_with(text), expression.parse, cast) for text in lines)

    def figure(self, text: object, cast: Cast) -> Line | None:
        if text is None:
            return None
        if not isinstance(text, str):
            raise self.error("figure", "one text is expected, as in figure = \"total.over.goodput(250ms) of 2000/s\"")
        return self.line(text, self.places.line_of("figure", "", 0), expression.parse_figure, cast)

    def line(self, text: str, number: int, parse: Callable[[str], Line], cast: Cast) -> Line:
        try:
            line = parse(text)
            catalogue.check(line, cast)
        except Wrong as problem:
            raise FileError(f"{self.path}:{number}: {text!r}: {problem}") from None
        return line

    def shards(self, given: object) -> tuple[int, ...]:
        several = given if isinstance(given, list) else [given]
        good = several and all(type(count) is int and 1 <= count <= SHARDS_MAX for count in several)
        if not good:
            raise self.error("shards", f"{given!r}: a number from 1 to {SHARDS_MAX} is expected, or a list of them", "weir")
        return tuple(several)

    def flags(self, section: str, given: object) -> tuple[tuple[str, ...], ...]:
        wanted = "a list of flags is expected, one in each text, as in flags = [\"--queue-target 5ms\"]"
        if not isinstance(given, list):
            raise self.error("flags", wanted, section)
        flags = []
        for text in given:
            words = shlex.split(text) if isinstance(text, str) else []
            if not words or not words[0].startswith("--"):
                raise self.error("flags", f"{text!r}: {wanted}", section)
            flags.append(tuple(words))
        return tuple(flags)

    def quotas(self, quotas: object) -> tuple[str | None, tuple[str, ...]]:
        if quotas is None:
            return None, ()
        if isinstance(quotas, str):
            try:
                quotas, text = tomllib.loads(quotas), quotas
            except tomllib.TOMLDecodeError as error:
                raise self.error("quotas", f"this is not TOML: {error}") from None
        elif isinstance(quotas, dict):
            text = self.section_text("quotas", quotas)
        else:
            raise self.error("quotas", "a section [quotas], or the text of a quota file, is expected")
        tenants = [*quotas.get("tenants", {}), *(["default"] if "default" in quotas else [])]
        return text, tuple(tenants)

    def storages(self, entries: object) -> tuple[Storage, ...]:
        storages = []
        for index, entry in enumerate(self.tables(entries, "storage")):
            name = entry.get("name", "main" if index == 0 else None)
            if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name):
                raise self.error("name", f"{name!r}: a name of letters and digits is expected", "storage", index)
            if any(name == other.name for other in storages):
                raise self.error("name", f"there are two [[storage]] of the name '{name}'", "storage", index)
            count = entry.get("count", 1)
            if type(count) is not int or not 1 <= count <= STORAGES_MAX:
                raise self.error("count", f"{count!r}: a number from 1 to {STORAGES_MAX} is expected", "storage", index)
            flags = entry.get("flags", "")
            if not isinstance(flags, str):
                raise self.error("flags", f"{flags!r}: one text is expected, such as \"--servers 4\"", "storage", index)
            script = entry.get("script")
            if script is not None and not isinstance(script, str):
                raise self.error("script", "the text of a script for weir-storage is expected", "storage", index)
            if script is not None and self.scale != 1.0:
                raise self.error("script", "--seconds-scale does not change the times of a script", "storage", index)
            storages.append(Storage(name, count, tuple(shlex.split(flags)), script))
        if not storages:
            raise FileError(f"{self.path}: at least one [[storage]] is expected")
        return tuple(storages)

    def events(self, entries: object, storages: tuple[Storage, ...], end: float) -> tuple[Event, ...]:
        """Events in time; the load, and with it the scenario, ends after so many seconds."""
        events = []
        for index, entry in enumerate(self.tables(entries, "event")):
            times = {}
            for key, default in (("at", None), ("lasts", "0s")):
                try:
                    times[key] = seconds(str(entry.get(key, default))) * self.scale
                except Wrong as problem:
                    raise self.error(key, str(problem), "event", index) from None
            if times["at"] > end or math.isclose(times["at"], end):
                ended = f"the load has ended then: a time before {end / self.scale:g}s is expected"
                raise self.error("at", f"{entry['at']!r}: {ended}", "event", index)
            on, command, undo = entry.get("on"), entry.get("storage"), entry.get("undo")
            if on is not None and on not in [storage.name for storage in storages]:
                known = ", ".join(storage.name for storage in storages)
                raise self.error("on", f"there is no [[storage]] {on!r}; there are: {known}", "event", index)
            if not isinstance(command, str) or not command.strip():
                wanted = "what follows STORAGE is expected, as in storage = \"STALL {lasts}\""
                raise self.error("storage", f"{command!r}: {wanted}", "event", index)
            if undo is not None and (not isinstance(undo, str) or not undo.strip()):
                wanted = "what follows STORAGE is expected, as in undo = \"SET ERRORS OFF\""
                raise self.error("undo", f"{undo!r}: {wanted}", "event", index)
            command = command.replace("{lasts}", f"{times['lasts'] * 1000:.0f}ms")
            events.append(Event(times["at"], times["lasts"], on, command, undo))
        return tuple(sorted(events, key=lambda event: event.at))

    def around(self, around: object, storages: tuple[Storage, ...], phases: dict) -> dict:
        """Phases of the groups that go past weir."""
        if sum(storage.count for storage in storages) != 1:
            raise self.error("around", "what goes past weir has one store to go to: one [[storage]] with a count of 1 is expected")
        more = self.load(around, "around")
        if twice := next((name for name in more if name in phases), None):
            raise self.error("name", f"there are two groups of the name '{twice}'", "around.group", list(more).index(twice))
        return more

    def load(self, load: object, section: str) -> dict[str, tuple[tuple[str, float, float], ...]]:
        """Phases of each group: name, begin and end in seconds."""
        if not isinstance(load, dict) or not isinstance(load.get("group"), list) or not load["group"]:
            raise self.error(section, f"at least one [[{section}.group]] is expected, as weir-load's scenarios have [[group]]")
        self.only(load, section)
        phases = {}
        for index, group in enumerate(load["group"]):
            name = group.get("name")
            if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][\w-]*", name):
                raise self.error("name", f"{name!r}: a group's name is of letters, digits, - and _", f"{section}.group", index)
            if name in catalogue.SUBJECTS:
                raise self.error("name", f"'{name}' means something else in acceptance lines", f"{section}.group", index)
            try:
                found = durations(load, group)
            except Wrong as problem:
                raise self.error("duration", f"of '{name}': {problem}", f"{section}.group", index) from None
            at, spans = 0.0, []
            for phase, length in found:
                spans.append((phase, at, at + length * self.scale))
                at += length * self.scale
            phases[name] = tuple(spans)
        return phases

    def homes(self, storages: tuple[Storage, ...]) -> None:
        known = [storage.name for storage in storages]
        for match in homes.PLACEHOLDER.finditer(self.places.text):
            if match[1] not in known:
                problem = f"{match[0]}: there is no [[storage]] '{match[1]}'; there are: {', '.join(known)}"
                raise FileError(f"{self.path}:{self.places.line_with(match[0])}: {problem}")

    def load_text(self, section: str, load: dict) -> str:
        """A load as a file of its own."""
        text = self.section_text(section, load)
        if self.scale == 1.0:
            return text
        text = sections.scaled(text, self.scale)
        scaled = tomllib.loads(text)
        for index, (before, after) in enumerate(zip(load["group"], scaled["group"], strict=True)):
            pairs = zip(durations(load, before), durations(scaled, after), strict=True)
            if any(abs(was * self.scale - became) > SECONDS_APART for (_, was), (_, became) in pairs):
                wanted = "duration = \"...\" on a line of its own is expected for each"
                problem = f"--seconds-scale does not change all durations of '{before['name']}': {wanted}"
                raise self.error("duration", problem, f"{section}.group", index)
        return text

    def section_text(self, section: str, value: dict) -> str:
        text = self.places.section(section)
        try:
            same = tomllib.loads(text) == value
        except tomllib.TOMLDecodeError:
            same = False
        if not same:
            wanted = f"sections such as [{section}] and [[{section}.NAME]], each header on a line of its own, are expected"
            raise self.error(section, wanted)
        return text

    def tables(self, entries: object, section: str) -> list[dict]:
        entries = [entries] if isinstance(entries, dict) else entries
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise self.error(section, f"sections [[{section}]] are expected")
        for index, entry in enumerate(entries):
            self.only(entry, section, index)
        return entries

    def only(self, table: dict, section: str, index: int = 0) -> None:
        for key in table:
            if key not in KEYS[section]:
                place = f"[{section}]" if section else "the file"
                raise self.error(key, f"'{key}' means nothing in {place}: {', '.join(KEYS[section])} are expected", section, index)

    def wanted(self, table: dict, key: str, kind: type, wanted: str):
        if not isinstance(table.get(key), kind):
            raise self.error(key, wanted)
        return table[key]

    def error(self, key: str, problem: str, section: str = "", index: int = 0) -> FileError:
        return FileError(f"{self.path}:{self.places.line_of(key, section, index)}: {key}: {problem}")
