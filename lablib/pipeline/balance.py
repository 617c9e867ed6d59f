"""Balanced cuts of a chain of layers: the slowest piece is as fast as possible.

A pipeline runs at the pace of its slowest piece. The first layer is an embedding, which computes almost nothing. The
last is the head and the loss, which cost as much as several layers if the vocabulary is large. So equal numbers of
layers are rarely equal work.

    costs   0 4 4 4 4 4 4 4 4 10       embedding, 8 layers, head
    equal   0 4 4|4 4|4 4|4 4 10       by number of layers: the last piece costs 18
    here    0 4 4|4 4 4|4 4 4|10       the largest piece costs 12

Of all cuts with the smallest possible largest piece, it is the one with the least sum of squares, so the rest is
balanced too.

Cost: O(n^2 p) for n layers and p pieces.
Source: the linear partition problem, solved by dynamic programming over (layers, pieces): Skiena, "The Algorithm Design
Manual", 2nd ed. 2008, section 8.5; for pipelines: Narayanan et al., "PipeDream", SOSP 2019, section 3.1.
Simplified: messages are free; a layer is never cut.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf

from lablib.signature import Count, NonNegative, checked


@checked
def balanced_cut(costs: Sequence[NonNegative], num_pieces: Count) -> tuple[range, ...]:
    """The layers of each piece, in order: `balanced_cut([1, 1, 1, 3], 2)` is `(range(0, 3), range(3, 4))`.

    Arguments:
        costs: of each layer, in any unit.
        num_pieces: at most the number of layers.
    """
    if num_pieces > len(costs):
        raise ValueError(
            f"every piece needs a layer: got {len(costs)} layers for {num_pieces} pieces; "
            f"cut into {max(1, len(costs))} or fewer."
        )
    largest = _least(costs, num_pieces, inf, max)[0]
    ends = _least(costs, num_pieces, largest, lambda sum_before, piece: sum_before + piece * piece)[1]
    return tuple(range(start, stop) for start, stop in pairwise((0, *ends)))


def _least(costs: Sequence[float], num_pieces: int, limit: float, join) -> tuple[float, tuple[int, ...]]:
    """The least value of a cut with pieces of at most `limit`, and the ends of its pieces.

    `join(value of the pieces before, cost of a piece)` is the value with that piece.
    """
    sums = [0.0, *accumulate(costs)]
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())] + [(inf, ())] * len(costs)
    for piece in range(1, num_pieces + 1):
        found: list[tuple[float, tuple[int, ...]]] = [(inf, ())] * (len(costs) + 1)
        for stop in range(piece, len(costs) - num_pieces + piece + 1):
            for start in range(piece - 1, stop):
                taken = sums[stop] - sums[start]
                if taken <= limit and best[start][0] < inf:
                    found[stop] = min(found[stop], (join(best[start][0], taken), (*best[start][1], stop)))
        best = found
    return best[-1]
