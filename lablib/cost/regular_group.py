"""Collectives of the groups of a mesh, for a planner: the same seconds as collective.py, as a few lines in S.

A group of n ranks at stride s is the same for every plan that has it. All its rounds are known in advance
(regular_rounds.py), and each lasts alpha + S beta of its slowest edge, so each algorithm of collective.py adds up to
one line, and a collective is the lowest of them:

    time(S) = min over algorithms of (alpha_j + beta_j S)           + the call's fixed time

The lines are worked out once for each (n, s); then a collective is a look-up, two multiply-adds and a minimum, for a
number as for an array of 100,000 groups. (Where a round has two edges of which neither is always the slower one, that
round stays the larger of two lines.)

Cost: see the table of collective.py. Bytes that leave each rank, in the mean over the group, whatever the algorithm:
all_reduce 2 (n-1)/n S; all_gather, reduce_scatter, all_to_all and a tree's broadcast (n-1)/n S; send S. (Sums made in
the switch are fewer bytes: nvls.py.) A "broadcast" is from the group's first rank, a "broadcast in turn" from any of
them, in the mean.

Legend: n ranks at stride s, from rank 0 on; S bytes as in collective.py; L ranks on each of N nodes. A group that does
not fill its nodes alike (n = 12 on nodes of 8) has no hierarchical algorithm, only flat ones.

Source: as collective.py.
Simplified: the groups of an axis run at once without slowing each other, as each device has a NIC of its own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lablib.cost.arrays import Numbers, distinct
from lablib.cost.nvls import no_nvls
from lablib.cost.regular_rounds import Lines, Rounds, rounds_of
from lablib.errors import unknown_name
from lablib.hardware.cluster import Cluster

Term = tuple[float, float, Lines]  # so many rounds, each of such a share of S, over these edges
Terms = Iterator[Term]


# ---- the algorithms, as rounds ----


def _ring_all_reduce(g: Rounds) -> Terms:
    yield 2 * (g.size - 1), 1 / g.size, g.ring


def _tree_all_reduce(g: Rounds) -> Terms:
    return ((2, 1.0, step) for step in g.tree)


def _on_rails(flat: Callable[[Rounds], Terms], passes: int) -> Callable[[Rounds], Terms]:
    """In the node, and across nodes on every rail at once with S / L bytes, by a flat algorithm."""

    def terms(g: Rounds) -> Terms:
        local = g.local
        yield passes * (local - 1), 1 / local, g.inside
        yield from ((rounds, share / local, edges) for rounds, share, edges in flat(g.rail))

    return terms


def _in_the_switch(cluster: Cluster, across: Callable[[Rounds], Terms] | None) -> Callable[[Rounds], Terms]:
    """Sums made by the switches of a node (nvls.py), and between their two halves `across` on every rail."""
    wire: Lines = ((cluster.intra.nvls_latency_s or 0.0, 1 / cluster.intra.bandwidth_bytes_per_s),)

    def terms(g: Rounds) -> Terms:
        local = g.local if across else g.size
        yield 1, (local + 1) / local, wire
        if across:
            yield from ((rounds, share / local, edges) for rounds, share, edges in across(g.rail))

    return terms


def _ring_gather(g: Rounds) -> Terms:
    yield g.size - 1, 1 / g.size, g.ring


def _tree_broadcast(g: Rounds) -> Terms:
    return ((1, 1.0, step) for step in g.tree)


def _scatter_gather_broadcast(g: Rounds) -> Terms:
    n = g.size
    yield from ((1, min(2**k, n - 2**k) / n, step) for k, step in enumerate(g.tree))
    yield from _ring_gather(g)


def _in_turn(g: Rounds) -> Iterator[tuple[float, Lines, int]]:
    """The rounds of a tree whose root is each rank in turn, in the mean: how many of round k stay in a node or do not.

    Round k pairs ranks 2^k apart, every 2^(k+1) from the root on. Where 2^(k+1) divides L, they stay in their nodes
    for every second root; else some pair leaves its node.
    """
    for k in range((g.size - 1).bit_length()):
        stays = 0.5 * (g.local % 2 ** (k + 1) == 0)
        if stays:
            yield stays, g.inside, k
        yield 1 - stays, g.ring, k


def _tree_in_turn(g: Rounds) -> Terms:
    return ((share, 1.0, edges) for share, edges, _ in _in_turn(g))


def _scatter_gather_in_turn(g: Rounds) -> Terms:
    n = g.size
    yield from ((share, min(2**k, n - 2**k) / n, edges) for share, edges, k in _in_turn(g))
    yield from _ring_gather(g)


def _direct_all_to_all(g: Rounds) -> Terms:
    return ((count, 1 / g.size, edges) for count, edges in g.shifts)


def _send(g: Rounds) -> Terms:
    yield 1, 1.0, g.neighbours


def _segmented(flat: Callable[[Rounds], Terms]) -> Callable[[Rounds], Terms]:
    """Gloo's rings: twice as many rounds of half the bytes."""
    return lambda g: ((2 * rounds, share / 2, edges) for rounds, share, edges in flat(g))


