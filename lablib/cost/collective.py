"""What a collective costs: seconds, and the bytes each rank really sends, by algorithm.

Legend: n ranks; S bytes (the whole tensor; for gather-like operations the n shards together); alpha, 1/beta of the
slowest edge of a round (see network.py); L ranks on each of N nodes.

    all_reduce      ring            2 (n-1) (alpha + S/n beta)                       sent 2 (n-1)/n S
                    tree            2 ceil(log2 n) (alpha + S beta)                  sent S up, S for each child down
                    hierarchical    reduce-scatter in the node, all-reduce of S/L across nodes, all-gather in the node
                    nvls, nvls-tree in the switch, where the cluster has and uses that: nvls.py
    all_gather,     ring            (n-1) (alpha + S/n beta)                         sent (n-1)/n S
    reduce_scatter  hierarchical    the same across nodes on every rail at once, and in the node
    broadcast,      tree            ceil(log2 n) (alpha + S beta)
    reduce          scatter-gather  scatter by halves + ring all-gather:  (ceil(log2 n) + n-1) alpha + 2 (n-1)/n S beta
    gather, scatter direct          the root's messages one after another:  sum over peers of (alpha + S/n beta)
    all_to_all      direct          n-1 rounds of a shifted exchange:  sum over rounds of (alpha + S/n beta)
    barrier         tree            an all-reduce of nothing: 2 ceil(log2 n) alpha

To each the cluster's `collective_overhead_s` is added once. "auto" takes the fastest, as a communication library's
tuner does, or what the cluster's library has instead (library.py).

Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1),
2005, sections 4 to 4.6; Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 69(2), 2009 (ring).
Simplified: one ring, through one NIC of each node, and one tree of whole messages. NCCL runs several rings at once over
all NICs of a node (what "hierarchical" makes of them), and double binary trees whose chunks are pipelined (Sanders,
Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35(12), 2009),
which move large tensors nearly as fast as rings do. No reduction arithmetic. One collective at a time: what concurrent
ones do to each other is for whoever knows when they run (lablib/engine/network.py).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, log2

from lablib.cost.network import GroupNetwork, Round
from lablib.errors import unknown_name
from lablib.hardware.cluster import Edge
from lablib.signature import check_types


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """What one collective costs: `time_s = latency_s + transfer_s`.

    Attributes:
        algorithm: the one that was used.
        time_s: seconds from the moment the last rank has joined.
        sent_bytes: bytes that leave each rank, in group order.
        latency_s: the part of `time_s` that no bandwidth shortens: the call, and alpha of the slowest edge of each
            round.
        route: who sends how much to whom, worked out when called (routes.py); None where nobody asked for it.
    """

    algorithm: str
    time_s: float
    sent_bytes: tuple[float, ...]
    latency_s: float = 0.0
    route: Callable[[], Mapping[tuple[int, int], float]] | None = field(default=None, compare=False, repr=False)

    @property
    def transfer_s(self) -> float:
        """The part of `time_s` in which bytes move: it grows when a link is shared."""
        return self.time_s - self.latency_s


Algorithm = Callable[[GroupNetwork, float, int], CollectiveCost]


def _same(n: int, sent: float) -> tuple[float, ...]:
    return (sent,) * n


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rounds one after another: their seconds, and how many of these are alpha."""

    time_s: float
    latency_s: float

    def __add__(self, other: "_Part") -> "_Part":
        return _Part(self.time_s + other.time_s, self.latency_s + other.latency_s)

    def times(self, n: int) -> "_Part":
        return _Part(n * self.time_s, n * self.latency_s)


_NOTHING = _Part(0.0, 0.0)


def _part(step: Round | Edge, size_bytes: float) -> _Part:
    if isinstance(step, Edge):
        return _Part(step.transfer_s(size_bytes), step.latency_s)
    return _Part(step.time_s(size_bytes), step.latency_s(size_bytes))


def _in_turn(steps: Iterable[Round | Edge], size_bytes: float) -> _Part:
    """One round of this size after another."""
    return sum((_part(step, size_bytes) for step in steps), _NOTHING)


