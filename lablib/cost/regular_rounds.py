"""Edges of a regular group's collectives by formulas, without a loop over its ranks.

A regular group is n ranks at a constant stride s: 0, s, 2 s, ... The groups of a mesh are regular: tensor parallel
s = 1, data parallel s = tensor * context, pipeline s = world / stages. Nodes, leaves and pods are nested blocks of B
consecutive ranks, and a message is slower the larger the block that it leaves:

    ring        crosses a border if the group does: (n-1) s >= B; has a pair inside a node if s < D
    exchange    so does every one of its n - 1 shifts: only the whole group is its own image under a shift. Shift k has
                a pair inside a node if k s < D or (n-k) s < D
    tree        round k pairs 2 m h with 2 m h + h, h = 2^k s: some multiple j B must fall into (2 m h, 2 m h + h].
                With b = B mod 2 h that is j = 1 for 1 <= b <= h; never for b = 0; otherwise the first j with
                j (2 h - b) >= h, because each j falls that much further back from the end of its interval
    by node     L = ceil(D / s) ranks on every node, if N L = n and the last node's last rank is still on it:
                N (L s - D) < s. The ranks of one place (a rail) are on nodes 0 to N - 1

Legend: n, s; D devices per node; L ranks of the group on each of N nodes.

    at once     a rank has as many messages inside its node, leaf and pod as each has multiples of s, except itself

Where nodes are not such blocks (a torus), pairs are visited one by one. The group begins at rank 0: other groups of
the axis are shifted copies of it, and have the same edges wherever blocks and strides divide.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Self, TypeAlias

from lablib.cost.network import GroupNetwork, Round, round_of
from lablib.hardware.cluster import Cluster, Edge
from lablib.hardware.topology import Dragonfly, FatTree

Line = tuple[float, float]  # alpha, beta: S bytes take alpha + S beta
Lines = tuple[Line, ...]  # the edges of one round: the slowest counts


class _FromFirst:
    """A regular group's collectives with a root are from its first rank."""

    def from_root(self, root: int) -> Self:
        return self

    def to_root(self, root: int) -> list[Lines]:
        raise NotImplementedError("no formula: gather and scatter are no collectives of a mesh")


def slowest(edges: Lines) -> Lines:
    """The edges that are the slowest for some size: no other edge is equal or worse in both figures."""
    worst = sorted(set(edges), reverse=True)
    return tuple(a for i, a in enumerate(worst) if all(b[1] < a[1] for b in worst[:i]))


def line(edge: Edge) -> Line:
    return edge.latency_s, 1 / edge.bandwidth_bytes_per_s


