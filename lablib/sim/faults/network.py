"""A network with slow links and links that are down: `SlowLink` and `DropLink`.

On a slow link a message of S bytes takes alpha + latency_s + S * beta * factor. Every round of a collective lasts as
long as its slowest edge, so one bad cable on a ring slows all of it:

    ring all-reduce of n ranks = 2 (n-1) (alpha + S/n beta factor)

The algorithm is chosen on the healthy network (NCCL's tuner uses nominal figures), and its cost is computed on the slow
one.

A link that is down takes infinite time: a collective needs the link if its cost is then infinite.

Simplified: inside "hierarchical", each rail picks ring or tree by the network as it is, and avoids a link that is down.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

from lablib.cost import CollectiveCost, GroupNetwork, collective_cost, exchange_cost
from lablib.faults import DropLink, SlowLink
from lablib.hardware.cluster import Cluster, Edge


@dataclass(frozen=True)
class DamagedCluster(Cluster):
    """A cluster with slow wires. `felt` collects the faults that slowed a requested wire."""

    slow: tuple[SlowLink, ...] = ()
    felt: set[SlowLink] = field(default_factory=set, compare=False)

    def wire(self, rank_a: int, rank_b: int) -> Edge:
        edge = super().wire(rank_a, rank_b)
        for link in self.slow:
            if _is_on(link, self, edge.level, rank_a, rank_b):
                self.felt.add(link)
                edge = replace(
                    edge,
                    latency_s=edge.latency_s + link.latency_s,
                    bandwidth_bytes_per_s=edge.bandwidth_bytes_per_s / link.factor,
                )
        return edge


@dataclass(frozen=True)
class CutCluster(Cluster):
    """A cluster on which the wire between two ranks takes infinite time."""

    cut: frozenset[int] = frozenset()

    def wire(self, rank_a: int, rank_b: int) -> Edge:
        edge = super().wire(rank_a, rank_b)
        return replace(edge, latency_s=inf) if {rank_a, rank_b} == self.cut else edge


class FaultyNetwork:
    """The cost of communication on a damaged cluster, and the dropped links that it needs."""

    def __init__(self, healthy: Cluster, slow: Sequence[SlowLink], dropped: Sequence[DropLink]):
        self._healthy = healthy
        self._dropped = tuple(dropped)
        self._needs: dict[tuple, tuple[DropLink, ...]] = {}
        self.cluster = _as(DamagedCluster, healthy, slow=tuple(slow)) if slow else healthy

    def cost(self, name: str, size_bytes: float, net: GroupNetwork, root: int = 0) -> CollectiveCost:
        """Cost of a collective on the damaged cluster, by the algorithm that is best on the healthy one."""
        if self.cluster is self._healthy or net.size == 1:
            return collective_cost(name, size_bytes, net, root=root)
        nominal = collective_cost(name, size_bytes, GroupNetwork(self._healthy, net.ranks), root=root)
        return collective_cost(name, size_bytes, net, nominal.algorithm, root)

    def exchange_cost(self, size_bytes: np.ndarray, net: GroupNetwork) -> CollectiveCost:
        """Cost of an all-to-all with messages of different sizes, by the same rule."""
        nominal = exchange_cost(size_bytes, GroupNetwork(self._healthy, net.ranks))
        return exchange_cost(size_bytes, net, "auto" if net.size == 1 else nominal.algorithm)

    def needs(self, name: str, algorithm: str, ranks: tuple[int, ...], root: int) -> tuple[DropLink, ...]:
        """The dropped links that a collective crosses. Two ranks and "send": the wire between them."""
        key = (name, algorithm, ranks, root)
        if key not in self._needs:
            members = set(ranks)
            links = (link for link in self._dropped if {link.a, link.b} <= members)
            self._needs[key] = tuple(link for link in links if self._crosses(link, *key))
        return self._needs[key]

    def _crosses(self, link: DropLink, name: str, algorithm: str, ranks: tuple[int, ...], root: int) -> bool:
        if name == "send":
            return True
        cut = _as(CutCluster, self._healthy, cut=frozenset({link.a, link.b}))
        return collective_cost(name, 1.0, GroupNetwork(cut, ranks), algorithm, root).time_s == inf


def _is_on(link: SlowLink, cluster: Cluster, level: str, rank_a: int, rank_b: int) -> bool:
    """Whether a fault affects the wire between two ranks."""
    if link.level not in (None, level) or rank_a == rank_b:
        return False
    if link.node is not None:
        return level == "inter" and link.node in (cluster.node(rank_a), cluster.node(rank_b))
    if link.b is not None:
        return {link.a, link.b} == {rank_a, rank_b}
    return link.a in (rank_a, rank_b)


def _as(kind: type[Cluster], cluster: Cluster, **more: Any) -> Cluster:
    fields: dict[str, Any] = {name: getattr(cluster, name) for name in Cluster.__dataclass_fields__}
    return kind(**fields, **more)
