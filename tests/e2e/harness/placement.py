"""Finds out from outside which backend holds a key, and which shard has a connection."""

from __future__ import annotations

import re
from collections.abc import Callable

from . import metrics
from .processes import Redis, Weir
from .resp import Connection

CONNECTIONS_TRIED = 400


def keys_by_backend(weir: Weir, prefix: str, count: int = 200) -> dict[Redis, list[str]]:
    """Sets `count` keys through weir, and returns them by the backend that holds them. Fails if a backend has none."""
    names = [f"{prefix}:{i}" for i in range(count)]
    with weir.connect() as connection:
        for reply in connection.pipeline([("SET", name, name) for name in names]):
            assert reply.raw == b"+OK\r\n", reply
    held: dict[Redis, list[str]] = {}
    for backend in weir.backends:
        with backend.connect() as connection:
            replies = connection.pipeline([("EXISTS", name) for name in names])
        held[backend] = [name for name, reply in zip(names, replies) if reply.value == b"1"]
    assert all(held.values()), f"a backend holds none of {count} keys"
    assert sorted(name for some in held.values() for name in some) == sorted(names), "each key lives on one backend"
    return held


def shards_of_new_clients(weir: Weir, wanted: Callable[[dict[int, list[Connection]]], bool]) -> dict[int, list[Connection]]:
    """Opens connections one by one until `wanted` accepts their distribution over shards. The kernel chooses each connection's
    shard, and weir's counters show it.
    """
    found: dict[int, list[Connection]] = {shard: [] for shard in _opened(weir)}
    while not wanted(found):
        assert sum(map(len, found.values())) < CONNECTIONS_TRIED, f"{weir.name}: the kernel gives no connections to some shard"
        before = _opened(weir)
        connection = weir.connect()
        # Without authentication the reply is an error, which shows as well that the shard has the connection.
        connection.call("PING")
        after = _opened(weir)
        (shard,) = [shard for shard in after if after[shard] > before[shard]]
        found[shard].append(connection)
    return found


def clients_of_one_shard(weir: Weir, count: int) -> list[Connection]:
    """Returns `count` connections of one shard, and closes the others."""
    found = shards_of_new_clients(weir, lambda found: any(len(some) >= count for some in found.values()))
    kept = max(found.values(), key=len)
    for connections in found.values():
        if connections is not kept:
            for connection in connections:
                connection.close()
    return kept


def clients_of_every_shard(weir: Weir) -> list[Connection]:
    """Returns one connection of each shard, and closes the others."""
    found = shards_of_new_clients(weir, lambda found: all(found.values()))
    for connections in found.values():
        for connection in connections[1:]:
            connection.close()
    return [connections[0] for connections in found.values()]


def _opened(weir: Weir) -> dict[int, int]:
    family = metrics.parse(weir.admin("/metrics")[1])["weir_clients_opened_total"]
    return {int(re.search(r'shard="(\d+)"', labels)[1]): int(value) for labels, value in family.items()}
