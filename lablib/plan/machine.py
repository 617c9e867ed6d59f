"""Seconds of kernels and collectives on one rank: the cost model with a stack and its derating.

    product     matmul_time_s at its dtype / the share of it that derating.py and the power limit leave
    attention   attention_time_s / the share of products without a power limit; a kernel older than its device has a
                share of the newest one's rate at heads of 128, at any width; unfused attention is products and streams
                (layer/)
    stream      memory_bound_time_s / memory share
    collective  regular_collective_s over wires of bandwidth * share

A `PassTime` adds up such pieces: forward, backward for the input, or backward for the weights. The device runs its
kernels and collectives one after another while the host starts the kernels:

    device = kernels' seconds + number of kernels * time of one in the queue + communication
    host   = number of kernels * max( launch, calls per kernel * dispatch )

The slower of the two sets the pace: of every pass on the stacks with fused kernels, of the step as a whole on an eager
stack (step.py), as in the simulator.

Everything is a number or a numpy array (lablib/cost/arrays.py).

Source: a host that falls behind its device: Paszke et al., "PyTorch", 2019, arXiv 1912.01703, section 5.2.
Simplified: all launches take equally long; hidden communication is taken out before (pieces.py, data_axis.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from lablib.cost.arrays import Numbers, ceil_div, maximum, minimum
from lablib.cost.attention import attention_time_s, mean_causal_keys
from lablib.cost.efficiency import operator_time_s
from lablib.cost.matmul import matmul_time_s
from lablib.cost.regular_group import RegularGroups
from lablib.hardware.cluster import Cluster
from lablib.hardware.device import Device
from lablib.models.transformer import Window
from lablib.plan.derating import Derating
from lablib.plan.stack import Stack

# Head width that attention kernels are tuned for. The exponentials, which limit narrow heads, do not limit an old
# kernel: on an A100, Triton's ran at 187 and 188 TFLOP/s with heads of 64 and of 128, FlashAttention-2 at 182 and 210
# (forward, 16,384 tokens: Dao-AILab/flash-attention, issue 307; issue 1556 for backward).
USUAL_WIDTH = 128

_ONE_RING = ("all_gather", "reduce_scatter")
# Substitutes for a dtype of 8 bits or less, the first choice first.
_INSTEAD: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "float4": ("float4", "float8", "bfloat16", "float16"),
        "float8": ("float8", "bfloat16", "float16"),
        "int8": ("int8", "bfloat16", "float16"),
    }
)


class PassTime(NamedTuple):
    """Seconds of one pass through some layers, by kind, and the number of its kernels.

    Attention waits for `context_s`; `hidden_context_s` is on the wires during its kernels, and takes no time.
    """

    product_s: Numbers = 0.0
    attention_s: Numbers = 0.0
    memory_s: Numbers = 0.0
    tensor_s: Numbers = 0.0
    context_s: Numbers = 0.0
    expert_s: Numbers = 0.0
    kernels: Numbers = 0.0
    hidden_context_s: Numbers = 0.0

    def plus(self, other: "PassTime") -> "PassTime":
        """Both passes, one after the other."""
        return PassTime(*[a + b for a, b in zip(self, other, strict=True)])

    def times(self, n: Numbers) -> "PassTime":
        """n of them (or a share of one)."""
        return PassTime(*[n * a for a in self])

    @property
    def compute_s(self) -> Numbers:
        """Seconds of kernels that compute, without their launches."""
        return self.product_s + self.attention_s + self.memory_s

    @property
    def communication_s(self) -> Numbers:
        """Seconds that layers wait for the three axes on which they communicate."""
        return self.tensor_s + self.context_s + self.expert_s


class AxisTime(NamedTuple):
    """Seconds per step of one rank on one axis of communication."""

    total_s: Numbers = 0.0  # total_s, exposed_s: on the wires: in all, and not hidden behind compute
    exposed_s: Numbers = 0.0
    copies_s: Numbers = 0.0  # kernels that pack and unpack for the axis; they are compute, not communication
    kernels: Numbers = 0.0  # number of these that the host of an eager program under DDP starts

    @property
    def added_s(self) -> Numbers:
        """Seconds that the axis adds to the step."""
        return self.exposed_s + self.copies_s


@dataclass(frozen=True)
class Machine:
    """A cluster with the software on it and the losses of both.

    `precision` is the dtype of the linear layers' products; other work is in 16 bits, or in 32 where `precision` is.
    """

    cluster: Cluster
    stack: Stack
    derating: Derating
    precision: str

    @property
    def device(self) -> Device:
        """One accelerator of the cluster."""
        return self.cluster.device

    @cached_property
    def width(self) -> int:
        """Bytes per activation."""
        return {"float64": 8, "float32": 4, "tfloat32": 4}.get(self.precision, 2)

    @cached_property
    def gradient_bytes(self) -> int:
        """Bytes per gradient that is accumulated and reduced."""
        if self.stack.is_eager:
            return self.width
        if self.precision == "float16":
            return self.stack.float16_gradient_bytes
        return self.stack.narrow_gradient_bytes if self.is_narrow else self.stack.gradient_bytes

    @property
    def shard_width(self) -> int:
        """Bytes per parameter, and per summed gradient, that an eager ZeRO-3 splits."""
        return 4 if self.width == 2 and self.stack.has_wide_shards else self.width

    @property
    def is_narrow(self) -> bool:
        """Whether products are in 8 bits or less."""
        return self.precision in ("float8", "float4", "int8")

    @property
    def has_master(self) -> bool:
        """Whether the optimizer keeps 32-bit copies of the parameters."""
        return self.width == 2 and self.stack.has_master

    @cached_property
    def plain(self) -> str:
        """Dtype of products that are never in 8 bits or less: attention and head."""
        return "bfloat16" if self.is_narrow else self.precision

    def computed_in(self, dtype: str) -> str:
        """The dtype that products run in: a wider one if the device has no units for 8 bits or less."""
        peaks = self.device.peak_flops_per_s
        return next((each for each in _INSTEAD.get(dtype, ()) if each in peaks), dtype)

    @property
    def peak_flops_per_s(self) -> float:
        """Peak of the device in the dtype that products run in."""
        return self.device.peak(self.computed_in(self.precision))

    @cached_property
    def matmul_shares(self) -> dict[str, float]:
        """Dtype -> share of the cost model's rate that products reach in a training step."""
        return {dtype: self.derating.sustained_share(dtype, self.device) for dtype in self.device.peak_flops_per_s}

    def product_s(
        self, m: Numbers, n: Numbers, k: Numbers, batch: Numbers = 1, dtype: str = "", is_over_tokens: bool = False
    ) -> Numbers:
        """Seconds of `batch` products [m, k] x [k, n], in the training precision or another dtype.

        A gradient that sums over tokens multiplies a transposed operand: its rows in memory have m numbers, not k.
        """
        dtype = self.computed_in(dtype or self.precision)
        time_s = matmul_time_s(m, n, k, dtype, self.device, batch, (m, n) if is_over_tokens else None)
        return time_s / self.matmul_shares.get(dtype, self.derating.matmul_share)

    def stream_s(self, size_bytes: Numbers, kind: str = "", elements: Numbers = 0) -> Numbers:
        """Seconds to read and write `size_bytes` of memory in an operator of this kind (cost/efficiency.py)."""
        return operator_time_s(kind, size_bytes, elements, self.device) / self.derating.memory_share

    def attention_s(
        self,
        batch: Numbers,
        heads: Numbers,
        queries: Numbers,
        keys: Numbers,
        d: Numbers,
        backward: bool,
        is_causal: bool | None = None,
        window: Window | None = None,
    ) -> Numbers:
        """Seconds of a flash kernel, which may be older than its device, for `heads` of width d.

        `is_causal`: of a block of the scores, the part below the diagonal, or all. None: of causal attention of a
        rank's `queries`, from both ends of a sequence, over all its `keys`: half of these are seen on average.
        `window`: of such attention, to the nearest keys only. To torch's own kernel it is a mask: no block is skipped.
        """
        seen = mean_causal_keys(keys, self.device) if is_causal is None else keys
        if window and self.stack.is_eager:
            seen = seen + (keys > window.tokens) * (keys - seen)
        elif window:
            seen = mean_causal_keys(keys, self.device, window.tokens, window.is_chunked)

        def kernel_s(width: Numbers) -> Numbers:
            sizes = (batch, heads, queries, seen, width)
            time_s = attention_time_s(*sizes, self.plain, self.device, causal=bool(is_causal), backward=backward)
            return time_s / self.derating.matmul_share

        if not self.generations_behind:
            return kernel_s(d)
        slower = self.derating.generation_share**self.generations_behind
        return maximum(kernel_s(d), kernel_s(USUAL_WIDTH) * (d / USUAL_WIDTH) / slower)

    @cached_property
    def generations_behind(self) -> int:
        """Generations by which the attention kernel is older than its device (derating.py)."""
        if not self.derating.has_generations:
            return 0
        return max(0, self.device.attention_generation - self.stack.attention_generation)

    def _wires(self, is_collective: bool) -> Cluster:
        """The cluster with the bandwidths that collectives or single messages reach."""
        shares = self.derating.intra_share, self.derating.inter_share
        links = self.cluster.intra, self.cluster.inter
        if shares == (1.0, 1.0):
            return self.cluster
        slower = [
            replace(
                link,
                bandwidth_bytes_per_s=link.bandwidth_bytes_per_s
                * share
                * (link.collective_share if is_collective else 1.0),
            )
            for link, share in zip(links, shares, strict=True)
        ]
        return self.cluster.replace(intra=slower[0], inter=slower[1])

    def collective_s(self, name: str, size_bytes: Numbers, n: Numbers, stride: Numbers = 1) -> Numbers:
        """Seconds of a collective ("send": a message) of `size_bytes` over n ranks, `stride` ranks apart."""
        groups, derating = self.messages if name == "send" else self.groups, self.derating
        time_s = groups.time_s(name, size_bytes, n, stride)
        if not self.device.is_gpu:  # no NCCL
            return time_s
        time_s = time_s + derating.collective_s * (n > 1)
        if name == "send" or not derating.rank_s + derating.node_s:
            return time_s
        inside = self.in_node(n, stride)
        time_s = time_s + derating.rank_s * (inside - 1)
        if name not in _ONE_RING:
            return time_s
        return time_s + derating.node_s * (n / inside - 1) + derating.hop_s * (n - inside)

    def exposed_s(self, wires_s: Numbers, compute_s: Numbers) -> Numbers:
        """Seconds that communication of `wires_s` adds to `compute_s` at the same time: the rest, and contention."""
        return maximum(wires_s - compute_s, 0.0) + self.derating.contention * minimum(wires_s, compute_s)

    def in_node(self, n: Numbers, stride: Numbers) -> Numbers:
        """Number of the n ranks, `stride` ranks apart, that share a node with the first."""
        return minimum(n, ceil_div(self.cluster.devices_per_node, stride))

    @cached_property
    def groups(self) -> RegularGroups:
        """Times of collectives, at derated bandwidths."""
        return RegularGroups(self._wires(is_collective=True))

    @cached_property
    def messages(self) -> RegularGroups:
        """Times of messages between two ranks."""
        return RegularGroups(self._wires(is_collective=False))

    def time_s(self, work: PassTime) -> Numbers:
        """Seconds of a pass; on an eager stack of the device alone: its host runs ahead (step.py)."""
        if self.stack.is_eager:
            return work.compute_s + work.kernels * self.device.queued_s + work.communication_s
        # The constants of stacks with fused kernels were fitted with all of the overhead on the device.
        device_s = work.compute_s + work.kernels * self.device.kernel_overhead_s + work.communication_s
        return maximum(device_s, self.host_s(work.kernels))

    def host_s(self, kernels: Numbers) -> Numbers:
        """Seconds in which the host starts the kernels."""
        return kernels * max(self.derating.dispatch_s * self.stack.calls_per_kernel, self.device.launch_s)
