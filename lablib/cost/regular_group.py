"""Time of collectives of a mesh's groups, for a planner: collective.py as a few lines in S.

A group of n ranks at stride s is the same in every plan. All its rounds are known in advance
(regular_rounds.py), and each lasts alpha + S beta of its slowest edge, so each algorithm of collective.py adds up to
one line, and a collective is the lowest of them:

    time(S) = min over algorithms of (alpha_j + beta_j S)           + the call's fixed time

The lines are computed once for each (n, s); then a collective is a look-up, two multiply-adds and a minimum, for a
number as for an array of 100,000 groups. (If a round has two edges and neither is always the slower one, that round is
the larger of two lines.)

Cost: see the table of algorithms.py. Mean bytes sent per rank of the group, for any algorithm: all_reduce 2 (n-1)/n S;
all_gather, reduce_scatter, all_to_all and a tree's broadcast (n-1)/n S; send S. (Sums in the switch are fewer bytes:
nvls.py.) A "broadcast" is from the group's first rank, a "broadcast in turn" the mean over all roots.

Legend: n ranks at stride s, from rank 0 on; S bytes as in collective.py; L ranks on each of N nodes. A group that does
not fill its nodes equally (n = 12 on nodes of 8) has no hierarchical algorithm, only flat ones.

Source: as collective.py.
Simplified: the groups of an axis run at once without slowing each other, as each device has its own NIC.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from lablib.cost.algorithms import (
    RING_GATHER,
    SCATTER_GATHER_BROADCAST,
    TREE_BROADCAST,
    Algorithm,
    Paths,
    scatter_share,
)
from lablib.cost.arrays import Array, Numbers, distinct, is_array, np
from lablib.cost.collective import no_nvls
from lablib.cost.collectives import COLLECTIVES
from lablib.cost.regular_rounds import Lines, Rounds, rounds_of
from lablib.errors import unknown_name
from lablib.hardware.cluster import Cluster

Terms = Iterator[tuple[float, float, Lines]]  # number of rounds, share of S of each, edges


# ---- mean over all roots: not a call of a program, but the mean of many calls ----


def _in_turn(g: Paths) -> Iterator[tuple[float, Any, int]]:
    """The rounds of a tree, as the mean over all roots: the share of roots with round k inside the nodes, and the rest.

    Round k pairs ranks 2^k apart, every 2^(k+1) from the root on. If 2^(k+1) divides L, they are inside their nodes for
    every second root; otherwise some pair leaves its node.
    """
    for k in range((g.size - 1).bit_length()):
        stays = 0.5 * (g.local % 2 ** (k + 1) == 0)
        if stays:
            yield stays, g.inside, k
        yield 1 - stays, g.ring, k


def _tree_in_turn(g: Paths, size: float, root: int) -> Terms:
    return ((share, size, edges) for share, edges, _ in _in_turn(g))


def _scatter_gather_in_turn(g: Paths, size: float, root: int) -> Terms:
    n = g.size
    yield from ((share, size * scatter_share(k, n) / n, edges) for share, edges, k in _in_turn(g))
    yield from RING_GATHER.rounds(g, size, root)


_IN_TURN = (
    replace(TREE_BROADCAST, rounds=_tree_in_turn),
    replace(SCATTER_GATHER_BROADCAST, rounds=_scatter_gather_in_turn),
)


# ---- one message between neighbours of the group ----


def _to_the_next(g: Any, size: float, root: int) -> Terms:
    yield 1, size, g.neighbours


_SEND = (replace(TREE_BROADCAST, name="direct", rounds=_to_the_next),)

# Operations of a planner that are not in the table of collectives.
_OTHERS = {"broadcast in turn": _IN_TURN, "send": _SEND}
NAMES = (*(name for name in COLLECTIVES if name not in ("gather", "scatter")), *_OTHERS)


# ---- sums of rounds ----


@dataclass(frozen=True, slots=True)
class Sum:
    """Seconds of one algorithm as a function of S: a line, and the rounds that are the larger of several lines."""

    latency_s: float
    s_per_byte: float
    rest: tuple[tuple[float, float, Lines], ...] = ()

    def time_s(self, size_bytes: Numbers) -> Numbers:
        time_s = self.latency_s + self.s_per_byte * size_bytes
        for rounds, share, edges in self.rest:
            time_s = time_s + rounds * _slowest_s(share * size_bytes, edges)
        return time_s


def _slowest_s(size_bytes: Numbers, edges: Lines) -> Numbers:
    times = [alpha + beta * size_bytes for alpha, beta in edges]
    return np.maximum.reduce(times) if is_array(size_bytes) else max(times)


def _sum(terms: Terms, call_s: float) -> Sum:
    latency_s, s_per_byte, rest = call_s, 0.0, []
    for rounds, share, ((alpha, beta), *others) in terms:
        if others:
            rest.append((rounds, share, ((alpha, beta), *others)))
        else:
            latency_s, s_per_byte = latency_s + rounds * alpha, s_per_byte + rounds * share * beta
    return Sum(latency_s, s_per_byte, tuple(rest))


def _terms(algorithm: Algorithm, rails: Algorithm | None, g: Rounds) -> Terms:
    """The rounds of an algorithm for S = 1; in two levels, followed by one algorithm of the rails."""
    yield from algorithm.rounds(g, 1.0, 0)
    if rails is not None:
        yield from rails.rounds(g.rail, 1.0 / g.local, 0)


class RegularGroups:
    """The regular groups of one cluster; caches the sums of each collective and (n, stride)."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self._sums: dict[tuple[str, int, int, str], tuple[Sum, ...]] = {}

    def time_s(
        self, name: str, size_bytes: Numbers, n: Numbers, stride: Numbers = 1, algorithm: str = "auto"
    ) -> Numbers:
        """Seconds of one collective; arguments as in `regular_collective_s`."""
        if is_array(n) or is_array(stride):
            return self._many(name, size_bytes, n, stride, algorithm)
        sums = self._sums.get((name, n, stride, algorithm)) or self._look_up(name, n, stride, algorithm)
        if is_array(size_bytes):
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
        possible = [each for each in choices if each.fits(group)]
        if not possible:
            raise ValueError(
                f"algorithm {algorithm!r} needs {choices[0].needs}: {n} ranks at stride {stride} on nodes of "
                f"{self.cluster.devices_per_node} are no such group; choose 'auto'"
            )
        for each in possible:
            for rails in each.across or (None,):
                yield _sum(_terms(each, rails, group), self.cluster.collective_overhead_s)

    def _choices(self, name: str, algorithm: str) -> tuple[Algorithm, ...]:
        if name not in NAMES:
            raise unknown_name("collective of a regular group", name, NAMES)
        if name in _OTHERS:
            found, in_the_switch = _OTHERS[name], ()
        else:
            row = COLLECTIVES[name]
            if algorithm == "auto" and (own := row.libraries.get(self.cluster.library)):
                return (own,)
            found, in_the_switch = row.algorithms, row.in_the_switch
        if algorithm == "auto":
            switches_add = self.cluster.uses_nvls and self.cluster.intra.nvls_latency_s is not None
            return found + in_the_switch if switches_add else found
        chosen = tuple(each for each in found + in_the_switch if each.name == algorithm)
        if not chosen:
            raise unknown_name(f"{name} algorithm", algorithm, [each.name for each in found])
        if chosen[0] in in_the_switch and self.cluster.intra.nvls_latency_s is None:
            raise ValueError(no_nvls(algorithm, self.cluster))
        return chosen

    def _many(self, name: str, size_bytes: Numbers, n: Numbers, stride: Numbers, algorithm: str) -> Array:
        """The lines of each distinct group, and the lowest of them for each element."""
        n, stride, size_bytes = np.broadcast_arrays(n, stride, size_bytes)
        if not np.all(size_bytes >= 0):
            raise ValueError(f"size_bytes must be 0 or more: got {size_bytes.min()} for {name}")
        groups, which = _distinct(n.ravel(), stride.ravel())
        which = which.reshape(n.shape)
        sums = [self._sums.get((name, *g, algorithm)) or self._look_up(name, *g, algorithm) for g in groups]
        if any(each.rest for group in sums for each in group):
            return _one_by_one(sums, which, size_bytes)
        # A group with fewer algorithms than another repeats its last one.
        columns = [[group[min(j, len(group) - 1)] for group in sums] for j in range(max(map(len, sums), default=0))]
        time_s = np.full(n.shape, np.inf)
        for column in columns:
            lines = np.array([(each.latency_s, each.s_per_byte) for each in column])
            np.minimum(time_s, lines[which, 0] + lines[which, 1] * size_bytes, out=time_s)
        return time_s


def _one_by_one(sums: list[tuple[Sum, ...]], which: Array, size_bytes: Array) -> Array:
    time_s = np.empty(which.shape)
    for j, group in enumerate(sums):
        chosen = which == j
        time_s[chosen] = np.minimum.reduce([each.time_s(size_bytes[chosen]) for each in group])
    return time_s


def _distinct(n: Array, stride: Array) -> tuple[list[tuple[int, int]], Array]:
    """The distinct pairs, and the index of each element among them."""
    sizes, which_size = distinct(n)
    strides, which_stride = distinct(stride)
    pairs, which = distinct(which_size * len(strides) + which_stride)
    return [(int(sizes[p // len(strides)]), int(strides[p % len(strides)])) for p in pairs], which


@lru_cache(maxsize=64)
def regular_groups(cluster: Cluster) -> RegularGroups:
    """The regular groups of a cluster, shared by all callers, so that each group is computed once."""
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
        cluster: the cluster.
        algorithm: as in `collective_cost`.

    Raises:
        ValueError: an unknown collective or algorithm, a negative size, a group of no rank or no stride, or
            "hierarchical" for a group that does not fill its nodes equally.
    """
    return regular_groups(cluster).time_s(name, size_bytes, n, stride, algorithm)
