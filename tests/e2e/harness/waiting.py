"""Waits for conditions, never for time to pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

POLL_SECONDS = 0.01


def until(probe: Callable[[], Found], what: str, seconds: float = 30.0) -> Found:
    """Calls `probe` until it returns something true, and returns that. The time limit only ends a broken run."""
    deadline = time.monotonic() + seconds
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:.0f} s in vain until {what}")
        time.sleep(POLL_SECONDS)
