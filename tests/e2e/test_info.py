"""Tests of INFO: the stores' fields beside weir's own, who may see them, and what is left while a store is away."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from harness.cluster import Cluster
from harness.resp import Connection
from harness.waiting import until

pytestmark = pytest.mark.weir_only

FLAGS = ["--shards", "2"]
TENANTS = """
[tenants.operator]
password = "operator-password"
admin = true

[tenants.whole]
password = "whole-password"

[tenants.part]
password = "part-password"
keys = ["part:"]

[tenants.some]
password = "some-password"
databases = [0]
"""
# Fields of a store that reveal requests of any client.
TRAFFIC = ("cmdstat_get", "keyspace_hits", "expired_keys", "used_cpu_sys", "rdb_changes_since_last_save")


def text_of(connection: Connection, *sections: str) -> str:
    return connection.ok("INFO", *sections).decode()


def fields(connection: Connection, *sections: str) -> dict[str, str]:
    lines = text_of(connection, *sections).split("\r\n")
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def titles(connection: Connection, *sections: str) -> list[str]:
    return [line[2:] for line in text_of(connection, *sections).split("\r\n") if line.startswith("# ")]


def calls(line: str) -> int:
    return int(line.split("calls=")[1].split(",")[0])


@pytest.mark.parametrize("protocol", [2, 3])
def test_one_stores_fields_stand_beside_weirs_own(servers, protocol: int):
    store = servers.redis("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    weir = servers.weir(store, flags=FLAGS)
    with weir.connect(protocol=protocol) as client, store.connect() as direct:
        client.ok("CONFIG", "RESETSTAT")
        client.ok("SET", "k", "v")
        for _ in range(3):
            client.ok("GET", "k")
        client.call("LPUSH", "k", "x")
        client.ok("EVAL", "return 1", "0")
        shown, theirs = fields(client, "everything"), fields(direct, "everything")
        assert shown["maxmemory_policy"] == "allkeys-lru" and shown["maxmemory"] == str(100 << 20)
        assert abs(int(shown["used_memory"]) - int(theirs["used_memory"])) < 4 << 20
        assert calls(shown["cmdstat_get"]) == 3 and calls(shown["cmdstat_lpush"]) == 1
        assert shown["errorstat_WRONGTYPE"] == "count=1" and shown["number_of_cached_scripts"] == "1"
        for name in (*TRAFFIC, "tracking_total_keys", "latency_percentiles_usec_get", "evicted_keys", "gcc_version"):
            assert name in shown, name
        assert shown["db0"].startswith("keys=1,")
        # Fields about weir itself are not a store's.
        assert shown["process_id"] == str(weir.pid) != theirs["process_id"]
        assert shown["tcp_port"] == str(weir.port) and shown["run_id"] != theirs["run_id"]
        assert shown["connected_clients"] == "1" and shown["total_connections_received"] == "1"
        assert "config_file" not in shown and "executable" not in shown and "master_replid" not in shown
        assert shown["info_stores_asked"] == shown["info_stores_answered"] == "1"
        # The default sections are those of redis-server, and weir's.
        default = [title for title in titles(direct) if title != "Errorstats"]
        assert [title for title in titles(client) if title not in ("Weir", "Weirshards", "Errorstats")] == default
        # lua-redis takes no other line for a title.
        assert all(title.isalnum() for title in titles(client, "all"))
        assert titles(client, "weirshards") == titles(client, "weir_shards") == ["Weirshards"]
        assert {"Commandstats", "Latencystats"} & set(titles(client)) == set()
        assert {"Commandstats", "Latencystats"} < set(titles(client, "all"))
        assert titles(client, "commandstats", "MEMORY") == ["Memory", "Commandstats"]


def test_a_reset_reaches_the_stores_and_shows_at_once(servers):
    stores = [servers.redis() for _ in range(2)]
    weir = servers.weir(*stores, flags=FLAGS)
    with weir.connect() as client:
        for number in range(20):
            client.ok("SET", f"k{number}", "v")
        assert calls(fields(client, "commandstats")["cmdstat_set"]) == 20
        # In one pipeline, INFO counts the requests before it.
        client.send("CONFIG", "RESETSTAT")
        client.send("SET", "k", "v")
        client.send("INFO", "commandstats")
        client.send("SET", "k", "v")
        replies = [client.read() for _ in range(4)]
        assert "cmdstat_set:calls=1," in replies[2].value.decode(), replies


def test_several_stores_are_summed_where_that_is_true(servers):
    stores = [servers.redis(), servers.redis(), servers.redis()]
    # So that the stores' greatest memory cannot be equal by chance.
    for place, store in enumerate(stores):
        with store.connect() as direct:
            direct.ok("SET", "large", "x" * (place << 20))
            direct.ok("DEL", "large")
    weir = servers.weir(*stores, flags=FLAGS)
    with weir.connect() as client:
        for number in range(50):
            client.ok("SET", f"k{number}", "v", *(("EX", 1000) if number % 2 else ()))
            client.ok("GET", f"k{number}")
        shown = fields(client, "everything")
        theirs = []
        for store in stores:
            with store.connect() as direct:
                theirs.append(fields(direct, "everything"))
        assert calls(shown["cmdstat_get"]) == 50 and shown["keyspace_hits"] == "50"
        assert shown["rdb_changes_since_last_save"] == str(sum(int(each["rdb_changes_since_last_save"]) for each in theirs))
        assert abs(int(shown["used_memory"]) - sum(int(each["used_memory"]) for each in theirs)) < 8 << 20
        assert shown["db0"].startswith("keys=50,expires=25,")
        assert shown["maxmemory_policy"] == "noeviction"
        assert "used_memory_peak" not in shown
        # The ratios of all stores may be equal by chance: then theirs is shown, and else none.
        ratios = {each["mem_fragmentation_ratio"] for each in theirs}
        assert shown.get("mem_fragmentation_ratio") in (ratios if len(ratios) == 1 else {None})
        assert "latency_percentiles_usec_get" not in shown
        with stores[1].connect() as direct:
            direct.ok("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
        assert "maxmemory_policy" not in fields(client, "memory")


def test_a_cluster_is_summed_over_its_primaries(servers):
    cluster = Cluster(servers)
    weir = servers.weir(storage=cluster.storage, flags=FLAGS)
    with weir.connect() as client:
        for number in range(30):
            client.ok("SET", f"k{number}", "v")
        shown = fields(client, "everything")
        assert calls(shown["cmdstat_set"]) == 30 and shown["db0"].startswith("keys=30,")
        assert shown["cluster_enabled"] == "0" and shown["role"] == "master"


def test_the_embedded_store_tells_too(servers):
    weir = servers.weir(flags=FLAGS)
    with weir.connect() as client:
        client.ok("SET", "k", "v")
        client.ok("GET", "k")
        shown = fields(client, "everything")
        assert shown["maxmemory_policy"] == "noeviction" and shown["keyspace_hits"] == "1"
        assert shown["cmdstat_get"].startswith("calls=1,") and shown["db0"].startswith("keys=1,")


def test_a_tenant_learns_nothing_of_the_requests_of_others(servers, tmp_path: Path):
    file = tmp_path / "quotas.toml"
    file.write_text(TENANTS)
    store = servers.redis("--maxmemory-policy", "volatile-ttl")
    weir = servers.weir(store, flags=[*FLAGS, "--quotas", str(file)])
    with weir.connect() as operator:
        operator.ok("AUTH", "operator", "operator-password")
        operator.ok("SET", "secret", "v")
        operator.ok("GET", "secret")
        shown = fields(operator, "everything")
        assert all(name in shown for name in TRAFFIC) and shown["db0"].startswith("keys=1,")
    for tenant in ("whole", "part", "some"):
        with weir.connect() as client:
            client.ok("AUTH", tenant, f"{tenant}-password")
            shown = fields(client, "everything")
            # Programs read the eviction policy when they start.
            assert shown["maxmemory_policy"] == "volatile-ttl" and shown["loading"] == "0"
            assert not [name for name in (*TRAFFIC, "gcc_version", "maxmemory") if name in shown]
            # Numbers of keys are shown only to tenants that may use all keys, as in INFO keyspace.
            assert ("db0" in shown) == (tenant == "whole")
            assert titles(client, "commandstats", "errorstats", "cpu") == []
            assert client.call("CONFIG", "RESETSTAT").text.startswith("NOPERM ")


def test_weirs_own_part_comes_while_a_store_is_down_or_hangs(servers):
    stores = [servers.redis(), servers.redis()]
    weir = servers.weir(*stores, flags=FLAGS)
    with weir.connect() as client:
        assert fields(client)["info_stores_answered"] == "2"
        stores[1].signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            shown = fields(client)
            assert time.monotonic() - began < 5
            assert (shown["info_stores_asked"], shown["info_stores_answered"]) == ("2", "1")
            assert shown["process_id"] == str(weir.pid) and shown["loading"] == "0"
            # Sums over a part of the stores are left out, because they would look complete.
            assert not [name for name in ("used_memory", "keyspace_hits", "maxmemory_policy") if name in shown]
            # Other requests, and INFO sections that weir knows, do not wait for the store.
            assert fields(client, "clients")["connected_clients"] == "1"
        finally:
            stores[1].signal(signal.SIGCONT)
        until(lambda: fields(client)["info_stores_answered"] == "2", "it is asked again")
        stores[1].kill()
        until(lambda: fields(client)["info_stores_answered"] == "1", "the other one answers")
        assert "keyspace_hits" not in fields(client)


def test_many_who_ask_at_once_share_the_stores_answers(servers):
    store = servers.redis()
    weir = servers.weir(store, flags=FLAGS)
    clients = [weir.connect() for _ in range(50)]
    with store.connect() as direct:
        clients[0].ok("INFO")
        direct.ok("CONFIG", "RESETSTAT")
        for client in clients:
            client.send("INFO", "everything")
        for client in clients:
            assert b"cmdstat_" in client.read().value
        assert calls(fields(direct, "commandstats")["cmdstat_info"]) <= 51
        assert int(fields(direct, "stats")["total_connections_received"]) <= 1, "connections are kept"
    for client in clients:
        client.close()
