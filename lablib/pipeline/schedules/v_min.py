"""V-Min: a third of 1F1B's memory, the least a V can do, for two thirds of its bubble.

A building block (v_blocks.py) in which a micro-batch moves on at every step, down and up the V and down and up again:
after 4 p steps it has left rank 0. Each rank holds it for about 4 p steps, counting both pieces; repeated every 6
steps, that is 2 p / 3 pieces at once: a third of the 2 p that 1F1B's rank 0 would hold.

    p = 4    step    0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15
    rank 0           F0  .  .  .  .  .  . F1 I1  .  .  .  .  .  . I0
    rank 1            . F0  .  .  .  . F1  .  . I1  .  .  .  . I0  .
    rank 2            .  . F0  .  . F1  .  .  .  . I1  .  . I0  .  .
    rank 3            .  .  . F0 F1  .  .  .  .  .  . I1 I0  .  .  .

Cost: bubble about 4 (p-1) steps of a piece where F = I = W (1F1B has 6 (p-1)), and one that grows with m for unequal
times, as a rank then waits in every round; activations of floor((p+4)/3) micro-batches, twice as many pieces, on a
rank; twice the sent bytes of 1F1B.
Legend: p ranks (`num_stages`), m micro-batches; 0 and 1 the rank's pieces i and 2p-1-i.
Source: Qi, Wan, Amar, Lin, "Pipeline Parallelism with Controllable Memory", 2024, arXiv 2405.15362, section 3; memory
and bubble as its authors' table states them.
Simplified: see v_blocks.py.
"""

from lablib.pipeline.plan import Plan
from lablib.pipeline.schedules.row import check_sizes
from lablib.pipeline.schedules.v_blocks import BuildingBlock, Pass, repeat


def v_min(num_stages: int, num_microbatches: int) -> Plan:
    """The plan of p = `num_stages` >= 1 ranks with two pieces each and m = `num_microbatches` >= 1."""
    check_sizes("v-min", num_stages=num_stages, num_microbatches=num_microbatches)
    return repeat("v-min", block(num_stages), num_stages, num_microbatches)


def block(num_stages: int) -> BuildingBlock:
    """The steps of a micro-batch: each pass as early as possible without collisions modulo 6."""
    p = num_stages
    wait = 0 if p % 3 else 2  # before I1 starts down again: without it I1 would meet F0 where p is a multiple of 3
    forward = {"F0": Pass(0, +1), "F1": Pass(2 * p - 1, -1)}
    return BuildingBlock(**forward, I1=Pass(2 * p + wait, +1), I0=Pass(4 * p - 1 + wait, -1))
