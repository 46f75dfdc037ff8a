"""A caching proxy for GET that is correct except for the kinds of changes that it is told to overlook. Checkers for stale
reads must find some with it.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter

from .listener import Listener
from .resp import Closed, Connection, Parser, encode

READS = set(b"GET GETRANGE SUBSTR STRLEN EXISTS MGET HGET HMGET HGETALL HVALS HLEN LINDEX LRANGE LLEN HELLO".split())
KEPT_SECONDS = 1.0


class CarelessCache(Listener):
    """A caching proxy in front of one store; each client has a connection of its own to the store.

    A write invalidates every key that it names, and fetches of these keys that are under way. `overlooks` names what the cache
    does not do: the name of a write command, which then invalidates nothing; "writes" for all of them; "fetches" to keep a fetch
    although its key was written meanwhile; "expiry" to keep a value beyond its lifetime.
    """

    def __init__(self, store_port: int, overlooks: str = "nothing") -> None:
        self.store_port = store_port
        self.overlooks = overlooks
        self.lock = threading.Lock()
        self.kept: dict[tuple[bytes, bytes], tuple[float, bytes]] = {}
        # Counts by every word of a write, because its keys are among its words.
        self.writers: Counter[bytes] = Counter()
        self.version: Counter[bytes] = Counter()
        self.hits = 0
        super().__init__()

    def serve(self, client: socket.socket) -> None:
        parser, dialect, queued = Parser(), b"2", None
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with client, Connection(self.store_port) as store:
                while data := client.recv(1 << 16):
                    parser.feed(data)
                    while (request := parser.next()) is not None:
                        words = [child.value for child in request.children]
                        if words[0] == b"HELLO":
                            dialect = words[1]
                        if words[0] == b"MULTI":
                            queued = []
                        if words[0] == b"EXEC":
                            reply, queued = self._write(store, words, queued), None
                        elif queued is not None:
                            # A queued command takes effect with EXEC, so its words are kept until then.
                            queued += words
                            reply = ask(store, words)
                        elif words[0] == b"GET":
                            reply = self._get(store, words, dialect)
                        elif words[0] in READS:
                            reply = ask(store, words)
                        else:
                            reply = self._write(store, words, words)
                        client.sendall(reply)
        except (OSError, Closed):
            pass  # either side has closed its connection

    def _get(self, store: Connection, words: list[bytes], dialect: bytes) -> bytes:
        place = (words[1], dialect)
        now = time.monotonic()
        with self.lock:
            until, reply = self.kept.get(place, (0.0, b""))
            if now < until:
                self.hits += 1
                return reply
            writers, version = self.writers[words[1]], self.version[words[1]]
        lives_ms = int(ask(store, [b"PTTL", words[1]])[1:])
        reply = ask(store, words)
        if self.overlooks == "fetches":
            ask(store, [b"PING"])  # leaves time for a write
        lives = KEPT_SECONDS if lives_ms < 0 or self.overlooks == "expiry" else min(KEPT_SECONDS, lives_ms / 1000)
        with self.lock:
            undisturbed = not writers and version == self.version[words[1]]
            if undisturbed or self.overlooks == "fetches":
                self.kept[place] = (now + lives, reply)
        return reply

    def _write(self, store: Connection, words: list[bytes], named: list[bytes]) -> bytes:
        if self.overlooks in ("writes", words[0].decode()):
            return ask(store, words)
        names = set(named)
        with self.lock:
            self.writers.update(names)
            self.version.update(names)
            for place in [place for place in self.kept if place[0] in names]:
                del self.kept[place]
        try:
            return ask(store, words)
        finally:
            with self.lock:
                self.writers.subtract(names)


def ask(store: Connection, words: list[bytes]) -> bytes:
    store.send_raw(encode(*words))
    return store.read().raw
