"""Edges of the rounds of a collective, for one group of ranks on one cluster.

A collective is a sequence of rounds. In one round every rank sends at most one message and receives at most one
(the one-port model: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
IJHPCA 19(1), 2005, section 2). A round lasts as long as its slowest edge:

    T(round of S bytes) = max over its edges of (alpha + S * beta)

Many edges are equal (every NVLink of a node), so a round keeps only the distinct ones.

Legend: n ranks in the group, L of them on each node, N nodes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import inf
from numbers import Integral

from lablib.cost.arrays import Array, np
from lablib.hardware.checks import check_places
from lablib.hardware.cluster import Cluster, Edge
from lablib.signature import check_type, shown


@dataclass(frozen=True, slots=True)
class Round:
    """Messages in flight at the same time. `edges` holds their distinct edges."""

    edges: tuple[Edge, ...]

    def time_s(self, size_bytes: float) -> float:
        """Seconds for one round of messages of this size."""
        return max((edge.transfer_s(size_bytes) for edge in self.edges), default=0.0)

    def latency_s(self, size_bytes: float) -> float:
        """The alpha in `time_s`: alpha of the slowest edge."""
        if not self.edges:
            return 0.0
        return max(self.edges, key=lambda edge: edge.transfer_s(size_bytes)).latency_s


def round_of(cluster: Cluster, pairs: Iterable[tuple[int, int]]) -> Round:
    """The round in which each pair (from, to) of global ranks exchanges one message."""
    return Round(tuple(dict.fromkeys(cluster.wire(a, b) for a, b in pairs)))


class GroupNetwork:
    """One group of global ranks, in group order, on one cluster; computes each kind of round on first use."""

    def __init__(self, cluster: Cluster, ranks: Sequence[int]):
        check_type("GroupNetwork: cluster", cluster, Cluster)
        check_type("GroupNetwork: ranks", ranks, Sequence)
        for rank in ranks:
            check_places("GroupNetwork: each of ranks", rank)
        self.cluster = cluster
        self.ranks = tuple(ranks)

    @property
    def size(self) -> int:
        return len(self.ranks)

    @cached_property
    def ring(self) -> Round:
        """Every rank sends to the next, the last to the first."""
        return round_of(self.cluster, zip(self.ranks, self.ranks[1:] + self.ranks[:1], strict=True))

    @cached_property
    def tree(self) -> list[Round]:
        """The ceil(log2 n) rounds of a binomial tree: in round k, i + 2^k sends to i, for i a multiple of 2^(k+1)."""
        rounds, stride = [], 1
        while stride < self.size:
            pairs = [(self.ranks[i + stride], self.ranks[i]) for i in range(0, self.size - stride, 2 * stride)]
            rounds.append(round_of(self.cluster, pairs))
            stride *= 2
        return rounds

    @cached_property
    def shifts(self) -> list[tuple[int, Round]]:
        """The n - 1 rounds of a direct exchange, each once: in round k every rank i sends to rank i + k (mod n)."""
        n, ranks = self.size, self.ranks
        return [(1, round_of(self.cluster, ((ranks[i], ranks[(i + k) % n]) for i in range(n)))) for k in range(1, n)]

    @cached_property
    def exchange(self) -> Round:
        """A message of S/n from every rank to every other at once, as the edges of one round of S bytes.

        At each level, inside the node and outside, a rank's messages share its bandwidth: S times the sum of their beta
        over n. The largest alpha counts.
        """
        edges = dict.fromkeys(edge for rank in self.ranks for edge in self._shared(rank))
        return Round(tuple(edges))

    def _shared(self, rank: int) -> Iterator[Edge]:
        to_others = Counter(self.cluster.wire(rank, other) for other in self.ranks if other != rank)
        for level in ("intra", "inter"):
            wires = [(edge, count) for edge, count in to_others.items() if edge.level == level]
            if wires:
                s_per_byte = sum(count / edge.bandwidth_bytes_per_s for edge, count in wires) / self.size
                yield Edge(level, max(edge.latency_s for edge, _ in wires), 1 / s_per_byte if s_per_byte else inf)

    @cached_property
    def pairs(self) -> tuple[Array, Array, Array]:
        """alpha (s), beta (s/B), and whether it is inside a node, of the edge from each rank to each: [n, n] each."""
        edges = [[self.cluster.wire(a, b) for b in self.ranks] for a in self.ranks]
        return (
            np.array([[edge.latency_s for edge in row] for row in edges]),
            np.array([[1 / edge.bandwidth_bytes_per_s for edge in row] for row in edges]),
            np.array([[edge.level == "intra" for edge in row] for row in edges]),
        )

    @cached_property
    def by_node(self) -> list[tuple[int, ...]]:
        """The group's ranks node by node, in group order."""
        nodes: dict[int, list[int]] = {}
        for rank in self.ranks:
            nodes.setdefault(self.cluster.node(rank), []).append(rank)
        return [tuple(members) for members in nodes.values()]

    @cached_property
    def local(self) -> int:
        """L, if the group fills two or more nodes with the same number (two or more) of ranks each; otherwise 1."""
        counts = {len(members) for members in self.by_node}
        return counts.pop() if len(self.by_node) > 1 and len(counts) == 1 else 1

    @property
    def is_one_node(self) -> bool:
        """Whether one node holds all of its ranks."""
        return len(self.by_node) == 1

    @cached_property
    def inside(self) -> Round:
        """The rings of all nodes at once."""
        return _at_once(node.ring for node in self.nodes)

    @cached_property
    def nodes(self) -> "tuple[GroupNetwork, ...]":
        """One network per node."""
        return tuple(GroupNetwork(self.cluster, members) for members in self.by_node)

    @cached_property
    def rails(self) -> "tuple[GroupNetwork, ...]":
        """One network for the ranks in the same place on their nodes (a "rail": each has its own NICs)."""
        return tuple(GroupNetwork(self.cluster, members) for members in zip(*self.by_node, strict=True))

    @cached_property
    def switches(self) -> Round:
        """Every rank and the switch of its node, which adds the ranks' data (nvls.py).

        A rank's link into the switch is as fast as its link to another rank; one slow link slows all sums.
        """
        intra = self.cluster.intra
        assert intra.nvls_latency_s is not None
        alpha = intra.nvls_latency_s
        links = _at_once(step for node in self.nodes for _, step in node.shifts)
        return Round(tuple(replace(edge, latency_s=edge.latency_s - intra.latency_s + alpha) for edge in links.edges))

    def to_root(self, root: int) -> list[Round]:
        """The edges between group rank `root` and each other rank. Raises ValueError for a root outside the group."""
        check_places("root", root)
        if root >= self.size:
            raise ValueError(f"root is a group rank, 0 to {self.size - 1}: got {root}; give one of those")
        ranks = enumerate(self.ranks)
        return [Round((self.cluster.wire(self.ranks[root], rank),)) for i, rank in ranks if i != root]

    def from_root(self, root: int) -> "GroupNetwork":
        """The same group, numbered from the root. ValueError: no such group rank."""
        if isinstance(root, bool) or not isinstance(root, Integral) or not 0 <= root < len(self.ranks):
            raise ValueError(f"root must be a place in the group, 0 to {len(self.ranks) - 1}: got {shown(root)}; try 0")
        return self if root == 0 else GroupNetwork(self.cluster, self.ranks[root:] + self.ranks[:root])


def _at_once(rounds: Iterable[Round]) -> Round:
    """Rounds of different ranks as one."""
    return Round(tuple(dict.fromkeys(edge for each in rounds for edge in each.edges)))


@lru_cache(maxsize=64)
def network_of(cluster: Cluster, ranks: int) -> GroupNetwork:
    """The group of the first `ranks` ranks; kept, as its rounds serve every size."""
    return GroupNetwork(cluster, range(ranks))