def local_ranks(n: int, stride: int, devices: int) -> int:
    """L of the legend if the group fills two or more nodes equally with two or more ranks, otherwise 1."""
    local = -(-devices // stride)
    num_nodes, rest = divmod(n, local)
    is_equal = rest == 0 and num_nodes > 1 and num_nodes * (local * stride - devices) < stride
    return local if is_equal else 1


# ---- nested blocks ----


@dataclass(frozen=True)
class Levels:
    """Sizes, in ranks, of the blocks of a network (node, leaf, pod), and the edge across the border of each.

    `switch` is the edge of each rank to the switch of its node.
    """

    blocks: tuple[int, ...]
    inside: Line
    across: Lines
    switch: Line


def levels_of(cluster: Cluster) -> Levels | None:
    """The blocks of a fat tree or a dragonfly; None for a network without blocks."""
    network = cluster.topology
    if type(network) is FatTree:
        inner, outer = network.nodes_per_leaf, network.leaves_per_pod
    elif type(network) is Dragonfly:
        inner, outer = network.nodes_per_router, network.routers_per_group
    else:
        return None
    nodes = (1, inner, inner * outer)
    blocks = tuple(cluster.devices_per_node * count for count in nodes)
    inside = Edge("intra", cluster.intra.latency_s, cluster.intra.bandwidth_bytes_per_s)
    switch = Edge("intra", cluster.intra.nvls_latency_s or 0.0, cluster.intra.bandwidth_bytes_per_s)
    return Levels(blocks, line(inside), tuple(line(cluster.wire(0, block)) for block in blocks), line(switch))


@dataclass(frozen=True)
class BlockRounds(_FromFirst):
    """The rounds of `size` ranks at a stride on a network of blocks."""

    levels: Levels
    size: int
    stride: int

    def _edges(self, num_crossed: int, has_inside: bool) -> Lines:
        inside = (self.levels.inside,) if has_inside else ()
        across = self.levels.across[num_crossed - 1 : num_crossed] if num_crossed else ()
        return slowest(inside + across)

    @cached_property
    def _spanned(self) -> int:
        """Number of levels (node, leaf, pod) at which one block does not hold the whole group."""
        return sum((self.size - 1) * self.stride >= block for block in self.levels.blocks)

    @property
    def local(self) -> int:
        return local_ranks(self.size, self.stride, self.levels.blocks[0])

    @property
    def is_one_node(self) -> bool:
        return self._spanned == 0

    @property
    def ring(self) -> Lines:
        return self._edges(self._spanned, self.stride < self.levels.blocks[0])

    neighbours = ring  # without the way back from the last rank to the first, which crosses no other border

    @property
    def tree(self) -> list[Lines]:
        return [self._tree_round(k) for k in range((self.size - 1).bit_length())]

    def _tree_round(self, k: int) -> Lines:
        step = self.stride << k
        last_pair = (self.size - 1 - (1 << k)) >> (k + 1)
        end = (2 * last_pair + 1) * step
        num_crossed = sum(_crosses(block, step, end) for block in self.levels.blocks)
        return self._edges(num_crossed, step < self.levels.blocks[0])

    @property
    def shifts(self) -> list[tuple[int, Lines]]:
        """(count, edges): how many of the n - 1 shifts use these edges."""
        total = self.size - 1
        with_inside = min(total, 2 * (-(-self.levels.blocks[0] // self.stride) - 1))
        kinds = ((with_inside, True), (total - with_inside, False))
        return [(count, self._edges(self._spanned, has_inside)) for count, has_inside in kinds if count]

    @property
    def exchange(self) -> Lines:
        node = self.levels.blocks[0]
        nodes = {at // node for at in range(0, self.size * self.stride, self.stride)}
        rows = sorted({self._peers(node * place) for place in nodes})
        return slowest(tuple(line for row in rows for line in self._shared(*row)))

    def _peers(self, at: int) -> tuple[int, ...]:
        """The peers of a rank in the node that begins at `at`: inside it, and by the outermost border crossed."""
        # Members in a node, leaf or pod of B ranks: the multiples of s in it.
        n, s = self.size, self.stride
        held = [min(n, -(-(at // b + 1) * b // s)) - -(-(at // b) * b // s) for b in self.levels.blocks]
        return held[0] - 1, *(wider - within for within, wider in pairwise((*held, n)))

    def _shared(self, num_inside: int, *num_beyond: int) -> Iterator[Line]:
        alpha, beta = self.levels.inside
        if num_inside:
            yield alpha, num_inside * beta / self.size
        wires = [(edge, count) for edge, count in zip(self.levels.across, num_beyond, strict=True) if count]
        if wires:
            yield max(alpha for (alpha, _), _ in wires), sum(count * beta for (_, beta), count in wires) / self.size

    @property
    def inside(self) -> Lines:
        return (self.levels.inside,)

    @property
    def switches(self) -> Lines:
        return (self.levels.switch,)

    @property
    def rail(self) -> "BlockRounds":
        """The group's ranks in the same place on their nodes; all rails are equal."""
        return BlockRounds(self.levels, self.size // self.local, self.levels.blocks[0])


def _crosses(block: int, step: int, end: int) -> bool:
    """Whether a pair (2 m step, 2 m step + step), none beyond `end`, lies on both sides of a multiple of `block`."""
    rest = block % (2 * step)
    if rest == 0:
        return False
    first = 1 if rest <= step else -(-step // (2 * step - rest))
    return first * block <= end


# ---- any network ----


class PairRounds(_FromFirst):
    """The same for a network without blocks, pair by pair."""

    def __init__(self, cluster: Cluster, ranks: range | tuple[int, ...]):
        self._net = GroupNetwork(cluster, ranks)
        self.size = self._net.size

    @property
    def local(self) -> int:
        return self._net.local

    @property
    def is_one_node(self) -> bool:
        return self._net.is_one_node

    @property
    def ring(self) -> Lines:
        return _lines(self._net.ring)

    @property
    def neighbours(self) -> Lines:
        ranks = self._net.ranks
        return _lines(round_of(self._net.cluster, zip(ranks[:-1], ranks[1:], strict=True)))

    @property
    def tree(self) -> list[Lines]:
        return [_lines(step) for step in self._net.tree]

    @property
    def shifts(self) -> list[tuple[int, Lines]]:
        return [(count, _lines(step)) for count, step in self._net.shifts]

    @property
    def inside(self) -> Lines:
        return _lines(self._net.inside)

    @property
    def exchange(self) -> Lines:
        return _lines(self._net.exchange)

    @property
    def switches(self) -> Lines:
        return _lines(self._net.switches)

    @property
    def rail(self) -> "PairRounds":
        # Every rail is on the same nodes in the same order.
        return PairRounds(self._net.cluster, self._net.rails[0].ranks)


def _lines(step: Round) -> Lines:
    return slowest(tuple(line(edge) for edge in step.edges))


Rounds: TypeAlias = BlockRounds | PairRounds  # edges of a group's collectives, as attributes of GroupNetwork


def rounds_of(cluster: Cluster, n: int, stride: int) -> Rounds:
    """The rounds of ranks 0, stride, ..., (n - 1) stride."""
    if levels := levels_of(cluster):
        return BlockRounds(levels, n, stride)
    return PairRounds(cluster, range(0, n * stride, stride))
