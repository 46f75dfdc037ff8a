"""A RESP server whose replies a test scripts: any bytes, or a closed connection."""

from __future__ import annotations

import socket
from collections.abc import Callable

from .listener import Listener
from .resp import Parser

# The result of a handler: bytes to send, None to close the connection, or (bytes, None) to send and then close.
Answer = bytes | None | tuple[bytes, None]


def accommodating(words: list[bytes]) -> bytes:
    """Returns plausible replies to the commands that clients send when they connect."""
    match words[0].upper():
        case b"HELLO":
            version = words[1] if len(words) > 1 else b"2"
            fields = [b"+server", b"+redis", b"+version", b"+7.0.15", b"+proto", b":" + version, b"+role", b"+master"]
            head = b"%4\r\n" if version == b"3" else b"*8\r\n"
            return head + b"".join(field + b"\r\n" for field in fields)
        case b"PING":
            return b"+PONG\r\n"
        case b"INFO":
            return b"$16\r\nloading:0\r\nrole:\r\n"
        case _:
            return b"+OK\r\n"


class FakeStore(Listener):
    """A server that replies to each request with the result of its handler."""

    def __init__(self, handler: Callable[[list[bytes]], Answer]) -> None:
        self.handler = handler
        self.connections: list[socket.socket] = []
        super().__init__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for connection in self.connections:
            connection.close()

    def admit(self, connection: socket.socket) -> None:
        self.connections.append(connection)

    def serve(self, connection: socket.socket) -> None:
        parser = Parser()
        try:
            while data := connection.recv(1 << 16):
                parser.feed(data)
                while (request := parser.next()) is not None:
                    answer = self.handler([child.value for child in request.children])
                    data_out, close = (
                        (answer[0], True) if isinstance(answer, tuple) else (answer or b"", answer is None)
                    )
                    connection.sendall(data_out)
                    if close:
                        connection.shutdown(socket.SHUT_RDWR)
                        return
        except OSError:
            return
        finally:
            connection.close()
