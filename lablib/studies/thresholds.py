"""Thresholds for training runs that circulate without a model, a batch or a machine, recomputed by the planner.

    tokens/s >= 1000    a step <= 2 s (or 1 s)    growth of memory in a step <= 8 GB    allocated <= 32 GB
    memory <= 24 GB     tokens per second and GPU, divided by the same on the fewest GPUs that hold the model, >= 0.8

Each is compared with the fastest plan that fits, for a model, a batch and a machine. A limit below the GPU's memory has
a price: the step time of the fastest plan below the limit, divided by the step time of the fastest plan.

Growth in a step: the peak less weights and optimizer state, that is gradients, activations and buffers.
Cost: one search. Source of the thresholds: none that we know; they are in lists of advice and in templates.
"""

from dataclasses import dataclass
from math import inf

from lablib.cost.arrays import np
from lablib.hardware.cluster import Cluster
from lablib.models.transformer import Transformer
from lablib.plan import search
from lablib.signature import Count, checked

MIN_TOKENS_PER_S, MAX_STEP_S, MIN_SCALING = 1000, (2.0, 1.0), 0.8
MAX_GROWTH_BYTES, MAX_ALLOCATED_BYTES, MAX_MEMORY_BYTES = 8e9, 32e9, 24e9
_LASTING = ("parameter", "optimizer state", "other")  # categories that a step does not add


@dataclass(frozen=True, slots=True)
class RunNumbers:
    """The fastest plan's numbers: what such thresholds are about."""

    num_gpus: int  # num_gpus, plan: GPUs, and the split in words
    plan: str
    tokens_per_s: float  # of all GPUs
    step_s: float  # of one step
    # peak_bytes, growth_bytes: of the fullest GPU: its peak, and the part that a step adds to weights and optimizer
    peak_bytes: float
    growth_bytes: float
    # memory limit in bytes -> step time of the fastest plan below it over `step_s`; infinity: none fits
    slowdown_at: dict[float, float]

    @property
    def tokens_per_gpu_s(self) -> float:
        return self.tokens_per_s / self.num_gpus

    def scaling(self, fewest: "RunNumbers") -> float:
        """Tokens per second and GPU, over those of a run on fewer GPUs."""
        return self.tokens_per_gpu_s / fewest.tokens_per_gpu_s


@checked
def run_numbers(
    model: str | Transformer, cluster: str | Cluster, gpus: Count, batch_tokens: Count, seq_len: Count
) -> RunNumbers | None:
    """Search all plans for a step of `batch_tokens` tokens; None if none fits.

    Raises ValueError: unknown names, or a batch that is not whole sequences.
    """
    if batch_tokens % seq_len:
        raise ValueError(
            f"batch_tokens must be a multiple of seq_len: got {batch_tokens:,} and {seq_len:,}; "
            f"try {max(1, batch_tokens // seq_len) * seq_len:,}"
        )
    found = search(model, cluster, batch_tokens // seq_len, gpus=gpus, seq_len=seq_len)
    if not len(found.order):
        return None
    best = found.plans[int(found.order[0])]
    step_s, peak_bytes = found.plans.step_time_s[found.order], found.plans.peak_memory_bytes[found.order]
    fullest = max(best.memory, key=lambda stage: sum(stage.values()))
    slowdown_at = {}
    for limit in (MAX_ALLOCATED_BYTES, MAX_MEMORY_BYTES):
        below = np.flatnonzero(peak_bytes <= limit)
        slowdown_at[limit] = float(step_s[below[0]]) / best.step_time_s if len(below) else inf
    return RunNumbers(
        num_gpus=gpus,
        plan=str(best.parallel),
        tokens_per_s=batch_tokens / best.step_time_s,
        step_s=best.step_time_s,
        peak_bytes=best.peak_memory_bytes,
        growth_bytes=sum(size for name, size in fullest.items() if name not in _LASTING),
        slowdown_at=slowdown_at,
    )


@checked
def kept_thresholds(numbers: RunNumbers, fewest: RunNumbers | None = None) -> dict[str, bool]:
    """Which of the thresholds this run keeps."""
    kept = {
        "tokens/s >= 1000": numbers.tokens_per_s >= MIN_TOKENS_PER_S,
        **{f"step <= {limit:g} s": numbers.step_s <= limit for limit in MAX_STEP_S},
        "growth <= 8 GB": numbers.growth_bytes <= MAX_GROWTH_BYTES,
        "allocated <= 32 GB": numbers.peak_bytes <= MAX_ALLOCATED_BYTES,
        "memory <= 24 GB": numbers.peak_bytes <= MAX_MEMORY_BYTES,
    }
    return kept | ({"scaling >= 0.8": numbers.scaling(fewest) >= MIN_SCALING} if fewest is not None else {})
