"""The base of the test servers: a port of its own, and a thread for each connection."""

from __future__ import annotations

import socket
import threading
from typing import Self


class Listener:
    """Listens on a free loopback port until the `with` block ends. A subclass's `serve` handles a connection."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()

    def admit(self, connection: socket.socket) -> None:
        """Called for a new connection, before the next one is accepted."""

    def serve(self, connection: socket.socket) -> None:
        """Handles a connection, in a thread of its own."""
        raise NotImplementedError

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.admit(connection)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()
