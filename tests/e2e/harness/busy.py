"""A store that is busy with a script, and refuses all other commands but a few."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from harness.processes import Server
from harness.waiting import until

# Options of a redis-server that is busy soon after a script has begun.
SOON_BUSY = ("--busy-reply-threshold", "20")


@contextlib.contextmanager
def busy(store: Server) -> Iterator[None]:
    """Keeps a store busy with a script, from when it refuses commands until the script is killed."""
    with store.connect() as runner, store.connect() as other:
        runner.send("EVAL", "while true do end", 0)
        until(lambda: other.call("GET", "k").text.startswith("BUSY "), "the store is busy")
        try:
            yield
        finally:
            assert other.ok("SCRIPT", "KILL") == b"OK"
            assert runner.read().is_error
