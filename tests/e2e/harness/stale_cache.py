"""A proxy that lies: it keeps replies to GET for a while and does not care who writes. What looks for stale reads must find some."""

from __future__ import annotations

import socket
import threading
import time

from .resp import Closed, Connection, Parser, encode


class StaleCache:
    """Listens on a port of its own before one store; each client has a thread and a connection to the store."""

    def __init__(self, store_port: int, seconds: float) -> None:
        self.store_port = store_port
        # How long a reply is repeated; with 0 it is an honest proxy.
        self.seconds = seconds
        self.kept: dict[tuple[bytes, bytes], tuple[float, bytes]] = {}
        self.repeated = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> StaleCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        parser, dialect, in_transaction = Parser(), b"2", False
        try:
            with client, Connection(self.store_port) as store:
                while data := client.recv(1 << 16):
                    parser.feed(data)
                    while (request := parser.next()) is not None:
                        words = [child.value for child in request.children]
                        match words[0]:
                            case b"HELLO":
                                dialect = words[1]
                            case b"MULTI" | b"EXEC":
                                in_transaction = words[0] == b"MULTI"
                        is_get = words[0] == b"GET" and not in_transaction
                        client.sendall(self._get(store, words, dialect) if is_get else self._ask(store, words))
        except (OSError, Closed):
            pass  # one of the two has gone

    def _ask(self, store: Connection, words: list[bytes]) -> bytes:
        store.send_raw(encode(*words))
        return store.read().raw

    def _get(self, store: Connection, words: list[bytes], dialect: bytes) -> bytes:
        now = time.monotonic()
        until, reply = self.kept.get((words[1], dialect), (0.0, b""))
        if now < until:
            self.repeated += 1
            return reply
        reply = self._ask(store, words)
        self.kept[words[1], dialect] = (now + self.seconds, reply)
        return reply
