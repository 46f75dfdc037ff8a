"""`{home:slow}` in a load's command: a hash tag whose keys live on that store, and `{home:slow:1}` for a second one on another core."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Sequence
from itertools import count

SLOTS = 16_384
# weir mixes a slot with this before it chooses the core: src/routing.
MIX = 0x9E37_79B1
PLACEHOLDER = re.compile(r"\{home:(\w+)(?::(\d+))?\}")


def slot_of(tag: str) -> int:
    return binascii.crc_hqx(tag.encode(), 0) % SLOTS


def backend_of(slot: int, backends: int) -> int:
    return slot * backends // SLOTS


def core_of(slot: int, shards: int) -> int:
    return ((slot * MIX) % (1 << 32)) * shards >> 32


def tags(backends: Sequence[int], backends_in_all: int, shards: int) -> Iterator[str]:
    """Tags that live on these backends, taking turns over them, and once round over the cores."""
    for number in count():
        backend = backends[number % len(backends)]
        core = number // len(backends) % shards
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
