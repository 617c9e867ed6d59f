"""ZB-V: no bubble, with the memory of 1F1B: each rank holds one piece on the way down and one on the way back.

The 2 p pieces lie in a V: down the ranks and up again. Rank 0 holds the first piece and the last, so the loss is on the
rank of the input, and the first gradient arrives after one way down and up, the same time after the first forward on
every rank. With separate weight gradients, all ranks are busy from their first action to their last.

    p = 2     rank 0   0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 ...     pieces 0 and 3
              rank 1    .  1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 ...         pieces 1 and 2

Cost: no bubble where F = I = W and m >= 2 p - 1; activations of 2 p pieces on a rank, each half of its layers: as
1F1B's rank 0; twice the sent bytes of 1F1B.
Legend: p ranks (`num_stages`), m micro-batches, i a rank; 0 and 1 in a pattern the rank's pieces i and 2p-1-i.
Source: Qi, Wan, Huang, Lin, "Zero Bubble Pipeline Parallelism", 2023, arXiv 2401.10241, section 6 (there B is our I).
Simplified: the order drawn by hand for F = I = W, the same as torch's ScheduleZBVZeroBubble. Fewer than 2 p - 1
micro-batches leave gaps.
"""

from lablib.pipeline.plan import Plan
from lablib.pipeline.schedules.row import RankActions, check_sizes, vee


def zb_v(num_stages: int, num_microbatches: int) -> Plan:
    """The plan of p = `num_stages` >= 1 ranks with two pieces each and m = `num_microbatches` >= 1."""
    check_sizes("zb-v", num_stages=num_stages, num_microbatches=num_microbatches)
    rows = []
    for rank in range(num_stages):
        below, planned = num_stages - rank, max(num_microbatches, 2 * num_stages - 1)
        row = RankActions((rank, 2 * num_stages - 1 - rank), num_microbatches)
        # Fill: down the V, until the first micro-batch comes back up; then turn it around as soon as it does.
        row.write(2 * below - 1, "F0")
        row.write(rank, "F1 F0")
        row.write(below, "F1 I1 W1")
        # Steady, until all forwards are done: `planned` micro-batches on F0, `below + rank` of them done on F1.
        row.write(planned - num_stages, "F0 I0 W0 F1 I1 W1")
        # Drain: gradients first while others wait for them, then the weights.
        row.write(rank, "I0 I1")
        row.write(below, "I0 W0")
        row.write(num_stages, "W1")
        row.write(num_stages, "W0")
        rows.append(tuple(row.actions))
    return Plan("zb-v", num_stages, num_microbatches, tuple(rows), vee(num_stages))
