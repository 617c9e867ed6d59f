"""DualPipeV: forwards and backwards in pairs, so that the computation of one hides the communication of the other.

DeepSeek's DualPipe feeds a pipeline from both ends, with two copies of the weights. Cut in half and folded, it is a V
of 2 p pieces on p ranks with one copy. In the steady state each rank alternates between a forward down and a backward
up the V, F0 B1 and F1 B0. The two of a pair are independent: an executor may run both at once and hide an
expert-parallel all-to-all of one behind the products of the other. Here they run one after the other.

Cost: bubble (p-1)(FB + B - 3 W) seconds for pieces of F, B (whole) and W, with FB the time of an overlapped pair;
activations of 2 p + 1 pieces on a rank, each half of its layers; twice the sent bytes of 1F1B.
Legend: p ranks (`num_stages`), m micro-batches, i a rank; 0 and 1 in a pattern the rank's pieces i and 2p-1-i.
Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, arXiv 2412.19437, section 3.2.1 (DualPipe); its eight phases
and costs for the V from the README and code of deepseek-ai/DualPipe, 2025, after Qi et al., arXiv 2405.15362.
Simplified: the plan does not mark pairs: from the first F0 B1 on, each forward and the backward after it are a pair;
torch writes pairs as OVERLAP_F_B.
"""

from lablib.pipeline.plan import Action, Plan
from lablib.pipeline.schedules.row import RankActions, check_sizes, vee


def dualpipe_v(num_stages: int, num_microbatches: int) -> Plan:
    """The plan of p = `num_stages` >= 1 ranks with two pieces each and m = `num_microbatches` >= 2 p."""
    check_sizes("dualpipe-v", num_stages=num_stages, num_microbatches=num_microbatches)
    if num_microbatches < 2 * num_stages:
        raise ValueError(
            "dualpipe-v: num_microbatches must be at least 2 num_stages, one for each piece: "
            f"got {num_microbatches} and {num_stages}; try {2 * num_stages}."
        )
    rows = tuple(_row(rank, num_stages, num_microbatches) for rank in range(num_stages))
    return Plan("dualpipe-v", num_stages, num_microbatches, rows, vee(num_stages))


def _row(rank: int, num_stages: int, num_microbatches: int) -> tuple[Action, ...]:
    above, below = rank + 1, num_stages - 1 - rank
    row = RankActions((rank, 2 * num_stages - 1 - rank), num_microbatches)
    # Fill.
    row.write(2 * below, "F0")
    row.write(above, "F0 F1")
    row.write(below, "I1 W F1")
    # Steady.
    row.write(num_microbatches - 2 * num_stages + above, "F0 B1 F1 B0")
    # Drain. The backwards of the second half are split, and W fills the waits.
    row.write(below, "B1 F1 B0")
    row.write(above // 2, "B1 B0")
    row.write(above % 2, "B1 I0")
    row.write(above // 2, "I1 I0")
    row.write(below, "W I0")
    row.write(above, "W")
    return tuple(row.actions)
