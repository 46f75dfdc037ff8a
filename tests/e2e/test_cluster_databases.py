"""Tests of databases in a real cluster: Valkey 9 has as many as its setting cluster-databases says, other servers have one.

Where the server has one database, weir's refusals are compared with the server's own.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from harness.cluster import Cluster
from harness.ports import free_port
from harness.resp import Connection
from harness.successor import Successor, take_over
from harness.waiting import until

from test_cluster import SHARDS, Load, in_text, others, said, slot_of, values
from test_hot_keys import EASILY_HOT, heat
from test_http import Client
from test_replicas import counted, reads_at

pytestmark = pytest.mark.weir_only

DATABASES = 16
NOT_IN_CLUSTER = "ERR SELECT is not allowed in cluster mode"


@pytest.fixture(scope="module")
def options(module_servers) -> list[str]:
    """Returns the options that give each node several databases; none where the server cannot have them."""
    with module_servers.redis().connect() as store:
        return ["--cluster-databases", str(DATABASES)] if store.ok("CONFIG", "GET", "cluster-databases") else []


@pytest.fixture(scope="module")
def cluster(module_servers, options) -> Cluster:
    return Cluster(module_servers, options=options)


@pytest.fixture(scope="module")
def weir(module_servers, cluster: Cluster):
    return module_servers.weir(flags=SHARDS, storage=cluster.storage)


def select(client: Connection, database: int, options: list[str]) -> bool:
    """Selects a database. False, after a comparison with the server's own refusal, if the server has only one."""
    reply = client.call("SELECT", database)
    assert reply.text == ("OK" if options else NOT_IN_CLUSTER)
    return bool(options)


def test_select_is_answered_as_the_nodes_answer_it(weir, cluster: Cluster, options):
    with weir.connect() as client, cluster.nodes[0].connect() as node:
        for number in ["0", "1", "15", "16", "255", "256", "-1", "x", "99999999999999999999"]:
            assert client.call("SELECT", number).raw == node.call("SELECT", number).raw, number
        for words in [("MOVE", "none", 1), ("COPY", "none", "nothing{none}", "DB", 1), ("SWAPDB", 0, 1)]:
            owner = cluster.owner(slot_of(cluster, "none"))
            with owner.connect() as direct:
                assert client.call(*words).raw == direct.call(*words).raw, words
    assert json.loads(weir.admin("/cluster")[1])["databases"] == (DATABASES if options else 1)


def test_fewer_databases_than_the_cluster_has_may_be_offered(servers, cluster: Cluster, options):
    weir = servers.weir(flags=[*SHARDS, "--databases", "3"], storage=cluster.storage)
    with weir.connect() as client:
        if select(client, 2, options):
            assert client.call("SELECT", 3).text == "ERR DB index is out of range"


def test_nodes_that_do_not_permit_config_are_asked_to_select(servers, options):
    cluster = Cluster(servers, options=options)
    for node in cluster.nodes:
        cluster.call(node, "ACL", "SETUSER", "weir", "on", ">w", "+@all", "-config", "~*", "&*", *(["alldbs"] if options else []))
    weir = servers.weir(flags=SHARDS, storage=cluster.storage.replace("cluster://", "cluster://weir:w@"))
    with weir.connect() as client, cluster.nodes[0].connect() as node:
        for number in ["0", "1", "15", "16"]:
            assert client.call("SELECT", number).raw == node.call("SELECT", number).raw, number


def test_each_database_has_its_own_keys(weir, options):
    with weir.connect() as one, weir.connect() as other:
        one.ok("FLUSHALL")
        if not select(other, 5, options):
            return
        names = [f"name:{number}" for number in range(60)]
        one.ok("MSET", *(word for name in names for word in (name, "0")))
        other.ok("MSET", *(word for name in names[:20] for word in (name, "5")))
        assert said(other, "MGET", *names) == ["5"] * 20 + [None] * 40
        assert (one.ok("DBSIZE"), other.ok("DBSIZE")) == (60, 20)
        assert sorted(said(other, "KEYS", "*")) == sorted(names[:20])
        found, cursor = [], "0"
        while True:
            cursor, page = said(other, "SCAN", cursor, "COUNT", 5)
            found += page
            if cursor == "0":
                break
        assert sorted(found) == sorted(names[:20])
        lines = said(one, "INFO", "keyspace").split("\r\n")
        assert [line.split(",")[0] for line in lines[1:3]] == ["db0:keys=60", "db5:keys=20"]
        other.ok("FLUSHDB")
        assert (one.ok("DBSIZE"), other.ok("DBSIZE"), other.ok("RANDOMKEY")) == (60, 0, None)
        assert said(other, "RESET") == "RESET" and said(other, "GET", names[0]) == "0"
        assert b" db=0 " in other.ok("CLIENT", "INFO")
        one.ok("FLUSHALL")


