"""Tests of the circuit breaker: stores that are reachable but fail are ejected, refused at once, tried, and taken back."""

from __future__ import annotations

import threading

import pytest

from harness import metrics
from harness.cluster import Cluster
from harness.placement import keys_by_backend
from harness.processes import Storage
from harness.waiting import until

pytestmark = pytest.mark.weir_only

EJECTED = "reason=ejected"


def stage(weir, backend) -> int:
    """Returns the stage of weir's breaker for a backend: 0 well, 1 ejected, 2 on trial, 3 returning."""
    return int(sample(weir, "weir_backend_breaker", backend))


def ejections(weir, backend) -> int:
    return int(sample(weir, "weir_backend_ejections_total", backend))


def forwarded_by(weir) -> float:
    return metrics.total(weir, "weir_requests_forwarded_total")


def sample(weir, name: str, backend) -> float:
    family = metrics.parse(weir.admin("/metrics")[1])[name]
    return next(value for labels, value in family.items() if backend.address in labels)


def test_a_store_whose_replies_are_errors_is_set_aside_and_comes_back(servers):
    stores = [servers.keep(Storage()).start() for _ in range(3)]
    weir = servers.weir(*stores, flags=["--shards", "2"])
    sick, well = stores[0], stores[1:]
    placed = keys_by_backend(weir, "placed")
    with sick.connect() as control, weir.connect() as connection:
        control.ok("STORAGE", "SET", "ERRORS", "LOADING", "0.4")
        requests = [("GET", name) for name in placed[sick][:20]]
        replies = []

        def is_ejected() -> bool:
            replies.extend(connection.pipeline(requests))
            return any(EJECTED in reply.text for reply in replies[-20:] if reply.is_error)

        until(is_ejected, "it is set aside")
        refused = [reply.text for reply in replies if reply.is_error and EJECTED in reply.text]
        assert all(text.startswith(f"UNAVAILABLE backend={sick.address} reason=ejected retry_after_ms=") for text in refused)
        assert ejections(weir, sick) >= 1 and all(ejections(weir, store) == 0 for store in well)
        assert f"backend {sick.address} is set aside" in weir.output() and "LOADING" in weir.output()
        for store in well:
            assert all(not reply.is_error for reply in connection.pipeline([("GET", name) for name in placed[store][:20]]))
        explained = connection.ok("QOS", "EXPLAIN", "GET", placed[well[0]][0])
        assert b"closed: the backend is well" in explained
        # An ejected store gets trials now and then, and rarely while these fail.
        before = forwarded_by(weir)
        sent = 0

        def has_asked() -> bool:
            nonlocal sent
            connection.pipeline(requests)
            sent += len(requests)
            return ejections(weir, sick) + stage(weir, sick) >= 2 and sent >= 5_000

        until(has_asked, "thousands of requests are asked for")
        forwarded = forwarded_by(weir) - before
        assert forwarded < sent / 4, f"{forwarded} of {sent}"
        control.ok("STORAGE", "SET", "ERRORS", "OFF")
        until(
            lambda: not any(reply.is_error for reply in connection.pipeline(requests)) and stage(weir, sick) == 0,
            "all is served again",
        )
        assert "answers again" in weir.output()


def test_a_store_that_is_busy_with_a_script_is_left_alone_and_the_script_can_be_ended(servers):
    busy = servers.redis("--busy-reply-threshold", "20")
    weir = servers.weir(busy, flags=["--shards", "1"])
    with busy.connect(timeout=60) as culprit, weir.connect() as connection, weir.connect() as operator:
        connection.ok("SET", "k", "v")
        script = threading.Thread(target=lambda: culprit.call("EVAL", "while true do end", "0"))
        script.start()
        try:
            until(lambda: EJECTED in connection.call("GET", "k").text, "it is set aside")
            until(lambda: not operator.call("SCRIPT", "KILL").is_error, "the script is ended through weir")
        finally:
            with busy.connect() as directly:
                directly.call("SCRIPT", "KILL")
            script.join(30)
        until(lambda: connection.call("GET", "k").value == b"v" and stage(weir, busy) == 0, "all is served again")


def test_a_cluster_that_is_down_has_no_sick_nodes(servers):
    """All nodes reply CLUSTERDOWN while one is away: that is no reason to eject any of the others."""
    cluster = Cluster(servers)
    weir = servers.weir(storage=cluster.storage, flags=["--shards", "2"])
    names = [f"k{number}" for number in range(200)]
    dead = cluster.nodes[2]
    with weir.connect() as connection:
        until(lambda: not any(connection.call("SET", name, 1).is_error for name in names), "all is served")
        dead.kill()

        def is_down() -> bool:
            replies = connection.pipeline([("GET", name) for name in names])
            return sum("CLUSTERDOWN" in reply.text for reply in replies if reply.is_error) > 100

        until(is_down, "the cluster is down")
        # Each request is retried for a second.
        for _ in range(5):
            connection.pipeline([("GET", name) for name in names])
        assert [ejections(weir, node) for node in cluster.nodes[:2]] == [0, 0]
        dead.start()
        until(lambda: not any(connection.call("GET", name).is_error for name in names), "all is served again")


@pytest.mark.parametrize("flag", ["--disable", "--shadow"])
def test_it_can_be_switched_off_and_tried_in_shadow(servers, flag):
    store = servers.keep(Storage()).start()
    weir = servers.weir(store, flags=["--shards", "1", flag, "breaker"])
    with store.connect() as control, weir.connect() as connection:
        control.ok("STORAGE", "SET", "ERRORS", "LOADING", "1")
        replies = [reply for _ in range(100) for reply in connection.pipeline([("GET", "k")] * 20)]
        assert all("LOADING" in reply.text for reply in replies)
        assert (stage(weir, store), ejections(weir, store)) == (0, 1 if flag == "--shadow" else 0)
