"""ZB-H1: 1F1B with weight gradients deferred into the bubble; a third of the bubble with the same memory.

The backward of a layer is two products: the gradient of its input (I), needed by the stage before, and the gradient of
its weights (W), needed only by the optimizer. Sending I before W shortens the way back, and W runs when a stage would
idle. Rank i defers i of them, so every rank holds p micro-batches, as rank 0 of 1F1B.

    stage 0   0F0 0F1  .  0I0 0W0 0F2 0I1 0W1 0F3 0I2 0W2 0I3 0W3
    stage 1    .  1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1F3 1I3 1W2 1W3

Cost: bubble (p-1)(F + I - W) seconds, a third of 1F1B's where F = I = W; activations of min(p, m) micro-batches on
every rank; sent bytes as in 1F1B.
Legend: p ranks (`num_stages`), m micro-batches, i a rank.
Source: Qi, Wan, Huang, Lin, "Zero Bubble Pipeline Parallelism", 2023, arXiv 2401.10241, section 2.1 (there B is our I).
Simplified: the order drawn by hand for F = I = W, not the paper's search for measured times. The same as torch's
ScheduleInterleavedZeroBubble with one stage per rank.
"""

from lablib.pipeline.plan import Plan
from lablib.pipeline.schedules.row import RankActions, check_sizes, loop


def zb_h1(num_stages: int, num_microbatches: int) -> Plan:
    """The plan of p = `num_stages` >= 1 ranks and m = `num_microbatches` >= 1."""
    check_sizes("zb-h1", num_stages=num_stages, num_microbatches=num_microbatches)
    rows = []
    for rank in range(num_stages):
        row = RankActions((rank,), num_microbatches)
        row.write(num_stages - 1 - rank, "F")
        row.write(rank, "F I")
        row.write(num_microbatches, "F I W")
        rows.append(tuple(row.actions))
    return Plan("zb-h1", num_stages, num_microbatches, tuple(rows), loop(num_stages))
