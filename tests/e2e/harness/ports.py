"""Free ports below the ephemeral range, so that no outgoing connection takes one meanwhile."""

import os
import random
import socket

FIRST, LAST = 12_000, 31_999
# Parallel test processes use separate ranges of ports.
WORKERS_MAX = 8
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS_MAX
_random = random.Random(os.urandom(8))
_handed_out: set[int] = set()


def free_port() -> int:
    """Returns a port that nothing listens on, and that this run has not returned before."""
    for _ in range(1000):
        port = _random.randrange(FIRST + _worker, LAST + 1, WORKERS_MAX)
        if port in _handed_out:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _handed_out.add(port)
        return port
    raise AssertionError(f"no free port between {FIRST} and {LAST}")
