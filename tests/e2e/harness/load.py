"""Load from several connections. Every value names its key, so that a swapped reply is noticed."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor

from .processes import Server
from .resp import Closed, Reply

BATCH_MAX = 50
BATCH = 20


class Load:
    """Clients that pipeline SET, GET and MGET on keys of their own until `finish`."""

    def __init__(self, server: Server, clients: int = 6, keys: int = 40) -> None:
        self.server = server
        self.keys = keys
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.outcomes: Counter[str] = Counter()
        self.pool = ThreadPoolExecutor(clients)
        self.work: list[Future] = [self.pool.submit(self._client, client) for client in range(clients)]

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.pool.shutdown()

    def finish(self) -> Counter[str]:
        """Stops the clients and returns the number of each outcome. Raises if a client got a wrong reply."""
        self.stopping.set()
        for each in self.work:
            each.result()
        return self.outcomes

    def count(self, outcome: str) -> int:
        """Returns the number of requests with this outcome so far. Raises if a client has got a wrong reply."""
        for each in self.work:
            if each.done():
                each.result()
        with self.lock:
            return self.outcomes[outcome]

    def more(self, outcome: str, by: int = 100):
        """Returns a probe that is true once `by` more requests than now had this outcome."""
        goal = self.count(outcome) + by
        return lambda: self.count(outcome) >= goal

    def _client(self, client: int) -> None:
        chooser = random.Random(client)
        names = [f"load:{client}:{i}" for i in range(self.keys)]
        with self.server.connect() as connection:
            serial = 0
            while not self.stopping.is_set():
                requests = []
                for _ in range(chooser.randint(1, BATCH_MAX)):
                    serial += 1
                    name = chooser.choice(names)
                    requests.append(
                        chooser.choice(
                            [
                                ("SET", name, f"{name}={serial}"),
                                ("GET", name),
                                ("MGET", *chooser.sample(names, 5)),
                            ]
                        )
                    )
                outcomes = Counter(
                    judge(request, reply)
                    for request, reply in zip(requests, connection.pipeline(requests), strict=True)
                )
                with self.lock:
                    self.outcomes += outcomes
            # A superfluous reply would come before this one.
            last = f"the end of {client}"
            assert connection.call("ECHO", last).value == last.encode(), "there was a reply too many"


def judge(request: tuple, reply: Reply) -> str:
    """Returns the outcome of a request: "served", or the first word of its error. Fails if the reply belongs to another
    request.
    """
    if request[0] == "MGET" and not reply.is_error:
        assert reply.kind == b"*" and len(reply.children) == len(request) - 1, f"{request} was answered with {reply}"
        outcomes = {judge(("GET", name), child) for name, child in zip(request[1:], reply.children)}
        return "served" if outcomes == {"served"} else (outcomes - {"served"}).pop()
    if reply.is_error:
        return reply.text.split(" ", 1)[0]
    if request[0] == "SET":
        assert reply.raw == b"+OK\r\n", f"{request} was answered with {reply}"
    else:
        own = reply.is_null or (reply.kind == b"$" and reply.value.startswith(f"{request[1]}=".encode()))
        assert own, f"{request} was answered with {reply}"
    return "served"


class Sender:
    """Fills a connection with counting requests, and keeps the replies that came before it was closed."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name
        self.sent = 0
        self.served = 0
        self.refused = 0
        self.closed = False
        self.stopping = threading.Event()
        self.started = threading.Event()

    def run(self) -> Sender:
        with self.server.connect() as connection:
            try:
                while not self.stopping.is_set():
                    for _ in range(BATCH):
                        connection.send("INCR", self.name)
                        self.sent += 1
                    for _ in range(BATCH):
                        self._take(connection.read())
                    self.started.set()
            except Closed:
                self.closed = True
                # The connection was closed while this sent: earlier replies are still to be read.
                for reply in connection.read_to_end():
                    self._take(reply)
        return self

    def _take(self, reply: Reply) -> None:
        if reply.is_error:
            self.refused += 1
        else:
            self.served += 1
            assert int(reply.value) >= self.served
