"""A client for RESP2 and RESP3 by hand, which keeps the bytes of replies as they came.

A client library would hide the subject of these tests: the exact bytes, their order, and the end of each reply.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass

CRLF = b"\r\n"
AGGREGATES = {b"*": 1, b"~": 1, b">": 1, b"%": 2, b"|": 2}
LINES = {b"+", b"-", b":", b",", b"(", b"#", b"_"}
BULKS = {b"$", b"=", b"!"}


class Closed(Exception):
    """The server closed or reset the connection where a reply should start or continue."""


class Malformed(Exception):
    """The bytes are not RESP, which is always a fault of the server under test."""


@dataclass(slots=True)
class Reply:
    """One reply: its type byte, its value, its children, and exactly its bytes."""

    kind: bytes
    value: bytes | None
    children: list[Reply] | None
    raw: bytes

    @property
    def is_error(self) -> bool:
        return self.kind in (b"-", b"!")

    @property
    def is_null(self) -> bool:
        return self.kind == b"_" or (self.value is None and self.children is None)

    @property
    def text(self) -> str:
        return "" if self.value is None else self.value.decode(errors="backslashreplace")

    def plain(self):
        """Returns the reply as ordinary Python values. Errors stay `Reply`s, so that none passes for a string."""
        if self.is_error:
            return self
        if self.is_null:
            return None
        if self.children is not None:
            items = [child.plain() for child in self.children]
            return dict(zip(items[::2], items[1::2])) if self.kind in b"%|" else items
        if self.kind == b":":
            return int(self.value)
        if self.kind == b",":
            return float(self.value)
        if self.kind == b"#":
            return self.value == b"t"
        if self.kind == b"=":
            return self.value[4:]  # after the three letters of its format
        return self.value

    def __repr__(self) -> str:
        return shorten(self.raw)


def shorten(raw: bytes, limit: int = 400) -> str:
    """Returns bytes in short form for a failure message."""
    return repr(raw) if len(raw) <= limit else f"{raw[:limit]!r}... ({len(raw)} bytes)"


def encode(*arguments: bytes | str | int | float) -> bytes:
    """Encodes a request as an array of bulk strings."""
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        data = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)


class Parser:
    """Takes complete replies from the front of a growing buffer."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.position = 0
        # The length that the buffer must reach before a reply can be complete, so that a large reply is not scanned again with
        # every piece.
        self.needed = 0

    def feed(self, data: bytes) -> None:
        if self.position > 1 << 20:
            del self.buffer[: self.position]
            self.needed -= self.position
            self.position = 0
        self.buffer += data

    @property
    def pending(self) -> bytes:
        """The bytes of a reply that is not complete yet."""
        return bytes(self.buffer[self.position :])

    def next(self) -> Reply | None:
        """Returns the next complete reply; None until more bytes arrive."""
        if len(self.buffer) < self.needed:
            return None
        found = self._parse(self.position)
        if found is None:
            return None
        reply, self.position = found
        return reply

    def _parse(self, start: int) -> tuple[Reply, int] | None:
        buffer = self.buffer
        line_end = buffer.find(CRLF, start)
        if line_end < 0:
            return None
        kind = bytes(buffer[start : start + 1])
        line = bytes(buffer[start + 1 : line_end])
        after = line_end + 2
        if kind in LINES:
            if b"\n" in line or b"\r" in line:
                raise Malformed(f"line break inside {shorten(line)}")
            value = None if kind == b"_" else line
            return Reply(kind, value, None, bytes(buffer[start:after])), after
        if kind in BULKS:
            length = self._number(line)
            if length < 0:
                return Reply(kind, None, None, bytes(buffer[start:after])), after
            end = after + length + 2
            if len(buffer) < end:
                self.needed = end
                return None
            if buffer[end - 2 : end] != CRLF:
                raise Malformed(
                    f"bulk of {length} bytes does not end in a line break: {shorten(bytes(buffer[start:end]))}"
                )
            return Reply(kind, bytes(buffer[after : end - 2]), None, bytes(buffer[start:end])), end
        if kind in AGGREGATES:
            count = self._number(line)
            if count < 0:
                return Reply(kind, None, None, bytes(buffer[start:after])), after
            children = []
            for _ in range(count * AGGREGATES[kind]):
                found = self._parse(after)
                if found is None:
                    return None
                child, after = found
                children.append(child)
            return Reply(kind, None, children, bytes(buffer[start:after])), after
        raise Malformed(f"no reply starts with {shorten(bytes(buffer[start : start + 80]))}")

    @staticmethod
    def _number(line: bytes) -> int:
        try:
            return int(line)
        except ValueError:
            raise Malformed(f"not a length: {shorten(line)}") from None


class Connection:
    """A raw client connection. Every wait has a deadline, and nothing reconnects or retries."""

    def __init__(
        self, port: int, *, protocol: int = 2, timeout: float = 30.0, receive_buffer: int | None = None
    ) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.parser = Parser()
        self.hello: Reply | None = None
        if protocol != 2:
            self.hello = self.call("HELLO", protocol)
            assert not self.hello.is_error, f"HELLO {protocol} was refused: {self.hello}"

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send_raw(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (ConnectionResetError, BrokenPipeError) as error:
            raise Closed(str(error)) from None

    def send(self, *arguments: bytes | str | int | float) -> None:
        self.send_raw(encode(*arguments))

    def read(self) -> Reply:
        """Returns the next reply, even if it is an error."""
        while (reply := self.parser.next()) is None:
            try:
                data = self.socket.recv(1 << 18)
            except ConnectionResetError:
                raise Closed("reset") from None
            if not data:
                raise Closed(f"closed with {shorten(self.parser.pending)} of a reply pending")
            self.parser.feed(data)
        return reply

    def read_many(self, count: int) -> list[Reply]:
        return [self.read() for _ in range(count)]

    def call(self, *arguments: bytes | str | int | float) -> Reply:
        self.send(*arguments)
        return self.read()

    def ok(self, *arguments: bytes | str | int | float):
        """Sends a command and returns its reply as Python values; an error reply fails the test."""
        reply = self.call(*arguments)
        assert not reply.is_error, f"{arguments!r:.200} was answered with {reply}"
        return reply.plain()

    def pipeline(self, requests: list[tuple]) -> list[Reply]:
        """Sends all requests while reading, so that neither side can block the other, and returns the replies."""
        payload = memoryview(b"".join(encode(*request) for request in requests))
        replies: list[Reply] = []
        timeout = self.socket.gettimeout()
        sent = 0
        while sent < len(payload):
            self.socket.settimeout(0)
            try:
                sent += self.socket.send(payload[sent : sent + (1 << 16)])
            except BlockingIOError:
                self.socket.settimeout(timeout)
                replies.append(self.read())
                continue
            finally:
                self.socket.settimeout(timeout)
            while (reply := self.parser.next()) is not None:
                replies.append(reply)
        replies += self.read_many(len(requests) - len(replies))
        return replies

    def half_close(self) -> None:
        """Closes the sending side; replies can still be read."""
        self.socket.shutdown(socket.SHUT_WR)

    def read_to_end(self) -> list[Reply]:
        """Returns all replies until the server closes. A close within a reply fails the test."""
        # Replies are parsed only afterwards, so that this reads without pause: a server that closes waits just a second for the
        # other side.
        with contextlib.suppress(ConnectionResetError):
            while data := self.socket.recv(1 << 18):
                self.parser.feed(data)
        replies = []
        while True:
            try:
                replies.append(self.read())
            except Closed:
                assert not self.parser.pending, f"closed inside a reply: {shorten(self.parser.pending)}"
                return replies
