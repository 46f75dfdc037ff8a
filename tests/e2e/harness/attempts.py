"""Trying again what a busy machine may spoil."""

from __future__ import annotations

from collections.abc import Callable

TRIES = 3


def best_of_some(attempt: Callable[[], None]) -> None:
    """For bounds that a busy machine breaks, and a wrong bench breaks every time."""
    for number in range(TRIES):
        try:
            return attempt()
        except AssertionError:
            if number + 1 == TRIES:
                raise
