"""Checks from outside whether weir answers reads of a key from memory."""

from __future__ import annotations

from . import metrics
from .processes import Weir
from .resp import Connection

READS = 100
HITS_LEAST = 90


def reads_tracked(weir: Weir, reader: Connection, key: str) -> bool:
    """Reads a key often. True if nearly all reads were answered from memory and a store reports changes of some key."""
    before = metrics.total(weir, "weir_hot_hits_total")
    for _ in range(READS):
        reader.ok("GET", key)
    return metrics.total(weir, "weir_hot_hits_total") >= before + HITS_LEAST and metrics.total(weir, "weir_hot_tracked") >= 1
