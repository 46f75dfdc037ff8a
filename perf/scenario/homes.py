"""`{home:slow}` in a load's command: a hash tag whose keys live on that store, and `{home:slow:1}` for a second one,
on another core where the store has keys on several."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Sequence
from itertools import count

SLOTS = 16_384
PLACEHOLDER = re.compile(r"\{home:(\w+)(?::(\d+))?\}")


def slot_of(tag: str) -> int:
    return binascii.crc_hqx(tag.encode(), 0) % SLOTS


def backend_of(slot: int, backends: int) -> int:
    return slot * backends // SLOTS


def core_of(slot: int, shards: int) -> int:
    return slot * shards // SLOTS


def cores_of(backend: int, backends: int, shards: int) -> range:
    """The cores that have slots of a backend."""
    first, last = -(-backend * SLOTS // backends), -(-(backend + 1) * SLOTS // backends) - 1
    return range(core_of(first, shards), core_of(last, shards) + 1)


def tags(backends: Sequence[int], backends_in_all: int, shards: int) -> Iterator[str]:
    """Tags that live on these backends, taking turns over them, and once round over the cores of each."""
    for number in count():
        backend = backends[number % len(backends)]
        cores = cores_of(backend, backends_in_all, shards)
        core = cores[number // len(backends) % len(cores)]
        yield next(
            tag
            for tag in (f"home-{number}-{attempt}" for attempt in count())
            if backend_of(slot_of(tag), backends_in_all) == backend and core_of(slot_of(tag), shards) == core
        )


def replace(text: str, counts: dict[str, int], shards: int) -> str:
    """The same load with tags in place. `counts` says how many stores have each name, in weir's order."""
    first, ranges = 0, {}
    for name, stores in counts.items():
        ranges[name] = range(first, first + stores)
        first += stores

    def tag(match: re.Match) -> str:
        found = tags(ranges[match[1]], first, shards)
        for _ in range(int(match[2] or 0)):
            next(found)
        return f"{{{{{next(found)}}}}}"

    return PLACEHOLDER.sub(tag, text)