# name -> (algorithm, its rounds); one algorithm may stand twice, then the better counts
ALGORITHMS: dict[str, tuple[tuple[str, Callable[[Rounds], Terms]], ...]] = {
    "all_reduce": (
        ("ring", _ring_all_reduce),
        ("tree", _tree_all_reduce),
        ("hierarchical", _on_rails(_ring_all_reduce, 2)),
        ("hierarchical", _on_rails(_tree_all_reduce, 2)),
    ),
    "all_gather": (("ring", _ring_gather), ("hierarchical", _on_rails(_ring_gather, 1))),
    "reduce_scatter": (("ring", _ring_gather), ("hierarchical", _on_rails(_ring_gather, 1))),
    "broadcast": (("tree", _tree_broadcast), ("scatter-gather", _scatter_gather_broadcast)),
    "all_to_all": (("direct", _direct_all_to_all),),
    "send": (("direct", _send),),
}

# From no rank in particular: nothing that a program calls, but what many calls take in the mean.
IN_TURN = {"broadcast in turn": (("tree", _tree_in_turn), ("scatter-gather", _scatter_gather_in_turn))}

# Where the switches add (nvls.py): (algorithm, how the rails of several nodes go on; None: it stays in one node)
NVLS = {"all_reduce": (("nvls", None), ("nvls-tree", _ring_all_reduce), ("nvls-tree", _tree_all_reduce))}

# What a library takes instead of the fastest (library.py).
LIBRARIES = {
    "gloo": {
        "all_reduce": (("segmented ring", _segmented(_ring_all_reduce)),),
        "all_gather": (("segmented ring", _segmented(_ring_gather)),),
        "reduce_scatter": (("segmented ring", _segmented(_ring_all_reduce)),),
        "broadcast": (("tree", _tree_broadcast),),
    }
}


# ---- their sums ----


@dataclass(frozen=True, slots=True)
class Sum:
    """Seconds of one algorithm as a function of S: a line, and the rounds that are the larger of several lines."""

    latency_s: float
    s_per_byte: float
    rest: tuple[Term, ...] = ()

    def time_s(self, size_bytes: Numbers) -> Numbers:
        time_s = self.latency_s + self.s_per_byte * size_bytes
        for rounds, share, edges in self.rest:
            time_s = time_s + rounds * _slowest_s(share * size_bytes, edges)
        return time_s


def _slowest_s(size_bytes: Numbers, edges: Lines) -> Numbers:
    times = [alpha + beta * size_bytes for alpha, beta in edges]
    return np.maximum.reduce(times) if isinstance(size_bytes, np.ndarray) else max(times)


