"""1F1B: run a backward as soon as possible, so that a stage holds few micro-batches.

Rank i runs p-1-i forwards to fill the pipeline behind it, then takes turns: one forward, one backward. The bubble is
the same as in GPipe. A rank holds activations only of the micro-batches in flight, not of all m.

    stage 0   0F0 0F1  .   .  0B0---- 0F2 0B1---- 0F3 0B2----  .  0B3----
    stage 1    .  1F0 1B0---- 1F1 1B1---- 1F2 1B2---- 1F3 1B3----

Cost: bubble (p-1)/(m+p-1) of the step; activations of min(p-i, m) micro-batches on rank i; sent bytes as in GPipe.
Legend: p ranks (`num_stages`), m micro-batches, i a rank.
Source: Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.2 (the
order); "Memory-Efficient Pipeline-Parallel DNN Training", 2020, arXiv 2006.09503 (with a flush after each batch).
"""

from lablib.pipeline.plan import Plan
from lablib.pipeline.schedules.row import RankActions, check_sizes, loop


def one_f_one_b(num_stages: int, num_microbatches: int) -> Plan:
    """The plan of p = `num_stages` >= 1 ranks and m = `num_microbatches` >= 1."""
    check_sizes("1f1b", num_stages=num_stages, num_microbatches=num_microbatches)
    rows = []
    for rank in range(num_stages):
        row = RankActions((rank,), num_microbatches)
        row.write(num_stages - 1 - rank, "F")
        row.write(num_microbatches, "F B")  # the forwards run out first, then backwards are left
        rows.append(tuple(row.actions))
    return Plan("1f1b", num_stages, num_microbatches, tuple(rows), loop(num_stages))