def test_requests_in_a_pipeline_keep_their_order_across_databases(weir, options):
    with weir.connect() as client:
        if not select(client, 1, options):
            return
        client.ok("SELECT", 0)
        for number in range(100):
            requests = [
                ("SET", "k", number), ("MOVE", "k", 1), ("GET", "k"), ("SELECT", 1), ("GETDEL", "k"),
                ("SET", "k{a}", number), ("COPY", "k{a}", "c{a}", "DB", 2, "REPLACE"), ("SELECT", 2), ("GET", "c{a}"),
                ("MULTI",), ("INCR", "c{a}"), ("EXEC",), ("SELECT", 0),
            ]
            replies = [reply.plain() for reply in client.pipeline(requests)]
            value = b"%d" % number
            assert replies[:9] == [b"OK", 1, None, b"OK", value, b"OK", 1, b"OK", value], number
            assert replies[11:] == [[number + 1], b"OK"]
        # The client follows a transaction that selects another database.
        client.pipeline([("MULTI",), ("SET", "{a}t", "0"), ("SELECT", 2), ("GET", "c{a}")])
        assert client.ok("EXEC") == [b"OK", b"OK", b"100"]
        assert client.ok("GET", "c{a}") == b"100" and client.ok("GET", "{a}t") is None


def test_what_is_kept_on_a_connection_is_kept_in_its_database(weir, options):
    with weir.connect() as one, weir.connect() as other:
        if not select(one, 4, options):
            return
        one.send("BLPOP", "{q}list", 30)
        other.ok("RPUSH", "{q}list", "wrong")
        other.ok("SELECT", 4)
        other.ok("RPUSH", "{q}list", "right")
        assert in_text(one.read().plain()) == ["{q}list", "right"]
        for change in (4, 6):
            one.ok("SELECT", 4)
            one.ok("WATCH", "{q}w")
            other.ok("SELECT", change)
            other.ok("SET", "{q}w", change)
            one.ok("MULTI")
            one.ok("SET", "{q}done", change)
            assert one.ok("EXEC") == (None if change == 4 else [b"OK"])
        assert in_text(one.call("EVAL", "return redis.call('GET', KEYS[1])", 1, "{q}done").plain()) == "6"
        assert not one.call("QOS", "EXPLAIN", "GET", "{q}done").is_error


def test_a_call_that_waits_follows_its_slot_in_its_database(weir, cluster: Cluster, options):
    with weir.connect() as one, weir.connect() as other:
        if not select(one, 4, options):
            return
        slot = slot_of(cluster, "{moves}")
        one.send("BLPOP", "{moves}list", 60)
        until(lambda: said(other, "INFO", "clients").count("blocked_clients:1\r\n") == 1, "it waits")
        cluster.move(slot, others(cluster, slot)[0])
        other.ok("SELECT", 4)
        assert other.ok("RPUSH", "{moves}list", "right") == 1
        assert in_text(one.read().plain()) == ["{moves}list", "right"]


def test_a_key_that_is_hot_in_two_databases_is_two_keys(servers, cluster: Cluster, options):
    weir = servers.weir(flags=["--shards", "2", *EASILY_HOT], storage=cluster.storage)
    slot = slot_of(cluster, "viral")
    with weir.connect() as one, weir.connect() as third:
        one.ok("HELLO", "3"), third.ok("HELLO", "3")
        if not select(third, 3, options):
            return
        one.ok("SET", "viral", "0:0"), third.ok("SET", "viral", "3:0")
        heat(one, "viral"), heat(third, "viral")
        for turn in range(1, 31):
            if turn % 10 == 0:
                cluster.move(slot, others(cluster, slot)[0], databases=(0, 3))
            one.ok("SET", "viral", f"0:{turn}")
            for _ in range(5):
                assert (said(one, "GET", "viral"), said(third, "GET", "viral")) == (f"0:{turn}", f"3:{turn - 1}")
            third.ok("SET", "viral", f"3:{turn}")
        one.ok("DEL", "viral"), third.ok("DEL", "viral")


def loads(weir, databases: tuple[int, ...]) -> list[Load]:
    """Returns clients that count in these databases."""
    keys = [f"count:{number}" for number in range(6)]
    return [Load(weir, keys, clients=2, database=database) for database in databases]


def check(weir, load: Load) -> None:
    load.stop()
    assert load.errors == []
    assert values(weir, load.keys, load.database) == [str(load.done[key]) for key in load.keys]
    for name, appended in load.appended.items():
        assert values(weir, [name], load.database) == ["".join(f"{number}," for number in appended)]


def test_slots_move_under_load_and_every_request_is_carried_out_once_and_in_order(weir, cluster: Cluster, options):
    with weir.connect() as client:
        client.ok("FLUSHALL")
    databases = (0, 3) if options else (0,)
    running = loads(weir, databases)
    slots = [slot_of(cluster, key) for key in [*running[0].keys, "order:0", "order:1"]]
    for turn in range(2):
        for slot in slots:
            cluster.move(slot, others(cluster, slot)[turn], databases)
            for load in running:
                load.go_on(2)
    for load in running:
        check(weir, load)


