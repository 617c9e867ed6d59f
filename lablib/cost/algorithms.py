"""Algorithms of collectives: rounds, bytes sent per rank, and messages of each.

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
    all_to_all      grouped         every message at once:  alpha + max over ranks and levels of (S/n sum of beta)
                    direct          n-1 rounds of a shifted exchange:  sum over rounds of (alpha + S/n beta)
    barrier         tree            an all-reduce of nothing: 2 ceil(log2 n) alpha

An algorithm is defined on the paths of a group, which are of two kinds: edges looked up rank by rank
(network.GroupNetwork), and edges of a mesh's groups by formulas (regular_rounds.Rounds). So one description gives the
seconds of any group of ranks (collective.py), the seconds of the groups of a mesh as closed forms in S
(regular_group.py), and the routes (routes.py). The tree is binomial: i's parent is i without its lowest set bit.

In "grouped" the wires inside and outside nodes work at the same time; on each a rank's messages share its bandwidth.

Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1),
2005, sections 4 to 4.6; Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 69(2), 2009 (ring); NCCL's
user guide, point-to-point communication (an all-to-all is one group of sends, all in flight together).
Simplified: one ring, through one NIC of each node, and one tree of whole messages. NCCL runs several rings at once over
all NICs of a node (modelled by "hierarchical"), and double binary trees with pipelined chunks (Sanders, Speck, Traeff,
"Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35(12), 2009), which move
large tensors nearly as fast as rings do. No reduction arithmetic. One collective at a time: lablib/engine/network.py
models concurrent ones.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from lablib.cost.network import GroupNetwork
    from lablib.cost.regular_rounds import Rounds

Paths: TypeAlias = "GroupNetwork | Rounds"
Term = tuple[float, float, Any]  # number of rounds, bytes of each, edges
Message = tuple[int, int, float]  # from, to (places in the group), bytes


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm of a collective."""

    name: str  # "ring", "tree", ..
    # (paths, S, root) -> its rounds in order, for a group of two ranks or more
    rounds: Callable[[Paths, float, int], Iterator[Term]]
    sent: Callable[[int, float, int], Sequence[float]]  # (n, S, root) -> bytes that leave each rank, in group order
    messages: Callable[[int, float, int], Iterator[Message]]  # (n, S, root) -> (from, to, bytes) of each message
    # for an algorithm in two levels, the algorithms across nodes. The ranks in the same place on their nodes (a rail)
    # run the fastest of them on S/L. `sent` and `messages` are then those in a node, of n = L.
    across: "tuple[Algorithm, ...]" = ()
    fits: Callable[[Paths], bool] = lambda paths: True  # whether a group of such a shape can run it
    needs: str = ""  # the condition of `fits`, in words


def fills_nodes(paths: Paths) -> bool:
    """Condition of algorithms in two levels."""
    return paths.local > 1


EQUAL_NODES = "two or more nodes with the same number (two or more) of ranks each"


# ---- the ring ----


def _ring(passes: int) -> Algorithm:
    """Each rank sends S/n to the next, n - 1 times per pass."""

    def rounds(g: Paths, size: float, root: int) -> Iterator[Term]:
        yield passes * (g.size - 1), size / g.size, g.ring

    def sent(n: int, size: float, root: int) -> tuple[float, ...]:
        return (passes * (n - 1) / n * size,) * n

    def messages(n: int, size: float, root: int) -> Iterator[Message]:
        share = passes * (n - 1) / n * size
        return ((i, (i + 1) % n, share) for i in range(n))

    return Algorithm("ring", rounds, sent, messages)


def _by_node(passes: int, across: tuple[Algorithm, ...]) -> Algorithm:
    """A ring of the ranks of each node, and across nodes every rail at once, with S/L."""
    ring = _ring(passes)

    def rounds(g: Paths, size: float, root: int) -> Iterator[Term]:
        yield passes * (g.local - 1), size / g.local, g.inside

    return Algorithm("hierarchical", rounds, ring.sent, ring.messages, across, fills_nodes, EQUAL_NODES)


# ---- the binomial tree ----


def tree_edges(n: int, root: int) -> Iterator[tuple[int, int, int]]:
    """Child, parent, and number of ranks in the child's subtree."""
    return (((i + root) % n, ((i & (i - 1)) + root) % n, subtree(i, n)) for i in range(1, n))


def tree_children(i: int, n: int) -> int:
    """Children of node i in a binomial tree of n nodes: i + 2^k < n for each 2^k below i's lowest set bit."""
    strides = ceil(log2(n)) if i == 0 else (i & -i).bit_length() - 1
    return sum(i + 2**k < n for k in range(strides))


def subtree(i: int, n: int) -> int:
    """Nodes in the subtree of node i of a binomial tree of n nodes, itself included."""
    return n if i == 0 else min(i & -i, n - i)


def _up_and_down(g: Paths, size: float, root: int) -> Iterator[Term]:
    return ((2, size, step) for step in g.tree)


def _up_and_down_messages(n: int, size: float, root: int) -> Iterator[Message]:
    for child, parent, _ in tree_edges(n, 0):
        yield child, parent, size
        yield parent, child, size


