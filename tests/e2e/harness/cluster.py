"""A real Redis Cluster: primaries and replicas, slots that move with their keys, nodes that die."""

from __future__ import annotations

from .ports import free_port
from .processes import Redis
from .resp import Closed, Reply
from .waiting import until

SLOTS = 16_384
# cluster-node-timeout: the silence after which nodes take another node for dead.
NODE_TIMEOUT_MS = 1_000


class Cluster:
    """A cluster: the first `primaries` nodes share the slots, and each further node replicates one of them."""

    def __init__(self, servers, primaries: int = 3, replicas: int = 0, options: list[str] | None = None) -> None:
        self.bus_ports: dict[int, int] = {}
        self.options = options or []
        self.nodes: list[Redis] = [self._start(servers) for _ in range(primaries + replicas)]
        self.primaries = self.nodes[:primaries]
        self._unite()

    def _unite(self) -> None:
        first, primaries = self.nodes[0], len(self.primaries)
        for number, node in enumerate(self.nodes):
            self.call(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            self.call(first, "CLUSTER", "MEET", "127.0.0.1", node.port, self.bus_ports[node.port])
        for number, node in enumerate(self.primaries):
            begin, end = SLOTS * number // primaries, SLOTS * (number + 1) // primaries - 1
            self.call(node, "CLUSTER", "ADDSLOTSRANGE", begin, end)
        until(lambda: all(self._sees_all(node) for node in self.nodes), "nodes know each other")
        for number, node in enumerate(self.nodes[primaries:]):
            self.call(node, "CLUSTER", "REPLICATE", self.id_of(self.primaries[number % primaries]))
        until(lambda: all(self.is_whole(node) for node in self.nodes), "the cluster is whole")

    def set_up_anew(self) -> None:
        """Kills all nodes and starts new ones at the same addresses, which form a cluster of their own."""
        for node in self.nodes:
            node.kill()
        for node in self.nodes:
            (node.folder / "nodes.conf").unlink()
            node.start()
        # Each new primary owns other slots than the old node at its address.
        self.primaries.reverse()
        self._unite()

    def _start(self, servers) -> Redis:
        bus = free_port()
        node = servers.redis(*self._options(bus), *self.options)
        self.bus_ports[node.port] = bus
        return node

    @staticmethod
    def _options(bus: int) -> list[str]:
        return [
            "--cluster-enabled",
            "yes",
            "--cluster-port",
            str(bus),
            "--cluster-node-timeout",
            str(NODE_TIMEOUT_MS),
            "--cluster-replica-validity-factor",
            "0",
            "--repl-diskless-sync-delay",
            "0",
        ]

    @property
    def storage(self) -> str:
        return "cluster://" + ",".join(node.address for node in self.nodes[:2])

    @staticmethod
    def call(node: Redis, *words) -> Reply:
        with node.connect() as connection:
            reply = connection.call(*words)
        assert not reply.is_error, f"{words} on {node.address}: {reply.text}"
        return reply

    def id_of(self, node: Redis) -> str:
        return self.call(node, "CLUSTER", "MYID").text

    def _sees_all(self, node: Redis) -> bool:
        return len(self.call(node, "CLUSTER", "NODES").text.splitlines()) == len(self.nodes)

    def info(self, node: Redis) -> str:
        return self.call(node, "CLUSTER", "INFO").text

    def is_whole(self, node: Redis) -> bool:
        try:
            roles = self.call(node, "INFO", "replication").text
            settled = "role:master" in roles or "master_link_status:up" in roles
            return settled and "cluster_state:ok" in self.info(node)
        except (OSError, Closed):
            return False

    def owner(self, slot: int) -> Redis:
        ports = {node.port: node for node in self.nodes}
        for begin, end, place, *_ in self.call(self._alive(), "CLUSTER", "SLOTS").plain():
            if begin <= slot <= end:
                return ports[place[1]]
        raise AssertionError(f"nobody owns {slot}")

    def _alive(self) -> Redis:
        return next(node for node in self.nodes if not node.exited())

    def begin_move(self, slot: int, target: Redis) -> Redis:
        """Begins to move a slot to `target` without moving keys, and returns the slot's owner."""
        source = self.owner(slot)
        assert source is not target
        self.call(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        self.call(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))
        return source

    def move_keys(self, slot: int, source: Redis, target: Redis, most: int = 1_000, database: int = 0) -> int:
        """Moves at most `most` keys of the slot, and returns their number."""
        with source.connect() as connection:
            connection.ok("SELECT", database)
            keys = connection.ok("CLUSTER", "GETKEYSINSLOT", slot, most)
        if keys:
            # While nodes miss each other's messages on a busy machine, the target refuses keys.
            until(lambda: self._migrates(source, target, keys, database), "the target takes the keys", seconds=60)
        return len(keys)

    @staticmethod
    def _migrates(source: Redis, target: Redis, keys: list[bytes], database: int) -> bool:
        with source.connect() as connection:
            connection.ok("SELECT", database)
            reply = connection.call("MIGRATE", "127.0.0.1", target.port, "", database, 5_000, "KEYS", *keys)
        assert not reply.is_error or "CLUSTERDOWN" in reply.text, reply
        return not reply.is_error

    def end_move(self, slot: int, source: Redis, target: Redis, databases: tuple[int, ...] = (0,)) -> None:
        for database in databases:
            while self.move_keys(slot, source, target, database=database):
                pass
        for node in (target, source, *(other for other in self.nodes if other not in (source, target))):
            with node.connect() as connection:
                # Replicas learn of the new owner from their primaries.
                connection.call("CLUSTER", "SETSLOT", slot, "NODE", self.id_of(target))
        # A node that takes a slot over chooses the next epoch that it knows of. Two nodes that choose the same one would
        # disagree.
        until(lambda: len(self._epochs()) == 1, "nodes have heard of the newest epoch")

    def _epochs(self) -> set[str]:
        told = [self.info(node) for node in self.nodes if not node.exited()]
        return {line for each in told for line in each.splitlines() if line.startswith("cluster_current_epoch:")}

    def move(self, slot: int, target: Redis, databases: tuple[int, ...] = (0,)) -> None:
        """Moves a whole slot to another node, with its keys in these databases."""
        source = self.begin_move(slot, target)
        self.end_move(slot, source, target, databases)

    def move_at_once(self, first: int, last: int, target: Redis) -> None:
        """Moves a range of slots of one node with all keys in one step (Valkey 9)."""
        source = self.owner(first)
        assert source is not target
        self.call(source, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", first, last, "NODE", self.id_of(target))
        owners = lambda: [self.owner(slot) for slot in (first, last)]  # noqa: E731
        until(lambda: owners() == [target, target], "the slots have moved", seconds=60)
