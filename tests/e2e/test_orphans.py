"""Tests of elements that a store pops for a client that has left meanwhile: they are counted, and pushed back if the tenant
wants that.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from pathlib import Path

import pytest

from harness import metrics
from harness.processes import Redis, Weir
from harness.relay import Relay
from harness.resp import Closed, Connection
from harness.waiting import until

pytestmark = pytest.mark.weir_only
GIVES_BACK = "[default]\nadmin = true\ngive_back = true\n"


def orphans(weir: Weir, outcome: str) -> float:
    return metrics.total(weir, "weir_blocked_orphans_total", f'outcome="{outcome}"')


def waiting(weir: Weir) -> float:
    return metrics.total(weir, "weir_private_links", 'use="waiting"')


def quota_flags(folder: Path, gives_back: bool) -> list[str]:
    path = folder / "quotas.toml"
    path.write_text(GIVES_BACK if gives_back else "[default]\nadmin = true\n")
    return ["--quotas", str(path)]


CALLS = [
    (("BLPOP", "q", "0"), ("RPUSH", "q", "a", "b"), ("LRANGE", "q", "0", "-1"), [b"a", b"b"], [b"b"]),
    (("BRPOP", "q", "0"), ("RPUSH", "q", "a", "b"), ("LRANGE", "q", "0", "-1"), [b"a", b"b"], [b"a"]),
    (("BLMPOP", "0", "2", "p", "q", "RIGHT", "COUNT", "2"), ("RPUSH", "q", "a", "b", "c"), ("LRANGE", "q", "0", "-1"), [b"a", b"b", b"c"], [b"a"]),
    (("BZPOPMAX", "q", "0"), ("ZADD", "q", "1", "a", "2.5", "b"), ("ZRANGE", "q", "0", "-1", "WITHSCORES"), [b"a", b"1", b"b", b"2.5"], [b"a", b"1"]),
    (("BZMPOP", "0", "1", "q", "MIN", "COUNT", "2"), ("ZADD", "q", "1", "a", "2", "b", "3", "c"), ("ZRANGE", "q", "0", "-1"), [b"a", b"b", b"c"], [b"c"]),
]  # fmt: skip


@pytest.mark.parametrize("gives_back", [True, False], ids=["gives back", "does not"])
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("call, push, look, restored, rest", CALLS, ids=[call[0][0] for call in CALLS])
def test_what_is_popped_in_the_instant_in_which_a_client_leaves(
    servers, tmp_path: Path, call: tuple, push: tuple, look: tuple, restored: list, rest: list, protocol: int, gives_back: bool
):
    redis = servers.redis()
    with Relay(redis.port) as relay, redis.connect() as direct:
        flags = ["--shards", "1", *quota_flags(tmp_path, gives_back)]
        weir = servers.weir(storage=f"redis://127.0.0.1:{relay.port}", flags=flags)
        with weir.connect(protocol=protocol) as client:
            client.send(*call)
            until(lambda: "blocked_clients:1" in direct.ok("INFO", "clients").decode(), "the call waits at the store")
            # The end of input that comes right behind a call is one of a client that awaits the reply.
            time.sleep(0.05)
            # From now on weir's bytes arrive late, and so does its request to end the call.
            relay.hold(new=True)
        until(lambda: metrics.total(weir, "weir_clients_open") == 0, "the client has left")
        assert waiting(weir) == 1
        count = len(restored) - len(rest) if look[-1] != "WITHSCORES" else 1
        direct.ok(*push)
        until(lambda: waiting(weir) == 0, "the call is over")
        relay.release()
        if gives_back:
            until(lambda: orphans(weir, "put-back") == count, "they are put back")
            assert direct.ok(*look) == restored
        else:
            until(lambda: orphans(weir, "lost") == count, "they are counted")
            assert direct.ok(*look) == rest
            assert "took from q for a client that had left are lost" in weir.output()
        assert orphans(weir, "put-back") + orphans(weir, "lost") == count


# The time in seconds for which workers come and go.
SECONDS = 4


@pytest.mark.parametrize("gives_back", [True, False], ids=["gives back", "does not"])
def test_every_element_is_delivered_once_or_counted(servers, tmp_path: Path, gives_back: bool):
    """Workers close their sending side at any moment and read on: nothing is lost without being counted."""
    redis: Redis = servers.redis()
    weir = servers.weir(redis, flags=["--shards", "2", *quota_flags(tmp_path, gives_back)])
    stop = time.monotonic() + SECONDS
    pushed, delivered, lock = [], [], threading.Lock()

    def push(number: int) -> None:
        with redis.connect() as direct:
            count = 0
            while time.monotonic() < stop:
                element = f"{number}:{count}".encode()
                direct.ok("RPUSH", "q", element)
                pushed.append(element)
                count += 1
                time.sleep(0.0005)

    def work(seed: int) -> None:
        generator = random.Random(seed)
        while time.monotonic() < stop:
            with Connection(weir.port) as worker:
                for _ in range(generator.randrange(5)):
                    note(worker.call("BLPOP", "q", "1").plain())
                worker.send("BLPOP", "q", "0")
                time.sleep(generator.random() * 0.003)
                worker.socket.shutdown(socket.SHUT_WR)
                try:
                    note(worker.read().plain())
                except Closed:
                    pass

    def note(reply: list | None) -> None:
        if reply is not None:
            with lock:
                delivered.append(reply[1])

    threads = [threading.Thread(target=push, args=(number,)) for number in range(2)]
    threads += [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: waiting(weir) == 0, "nothing is under way")
    with redis.connect() as direct:
        left = direct.ok("LRANGE", "q", "0", "-1")
    seen = sorted([*delivered, *left])
    assert len(pushed) > 500 and len(delivered) > 100
    assert len(seen) == len(set(seen)), "none twice"
    assert set(seen) <= set(pushed)
    assert len(pushed) - len(seen) == orphans(weir, "lost")
    if gives_back:
        assert orphans(weir, "lost") == 0
