"""The naive estimate that a planner must beat: FLOPs at half of the peak, times (1 + bubble).

    step = hardware FLOPs / (GPUs x peak / 2) x (1 + (p - 1) / (m v))        p stages, m micro-batches, v chunks

The peak is the peak of the row's precision; hardware FLOPs count the vocabulary as stated and full recomputation
(measured.py). The estimate leaves out communication, memory and kernels.

Source of the bubble: Narayanan et al., SC21, arXiv 2104.04473, section 2.2.
"""

from lablib.validation.case import Case
from lablib.validation.measured import hardware_flops


def naive_step_time_s(case: Case) -> float:
    """Seconds of one step by the naive estimate."""
    parallel = case.parallel
    flops = hardware_flops(case.model, case.batch, case.seq_len, case.recompute)
    bubble = (parallel.pipeline - 1) / (case.num_microbatches * parallel.chunks)
    return flops / (parallel.num_ranks * case.cluster.device.peak(case.precision) / 2) * (1 + bubble)
