"""What is done to stores and weirs while clients work: one thing at a time, chosen by a seeded generator, printed, and written down."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import bench
from harness.cluster import Cluster
from harness.processes import Redis, Weir
from harness.resp import Connection
from harness.successor import Successor, take_over
from harness.waiting import until

from .clients import HOT_KEYS, KEYS, PASSWORD, TENANT

STORES, PRIMARIES = 3, 3
HOT = ["--hot-rate", "50", "--hot-share", "0%"]
DRAIN_SECONDS = 5
# Request units per second of the tenant: plenty, and so few that most requests are refused.
PLENTY, FEW = 1_000_000, 200
SLOTS_A_TIME = 10
# After the end of a disturbance, weir may still close clients for it.
AFTERMATH_SECONDS = 2.0
ASK_SECONDS = 10.0


class Servers(bench.Servers):
    """Stores that keep what they acknowledged, so that counters hold when a store is killed."""

    def redis(self, *options: str) -> Redis:
        return super().redis(*options, "--appendonly", "yes", "--appendfsync", "no")

    def keep(self, server):
        """A Ctrl-C ends the script alone, which then reports."""
        server.own_group = True
        return super().keep(server)


class Ground:
    """Two weirs with their stores: one before plain stores, with tenants, which is taken over; and one before a cluster."""

    def __init__(self, servers: Servers, folder: Path, drain_seconds: int = DRAIN_SECONDS) -> None:
        self.servers = servers
        self.quotas = folder / "quotas.toml"
        self.write_quotas(PLENTY)
        self.stores = [servers.redis() for _ in range(STORES)]
        flags = ["--quotas", str(self.quotas), *HOT]
        # As every generation is started.
        self.options = {"drain": f"{drain_seconds}s", "flags": flags}
        first = Successor(*self.stores, path=folder / "takeover", **self.options)
        self.plain: Successor = servers.keep(first).start()
        self.generations: list[Weir] = [self.plain]
        self.cluster = Cluster(servers, primaries=PRIMARIES)
        self.clustered: Weir = servers.keep(Weir(storage=self.cluster.storage, flags=["--shards", "2", *HOT])).start()
        with self.cluster.nodes[0].connect() as node:
            keys = [f"key:{number}" for number in range(KEYS)] + [f"hot:{number}" for number in range(HOT_KEYS)]
            self.slots = sorted({reply.plain() for reply in node.pipeline([("CLUSTER", "KEYSLOT", key) for key in keys])})

    def write_quotas(self, rate: int, broken: bool = False) -> None:
        text = f'[tenants.{TENANT}]\npassword = "{PASSWORD}"\nru_per_second = {rate}\nadmin = true\n' + "nonsense = 1\n" * broken
        beside = self.quotas.with_suffix(".new")
        beside.write_text(text)
        beside.rename(self.quotas)

    @property
    def weirs(self) -> dict[str, Weir]:
        return {"stores": self.plain, "cluster": self.clustered}

    def log_in(self, weir: Weir) -> Connection:
        connection = weir.connect(timeout=ASK_SECONDS)
        if weir is not self.clustered:
            connection.ok("AUTH", TENANT, PASSWORD)
        return connection


@dataclass
class Disturbance:
    """Something that was done: to which weir or its stores, and when."""

    kind: str
    to: str
    began: float
    ended: float = 0.0
    # Clients whose state lies at a store, or at the old weir, may be closed by it.
    closes: bool = False

    def explains(self, moment: float) -> bool:
        return self.closes and self.began <= moment <= self.ended + AFTERMATH_SECONDS


class Disturber:
    """Carries out disturbances."""

    def __init__(self, ground: Ground, seed: int, began: float) -> None:
        self.ground, self.random, self.began = ground, random.Random(seed), began
        self.done: list[Disturbance] = []
        # Each with its weight.
        self.choices: list[tuple[Callable[[], None], int]] = [
            (self.kill_store, 3), (self.stop_store, 3), (self.slow_store, 3), (self.drop_links, 2), (self.reload_quotas, 3),
            (self.refuse_quotas, 1), (self.move_slots, 5), (self.kill_node, 1), (self.stop_node, 2), (self.slow_node, 2),
        ]  # fmt: skip

    def next(self) -> None:
        choice = self.random.choices([choice for choice, _ in self.choices], [weight for _, weight in self.choices])[0]
        choice()

    def begin(self, kind: str, to: str, told: str, closes: bool = False) -> Disturbance:
        found = Disturbance(kind, to, time.monotonic(), closes=closes)
        self.done.append(found)
        print(f"{found.began - self.began:8.1f} s  {told}", file=sys.stderr, flush=True)
        return found

    @staticmethod
    def end(disturbance: Disturbance) -> None:
        disturbance.ended = time.monotonic()

    def lasting(self, least: float, most: float) -> float:
        return round(self.random.uniform(least, most), 2)

    def store(self) -> tuple[int, Redis]:
        number = self.random.randrange(STORES)
        return number, self.ground.stores[number]

    def node(self) -> tuple[int, Redis]:
        number = self.random.randrange(PRIMARIES)
        return number, self.ground.cluster.nodes[number]

    def kill_store(self) -> None:
        number, store = self.store()
        self.kill("stores", f"store {number}", store)

    def kill_node(self) -> None:
        number, node = self.node()
        self.kill("cluster", f"node {number}", node)

    def kill(self, to: str, name: str, server: Redis) -> None:
        seconds = self.lasting(0.2, 3)
        disturbance = self.begin("killed", to, f"{name} is killed for {seconds} s", closes=True)
        server.kill()
        try:
            time.sleep(seconds)
        finally:
            server.start()
        if to == "cluster":
            self.whole()
        self.end(disturbance)

    def whole(self) -> None:
        cluster = self.ground.cluster
        until(lambda: all(cluster.is_whole(node) for node in cluster.nodes), "the cluster is whole", seconds=60)

    def stop_store(self) -> None:
        number, store = self.store()
        self.stop("stores", f"store {number}", store, self.lasting(0.2, 4))

    def stop_node(self) -> None:
        number, node = self.node()
        self.stop("cluster", f"node {number}", node, self.lasting(0.1, 0.7))

    def stop(self, to: str, name: str, server: Redis, seconds: float) -> None:
        disturbance = self.begin("stopped", to, f"{name} is stopped for {seconds} s", closes=True)
        server.signal(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            server.signal(signal.SIGCONT)
        if to == "cluster":
            self.whole()
        self.end(disturbance)

    def slow_store(self) -> None:
        number, store = self.store()
        self.slow("stores", f"store {number}", store)

    def slow_node(self) -> None:
        number, node = self.node()
        self.slow("cluster", f"node {number}", node)

    def slow(self, to: str, name: str, server: Redis) -> None:
        """Again and again it answers nobody for a moment."""
        times, each = self.random.randrange(3, 12), self.lasting(0.02, 0.4)
        disturbance = self.begin("slowed", to, f"{name} sleeps {times} times for {each} s")
        with server.connect(timeout=ASK_SECONDS) as connection:
            for _ in range(times):
                connection.ok("DEBUG", "SLEEP", each)
                time.sleep(each)
        self.end(disturbance)

    def drop_links(self) -> None:
        number, store = self.store()
        disturbance = self.begin("connections closed", "stores", f"store {number} closes all connections", closes=True)
        with store.connect(timeout=ASK_SECONDS) as connection:
            connection.ok("CLIENT", "KILL", "SKIPME", "yes")
        self.end(disturbance)

    def reload_quotas(self) -> None:
        """Most requests are refused for a moment."""
        seconds = self.lasting(0.5, 2)
        disturbance = self.begin("quotas reloaded", "stores", f"quotas of {FEW} RU/s for {seconds} s")
        self.ground.write_quotas(FEW)
        try:
            time.sleep(seconds)
        finally:
            self.ground.write_quotas(PLENTY)
        self.end(disturbance)

    def refuse_quotas(self) -> None:
        disturbance = self.begin("quotas wrong", "stores", "quotas that make no sense")
        self.ground.write_quotas(FEW, broken=True)
        try:
            time.sleep(1)
        finally:
            self.ground.write_quotas(PLENTY)
        self.end(disturbance)

    def move_slots(self) -> None:
        chosen = self.random.sample(self.ground.slots, SLOTS_A_TIME)
        # A call that waits follows its slot; a watch of a key that leaves ends as if the key had changed.
        disturbance = self.begin("slots moved", "cluster", f"{SLOTS_A_TIME} slots move", closes=True)
        cluster = self.ground.cluster
        for slot in chosen:
            owner = cluster.owner(slot)
            cluster.move(slot, self.random.choice([node for node in cluster.nodes if node is not owner]))
        self.end(disturbance)

    def take_over(self) -> None:
        ground = self.ground
        disturbance = self.begin("taken over", "stores", f"weir {len(ground.generations)} is taken over", closes=True)
        ground.plain = take_over(ground.servers, ground.plain, **ground.options)
        ground.generations.append(ground.plain)
        self.end(disturbance)
