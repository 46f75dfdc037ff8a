"""Requests sent at a steady rate, on a schedule that does not wait for replies, with a record of how many were served when."""

from __future__ import annotations

import selectors
import threading
import time
from bisect import bisect_left

from .resp import Connection, encode

TICK_SECONDS = 0.004
DRAIN_SECONDS = 30.0
RECEIVE_BYTES = 1 << 18
GET = encode("GET", "nothing")
NOTHING = b"$-1\r\n"
REFUSAL = b"-THROTTLED "


class Offer:
    """One tenant's GETs of a missing key, distributed over some connections. Every reply is one line, so counting is cheap."""

    def __init__(self, connections: list[Connection], rate: float) -> None:
        self.connections = connections
        self.rate = rate
        self.sent = self.served = self.throttled = self.other = 0
        # The time of each batch of replies, and the number served until then.
        self.moments: list[float] = []
        self.served_until: list[int] = []
        # Times that bound the real duration of the load.
        self.first_send = self.last_send = self.first_reply = self.last_reply = 0.0
        self.unsent = {connection: b"" for connection in connections}
        self.unread = {connection: b"" for connection in connections}

    @property
    def outer_seconds(self) -> float:
        """The time from before the first request to after the last reply."""
        return self.last_reply - self.first_send

    @property
    def inner_seconds(self) -> float:
        """The time from after the first reply to before the last request."""
        return self.last_send - self.first_reply if self.first_reply else 0.0

    def served_between(self, start: float, end: float) -> int:
        return self._served_at(end) - self._served_at(start)

    def _served_at(self, moment: float) -> int:
        index = bisect_left(self.moments, moment)
        return self.served_until[index - 1] if index else 0

    def send_due(self, elapsed: float) -> None:
        due = int(self.rate * elapsed) - self.sent
        if due > 0:
            self.last_send = time.monotonic()
            count = len(self.connections)
            for place, connection in enumerate(self.connections):
                # The connections whose turn is next get the requests that remain after the division.
                share = (due + (place - self.sent) % count) // count
                self.unsent[connection] += GET * share
            self.sent += due
        for connection, data in self.unsent.items():
            if data:
                try:
                    self.unsent[connection] = data[connection.socket.send(data) :]
                except BlockingIOError:
                    continue

    def receive(self, connection: Connection) -> None:
        data = connection.socket.recv(RECEIVE_BYTES)
        assert data, "weir closed a connection that did nothing wrong"
        whole, newline, rest = (self.unread[connection] + data).rpartition(b"\n")
        self.unread[connection] = rest
        block = whole + newline
        lines, served, throttled = block.count(b"\n"), block.count(NOTHING), block.count(REFUSAL)
        self.served += served
        self.throttled += throttled
        self.other += lines - served - throttled
        now = time.monotonic()
        self.first_reply = self.first_reply or now
        self.last_reply = now
        self.moments.append(now)
        self.served_until.append(self.served)

    @property
    def answered(self) -> bool:
        return self.served + self.throttled + self.other == self.sent


class Offers:
    """The loads of several tenants, sent by one thread within the `with` block."""

    def __init__(self, *offers: Offer) -> None:
        self.offers = offers
        self.stopping = threading.Event()
        self.problem: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Offers:
        self.thread.start()
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        self.stopping.set()
        self.thread.join()
        if kind is None and self.problem:
            raise self.problem

    def _run(self) -> None:
        try:
            self._offer()
        except BaseException as problem:
            self.problem = problem

    def _offer(self) -> None:
        with selectors.DefaultSelector() as selector:
            for offer in self.offers:
                for connection in offer.connections:
                    connection.socket.setblocking(False)
                    selector.register(connection.socket, selectors.EVENT_READ, (offer, connection))
            start = time.monotonic()
            for offer in self.offers:
                offer.first_send = start
            until = None
            while not (until and all(offer.answered for offer in self.offers)):
                now = time.monotonic()
                if self.stopping.is_set() and until is None:
                    until = now
                assert until is None or now < until + DRAIN_SECONDS, "not every request was answered"
                for offer in self.offers:
                    offer.send_due((until or now) - start)
                for key, _ in selector.select(TICK_SECONDS):
                    offer, connection = key.data
                    offer.receive(connection)
                rest = now + TICK_SECONDS - time.monotonic()
                if rest > 0:
                    # Replies are read in batches, so that this thread leaves the CPU to the server.
                    time.sleep(rest)
