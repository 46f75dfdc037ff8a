"""Tests of ten thousand connections, each with its own requests and replies."""

from __future__ import annotations

import resource
import selectors
import socket

import pytest

from harness.processes import StandIn
from harness.resp import Parser, encode

pytestmark = pytest.mark.alone

CONNECTIONS = 10_000
FILES_SPARE = 500
# The most memory per connection in bytes, with 10,000 of them. Wide, because it only tells a leak from a cost.
BYTES_PER_CONNECTION_MAX = 64 * 1024
WAIT_SECONDS = 60


def test_ten_thousand_connections(servers, record_property, capsys):
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft >= CONNECTIONS + FILES_SPARE, f"needs {CONNECTIONS + FILES_SPARE} files, the limit is {soft}: ulimit -n"
    weir = servers.weir(
        servers.redis(), flags=[] if servers.weir_class is StandIn else ["--shards", "2", "--max-clients", "12000"]
    )
    before = weir.resident_bytes()
    clients = [Client(weir.port, i) for i in range(CONNECTIONS)]
    try:
        ask_all(clients)
        during = weir.resident_bytes()
        wrong = [(client.number, client.replies) for client in clients if not client.right()]
        assert not wrong, f"{len(wrong)} clients got something else, for instance {wrong[:3]}"
        # A second round on the open connections, which are warm now.
        for client in clients:
            client.replies.clear()
        ask_all(clients)
        assert all(client.right() for client in clients)
    finally:
        for client in clients:
            client.socket.close()
    each = (during - before) / CONNECTIONS
    record_property("bytes_per_connection", each)
    with capsys.disabled():
        print(f"\n{CONNECTIONS} connections: {during >> 20} MiB resident, {each / 1024:.1f} KiB each")
    assert each < BYTES_PER_CONNECTION_MAX
    with weir.connect() as connection:
        assert connection.ok("GET", "many:0") == b"value 0"


class Client:
    """A connection that sends one SET and one GET together."""

    def __init__(self, port: int, number: int) -> None:
        self.number = number
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)
        self.socket.setblocking(False)
        self.parser = Parser()
        self.replies: list[bytes] = []

    def ask(self) -> None:
        name, value = f"many:{self.number}", f"value {self.number}"
        request = encode("SET", name, value) + encode("GET", name)
        assert self.socket.send(request) == len(request)

    def take(self) -> bool:
        """Reads what has arrived; true once both replies are there."""
        data = self.socket.recv(4096)
        assert data, f"connection {self.number} was closed after {self.replies}"
        self.parser.feed(data)
        while (reply := self.parser.next()) is not None:
            self.replies.append(reply.raw)
        return len(self.replies) >= 2

    def right(self) -> bool:
        value = f"value {self.number}".encode()
        return self.replies == [b"+OK\r\n", b"$%d\r\n%s\r\n" % (len(value), value)]


def ask_all(clients: list[Client]) -> None:
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
            client.ask()
        left = len(clients)
        while left:
            ready = selector.select(WAIT_SECONDS)
            assert ready, f"{left} clients wait for replies"
            for key, _ in ready:
                if key.data.take():
                    selector.unregister(key.data.socket)
                    left -= 1