def _sum(terms: Terms, call_s: float) -> Sum:
    latency_s, s_per_byte, rest = call_s, 0.0, []
    for rounds, share, ((alpha, beta), *others) in terms:
        if others:
            rest.append((rounds, share, ((alpha, beta), *others)))
        else:
            latency_s, s_per_byte = latency_s + rounds * alpha, s_per_byte + rounds * share * beta
    return Sum(latency_s, s_per_byte, tuple(rest))


class RegularGroups:
    """The regular groups of one cluster; remembers the sums of each collective and (n, stride) asked for.

    Arguments:
        cluster: where the groups are.
    """

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self._sums: dict[tuple[str, int, int, str], tuple[Sum, ...]] = {}

    def time_s(
        self, name: str, size_bytes: Numbers, n: Numbers, stride: Numbers = 1, algorithm: str = "auto"
    ) -> Numbers:
        """Seconds of one collective; arguments as in `regular_collective_s`."""
        if isinstance(n, np.ndarray) or isinstance(stride, np.ndarray):
            return self._many(name, size_bytes, n, stride, algorithm)
        sums = self._sums.get((name, n, stride, algorithm)) or self._look_up(name, n, stride, algorithm)
        if isinstance(size_bytes, np.ndarray):
            return np.minimum.reduce([each.time_s(size_bytes) for each in sums])
        if not size_bytes >= 0:
            raise ValueError(f"size_bytes must be 0 or more: got {size_bytes} for {name}")
        return min([each.time_s(size_bytes) for each in sums])

    def _look_up(self, name: str, n: int, stride: int, algorithm: str) -> tuple[Sum, ...]:
        sums = tuple(self._work_out(name, n, stride, algorithm))
        self._sums[name, n, stride, algorithm] = sums
        return sums

    def _work_out(self, name: str, n: int, stride: int, algorithm: str) -> Iterator[Sum]:
        if not (n >= 1 and stride >= 1):
            raise ValueError(f"a group has 1 rank or more at a stride of 1 or more: got n {n} and stride {stride}")
        choices = self._choices(name, algorithm)
        if n == 1:
            yield Sum(0.0, 0.0)
            return
        group = rounds_of(self.cluster, int(n), int(stride))
        is_one_node = (n - 1) * stride < self.cluster.devices_per_node
        can = {"hierarchical": group.local > 1, "nvls-tree": group.local > 1, "nvls": is_one_node}
        possible = [f for key, f in choices if can.get(key, True)]
        if not possible and algorithm == "nvls":
            raise ValueError(
                f"algorithm 'nvls' needs ranks of one node: {n} ranks at stride {stride} do not fit into a node of "
                f"{self.cluster.devices_per_node}; choose 'auto'"
            )
        if not possible:
            raise ValueError(
                f"algorithm {algorithm!r} needs two or more nodes with the same number (two or more) of ranks each: "
                f"{n} ranks at stride {stride} do not fill nodes of {self.cluster.devices_per_node} so; choose 'auto'"
            )
        for f in possible:
            yield _sum(f(group), self.cluster.collective_overhead_s)

    def _choices(self, name: str, algorithm: str) -> tuple[tuple[str, Callable[[Rounds], Terms]], ...]:
        if name in IN_TURN:
            return IN_TURN[name]
        if name not in ALGORITHMS:
            raise unknown_name("collective of a regular group", name, list(ALGORITHMS))
        if algorithm == "auto" and (own := LIBRARIES.get(self.cluster.library, {}).get(name)):
            return own
        has_nvls = self.cluster.intra.nvls_latency_s is not None
        in_the_switch = tuple((key, _in_the_switch(self.cluster, f)) for key, f in NVLS.get(name, ()) if has_nvls)
        if algorithm == "auto":
            return ALGORITHMS[name] + (in_the_switch if self.cluster.uses_nvls else ())
        chosen = tuple(choice for choice in ALGORITHMS[name] + in_the_switch if choice[0] == algorithm)
        if not chosen and algorithm in dict(NVLS.get(name, ())):
            raise ValueError(no_nvls(algorithm, self.cluster))
        if not chosen:
            raise unknown_name(f"{name} algorithm", algorithm, list(dict(ALGORITHMS[name])))
        return chosen

    def _many(self, name: str, size_bytes: Numbers, n: Numbers, stride: Numbers, algorithm: str) -> np.ndarray:
        """The lines of each distinct group, and the lowest of them for each element."""
        n, stride, size_bytes = np.broadcast_arrays(n, stride, size_bytes)
        if not np.all(size_bytes >= 0):
            raise ValueError(f"size_bytes must be 0 or more: got {size_bytes.min()} for {name}")
        groups, which = _distinct(n.ravel(), stride.ravel())
        which = which.reshape(n.shape)
        sums = [self._sums.get((name, *g, algorithm)) or self._look_up(name, *g, algorithm) for g in groups]
        if any(each.rest for group in sums for each in group):
            return _one_by_one(sums, which, size_bytes)
        # A group with fewer algorithms than another has its last one twice.
        columns = [[group[min(j, len(group) - 1)] for group in sums] for j in range(max(map(len, sums), default=0))]
        time_s = np.full(n.shape, np.inf)
        for column in columns:
            lines = np.array([(each.latency_s, each.s_per_byte) for each in column])
            np.minimum(time_s, lines[which, 0] + lines[which, 1] * size_bytes, out=time_s)
        return time_s


