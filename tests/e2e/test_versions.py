"""Tests of the version that clients are told: they choose commands by it, so it is the lowest of the stores' versions."""

from __future__ import annotations

import socket

import pytest

from harness.cluster import Cluster
from harness.fake_store import FakeStore, accommodating
from harness.processes import Redis, Server
from harness.resp import Connection
from harness.waiting import until

pytestmark = pytest.mark.weir_only

COMPATIBLE = "7.2.4"


def told(server: Server) -> set[str]:
    """Returns the versions that HELLO and INFO report: one, unless it changed in between."""
    with server.connect() as connection:
        return {connection.ok("HELLO", "3")[b"version"].decode(), fields(connection, "server")["redis_version"]}


def fields(connection: Connection, *sections: str) -> dict[str, str]:
    lines = connection.ok("INFO", *sections).decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def store_of(version: str) -> FakeStore:
    def handler(words: list[bytes]):
        if words[0].upper() != b"INFO":
            return accommodating(words)
        text = f"# Server\r\nredis_version:{version}\r\nos:none\r\n".encode()
        return b"$%d\r\n%s\r\n" % (len(text), text)

    return FakeStore(handler)


def own_version(redis: Redis) -> str:
    with redis.connect() as connection:
        return fields(connection, "server")["redis_version"]


@pytest.mark.parametrize("password", [None, "secret"], ids=["open", "with a password"])
def test_the_first_client_hears_the_version_of_the_store(servers, password: str | None):
    redis = servers.redis()
    version = own_version(redis)
    login = ""
    if password:
        with redis.connect() as connection:
            connection.ok("CONFIG", "SET", "requirepass", password)
        login = f":{password}@"
    weir = servers.weir(storage=f"redis://{login}{redis.address}")
    assert told(weir) == {version}


def test_over_a_unix_socket(servers):
    redis = servers.keep(Redis())
    path = redis.folder / "socket"
    redis.options = ("--unixsocket", str(path))
    redis.start()
    assert told(servers.weir(storage=f"unix:{path}")) == {own_version(redis)}


def test_the_embedded_store_has_weirs_own(servers):
    assert told(servers.weir()) == {COMPATIBLE}


@pytest.mark.parametrize("other, lowest", [("8.0.0", None), ("6.2.14", "6.2.14"), ("a surprise", None)])
def test_the_lowest_of_several(servers, other: str, lowest: str | None):
    redis = servers.redis()
    with store_of(other) as store:
        weir = servers.weir(storage=f"redis://{store.address},{redis.address}")
        assert told(weir) == {lowest or own_version(redis)}


def test_a_store_that_comes_up_later(servers):
    """Until the store is up its version is unknown, and clients are told the version that weir is compatible with."""
    redis = servers.redis()
    version = own_version(redis)
    redis.kill()
    weir = servers.weir_class(redis, flags=["--shards", "2"])
    weir.ready_path = "/healthz"
    servers.keep(weir).start()
    assert told(weir) == {COMPATIBLE}
    redis.start()
    until(lambda: told(weir) == {version}, "the version of the store is told")


def test_a_store_that_says_nothing_holds_up_neither_the_start_nor_what_others_tell(servers):
    redis = servers.redis()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        storage = f"redis://127.0.0.1:{silent.getsockname()[1]},{redis.address}"
        weir = servers.weir_class(storage=storage)
        weir.ready_path = "/healthz"
        servers.keep(weir).start()
        assert told(weir) == {own_version(redis)}


@pytest.mark.parametrize("reply", [b"*1\r\n" * 100, b"$-9\r\n", b"HTTP/1.1 400\r\n\r\n", b"x" * 200_000, b"$5\r\n\xff\xfe"])
def test_nonsense_for_an_answer_changes_nothing(servers, reply: bytes):
    with FakeStore(lambda words: (reply, None) if words[0].upper() == b"INFO" else accommodating(words)) as store:
        weir = servers.weir(storage=f"redis://{store.address}")
        assert told(weir) == {COMPATIBLE}


def test_nodes_of_a_cluster_tell_theirs(servers):
    cluster = Cluster(servers)
    weir = servers.weir(storage=cluster.storage)
    assert told(weir) == {own_version(cluster.nodes[0])}


def test_what_suites_of_clients_read_first(servers):
    weir = servers.weir(servers.redis())
    with weir.connect() as connection:
        shown = fields(connection)
        assert shown["cluster_enabled"] == "0" and shown["arch_bits"] == "64"
        assert len(shown["run_id"]) == 40 and int(shown["run_id"], 16)
        text = connection.ok("INFO", "cluster", "modules", "cluster").decode()
        assert text == "# Modules\r\n\r\n# Cluster\r\ncluster_enabled:0\r\n"
        assert fields(connection, "default").keys() == shown.keys()
        for name in ("all", "everything"):
            assert fields(connection, name).keys() > shown.keys()
