"""Sharding each parameter by its rows, as FSDP2 does, compared with a flat buffer: padding and copies.

A flat shard cuts through matrices. Here every parameter is cut along its first dimension instead: a rank has ceil(D/n)
of its D rows (the last ranks fewer, or none). So a shard is still a matrix with its own name and dtype, and may be
frozen separately. This allows optimizers by parameter and checkpoints without unflattening. But a collective needs one
buffer ordered by rank, not by parameter. So every gather is followed by a copy out of a buffer, and every
reduce-scatter preceded by a copy into one:

    shards            rank 0: [ w 2 rows ][ b 2 ]     rank 1: [ w 1 row, 1 of padding ][ b 1, 1 ]
    gathered          [ w0 w1 b0 b1 | w2 .  b2 . ]    by rank
    copied out        w [ w0 w1 w2 ]   b [ b0 b1 b2 ] by parameter

    flat                 padding < n elements per unit           no copies: a parameter is a view of the buffer
    by parameter         padding < n rows per parameter          3 in a step of stage 3: out, out, in

Cost for n ranks, S bytes of a unit (padded: S'), of one gather (the reduce-scatter is its mirror):
    time_s      (n-1) alpha + (n-1)/n S' beta, and reading and writing S' of memory
    peak bytes  2 S' during the copy
    sent bytes  (n-1)/n S' per rank
Shapes: a parameter is [D, ...]; a shard [d, ...] with d = ceil(D / n), padded; d_i rows of it are real.
Source: torch.distributed.fsdp.fully_shard (torch 2.13, documentation: "per-parameter sharding"); Liang et al.,
"TorchTitan", 2024, arXiv 2410.06511, section 2.1.1; flat: Zhao et al., "PyTorch FSDP", VLDB 2023, arXiv 2304.11277.
Simplified: one dtype; shards are kept padded; no overlap.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated

from lablib.parallel.zero.shards import FlatLayout
from lablib.signature import Count, NonEmpty, NonNegativeInt, checked


@checked
def rows_of(num_rows: NonNegativeInt, world_size: Count, rank: NonNegativeInt) -> int:
    """Real rows of a parameter on a rank: ceil(D / n) on the first, fewer or none on the last. As `torch.chunk`."""
    if rank >= world_size:
        raise ValueError(f"rank must be 0 to {world_size - 1}, one of {world_size}: got {rank}.")
    chunk = -(-num_rows // world_size)
    return min(max(num_rows - rank * chunk, 0), chunk)


@checked
def padded_shard_numel(shape: tuple[int, ...], world_size: Count) -> int:
    """Elements that every rank keeps of a parameter: ceil(D / n) rows. A number without dimensions is one row."""
    rows, *rest = shape or (1,)
    return -(-rows // world_size) * prod(rest)


@dataclass(frozen=True, slots=True)
class LayoutCost:
    """Cost of a layout in a step of stage 3, for one unit."""

    layout: str  # "flat" or "by parameter"
    padding_bytes: int  # of parameters, on all ranks together
    sent_bytes: int  # by every rank, in two gathers and a reduce-scatter (rings)
    copied_bytes: int  # read and written by every rank for copies into and out of buffers
    empty_shards: int  # number of empty shards, summed over ranks and parameters


@checked
def compare_layouts(
    shapes: Annotated[Sequence[tuple[int, ...]], NonEmpty()], world_size: Count, element_bytes: Count = 2
) -> list[LayoutCost]:
    """One row for each layout of a unit with these parameters: a table for a lab.

    Flat: gradients are copied into the reduced buffer. By parameter: that copy is padded, and gathered buffers are
    copied out, twice per step.
    """
    numel = sum(map(prod, shapes))
    flat = FlatLayout(tuple(map(str, range(len(shapes)))), tuple(map(tuple, shapes)), world_size)
    held = [{piece.name for piece in flat.pieces(rank)} for rank in range(world_size)]
    by_rows = sum(padded_shard_numel(tuple(shape), world_size) for shape in shapes)
    empty_rows = sum(rows_of((*shape, 1)[0], world_size, rank) == 0 for shape in shapes for rank in range(world_size))
    return [
        LayoutCost(
            layout,
            padding_bytes=(shard * world_size - numel) * element_bytes,
            sent_bytes=3 * (world_size - 1) * shard * element_bytes,
            copied_bytes=num_copies * 2 * shard * world_size * element_bytes + in_bytes,
            empty_shards=empty,
        )
        for layout, shard, num_copies, in_bytes, empty in (
            ("flat", flat.shard_numel, 1, 0, sum(len(shapes) - len(names) for names in held)),
            # And 1 + 1 times this rank's shards, into the gathered buffer.
            ("by parameter", by_rows, 3, 2 * 2 * by_rows * element_bytes, empty_rows),
        )
    ]
