"""Large replies on many connections to a store at once: each database has connections of its own, and so has each client that
watches keys.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from harness import metrics
from harness.resp import shorten

MEBIBYTE = 1 << 20
# The room for large replies is a quarter of what clients may hold, which is enough for all that the clients below wait for.
FLAGS = ["--max-clients-bytes", "256MiB", "--max-reply-bytes", "8MiB", "--output-limit", "8MiB"]


def take_turns(weir) -> None:
    """Has 24 clients ask for large values at the same time, and checks that all get theirs whole, in turns."""
    value = b"v" * (7 * MEBIBYTE)
    with ExitStack() as stack:
        clients = [stack.enter_context(weir.connect()) for _ in range(24)]
        for place, client in enumerate(clients):
            if place < 16:
                client.ok("SELECT", place)
                client.ok("SET", "large", value)
            else:
                client.ok("WATCH", "other")
        for _ in range(3):
            for client in clients:
                client.send("GET", "large")
            with ThreadPoolExecutor(len(clients)) as readers:
                replies = [reply.value for reply in readers.map(lambda client: client.read(), clients)]
            assert all(reply == value for reply in replies), [shorten(reply) for reply in replies]
    assert metrics.total(weir, "weir_large_replies_paused_total") > 0
    assert metrics.total(weir, "weir_backend_connections_lost_total") == 0
