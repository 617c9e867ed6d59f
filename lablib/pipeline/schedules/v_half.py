"""V-Half: half of 1F1B's bubble at half of its memory.

A building block (v_blocks.py) in which a micro-batch takes two steps from rank to rank on its ways down and one on its
ways up. Each rank then holds it for about 6 p steps, counting both pieces; repeated every 6 steps, that is p pieces at
once: half of the 2 p that 1F1B's rank 0 would hold.

    p = 3    step    0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16
    rank 0           F0  .  .  .  .  .  . F1 I1  .  .  .  .  .  .  . I0
    rank 1            .  . F0  .  .  . F1  .  .  . I1  .  .  .  . I0  .
    rank 2            .  .  .  . F0 F1  .  .  .  .  .  . I1  . I0  .  .

Cost: bubble at most 3 (p-1) steps of a piece where F = I = W and m > p/2 (1F1B has 6 (p-1)); for unequal times it does
not grow with m as long as W + 2 I >= 2 F and W + 2 F >= 2 I; activations of floor((p+2)/2) micro-batches, twice as many
pieces, on a rank; twice the sent bytes of 1F1B.
Legend: p ranks (`num_stages`), m micro-batches; 0 and 1 the rank's pieces i and 2p-1-i.
Source: Qi, Wan, Amar, Lin, "Pipeline Parallelism with Controllable Memory", 2024, arXiv 2405.15362, section 3; memory
and bubble as its authors' table states them.
Simplified: see v_blocks.py.
"""

from lablib.pipeline.plan import Plan
from lablib.pipeline.schedules.row import check_sizes
from lablib.pipeline.schedules.v_blocks import BuildingBlock, Pass, repeat


def v_half(num_stages: int, num_microbatches: int) -> Plan:
    """The plan of p = `num_stages` >= 1 ranks with two pieces each and m = `num_microbatches` >= 1."""
    check_sizes("v-half", num_stages=num_stages, num_microbatches=num_microbatches)
    return repeat("v-half", block(num_stages), num_stages, num_microbatches)


def block(num_stages: int) -> BuildingBlock:
    """The steps of a micro-batch: each pass as early as possible without collisions modulo 6."""
    p = num_stages
    wait = 0 if p % 2 else 3  # before I1 starts down again: without it I0 would meet F1 where p is even
    forward = {"F0": Pass(0, +2), "F1": Pass(3 * p - 2, -1)}
    return BuildingBlock(**forward, I1=Pass(3 * p - 1 + wait, +2), I0=Pass(6 * p - 2 + wait, -1))
