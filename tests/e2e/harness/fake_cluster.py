"""Several weir-storages that look like one Redis Cluster. They do not talk to each other; each reports the view that a test
gives it.
"""

from __future__ import annotations

from .processes import Storage
from .resp import Connection

SLOTS = 16_384


class FakeCluster:
    """A made-up cluster: primaries with equal ranges of slots, followed by replicas of the first primaries in order."""

    def __init__(self, nodes: list[Storage], replicas: int = 0) -> None:
        self.nodes = nodes
        primaries = len(nodes) - replicas
        self.primary_of: list[int | None] = [None] * primaries + [place % primaries for place in range(replicas)]
        self.owner = [slot * primaries // SLOTS for slot in range(SLOTS)]
        self.epochs = [place + 1 for place in range(primaries)]
        # Slots that are moving, each with its source and its target.
        self.open: dict[int, tuple[int, int]] = {}

    def id(self, node: int) -> str:
        return f"{node:040x}"

    def view(self, node: int) -> str:
        """Returns this node's view for CLUSTER NODES."""
        lines = []
        for place, server in enumerate(self.nodes):
            primary = self.primary_of[place]
            flags = ("myself," if place == node else "") + ("master" if primary is None else "slave")
            copied = "-" if primary is None else self.id(primary)
            epoch = self.epochs[place if primary is None else primary]
            slots = self._ranges(place)
            if place == node:
                slots += [f"[{slot}->-{self.id(to)}]" for slot, (source, to) in self.open.items() if source == node]
                slots += [f"[{slot}-<-{self.id(source)}]" for slot, (source, to) in self.open.items() if to == node]
            words = [self.id(place), f"{server.address}@{server.port}", flags, copied, "0", "0", str(epoch), "connected"]
            lines.append(" ".join(words + slots))
        return "\n".join(lines) + "\n"

    def tell(self, *nodes: int) -> None:
        """Gives these nodes (all nodes if none is named) the present view of the cluster."""
        for node in nodes or range(len(self.nodes)):
            with self.nodes[node].connect() as operator:
                operator.ok("STORAGE", "CLUSTER", "NODES", self.view(node))

    def move(self, slot: int, to: int) -> None:
        """Gives a slot a new owner, with the highest epoch. Nodes do not know of it before `tell`."""
        self.epochs[to] = max(self.epochs) + 1
        self.owner[slot] = to
        self.open.pop(slot, None)

    def refuse(self, node: int, *words: object) -> None:
        with self.nodes[node].connect() as operator:
            operator.ok("STORAGE", "CLUSTER", "REFUSE", *words)

    def refusals(self, node: int) -> int:
        """Returns the number of requests that this node refused because of the cluster (redirects and the like)."""
        with self.nodes[node].connect(protocol=3) as operator:
            return operator.ok("STORAGE", "STATS")[b"cluster_refusals"]

    def asking(self, node: int) -> Connection:
        """Returns a connection to the node on which ASKING was sent."""
        connection = self.nodes[node].connect()
        connection.ok("ASKING")
        return connection

    def _ranges(self, node: int) -> list[str]:
        owned = [slot for slot in range(SLOTS) if self.primary_of[node] is None and self.owner[slot] == node]
        ranges: list[list[int]] = []
        for slot in owned:
            if ranges and ranges[-1][1] == slot - 1:
                ranges[-1][1] = slot
            else:
                ranges.append([slot, slot])
        return [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
