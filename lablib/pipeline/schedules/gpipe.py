"""GPipe: all forwards, then all backwards.

A batch is cut into m micro-batches that follow each other through the stages, so that several stages work at once.
Backward begins after all forwards, so every stage holds the activations of all m.

    stage 0   0F0 0F1 0F2  .   .   .  0B0---- 0B1---- 0B2----
    stage 1    .  1F0 1F1 1F2 1B0---- 1B1---- 1B2----

Cost: bubble (p-1)/(m+p-1) of the step; activations of m micro-batches on every rank; one activation sent forward and
one gradient sent back for each micro-batch and neighbour.
Legend: p ranks (`num_stages`), m micro-batches.
Source: Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", 2018,
arXiv 1811.06965, section 2.3.
Simplified: the paper draws the backwards from the last micro-batch to the first; here they start with the first, as in
Megatron-LM and torch, with the same time and memory. Recomputation changes the costs, not the order.
"""

from lablib.pipeline.plan import Plan
from lablib.pipeline.schedules.row import RankActions, check_sizes, loop


def gpipe(num_stages: int, num_microbatches: int) -> Plan:
    """The plan of p = `num_stages` >= 1 ranks and m = `num_microbatches` >= 1."""
    check_sizes("gpipe", num_stages=num_stages, num_microbatches=num_microbatches)
    rows = []
    for rank in range(num_stages):
        row = RankActions((rank,), num_microbatches)
        row.write(num_microbatches, "F")
        row.write(num_microbatches, "B")
        rows.append(tuple(row.actions))
    return Plan("gpipe", num_stages, num_microbatches, tuple(rows), loop(num_stages))
