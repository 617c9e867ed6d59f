"""Wires of a transfer, and the transfers that share a wire.

A rank has four wires: into and out of its node's interconnect ("intra"), and into and out of its NIC ("inter"). A
message from a to b uses the output of a and the input of b, at the level between them; a collective uses the wires of
every message of its algorithm (lablib/cost/routes.py).

Simplified: a collective is on all its wires from its first byte to its last and counts fully on each, though a ring
across nodes leaves most of the wires inside them idle. An all-to-all is on the wires of all its ranks, at every level
at which it has bytes to move, though some ranks may have none.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable

from lablib.cost.network import GroupNetwork
from lablib.cost.routes import routes
from lablib.hardware.cluster import Cluster

Pair = tuple[int, int]


def collective_wires(kind: str, algorithm: str, net: GroupNetwork, root: int = 0) -> frozenset[Hashable]:
    """The wires of one collective. `kind` and `algorithm` as in the cost model, `root` a group rank."""
    if kind == "all_to_all":
        return level_wires(net)  # the wires of its n (n - 1) messages
    return pair_wires(net.cluster, routes(kind, algorithm, net, 1.0, root))


def pair_wires(cluster: Cluster, pairs: Iterable[Pair]) -> frozenset[Hashable]:
    """The wires of messages between these pairs (from, to) of global ranks."""
    wires = set()
    for sender, receiver in pairs:
        if sender != receiver:
            level = "intra" if cluster.node(sender) == cluster.node(receiver) else "inter"
            wires |= {(sender, level, "out"), (receiver, level, "in")}
    return frozenset(wires)


def level_wires(net: GroupNetwork, levels: Collection[str] = ("intra", "inter")) -> frozenset[Hashable]:
    """The wires of messages from every rank to every other, at these levels."""
    return frozenset(
        (rank, level, way)
        for members in net.by_node
        for rank in members
        for level, has_others in (("intra", len(members) > 1), ("inter", len(net.by_node) > 1))
        if has_others and level in levels
        for way in ("in", "out")
    )


class WireSets:
    """Sets of wires by number, with cached results."""

    def __init__(self) -> None:
        self._sets: list[frozenset[Hashable]] = []
        self._number: dict[frozenset[Hashable], int] = {}
        self._users: dict[Hashable, list[int]] = {}  # by wire: the sets that contain it
        self._rivals: list[set[int]] = []
        self._loads: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}

    def number(self, wires: frozenset[Hashable]) -> int:
        """The number of this set; equal sets have the same number."""
        if wires in self._number:
            return self._number[wires]
        number = self._number[wires] = len(self._sets)
        self._sets.append(wires)
        for wire in wires:
            self._users.setdefault(wire, []).append(number)
        rivals = {number}.union(*(self._users[wire] for wire in wires))
        self._rivals.append(rivals)
        for rival in rivals:
            self._rivals[rival].add(number)
        return number

    def rivals(self, number: int) -> set[int]:
        """The sets that share a wire with this one, including itself."""
        return self._rivals[number]

    def load(self, number: int, flows: tuple[tuple[int, int], ...]) -> int:
        """The number of flows on the fullest wire of a set.

        Args:
            number: the set.
            flows: (set, number of flows that use it), sorted, for every set under way that shares a wire with it.
        """
        key = (number, flows)
        if key not in self._loads:
            own, count = self._sets[number], Counter()
            for other, num_flows in flows:
                for wire in self._sets[other] & own:
                    count[wire] += num_flows
            self._loads[key] = max(count.values())
        return self._loads[key]
