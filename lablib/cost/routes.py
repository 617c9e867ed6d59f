"""Bytes from each rank to each other rank in a collective, by algorithm, in global ranks.

The bytes that leave a rank by its routes add up to its `sent_bytes` in `collective_cost`.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from lablib.cost.algorithms import Algorithm
from lablib.cost.collective import fastest
from lablib.cost.collectives import COLLECTIVES
from lablib.cost.network import GroupNetwork

Routes = dict[tuple[int, int], float]


@dataclass(frozen=True, slots=True)
class Route:
    """One collective with routes that are computed on demand: `route()`. Equal ones have equal routes."""

    name: str  # name, algorithm, size_bytes, root: as in `collective_cost`
    algorithm: str
    network: GroupNetwork  # its group on its cluster
    size_bytes: float
    root: int = 0

    def __call__(self) -> Routes:
        return routes(self.name, self.algorithm, self.network, self.size_bytes, self.root)


def routes(name: str, algorithm: str, net: GroupNetwork, size_bytes: float, root: int = 0) -> Routes:
    """The bytes that each rank sends to each other one; pairs without traffic are left out.

    Args:
        name, algorithm: as `collective_cost` returned them; "none" for a group of one rank.
        net: the group on its cluster.
        size_bytes: S of algorithms.py's legend.
        root: group rank of the root, if there is one.

    Returns:
        (from, to) -> bytes, both global ranks.
    """
    if net.size == 1:
        return {}
    row = COLLECTIVES[name]
    known = (*row.algorithms, *row.in_the_switch, *row.libraries.values())
    total: Routes = defaultdict(float)
    for a, b, sent in _messages(next(each for each in known if each.name == algorithm), net, size_bytes, root):
        if sent:
            total[a, b] += sent
    return dict(total)


def _messages(algorithm: Algorithm, net: GroupNetwork, size: float, root: int) -> Iterator[tuple[int, int, float]]:
    """(from, to, bytes), global ranks."""
    for part in net.nodes if algorithm.across else (net,):
        for a, b, sent in algorithm.messages(part.size, size, root):
            yield part.ranks[a], part.ranks[b], sent
    for rail in net.rails if algorithm.across else ():
        shard = size / net.local
        chosen = fastest(algorithm.across, rail, shard).algorithm
        flat = next(each for each in algorithm.across if each.name == chosen)
        yield from _messages(flat, rail, shard, 0)
