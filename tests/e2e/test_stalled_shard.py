"""Tests of a shard whose thread does not run: its neighbours' work meanwhile, and the messages that they have for it."""

from __future__ import annotations

import os
import time

import pytest

from harness.halted import halted, thread_of
from harness.processes import Weir
from harness.waiting import until

pytestmark = pytest.mark.weir_only
CONNECTIONS = 200
ROUNDS = 6
# The pause between two requests, so that they leave the other shard in separate batches.
APART_SECONDS = 0.0003
LOOK_SECONDS = 0.5


def cpu_share(weir: Weir) -> float:
    """Returns weir's share of one CPU over the next half second."""
    began, before = time.monotonic(), weir.cpu_ticks()
    time.sleep(LOOK_SECONDS)
    return (weir.cpu_ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)


def test_a_neighbour_waits_for_a_shard_that_does_not_run_without_using_up_a_cpu(servers):
    weir = servers.weir(flags=["--shards", "2"])
    connections = [weir.connect() for _ in range(CONNECTIONS)]
    for number, connection in enumerate(connections):
        connection.ok("SET", f"key:{number}", number)
    with halted(thread_of(weir.pid, "weir-0-")):
        for _ in range(ROUNDS):
            for number, connection in enumerate(connections):
                connection.send("GET", f"key:{number}")
                time.sleep(APART_SECONDS)
        until(lambda: cpu_share(weir) < 0.5, "the neighbour of a shard that stands still sleeps")
    for number, connection in enumerate(connections):
        assert [reply.text for reply in connection.read_many(ROUNDS)] == [str(number)] * ROUNDS
    assert weir.connect().ok("PING") == b"PONG"