def _slowest(parts: Iterable[_Part]) -> _Part:
    """Parts that run at the same time: the last to end counts."""
    return max(parts, key=lambda part: part.time_s)


def _cost(algorithm: str, part: _Part, sent_bytes: tuple[float, ...]) -> CollectiveCost:
    return CollectiveCost(algorithm, part.time_s, sent_bytes, part.latency_s)


def ring_all_reduce(net: GroupNetwork, size_bytes: float, root: int = 0) -> CollectiveCost:
    n = net.size
    part = _part(net.ring, size_bytes / n).times(2 * (n - 1))
    return _cost("ring", part, _same(n, 2 * (n - 1) / n * size_bytes))


def tree_all_reduce(net: GroupNetwork, size_bytes: float, root: int = 0) -> CollectiveCost:
    sent = [size_bytes * (_tree_children(i, net.size) + (i > 0)) for i in range(net.size)]
    return _cost("tree", _in_turn(net.tree, size_bytes).times(2), tuple(sent))


def hierarchical_all_reduce(net: GroupNetwork, size_bytes: float, root: int = 0) -> CollectiveCost:
    local = len(net.by_node[0])
    inside = _slowest(_part(node.ring, size_bytes / local) for node in net.nodes).times(2 * (local - 1))
    across = rails_all_reduce(net, size_bytes)
    sent = tuple(2 * (local - 1) / local * size_bytes + outside for outside in across.sent_bytes)
    return _cost("hierarchical", inside + _Part(across.time_s, across.latency_s), sent)


def rails_all_reduce(net: GroupNetwork, size_bytes: float) -> CollectiveCost:
    """The part of an all-reduce across nodes: S/L bytes on every rail at once, by the faster of ring and tree."""
    shard = size_bytes / len(net.by_node[0])
    rails = [min((ring_all_reduce(r, shard), tree_all_reduce(r, shard)), key=lambda c: c.time_s) for r in net.rails]
    across = _slowest(_Part(cost.time_s, cost.latency_s) for cost in rails)
    # The rails' ranks, back in group order.
    sent = {
        rank: sent
        for r, cost in zip(net.rails, rails, strict=True)
        for rank, sent in zip(r.ranks, cost.sent_bytes, strict=True)
    }
    return _cost("rails", across, tuple(sent[rank] for rank in net.ranks))


def ring_gather(net: GroupNetwork, size_bytes: float, root: int = 0) -> CollectiveCost:
    """All-gather and, run backwards, reduce-scatter."""
    n = net.size
    return _cost("ring", _ring_gather(net, size_bytes), _same(n, (n - 1) / n * size_bytes))


def _ring_gather(net: GroupNetwork, size_bytes: float) -> _Part:
    return _part(net.ring, size_bytes / net.size).times(net.size - 1)


def hierarchical_gather(net: GroupNetwork, size_bytes: float, root: int = 0) -> CollectiveCost:
    """Every rail gathers across nodes at once (S/L bytes each), then every node gathers inside."""
    n, local = net.size, len(net.by_node[0])
    across = _slowest(_ring_gather(rail, size_bytes / local) for rail in net.rails)
    inside = _slowest(_part(node.ring, size_bytes / local) for node in net.nodes).times(local - 1)
    num_nodes = n // local
    sent = (num_nodes - 1) / num_nodes * size_bytes / local + (local - 1) / local * size_bytes
    return _cost("hierarchical", across + inside, _same(n, sent))


def tree_broadcast(net: GroupNetwork, size_bytes: float, root: int = 0) -> CollectiveCost:
    sent = [size_bytes * _tree_children((i - root) % net.size, net.size) for i in range(net.size)]
    return _cost("tree", _in_turn(_rooted(net, root).tree, size_bytes), tuple(sent))


def tree_reduce(net: GroupNetwork, size_bytes: float, root: int = 0) -> CollectiveCost:
    """A broadcast backwards: every rank but the root sends once."""
    sent = tuple(0.0 if i == root else size_bytes for i in range(net.size))
    return _cost("tree", _in_turn(_rooted(net, root).tree, size_bytes), sent)


