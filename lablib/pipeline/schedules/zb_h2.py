"""ZB-H2: no bubble, with twice the activations.

While a rank of 1F1B waits for its first gradient it could run more forwards: rank i has time for 2 (p-1-i) + 1 of them
in all. At the other end weight gradients fill the wait, as in ZB-H1: rank i defers 2 i of them. Rank i then starts and
ends i steps late, and is busy in between.

    stage 0   0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3
    stage 1    .  1F0 1I0 1F1 1I1 1F2 1I2 1W0 1F3 1I3 1W1 1W2 1W3

Cost: bubble (p-1)(F + I - 2 W) seconds, none where F = I = W; activations of min(2 p - 1, m) micro-batches on every
rank; sent bytes as in 1F1B.
Legend: p ranks (`num_stages`), m micro-batches, i a rank.
Source: Qi, Wan, Huang, Lin, "Zero Bubble Pipeline Parallelism", 2023, arXiv 2401.10241, section 2.2 (there B is our I).
Simplified: the order drawn by hand for F = I = W. Ranks end a step one after another: there is no bubble only without a
barrier before the optimizer step (the paper's post-validation, section 4).
"""

from lablib.pipeline.plan import Plan
from lablib.pipeline.schedules.row import RankActions, check_sizes, loop


def zb_h2(num_stages: int, num_microbatches: int) -> Plan:
    """The plan of p = `num_stages` >= 1 ranks and m = `num_microbatches` >= 1."""
    check_sizes("zb-h2", num_stages=num_stages, num_microbatches=num_microbatches)
    rows = []
    for rank in range(num_stages):
        row = RankActions((rank,), num_microbatches)
        row.write(2 * (num_stages - 1 - rank), "F")
        row.write(2 * rank, "F I")
        row.write(num_microbatches, "F I W")
        rows.append(tuple(row.actions))
    return Plan("zb-h2", num_stages, num_microbatches, tuple(rows), loop(num_stages))
