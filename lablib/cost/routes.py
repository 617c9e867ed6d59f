"""Who sends how many bytes to whom in a collective, by algorithm: the messages behind collective.py's sums.

    ring            every rank to the next one of the group, the last to the first
    tree            between parent and child of a binomial tree: i's parent is i without its lowest set bit
    hierarchical    a ring on every node, and on every rail (the ranks of one place on their nodes) what the rails chose
    scatter-gather  the shards of a subtree along the tree, then a ring
    nvls            through the switch, which adds on the way: what leaves a rank is spread over the others evenly
    nvls-tree       the same on every node, and on every rail what the rails chose
    direct          every message from its source to its target
    segmented ring  gloo's (library.py): the ring's bytes in more messages; its reduce_scatter is an all_reduce
    dissemination   gloo's barrier: no bytes

What leaves a rank by its routes adds up to its `sent_bytes` in `collective_cost`: S, n, L and N as there.

Source: as collective.py.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from lablib.cost.collective import _subtree, ring_all_reduce, tree_all_reduce
from lablib.cost.network import GroupNetwork

Message = tuple[int, int, float]  # from, to (places in the group), bytes
Messages = Callable[[GroupNetwork, float, int], Iterator[Message]]
Routes = dict[tuple[int, int], float]


@dataclass(frozen=True, slots=True)
class Route:
    """One collective whose routes are worked out when they are asked for: `route()`. Equal ones have equal routes.

    Attributes:
        name, algorithm, size_bytes, root: as in `collective_cost`.
        network: its group on its cluster.
    """

    name: str
    algorithm: str
    network: GroupNetwork
    size_bytes: float
    root: int = 0

    def __call__(self) -> Routes:
        return routes(self.name, self.algorithm, self.network, self.size_bytes, self.root)


def routes(name: str, algorithm: str, net: GroupNetwork, size_bytes: float, root: int = 0) -> Routes:
    """The bytes that each rank sends to each other one; pairs that exchange nothing are left out.

    Args:
        name, algorithm: as `collective_cost` returned them; "none" for a group of one rank.
        net: the group on its cluster.
        size_bytes: S of collective.py's legend.
        root: group rank of the root, where there is one.

    Returns:
        (from, to) -> bytes, both global ranks.
    """
    if net.size == 1:
        return {}
    total: Routes = defaultdict(float)
    for a, b, sent in MESSAGES[name][algorithm](net, size_bytes, root):
        if sent:
            total[net.ranks[a], net.ranks[b]] += sent
    return dict(total)


def _ring(share: Callable[[int], float], net: GroupNetwork, size_bytes: float, root: int) -> Iterator[Message]:
    """Each rank sends `share(n)` of S to the next."""
    n = net.size
    for i in range(n):
        yield i, (i + 1) % n, share(n) * size_bytes


def _twice(n: int) -> float:
    return 2 * (n - 1) / n


def _once(n: int) -> float:
    return (n - 1) / n


def _edges(net: GroupNetwork, root: int) -> Iterator[tuple[int, int, int]]:
    """The binomial tree: child, parent, and how many ranks the child's subtree has."""
    n = net.size
    for i in range(1, n):
        yield (i + root) % n, ((i & (i - 1)) + root) % n, _subtree(i, n)


def _tree_all_reduce(net: GroupNetwork, size_bytes: float, root: int) -> Iterator[Message]:
    for child, parent, _ in _edges(net, 0):
        yield child, parent, size_bytes
        yield parent, child, size_bytes


def _tree_broadcast(net: GroupNetwork, size_bytes: float, root: int) -> Iterator[Message]:
    for child, parent, _ in _edges(net, root):
        yield parent, child, size_bytes


def _tree_reduce(net: GroupNetwork, size_bytes: float, root: int) -> Iterator[Message]:
    for child, parent, _ in _edges(net, root):
        yield child, parent, size_bytes


def _scatter_gather_broadcast(net: GroupNetwork, size_bytes: float, root: int) -> Iterator[Message]:
    for child, parent, shards in _edges(net, root):
        yield parent, child, size_bytes * shards / net.size
    yield from _ring(_once, net, size_bytes, root)