def scatter_gather_broadcast(net: GroupNetwork, size_bytes: float, root: int = 0) -> CollectiveCost:
    """Scatter down the tree (half of what is left at each round), then a ring all-gather."""
    n, rooted = net.size, _rooted(net, root)
    scatter = sum((_part(step, size_bytes * min(2**k, n - 2**k) / n) for k, step in enumerate(rooted.tree)), _NOTHING)
    # A tree node passes on the shards of its whole subtree but its own.
    passed_on = [_subtree((i - root) % n, n) - 1 for i in range(n)]
    own = (n - 1) / n * size_bytes
    sent = tuple(size_bytes * shards / n + own for shards in passed_on)
    return _cost("scatter-gather", scatter + _ring_gather(net, size_bytes), sent)


def scatter_gather_reduce(net: GroupNetwork, size_bytes: float, root: int = 0) -> CollectiveCost:
    """The broadcast backwards: a ring reduce-scatter, then the shards climb the tree. The bytes turn around too."""
    n = net.size
    broadcast = scatter_gather_broadcast(net, size_bytes, root)
    # A tree node hands its parent the shards of its whole subtree; the root keeps them.
    handed_up = [0 if i == root else _subtree((i - root) % n, n) for i in range(n)]
    own = (n - 1) / n * size_bytes
    return replace(broadcast, sent_bytes=tuple(size_bytes * shards / n + own for shards in handed_up))


def direct_scatter(net: GroupNetwork, size_bytes: float, root: int = 0) -> CollectiveCost:
    shard = size_bytes / net.size
    sent = tuple(shard * (net.size - 1) if i == root else 0.0 for i in range(net.size))
    return _cost("direct", _in_turn(net.root_edges(root), shard), sent)


def direct_gather(net: GroupNetwork, size_bytes: float, root: int = 0) -> CollectiveCost:
    shard = size_bytes / net.size
    sent = tuple(0.0 if i == root else shard for i in range(net.size))
    return replace(direct_scatter(net, size_bytes, root), sent_bytes=sent)


def direct_all_to_all(net: GroupNetwork, size_bytes: float, root: int = 0) -> CollectiveCost:
    n = net.size
    return _cost("direct", _in_turn(net.shifts, size_bytes / n), _same(n, (n - 1) / n * size_bytes))


def tree_barrier(net: GroupNetwork, size_bytes: float = 0.0, root: int = 0) -> CollectiveCost:
    return _cost("tree", _in_turn(net.tree, 0.0).times(2), _same(net.size, 0.0))


# name -> the algorithms that can do it, and whether each needs equally filled nodes
ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "all_reduce": {"ring": ring_all_reduce, "tree": tree_all_reduce, "hierarchical": hierarchical_all_reduce},
    "all_gather": {"ring": ring_gather, "hierarchical": hierarchical_gather},
    "reduce_scatter": {"ring": ring_gather, "hierarchical": hierarchical_gather},
    "broadcast": {"tree": tree_broadcast, "scatter-gather": scatter_gather_broadcast},
    "reduce": {"tree": tree_reduce, "scatter-gather": scatter_gather_reduce},
    "gather": {"direct": direct_gather},
    "scatter": {"direct": direct_scatter},
    "all_to_all": {"direct": direct_all_to_all},
    "barrier": {"tree": tree_barrier},
}


def algorithms_for(name: str, net: GroupNetwork) -> dict[str, Algorithm]:
    """The algorithms that can do this collective on this group, and that its cluster uses.

    Raises:
        ValueError: a name nobody knows.
    """
    if not (isinstance(name, str) and isinstance(net, GroupNetwork)):
        check_types("algorithms_for", (("name", name, str), ("net", net, GroupNetwork)))
    if name not in ALGORITHMS:
        raise unknown_name("collective", name, list(ALGORITHMS))
    flat = {key: f for key, f in ALGORITHMS[name].items() if key != "hierarchical" or net.is_hierarchical}
    return flat | _in_the_switch(name, net) if net.cluster.uses_nvls else flat


_PLAIN = (str, (int, float), GroupNetwork, str, int)


