"""Finding out from outside which backend holds a key."""

from __future__ import annotations

from .processes import Redis, Weir


def keys_by_backend(weir: Weir, prefix: str, count: int = 200) -> dict[Redis, list[str]]:
    """Sets `count` keys through weir and asks the backends which of them each holds. Every backend gets some."""
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