def _scatter_gather_reduce(net: GroupNetwork, size_bytes: float, root: int) -> Iterator[Message]:
    yield from _ring(_once, net, size_bytes, root)
    for child, parent, shards in _edges(net, root):
        yield child, parent, size_bytes * shards / net.size


def _hierarchical_all_reduce(net: GroupNetwork, size_bytes: float, root: int) -> Iterator[Message]:
    shard = size_bytes / len(net.by_node[0])
    for node in net.nodes:
        yield from _within(net, node, _ring(_twice, node, size_bytes, 0))
    yield from _on_rails(net, shard)


def _on_rails(net: GroupNetwork, shard: float) -> Iterator[Message]:
    for rail in net.rails:
        is_ring = ring_all_reduce(rail, shard).time_s <= tree_all_reduce(rail, shard).time_s
        messages = _ring(_twice, rail, shard, 0) if is_ring else _tree_all_reduce(rail, shard, 0)
        yield from _within(net, rail, messages)


def _nvls(net: GroupNetwork, size_bytes: float, root: int) -> Iterator[Message]:
    n = net.size
    moved = (n + 1) / n * size_bytes
    return ((a, b, moved / (n - 1)) for a in range(n) for b in range(n) if a != b)


def _nvls_tree(net: GroupNetwork, size_bytes: float, root: int) -> Iterator[Message]:
    for node in net.nodes:
        yield from _within(net, node, _nvls(node, size_bytes, 0))
    yield from _on_rails(net, size_bytes / len(net.by_node[0]))


def _hierarchical_gather(net: GroupNetwork, size_bytes: float, root: int) -> Iterator[Message]:
    shard = size_bytes / len(net.by_node[0])
    for rail in net.rails:
        yield from _within(net, rail, _ring(_once, rail, shard, 0))
    for node in net.nodes:
        yield from _within(net, node, _ring(_once, node, size_bytes, 0))


def _within(net: GroupNetwork, part: GroupNetwork, messages: Iterator[Message]) -> Iterator[Message]:
    """The messages of a part of the group, by places in the whole."""
    place = {rank: i for i, rank in enumerate(net.ranks)}
    return ((place[part.ranks[a]], place[part.ranks[b]], sent) for a, b, sent in messages)


def _scatter(net: GroupNetwork, size_bytes: float, root: int) -> Iterator[Message]:
    return ((root, i, size_bytes / net.size) for i in range(net.size) if i != root)


def _gather(net: GroupNetwork, size_bytes: float, root: int) -> Iterator[Message]:
    return ((i, root, size_bytes / net.size) for i in range(net.size) if i != root)


def _all_to_all(net: GroupNetwork, size_bytes: float, root: int) -> Iterator[Message]:
    places = range(net.size)
    return ((a, b, size_bytes / net.size) for a in places for b in places if a != b)


def _nothing(net: GroupNetwork, size_bytes: float, root: int) -> Iterator[Message]:
    return iter(())


_RING_TWICE, _RING_ONCE = partial(_ring, _twice), partial(_ring, _once)

# name -> algorithm -> its messages; the same names as the tables of collective.py, nvls.py and library.py
MESSAGES: dict[str, dict[str, Messages]] = {
    "all_reduce": {
        "ring": _RING_TWICE,
        "tree": _tree_all_reduce,
        "hierarchical": _hierarchical_all_reduce,
        "nvls": _nvls,
        "nvls-tree": _nvls_tree,
        "segmented ring": _RING_TWICE,
    },
    "all_gather": {"ring": _RING_ONCE, "hierarchical": _hierarchical_gather, "segmented ring": _RING_ONCE},
    "reduce_scatter": {"ring": _RING_ONCE, "hierarchical": _hierarchical_gather, "segmented ring": _RING_TWICE},
    "broadcast": {"tree": _tree_broadcast, "scatter-gather": _scatter_gather_broadcast},
    "reduce": {"tree": _tree_reduce, "scatter-gather": _scatter_gather_reduce},
    "gather": {"direct": _gather},
    "scatter": {"direct": _scatter},
    "all_to_all": {"direct": _all_to_all},
    "barrier": {"tree": _nothing, "dissemination": _nothing},
}