def _one_by_one(sums: list[tuple[Sum, ...]], which: np.ndarray, size_bytes: np.ndarray) -> np.ndarray:
    time_s = np.empty(which.shape)
    for j, group in enumerate(sums):
        chosen = which == j
        time_s[chosen] = np.minimum.reduce([each.time_s(size_bytes[chosen]) for each in group])
    return time_s


def _distinct(n: np.ndarray, stride: np.ndarray) -> tuple[list[tuple[int, int]], np.ndarray]:
    """The distinct pairs, and which of them each element is."""
    sizes, which_size = distinct(n)
    strides, which_stride = distinct(stride)
    pairs, which = distinct(which_size * len(strides) + which_stride)
    return [(int(sizes[p // len(strides)]), int(strides[p % len(strides)])) for p in pairs], which


@lru_cache(maxsize=64)
def regular_groups(cluster: Cluster) -> RegularGroups:
    """The regular groups of a cluster: one record for all who ask, so that each group is worked out once."""
    return RegularGroups(cluster)


def regular_collective_s(
    name: str, size_bytes: Numbers, n: Numbers, stride: Numbers, cluster: Cluster, algorithm: str = "auto"
) -> Numbers:
    """Seconds of a collective of the ranks 0, stride, ..., (n - 1) stride: `collective_cost` without its lists.

    Arguments:
        name: "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", or "send": one message between
            neighbours of the group, the slowest of them (a pipeline's step).
        size_bytes: S, as in `collective_cost`; a number or an array.
        n, stride: ranks of the group and their distance; whole numbers or arrays of them.
        cluster: where.
        algorithm: as in `collective_cost`.

    Raises:
        ValueError: an unknown collective or algorithm, a negative size, a group of no rank or no stride, or
            "hierarchical" for a group that does not fill its nodes alike.
    """
    return regular_groups(cluster).time_s(name, size_bytes, n, stride, algorithm)


def regular_sent_bytes(name: str, size_bytes: Numbers, n: Numbers) -> Numbers:
    """Bytes that leave a rank in the mean over its group: see the head of this file (broadcast: the tree's)."""
    if name not in ALGORITHMS:
        raise unknown_name("collective of a regular group", name, list(ALGORITHMS))
    if name == "send":
        return size_bytes * (n > 1)
    return (2 if name == "all_reduce" else 1) * (n - 1) / n * size_bytes
