"""A relay to a store that can delay bytes, so that they arrive late, even after their sender has left."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import threading

from .listener import Listener


SO_ATTACH_FILTER = 26
RETURN_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)  # a BPF program of one instruction, which keeps 0 bytes of a packet


class Relay(Listener):
    """A relay in front of a store. After `hold`, the bytes that clients send over connections that are open then wait for
    `release`; with `new`, those of later connections wait too.
    """

    def __init__(self, port: int) -> None:
        self.store_port = port
        self.sockets: list[socket.socket] = []
        self.clients: list[socket.socket] = []
        self.held: dict[socket.socket, bytearray] = {}
        self.muted: set[socket.socket] = set()
        self.holds_new = False
        self.lock = threading.Lock()
        super().__init__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for each in self.sockets + self.clients:
            each.close()

    def hold(self, new: bool = False) -> None:
        with self.lock:
            self.held = {store: bytearray() for store in self.sockets}
            self.holds_new = new

    def mute(self) -> None:
        """Drops all bytes of the open connections in both directions, without closing them."""
        with self.lock:
            self.muted = set(self.sockets)
            self.held = {store: bytearray() for store in self.sockets}

    def sever(self) -> None:
        """Has the kernel drop all packets that clients send over the open connections, acknowledging none, as if a device
        on the way had forgotten these connections."""
        program = ctypes.create_string_buffer(RETURN_NOTHING, len(RETURN_NOTHING))
        filter_of_one = struct.pack("HL", 1, ctypes.addressof(program))
        with self.lock:
            for client in self.clients:
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    client.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filter_of_one)
            self.muted = set(self.sockets)
            self.clients = []

    def held_bytes(self) -> int:
        with self.lock:
            return sum(map(len, self.held.values()))

    def release(self) -> None:
        """Lets the held bytes arrive."""
        with self.lock:
            for store, held in self.held.items():
                try:
                    store.sendall(held)
                except OSError:
                    pass  # the store has dropped the connection meanwhile
            self.held = {}
            self.holds_new = False

    def serve(self, client: socket.socket) -> None:
        store = socket.create_connection(("127.0.0.1", self.store_port))
        with self.lock:
            self.sockets.append(store)
            self.clients.append(client)
            if self.holds_new:
                self.held[store] = bytearray()
        threading.Thread(target=self._to_client, args=(store, client), daemon=True).start()
        self._to_store(client, store)

    def _to_store(self, client: socket.socket, store: socket.socket) -> None:
        try:
            while data := client.recv(1 << 16):
                with self.lock:
                    if store in self.held:
                        self.held[store] += data
                        continue
                store.sendall(data)
        except OSError:
            pass
        with self.lock:
            if store not in self.held:
                store.close()

    def _to_client(self, store: socket.socket, client: socket.socket) -> None:
        try:
            while data := store.recv(1 << 16):
                with self.lock:
                    is_muted = store in self.muted
                if not is_muted:
                    client.sendall(data)
        except OSError:
            pass
        client.close()
