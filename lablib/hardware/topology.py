"""Network topologies: switches that a message passes, and share of bandwidth under full load.

Each topology has two functions of a pair of nodes: `hops(a, b)`, the switches (or, in a torus, routers) that the
message passes, each of which adds its latency to alpha; and `taper(a, b)`, the share of the wire's bandwidth that a
pair keeps when all pairs send at once, which divides beta.

    fat tree     leaves, pods, core.  1 switch under one leaf, 3 within a pod, 5 across pods.
                 Leiserson, "Fat-Trees", IEEE Trans. Computers C-34 (1985); Al-Fares et al., SIGCOMM 2008.
    dragonfly    routers in all-to-all groups, groups all-to-all by long links: 1, 2 or 4 routers on a minimal route
                 (source, gateway, gateway, destination).  Kim et al., ISCA 2008.
    torus        a grid with wrapped edges: the ring distance summed over the dimensions.
                 Jouppi et al., "TPU v4", ISCA 2023, arXiv 2304.01433.

Simplified: minimal routes, no adaptive routing; congestion is the constant taper, not the current traffic.
"""

from dataclasses import dataclass
from math import prod
from typing import Annotated, Protocol

from lablib.hardware.checks import Seconds, check_places
from lablib.signature import Checked, Count, PositiveFraction, Range


class Topology(Protocol):
    """Interface of a cluster's network. Nodes are numbered from 0."""

    @property
    def name(self) -> str: ...

    @property
    def switch_latency_s(self) -> float: ...

    def hops(self, node_a: int, node_b: int) -> int:
        """Switches passed between two different nodes. Raises ValueError for an invalid node."""
        ...

    def taper(self, node_a: int, node_b: int) -> float:
        """Share of the wire's bandwidth in (0, 1] that this pair keeps under full load."""
        ...


@dataclass(frozen=True)
class FatTree(Checked):
    """Three levels of switches. `oversubscription` 2.0 means: half the uplinks that a full bisection would have."""

    nodes_per_leaf: Count = 16
    leaves_per_pod: Count = 16
    oversubscription: Annotated[float, Range(ge=1), "1 is full bisection"] = 1.0
    switch_latency_s: Seconds = 150e-9
    name: str = "fat tree"

    def hops(self, node_a: int, node_b: int) -> int:
        check_places("a node", node_a, node_b)
        if node_a // self.nodes_per_leaf == node_b // self.nodes_per_leaf:
            return 1
        pod = self.nodes_per_leaf * self.leaves_per_pod
        return 3 if node_a // pod == node_b // pod else 5

    def taper(self, node_a: int, node_b: int) -> float:
        return 1.0 if self.hops(node_a, node_b) == 1 else 1.0 / self.oversubscription


@dataclass(frozen=True)
class Dragonfly(Checked):
    """Groups of routers, all-to-all inside and between. `global_taper` is the share of bandwidth of the long links."""

    nodes_per_router: Count = 4
    routers_per_group: Count = 8
    global_taper: PositiveFraction = 0.5
    switch_latency_s: Seconds = 150e-9
    name: str = "dragonfly"

    def hops(self, node_a: int, node_b: int) -> int:
        check_places("a node", node_a, node_b)
        if node_a // self.nodes_per_router == node_b // self.nodes_per_router:
            return 1
        group = self.nodes_per_router * self.routers_per_group
        return 2 if node_a // group == node_b // group else 4

    def taper(self, node_a: int, node_b: int) -> float:
        return self.global_taper if self.hops(node_a, node_b) == 4 else 1.0


@dataclass(frozen=True)
class Torus(Checked):
    """A wrapped grid of `shape` nodes, in row-major order. Neighbours have a wire between them; others share wires."""

    shape: tuple[Count, ...] = (4, 4, 4)
    switch_latency_s: Seconds = 100e-9
    name: str = "torus"

    def coordinates(self, node: int) -> tuple[int, ...]:
        """Position of a node on the grid. Raises ValueError when the grid has no such node."""
        check_places("node", node)
        position, rest = [], node
        for extent in reversed(self.shape):
            position.append(rest % extent)
            rest //= extent
        if rest:
            size = f"a torus of shape {self.shape} has {prod(self.shape)} nodes"
            raise ValueError(f"{size}: node {node} is outside; give a larger shape")
        return tuple(reversed(position))

    def hops(self, node_a: int, node_b: int) -> int:
        pairs = zip(self.coordinates(node_a), self.coordinates(node_b), self.shape, strict=True)
        return sum(min(abs(a - b), extent - abs(a - b)) for a, b, extent in pairs)

    def taper(self, node_a: int, node_b: int) -> float:
        # Every pair at distance d uses d wires, so at full load each wire carries d messages.
        return 1.0 / max(1, self.hops(node_a, node_b))