def collective_cost(
    name: str, size_bytes: float, net: GroupNetwork, algorithm: str = "auto", root: int = 0
) -> CollectiveCost:
    """Seconds and bytes of one collective.

    Args:
        name: "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all"
            or "barrier".
        size_bytes: S of the legend: the whole tensor; for gather-like operations the n shards together.
        net: the group on its cluster.
        algorithm: a name from the table above, or "auto": the fastest, or that of the cluster's library. The switch
            adds ("nvls") in "auto" only where the cluster says `uses_nvls`.
        root: group rank of the root, where there is one.

    Raises:
        ValueError: an unknown collective or algorithm, one that this group's shape does not allow, a negative size, or
            a root outside the group. WrongType, which is one: an argument of another type.
    """
    given = (name, size_bytes, net, algorithm, root)
    if not all(map(isinstance, given, _PLAIN)):  # the simulator asks often, and its numbers are plain ones
        names = ("name", "size_bytes", "net", "algorithm", "root")
        check_types("collective_cost", zip(names, given, (str, float, GroupNetwork, str, int), strict=True))
    if not size_bytes >= 0:
        raise ValueError(f"size_bytes must be 0 or more: got {size_bytes} for {name}")
    if not 0 <= root < net.size:
        raise ValueError(f"root is a group rank, 0 to {net.size - 1}: got {root} for {name}")
    candidates = algorithms_for(name, net)
    if net.size == 1:
        return CollectiveCost("none", 0.0, (0.0,))
    if algorithm == "auto" and (own := _library(net).get(name)):
        return _with_call(own(net, size_bytes, root), net)
    if algorithm == "auto":
        cost = min((f(net, size_bytes, root) for f in candidates.values()), key=lambda cost: cost.time_s)
        return _with_call(cost, net)
    if algorithm not in candidates:
        if own := _in_the_switch(name, net, algorithm).get(algorithm):
            return _with_call(own(net, size_bytes, root), net)
        if algorithm in ALGORITHMS[name]:
            raise ValueError(
                f"algorithm {algorithm!r} needs two or more nodes with the same number (two or more) of ranks each: "
                f"ranks {net.ranks} have {[len(m) for m in net.by_node]} a node; choose from {', '.join(candidates)}"
            )
        raise unknown_name(f"{name} algorithm", algorithm, list(candidates))
    return _with_call(candidates[algorithm](net, size_bytes, root), net)


def _in_the_switch(name: str, net: GroupNetwork, asked: str = "") -> dict[str, Algorithm]:
    """Algorithms in which the switch adds. Raises ValueError where `asked` is one that cannot work on this group."""
    from lablib.cost import nvls  # here: it is made of this file's algorithms

    possible = nvls.nvls_algorithms(name, net)
    if asked in nvls.NVLS.get(name, ()) and asked not in possible:
        raise ValueError(nvls.why_not(asked, net))
    return possible


def _library(net: GroupNetwork) -> Mapping[str, Algorithm]:
    """The collectives for which the cluster's library has an algorithm of its own."""
    from lablib.cost.library import LIBRARIES  # here: it is made of this file's algorithms

    return LIBRARIES.get(net.cluster.library, {})


def _with_call(cost: CollectiveCost, net: GroupNetwork) -> CollectiveCost:
    """The rounds, and once the fixed time of a call."""
    overhead_s = net.cluster.collective_overhead_s
    if not overhead_s:
        return cost
    return replace(cost, time_s=cost.time_s + overhead_s, latency_s=cost.latency_s + overhead_s)


def _rooted(net: GroupNetwork, root: int) -> GroupNetwork:
    """The same group, numbered from the root."""
    return net if root == 0 else GroupNetwork(net.cluster, net.ranks[root:] + net.ranks[:root])


def _tree_children(i: int, n: int) -> int:
    """Children of node i in a binomial tree of n nodes: i + 2^k < n for each 2^k below i's lowest set bit."""
    strides = ceil(log2(n)) if i == 0 else (i & -i).bit_length() - 1
    return sum(i + 2**k < n for k in range(strides))


def _subtree(i: int, n: int) -> int:
    """Nodes in the subtree of node i of a binomial tree of n nodes, itself included."""
    return n if i == 0 else min(i & -i, n - i)