# One database at a time, because Valkey 9.1 itself writes into the wrong database if several are written to while a slot moves.
@pytest.mark.parametrize("database", [0, 3])
def test_slots_that_move_as_one_step_lose_and_double_nothing(weir, cluster: Cluster, options, database: int):
    node = cluster.nodes[0]
    with weir.connect() as client, node.connect() as operator:
        client.ok("FLUSHALL")
        if not options:
            refusal = operator.call("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", 0, 0, "NODE", cluster.id_of(node)).text
            assert refusal.startswith("ERR unknown subcommand"), "the server has no such step"
            return
    [load] = loads(weir, (database,))
    random = Random(5)
    slots = [slot_of(cluster, key) for key in [*load.keys, "order:0", "order:1"]]
    for turn in range(12):
        slot = slots[turn % len(slots)]
        # Up to ten slots of one owner.
        last = slot
        while last < slot + 9 and last + 1 < 16_384 and cluster.owner(last + 1) is cluster.owner(slot):
            last += 1
        cluster.move_at_once(slot, last, random.choice(others(cluster, slot)))
        load.go_on(2)
    check(weir, load)


def test_replicas_are_read_from_in_the_database_of_the_client(servers, tmp_path: Path, options):
    cluster = Cluster(servers, primaries=3, replicas=3, options=options)
    quotas = tmp_path / "quotas.toml"
    quotas.write_text('[tenants.stale]\npassword = "s"\nstale_reads = true\nadmin = true\n')
    weir = servers.weir(flags=[*SHARDS, "--quotas", str(quotas), "--disable", "hot"], storage=cluster.storage)
    names = [f"name:{number}" for number in range(60)]
    with weir.connect() as one, weir.connect() as third:
        one.ok("AUTH", "stale", "s"), third.ok("AUTH", "stale", "s")
        if not select(third, 3, options):
            return
        for name in names:
            one.ok("SET", name, "0"), third.ok("SET", name, "3")
        replicas = cluster.nodes[3:]

        def answer() -> bool:
            assert {said(one, "GET", name) for name in names} == {"0"}
            assert {said(third, "GET", name) for name in names} == {"3"}
            return counted(weir, "weir_replica_reads_total") > 100

        until(answer, "replicas answer", seconds=60)
        assert sum(reads_at(cluster, node) for node in replicas) > 50
        for node in replicas:
            node.kill()
        assert {said(third, "GET", name) for name in names} == {"3"}


def test_a_tenant_has_only_its_databases_and_http_names_one(servers, cluster: Cluster, tmp_path: Path, options):
    quotas = tmp_path / "quotas.toml"
    quotas.write_text('[default]\nadmin = true\n[tenants.some]\npassword = "s"\ndatabases = [1, 3]\n')
    port = free_port()
    flags = [*SHARDS, "--quotas", str(quotas), "--http", f"127.0.0.1:{port}"]
    weir = servers.weir(flags=flags, storage=cluster.storage)
    client = Client("127.0.0.1", port, timeout=30)
    status, body, _ = client.ask("PUT", "/v1/keys/http", "third", X_Weir_Database="3")
    if not options:
        assert status == 400 and NOT_IN_CLUSTER.encode() in body
        return
    assert status == 204
    assert client.ask("GET", "/v1/keys/http")[0] == 404
    with weir.connect() as some:
        some.ok("AUTH", "some", "s")
        refusal = "NOPERM tenant 'some' has only the databases 1, 3, not "
        assert some.call("GET", "http").text == refusal + "0" and some.call("SELECT", 2).text == refusal + "2"
        some.ok("SELECT", 3)
        assert said(some, "GET", "http") == "third"
        assert some.call("MOVE", "http", 0).text == refusal + "0"
        assert some.ok("MOVE", "http", 1) == 1
        some.ok("SELECT", 1)
        assert some.ok("DEL", "http") == 1


def test_a_client_keeps_its_database_when_another_process_takes_over(servers, cluster: Cluster, tmp_path: Path, options):
    weir = servers.keep(Successor(path=tmp_path / "takeover", storage=cluster.storage)).start()
    with weir.connect() as client, weir.connect() as waiter:
        if not select(client, 3, options):
            return
        client.ok("SET", "kept", "3")
        waiter.ok("SELECT", 3)
        waiter.send("BLPOP", "{waits}", 60)
        until(lambda: "blocked_clients:1\r\n" in said(client, "INFO", "clients"), "it waits")
        take_over(servers, weir)
        assert said(client, "GET", "kept") == "3"
        client.ok("RPUSH", "{waits}", "x")
        assert in_text(waiter.read().plain()) == ["{waits}", "x"]
        assert client.ok("DEL", "kept") == 1
