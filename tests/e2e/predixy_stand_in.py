#!/usr/bin/env python3
"""Stands in for predixy where there is none: reads its configuration as predixy does, complains as it does, and passes bytes on.

    predixy_stand_in.py FILE

Everything goes to the first group's store. What a line means, and which are needed, is as in predixy's ConfParser and Conf.
"""

from __future__ import annotations

import socket
import sys
import threading

CHUNK_BYTES = 64 * 1024
GLOBAL = {"name", "bind", "workerthreads", "log", "clienttimeout", "standaloneserverpool"}
POOL = {"databases", "hash", "hashtag", "distribution", "refreshmethod", "group"}
HASHES, DISTRIBUTIONS, METHODS = {"atol", "crc16"}, {"modula", "random"}, {"fixed", "sentinel"}


class Wrong(Exception):
    """An error in the configuration with which predixy would not start."""


def nodes(lines: list[str]) -> list[tuple[str, str, list]]:
    """Parses lines to (key, value, inner nodes): a line is a key and a value, and a value that ends with `{` begins a scope."""
    open_scopes: list[list] = [[]]
    for number, line in enumerate(lines, 1):
        key, _, value = line.partition("#")[0].strip().partition(" ")
        value = value.strip()
        if key == "}":
            if len(open_scopes) == 1:
                raise Wrong(f"parse error unmatched end scope in line {number}")
            open_scopes.pop()
        elif value.endswith("{"):
            inside: list = []
            open_scopes[-1].append((key.lower(), value[:-1].strip(), inside))
            open_scopes.append(inside)
        elif key:
            if not value:
                raise Wrong(f"line {number}: {key} has no value")
            open_scopes[-1].append((key.lower(), value.strip('"'), []))
    if len(open_scopes) > 1:
        raise Wrong("parse error some scope no end")
    return open_scopes[0]


def settings(lines: list[str]) -> tuple[str, list[str]]:
    """Returns the address to listen on, and the first store of each group."""
    everything = nodes(lines)
    known(everything, GLOBAL)
    pools = [inside for key, _, inside in everything if key == "standaloneserverpool"]
    if len(pools) != 1:
        raise Wrong("Must define a server pool")
    known(pools[0], POOL)
    said = {key: value for key, value, _ in pools[0]}
    for key, allowed in {"hash": HASHES, "distribution": DISTRIBUTIONS, "refreshmethod": METHODS}.items():
        if said.get(key) not in allowed:
            raise Wrong(f"StandaloneServerPool must define {key} as one of {sorted(allowed)}")
    stores = []
    for name, inside in [(value, inside) for key, value, inside in pools[0] if key == "group"]:
        addresses = [value for key, value, _ in inside if key == "+"]
        if not addresses:
            raise Wrong(f"Group({name}) must add servers")
        stores.append(addresses[0])
    if not stores:
        raise Wrong("StandaloneServerPool no server group")
    return {key: value for key, value, _ in everything}.get("bind", "0.0.0.0:7617"), stores


def known(found: list[tuple[str, str, list]], names: set[str]) -> None:
    if unknown := [key for key, _, _ in found if key not in names]:
        raise Wrong(f"unknown key {unknown[0]}")


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while chunk := source.recv(CHUNK_BYTES):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the other side has gone


def main() -> None:
    try:
        with open(sys.argv[1]) as file:
            bind, stores = settings(file.read().splitlines())
    except Wrong as problem:
        raise SystemExit(f"predixy_stand_in: {problem}") from None
    listener = socket.create_server(address(bind))
    while True:
        client, _ = listener.accept()
        store = socket.create_connection(address(stores[0]))
        for pair in ((client, store), (store, client)):
            threading.Thread(target=pass_on, args=pair, daemon=True).start()


if __name__ == "__main__":
    main()