def _along_the_tree(g: Paths, size: float, root: int) -> Iterator[Term]:
    return ((1, size, step) for step in g.from_root(root).tree)


# ---- scatter down the tree (half of the rest in each round), then a ring all-gather; or the reverse ----


def scatter_share(k: int, n: int) -> float:
    """The share n_k of the n shards in the largest message of round k."""
    return min(2**k, n - 2**k)


def _scatter_gather(g: Paths, size: float, root: int) -> Iterator[Term]:
    n = g.size
    yield from ((1, size * scatter_share(k, n) / n, step) for k, step in enumerate(g.from_root(root).tree))
    yield n - 1, size / n, g.ring


def _scatter_gather_sent(n: int, size: float, root: int) -> list[float]:
    # A tree node passes on the shards of its subtree except its own.
    own = (n - 1) / n * size
    return [size * (subtree((i - root) % n, n) - 1) / n + own for i in range(n)]


def _reduce_scatter_gather_sent(n: int, size: float, root: int) -> list[float]:
    # A tree node sends its parent the shards of its whole subtree; the root keeps them.
    own = (n - 1) / n * size
    return [size * (0 if i == root else subtree((i - root) % n, n)) / n + own for i in range(n)]


def _scatter_gather_messages(n: int, size: float, root: int) -> Iterator[Message]:
    for child, parent, shards in tree_edges(n, root):
        yield parent, child, size * shards / n
    yield from RING_GATHER.messages(n, size, root)


def _reduce_scatter_gather_messages(n: int, size: float, root: int) -> Iterator[Message]:
    yield from RING_GATHER.messages(n, size, root)
    for child, parent, shards in tree_edges(n, root):
        yield child, parent, size * shards / n


# ---- every message from its source to its target ----


def _by_the_root(g: Paths, size: float, root: int) -> Iterator[Term]:
    return ((1, size / g.size, edge) for edge in g.to_root(root))


def exchanged(n: int, size: float, root: int) -> tuple[float, ...]:
    """Bytes that leave each rank of an all-to-all: its tensor without its own shard."""
    return ((n - 1) / n * size,) * n


def exchange_messages(n: int, size: float, root: int) -> Iterator[Message]:
    """Every rank's message to every other."""
    return ((a, b, size / n) for a in range(n) for b in range(n) if a != b)


# ---- no bytes: the barrier ----


def _of_nothing(g: Paths, size: float, root: int) -> Iterator[Term]:
    return _up_and_down(g, 0.0, root)


def none_sent(n: int, size: float, root: int) -> tuple[float, ...]:
    """Bytes that leave each rank of a barrier: 0."""
    return (0.0,) * n


def no_messages(n: int, size: float, root: int) -> Iterator[Message]:
    """Messages of a barrier: none carries bytes."""
    return iter(())


RING_ALL_REDUCE, RING_GATHER = _ring(2), _ring(1)
TREE_ALL_REDUCE = Algorithm(
    "tree",
    _up_and_down,
    lambda n, size, root: [size * (tree_children(i, n) + (i > 0)) for i in range(n)],
    _up_and_down_messages,
)
HIERARCHICAL_ALL_REDUCE = _by_node(2, (RING_ALL_REDUCE, TREE_ALL_REDUCE))
HIERARCHICAL_GATHER = _by_node(1, (RING_GATHER,))
TREE_BROADCAST = Algorithm(
    "tree",
    _along_the_tree,
    lambda n, size, root: [size * tree_children((i - root) % n, n) for i in range(n)],
    lambda n, size, root: ((parent, child, size) for child, parent, _ in tree_edges(n, root)),
)
TREE_REDUCE = Algorithm(
    "tree",
    _along_the_tree,
    lambda n, size, root: [0.0 if i == root else size for i in range(n)],  # every rank but the root sends once
    lambda n, size, root: ((child, parent, size) for child, parent, _ in tree_edges(n, root)),
)
SCATTER_GATHER_BROADCAST = Algorithm("scatter-gather", _scatter_gather, _scatter_gather_sent, _scatter_gather_messages)
SCATTER_GATHER_REDUCE = Algorithm(
    "scatter-gather", _scatter_gather, _reduce_scatter_gather_sent, _reduce_scatter_gather_messages
)
DIRECT_GATHER = Algorithm(
    "direct",
    _by_the_root,
    lambda n, size, root: [0.0 if i == root else size / n for i in range(n)],
    lambda n, size, root: ((i, root, size / n) for i in range(n) if i != root),
)
DIRECT_SCATTER = Algorithm(
    "direct",
    _by_the_root,
    lambda n, size, root: [size / n * (n - 1) if i == root else 0.0 for i in range(n)],
    lambda n, size, root: ((root, i, size / n) for i in range(n) if i != root),
)
GROUPED_ALL_TO_ALL = Algorithm(
    "grouped", lambda g, size, root: iter(((1, size, g.exchange),)), exchanged, exchange_messages
)
DIRECT_ALL_TO_ALL = Algorithm(
    "direct",
    lambda g, size, root: ((count, size / g.size, step) for count, step in g.shifts),
    exchanged,
    exchange_messages,
)
TREE_BARRIER = Algorithm("tree", _of_nothing, none_sent, no_messages)
