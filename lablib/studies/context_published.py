"""Ring, zigzag and striped attention as published, and as predicted.

The README of zhuzilin/ring-flash-attention has a table of 8 GPUs with 8,192 tokens each, in iterations per second: one
GPU's FlashAttention over its own tokens, divided by 8 (in a ring each GPU has 8 times the pairs), and three rings.
Their share of the first is the efficiency. A count of pairs gives for any machine

    contiguous      n / (2n - 1) = 53.3%         zigzag, striped        100%

and the table has 51 to 54%, 82 to 90%, 70 to 83%. `context_cost` predicts the rest: partial results written and read
again, in 32 bits, and kernels that start again for each round. Only FlashAttention's speed is taken from the table, row
by row: the library's kernel of 2024 reaches half of an H100's possible rate.

Found: contiguous within 2 points of the table, zigzag within 5. Striped is 7 to 12 points too high, most without
backward. Our interpretation: all its rounds are causal, and a causal kernel then took longer for its pairs than a full
one, which the cost model does not have.

Cost: simulations of the rings, half a second each.
Source: zhuzilin/ring-flash-attention, README.md at 01c8baf ("batch api"), its figures; sizes: README and
benchmark/benchmark_kvpacked_func.py at 556ddaa (Llama 3.1 8B: 32 heads, 8 of keys and values, width 128; bfloat16).
The algorithms: Liu et al., 2023, arXiv 2310.01889; Brandon et al., 2023, arXiv 2311.09431.
Simplified: an H800 as an H100 with NVLink of 200 GB/s each way (400 GB/s in NVIDIA's sum of both).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lablib.hardware import Cluster
from lablib.hardware.catalogue import find_cluster
from lablib.parallel.context.bytes import ContextSizes
from lablib.parallel.context.order import ORDERS, balance
from lablib.signature import checked
from lablib.studies.context_cost import context_cost, fair_share_s

RANKS, TOKENS_A_RANK = 8, 8192
SIZES = ContextSizes(batch=1, seq_len=RANKS * TOKENS_A_RANK, heads=32, kv_heads=8, d_head=128)


@dataclass(frozen=True, slots=True)
class PublishedRing:
    """A row of the table, in iterations a second."""

    gpu: str  # "H800" or "A100"
    forward_only: bool
    flash: float  # one GPU's FlashAttention over its own tokens, before the division by 8
    rings: Mapping[str, float]  # by order

    @property
    def efficiencies(self) -> dict[str, float]:
        """Each ring's share of the rate of 8 GPUs without any cost of sharing."""
        return {order: rate / (self.flash / RANKS) for order, rate in self.rings.items()}


def _row(gpu: str, forward_only: bool, flash: float, ring: float, zigzag: float, striped: float) -> PublishedRing:
    return PublishedRing(gpu, forward_only, flash, {"contiguous": ring, "zigzag": zigzag, "striped": striped})


PUBLISHED_RINGS = (
    _row("H800", True, 591.5, 38.5, 63.0, 55.0),
    _row("H800", False, 154.7, 10.4, 17.4, 16.0),
    _row("A100", True, 373.4, 24.0, 38.2, 32.5),
    _row("A100", False, 94.7, 6.2, 10.6, 9.75),
)


@checked
def counted_efficiencies() -> dict[str, float]:
    """Efficiency by pairs of queries and keys alone, for any machine: the mean rank's over the slowest rank's."""
    return {name: balance(make(SIZES.seq_len, RANKS)) for name, make in ORDERS.items()}


@checked
def predicted_efficiencies(row: PublishedRing) -> dict[str, float]:
    """By order, from `context_cost` on the row's machine with FlashAttention at its measured speed."""
    cluster = _as_measured(row)
    share_s = RANKS * _own_tokens_s(row, cluster)
    times = {name: context_cost(SIZES, cluster, RANKS, "ring", name, forward_only=row.forward_only) for name in ORDERS}
    return {name: share_s / time.time_s for name, time in times.items()}


def _as_measured(row: PublishedRing) -> Cluster:
    """The machine, with products slowed down until attention takes the time in the table."""
    cluster = find_cluster("dgx-a100")
    if row.gpu == "H800":
        cluster = find_cluster("dgx-h100")
        cluster = replace(cluster, intra=replace(cluster.intra, bandwidth_bytes_per_s=200e9))
    share = _own_tokens_s(row, cluster) * row.flash
    peaks = {name: peak * share for name, peak in cluster.device.peak_flops_per_s.items()}
    return replace(cluster, device=replace(cluster.device, peak_flops_per_s=peaks))


def _own_tokens_s(row: PublishedRing, cluster: Cluster) -> float:
    """Attention over one GPU's own tokens: the table's first column."""
    return fair_share_s(replace(SIZES, seq_len=TOKENS_A_RANK), cluster, 1, forward_only=row.forward_only)
