"""Tests of weir in front of a real Redis Cluster with replicas, and of tenants that accept slightly old replies."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest

from harness import metrics
from harness.cluster import Cluster
from harness.waiting import until

pytestmark = pytest.mark.weir_only

QUOTAS = """
[tenants.stale]
password = "s"
stale_reads = true
admin = true
[tenants.fresh]
password = "f"
admin = true
"""
NAMES = [f"name:{number}" for number in range(60)]


@pytest.fixture
def cluster(servers) -> Cluster:
    return Cluster(servers, primaries=3, replicas=3)


@pytest.fixture
def quotas(tmp_path: Path) -> Path:
    file = tmp_path / "quotas.toml"
    file.write_text(QUOTAS)
    return file


def weir_before(servers, cluster: Cluster, quotas: Path, *flags: str):
    # Hot keys are off, because their cache would answer these reads.
    usual = ["--shards", "2", "--quotas", str(quotas), "--disable", "hot"]
    weir = servers.weir(flags=[*usual, *flags], storage=cluster.storage)
    with weir.connect() as client:
        client.ok("AUTH", "fresh", "f")
        for name in NAMES:
            client.ok("SET", name, name)
    for node in cluster.nodes:
        cluster.call(node, "CONFIG", "RESETSTAT")
    return weir


def told_of(weir, node) -> dict:
    """Returns what /cluster reports about one replica."""
    page = json.loads(weir.admin("/cluster")[1])
    return next(each["reads"] for each in page["nodes"] if each["name"] == node.address)


def is_used(weir, *nodes) -> bool:
    return all(told_of(weir, node)["used"] for node in nodes)


def reads_at(cluster: Cluster, node) -> int:
    """Returns the number of GETs that a node has carried out."""
    for line in cluster.call(node, "INFO", "commandstats").text.splitlines():
        if line.startswith("cmdstat_get:"):
            return int(line.split("calls=")[1].split(",")[0])
    return 0


def counted(weir, name: str, **labels: str) -> float:
    samples = metrics.parse(weir.admin("/metrics")[1]).get(name, {})
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(value for of, value in samples.items() if all(each in of for each in wanted))


class Readers:
    """Clients of a tenant that read existing keys until they are stopped."""

    def __init__(self, weir, user: str, password: str, clients: int = 4) -> None:
        self.weir, self.login = weir, (user, password)
        self.stopping = threading.Event()
        self.wrong: list[str] = []
        self.rounds = 0
        self.threads = [threading.Thread(target=self._run) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def _run(self) -> None:
        with self.weir.connect() as client:
            client.ok("AUTH", *self.login)
            while not self.stopping.is_set():
                replies = client.pipeline([("GET", name) for name in NAMES])
                self.rounds += 1
                for name, reply in zip(NAMES, replies, strict=True):
                    if reply.is_error or reply.plain() != name.encode():
                        self.wrong.append(f"{name}: {reply.text if reply.is_error else reply.plain()}")

    def go_on(self, rounds: int = 100) -> None:
        goal = self.rounds + rounds
        until(lambda: self.rounds >= goal, "reads go on", seconds=60)

    def stop(self) -> list[str]:
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
        return self.wrong


def read(weir, rounds: int = 100, user: str = "stale") -> None:
    readers = Readers(weir, user, user[0])
    readers.go_on(rounds)
    assert readers.stop() == []


def test_replicas_answer_those_who_allow_it_and_nobody_else(servers, cluster: Cluster, quotas: Path):
    weir = weir_before(servers, cluster, quotas)
    replicas = cluster.nodes[3:]
    until(lambda: is_used(weir, *replicas), "replicas are known to be well")
    read(weir, user="fresh")
    assert [reads_at(cluster, node) for node in replicas] == [0, 0, 0]
    read(weir)
    until(lambda: read(weir, 20) or all(reads_at(cluster, node) > 0 for node in replicas), "each is asked")
    # Reads of this tenant may also go to primaries.
    assert all(reads_at(cluster, node) > 0 for node in cluster.primaries)
    answered = counted(weir, "weir_replica_reads_total")
    assert 0 < answered <= sum(reads_at(cluster, node) for node in replicas)
    assert told_of(weir, replicas[0])["reads_answered"] > 0
    # Writes go to primaries only, and a pipeline sees its own writes.
    with weir.connect() as client:
        client.ok("AUTH", "stale", "s")
        for number in range(50):
            replies = client.pipeline([("SET", "own", str(number)), ("GET", "own"), ("GET", NAMES[number])])
            assert [reply.plain() for reply in replies[1:]] == [str(number).encode(), NAMES[number].encode()]
        # A read of a key that a replica does not have is sent to the primary.
        before = counted(weir, "weir_replica_reads_sent_on_total", reason="empty")

        def sent_on() -> bool:
            replies = client.pipeline([("GET", f"none:{number}") for number in range(200)])
            assert all(reply.plain() is None for reply in replies)
            return counted(weir, "weir_replica_reads_sent_on_total", reason="empty") > before

        until(sent_on, "a replica was asked for what is not there")
    # Without `stale_reads`, only primaries are asked.
    quotas.write_text(QUOTAS.replace("stale_reads = true\n", ""))
    until(lambda: "no tenant" in (told_of(weir, replicas[0])["why_not"] or ""), "other quotas are in force")
    before = [reads_at(cluster, node) for node in replicas]
    read(weir)
    assert [reads_at(cluster, node) for node in replicas] == before


def test_switched_off_replicas_are_never_asked(servers, cluster: Cluster, quotas: Path):
    weir = weir_before(servers, cluster, quotas, "--disable", "replicas")
    read(weir)
    replicas = cluster.nodes[3:]
    assert [reads_at(cluster, node) for node in replicas] == [0, 0, 0]
    assert "--disable replicas" in told_of(weir, replicas[0])["why_not"]


def test_a_replica_that_dies_or_stands_still_costs_no_errors(servers, cluster: Cluster, quotas: Path):
    weir = weir_before(servers, cluster, quotas)
    replicas = cluster.nodes[3:]
    until(lambda: is_used(weir, *replicas), "replicas are known to be well")
    readers = Readers(weir, "stale", "s")
    readers.go_on()
    frozen, dead = replicas[0], replicas[1]
    until(lambda: reads_at(cluster, frozen) > 0 and reads_at(cluster, dead) > 0, "both answer")
    frozen.signal(signal.SIGSTOP)
    until(lambda: not is_used(weir, frozen), "it is not used any more")
    readers.go_on()
    dead.kill()
    until(lambda: not is_used(weir, dead), "it is not used any more")
    readers.go_on()
    assert is_used(weir, replicas[2])
    frozen.signal(signal.SIGCONT)
    until(lambda: is_used(weir, frozen), "it is used again")
    before = reads_at(cluster, frozen)
    until(lambda: reads_at(cluster, frozen) > before, "it answers again")
    wrong = readers.stop()
    assert wrong == [], wrong[:5]


def test_a_replica_that_hears_nothing_of_its_primary_is_left_out(servers, cluster: Cluster, quotas: Path):
    weir = weir_before(servers, cluster, quotas)
    replicas = cluster.nodes[3:]
    until(lambda: is_used(weir, *replicas), "replicas are known to be well")
    primary, cut_off = cluster.primaries[0], replicas[0]
    assert cluster.id_of(primary) in cluster.call(cut_off, "CLUSTER", "NODES").text
    # Its primary does not let it replicate any more.
    cluster.call(primary, "ACL", "SETUSER", "default", "-psync", "-sync")
    cluster.call(primary, "CLIENT", "KILL", "TYPE", "replica")
    # A replica of Valkey 9 tries a full synchronisation.
    reasons = ("it has lost its primary", "it is being filled")
    until(lambda: told_of(weir, cut_off)["why_not"] in reasons, "that is found out")
    before = reads_at(cluster, cut_off)
    with weir.connect() as client:
        client.ok("AUTH", "fresh", "f")
        for name in NAMES:
            client.ok("SET", name, name + "!")
    readers = Readers(weir, "stale", "s")
    readers.go_on()
    # Other replicas may lag a little, but no client ever reads from this one.
    readers.stop()
    assert reads_at(cluster, cut_off) == before
    # SYNC stays forbidden, because a replica that falls back to it does not report its offset.
    cluster.call(primary, "ACL", "SETUSER", "default", "+psync")
    with weir.connect() as client:
        client.ok("AUTH", "stale", "s")

        def is_well() -> bool:
            # Replicas are watched only while some tenant might read from them.
            client.pipeline([("GET", name) for name in NAMES])
            return is_used(weir, cut_off)

        until(is_well, "it is well again")

        def answers() -> bool:
            client.pipeline([("GET", name) for name in NAMES] * 5)
            return reads_at(cluster, cut_off) > before

        until(answers, "it answers again")
