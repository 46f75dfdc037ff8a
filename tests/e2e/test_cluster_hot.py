"""Tests of hot keys in front of a real Redis Cluster, whose slots move and whose nodes die."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cluster import Cluster
from harness.waiting import until

from test_cluster import said, slot_of, times_asked
from test_hot_keys import EASILY_HOT, heat
from test_replicas import counted, reads_at

pytestmark = pytest.mark.weir_only

FLAGS = ["--shards", "2", *EASILY_HOT]
READS = 400


def reads(cluster: Cluster) -> int:
    return sum(reads_at(cluster, node) for node in cluster.nodes)


def test_what_everybody_reads_is_asked_for_now_and_then_and_never_told_when_it_is_old(servers, cluster: Cluster):
    weir = servers.weir(flags=FLAGS, storage=cluster.storage)
    slot = slot_of(cluster, "viral")
    with weir.connect() as client, weir.connect() as other:
        client.ok("HELLO", "3")
        assert said(client, "SET", "viral", "0") == "OK"
        heat(client, "viral")
        before = reads(cluster)
        for _ in range(READS):
            assert said(client, "GET", "viral") == "0"
        assert reads(cluster) - before < READS / 2, "most were answered from memory"
        # Every client reads the value that any client has written last, wherever the slot is.
        for turn in range(1, 31):
            if turn % 5 == 0:
                cluster.move(slot, next(node for node in cluster.primaries if node is not cluster.owner(slot)))
            assert said(other, "SET", "viral", turn) == "OK"
            for _ in range(5):
                assert [said(each, "GET", "viral") for each in (client, other)] == [str(turn)] * 2
        # A script may have written any key, so all cached replies become invalid, whatever their node.
        assert said(client, "EVAL", "return redis.call('SET', KEYS[1], 'script')", 1, "viral") == "OK"
        assert said(client, "GET", "viral") == "script"
        heat(client, "viral", hits=0)
        assert said(other, "FLUSHALL") == "OK"
        assert said(client, "GET", "viral") is None
    until(lambda: counted(weir, "weir_hot_hits_total") > READS / 2, "that is counted")


def test_keys_of_a_half_moved_slot_that_are_written_one_by_one_are_read_anew(servers, cluster: Cluster):
    weir = servers.weir(flags=FLAGS, storage=cluster.storage)
    names = ["{half}a", "{half}b"]
    slot = slot_of(cluster, "{half}")
    with weir.connect() as client:
        client.ok("HELLO", "3")
        for name in names:
            said(client, "SET", name, name)
        heat(client, *names)
        source = cluster.owner(slot)
        target = next(node for node in cluster.primaries if node is not source)
        cluster.begin_move(slot, target)
        assert cluster.move_keys(slot, source, target, most=1) == 1
        assert said(client, "MGET", *names) == names
        assert said(client, "DEL", *names) == 2
        assert [said(client, "GET", name) for name in names] == [None, None]
        cluster.end_move(slot, source, target)
        for name in names:
            said(client, "SET", name, "new")
        heat(client, *names)
        assert [said(client, "GET", name) for name in names] == ["new", "new"]
    until(lambda: counted(weir, "weir_hot_open") == 0, "nothing is under way any more")


def test_while_its_node_is_away_a_tenant_is_told_what_is_kept(servers, tmp_path: Path):
    cluster = Cluster(servers)
    quotas = tmp_path / "quotas.toml"
    quotas.write_text('[tenants.late]\npassword = "l"\nstale_on_error = "60s"\n[tenants.strict]\npassword = "s"\n')
    weir = servers.weir(flags=[*FLAGS, "--quotas", str(quotas)], storage=cluster.storage)
    with weir.connect() as late, weir.connect() as strict:
        assert late.ok("HELLO", "3", "AUTH", "late", "l") and strict.ok("HELLO", "3", "AUTH", "strict", "s")
        assert said(late, "SET", "viral", "v") == "OK"
        heat(late, "viral")
        cluster.owner(slot_of(cluster, "viral")).kill()

        def is_away() -> bool:
            assert said(late, "GET", "viral") == "v"
            return strict.call("GET", "viral").is_error

        until(is_away, "what is kept is too old")
        for _ in range(50):
            assert said(late, "GET", "viral") == "v"
    until(lambda: counted(weir, "weir_hot_stale_on_error_total") > 0, "that is counted")

def test_what_is_read_only_beside_others_is_answered_from_memory_too(servers, cluster: Cluster):
    weir = servers.weir(flags=FLAGS, storage=cluster.storage)
    with weir.connect() as client, weir.connect() as other:
        client.ok("HELLO", "3")
        others = [f"beside:{number}" for number in range(4)]
        assert said(client, "MSET", "viral", "0", *(word for name in others for word in (name, name))) == "OK"
        until(lambda: said(client, "MGET", *others[:2], "viral") and counted(weir, "weir_hot_hits_total") > 0, "it is hot")
        slot = slot_of(cluster, "viral")
        for turn in range(1, 21):
            assert said(other, "SET", "viral", turn) == "OK"
            for each in (client, other):
                for names in (["viral", *others], [others[turn % 4], "viral"], ["viral", "viral", others[0]]):
                    wanted = [str(turn) if name == "viral" else name for name in names]
                    assert said(each, "MGET", *names) == wanted
                assert said(each, "GET", "viral") == str(turn)
        before = times_asked(cluster, cluster.owner(slot), "mget")
        for _ in range(READS):
            assert said(client, "MGET", "viral", *others)[0] == "20"
        # The other keys of that node are still read from it.
        own = 1 + sum(cluster.owner(slot_of(cluster, name)) is cluster.owner(slot) for name in others)
        assert times_asked(cluster, cluster.owner(slot), "mget") - before < READS * (own - 1 / 2), "most were answered from memory"
