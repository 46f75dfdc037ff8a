"""Repeats measurements that a busy machine may spoil."""

from __future__ import annotations

from collections.abc import Callable

TRIES = 3


def best_of_some(attempt: Callable[[], None]) -> None:
    """Calls `attempt` again after a failed assertion, a few times: a busy machine breaks a bound sometimes, a real error every
    time.
    """
    for number in range(TRIES):
        try:
            return attempt()
        except AssertionError:
            if number + 1 == TRIES:
                raise
