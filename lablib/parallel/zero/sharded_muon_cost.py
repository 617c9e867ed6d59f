"""Cost of a step of sharded Muon per rank, for the three ways of sharded_muon.py: bytes, FLOPs, momentum.

For n ranks, N numbers in all matrices, F FLOPs of Newton-Schulz for all, 5 (4 r^2 c + 2 r^3) for r x c with r <= c:

                sent bytes per rank      FLOPs per rank   momentum      needs
    owner       2 N (n-1)/n  or more     F/n or more      N/n           whole gradients
    gather      2 N (n-1)/n              F                N/n           shards
    exchange    4 N (n-1)/n^2            F/n or more      N/n           shards

"or more": matrices are assigned whole, so owners are not perfectly balanced, and the all-gather pads each to the
largest. Owners are chosen by FLOPs, the most expensive matrix first, each to the rank with least work so far: the
busiest rank has at most 4/3 of the optimum. Beyond 2 ranks the exchange sends least.

Cost: O(M (log M + n)) for M matrices.
Shapes: of a matrix (rows, columns).
Source: sharded_muon.py; Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl. Math. 17(2), 1969 (the
largest first). Simplified: an all-gather goes in a ring.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated

from lablib.signature import Count, OneOf, checked

WAYS = ("owner", "gather", "exchange")
NUMBER_BYTES = 2  # BF16
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MuonCost:
    """Cost of one step on each rank, in the group's order."""

    sent_bytes: tuple[float, ...]  # by the rank (all-gathers in a ring)
    flops: tuple[int, ...]  # of Newton-Schulz
    state_numbers: tuple[int, ...]  # of momentum on the rank


def newton_schulz_flops(shape: Shape, ns_steps: int = 5) -> int:
    """ns_steps (4 m^2 n + 2 m^3), with m the shorter side."""
    m, n = sorted(shape)
    return ns_steps * (4 * m * m * n + 2 * m**3)


@checked
def owners(shapes: Sequence[Shape], ranks: Count) -> list[int]:
    """The owner of each matrix, balanced by FLOPs: the largest first, each to the rank with least work."""
    require_matrices((f"number {index}", shape) for index, shape in enumerate(shapes))
    load, found = [0] * ranks, [0] * len(shapes)
    for index in sorted(range(len(shapes)), key=lambda index: -newton_schulz_flops(shapes[index], 1)):
        found[index] = load.index(min(load))
        load[found[index]] += newton_schulz_flops(shapes[index], 1)
    return found


@checked
def muon_cost(
    way: Annotated[str, OneOf(WAYS)], shapes: Sequence[Shape], counts: Sequence[Sequence[int]], ns_steps: Count = 5
) -> MuonCost:
    """Bytes, FLOPs and state of one step, rank by rank.

    `counts`: for each matrix, the numbers on each rank's shard (`Sharded.counts`). `ns_steps`: of Newton-Schulz.
    """
    for shape, parts in zip(shapes, counts, strict=True):
        if sum(parts) != prod(shape) or len(parts) != len(counts[0]):
            raise ValueError(f"counts must add up to each matrix, one per rank: got {tuple(parts)} for shape {shape}.")
    ranks = len(counts[0]) if counts else 1
    owner = owners(shapes, ranks)
    flops = [newton_schulz_flops(shape, ns_steps) for shape in shapes]
    numels = [prod(shape) for shape in shapes]

    def of_owner(values: Sequence[int]) -> list[int]:
        return [sum(value for value, own in zip(values, owner, strict=True) if own == rank) for rank in range(ranks)]

    kept = [sum(parts[rank] for parts in counts) for rank in range(ranks)]
    if way == "gather":
        sent = [NUMBER_BYTES * (ranks - 1) * max(kept, default=0)] * ranks
        return MuonCost(tuple(sent), (sum(flops),) * ranks, tuple(kept))
    if way == "owner":
        sent = [NUMBER_BYTES * (ranks - 1) * max(of_owner(numels))] * ranks
        return MuonCost(tuple(sent), tuple(of_owner(flops)), tuple(of_owner(numels)))
    own_pieces = of_owner([parts[own] for parts, own in zip(counts, owner, strict=True)])  # these are not sent
    there = [kept[rank] - own_pieces[rank] for rank in range(ranks)]
    back = [numel - own for numel, own in zip(of_owner(numels), own_pieces, strict=True)]
    sent = [NUMBER_BYTES * (a + b) for a, b in zip(there, back, strict=True)]
    return MuonCost(tuple(sent), tuple(of_owner(flops)), tuple(kept))


def require_matrices(named: Iterable[tuple[str, Shape]]) -> None:
    """Raise ValueError for shapes that are not matrices."""
    for name, shape in named:
        if len(shape) != 2 or 0 in shape:
            raise ValueError(f"Muon takes matrices: got {name} of shape {tuple(shape)}; give it to AdamW.")
