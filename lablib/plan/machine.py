"""What pieces of a training step take on one rank: the cost model seen through a stack and its derating.

    product     matmul_time_s at its dtype / the share of it that derating.py and the power limit leave
    attention   attention_time_s / the same share; a kernel older than its device has a share of the newest one's rate
                at heads of 128, whatever its own width; unfused attention is products and streams (layer/)
    stream      memory_bound_time_s / memory share
    collective  regular_collective_s over wires of bandwidth * share

A `Pass` adds such pieces up: forward, backward for the input, or backward for the weights. The device works through
its kernels and collectives one after another while the host starts the kernels:

    device = kernels' seconds + number of kernels * time of one in the queue + communication
    host   = number of kernels * max( launch, calls per kernel * dispatch )

The slower of the two sets the pace: of every pass on the stacks with fused kernels, of the step as a whole on an eager
stack (step.py), as in the simulator.

Everything is a number or a numpy array (lablib/cost/arrays.py).

Source: a host that falls behind its device: Paszke et al., "PyTorch", 2019, arXiv 1912.01703, section 5.2.
Simplified: one kernel's launch is as long as another's; communication that hides is taken out before (pieces.py,
data_axis.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from lablib.cost.arrays import Numbers, ceil_div, maximum, minimum
from lablib.cost.attention import attention_time_s, causal_share, mean_causal_keys
from lablib.cost.efficiency import operator_time_s
from lablib.cost.matmul import matmul_time_s
from lablib.cost.regular_group import RegularGroups
from lablib.hardware.cluster import Cluster
from lablib.hardware.device import Device
from lablib.plan.derating import Derating
from lablib.plan.stack import Stack

# Width of the heads that attention kernels are tuned for. What holds an old one back is not the exponentials that
# narrow heads wait for: on an A100, Triton's ran at 187 and 188 TFLOP/s with heads of 64 and of 128, FlashAttention-2
# at 182 and 210 (forward, 16,384 tokens: Dao-AILab/flash-attention, issue 307; of backward issue 1556 says the same).
USUAL_WIDTH = 128

# The dtypes, in this order, that stand in for one of 8 bits or less.
_INSTEAD: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"float4": ("float4", "float8", "bfloat16", "float16"), "float8": ("float8", "bfloat16", "float16")}
)


class Pass(NamedTuple):
    """Seconds of one pass through some layers, by what they are spent on, and the kernels that were started.

    `context_s` is what attention waits for; `hidden_context_s` is on the wires while it works, and takes no time.
    """

    product_s: Numbers = 0.0
    attention_s: Numbers = 0.0
    memory_s: Numbers = 0.0
    tensor_s: Numbers = 0.0
    context_s: Numbers = 0.0
    expert_s: Numbers = 0.0
    kernels: Numbers = 0.0
    hidden_context_s: Numbers = 0.0

    def plus(self, other: "Pass") -> "Pass":
        """Both passes, one after the other."""
        return Pass(*[a + b for a, b in zip(self, other, strict=True)])

    def times(self, n: Numbers) -> "Pass":
        """So many of them (or a share of one)."""
        return Pass(*[n * a for a in self])

    @property
    def compute_s(self) -> Numbers:
        """Seconds of kernels that compute, without their launches."""
        return self.product_s + self.attention_s + self.memory_s

    @property
    def communication_s(self) -> Numbers:
        """Seconds that layers wait for the three axes on which they communicate."""
        return self.tensor_s + self.context_s + self.expert_s


class Axis(NamedTuple):
    """Seconds of one rank a step on one axis of communication.

    Attributes:
        total_s, exposed_s: on the wires: in all, and those not hidden behind compute.
        copies_s: of kernels that pack what is sent and unpack what came. They are no communication, but without the
            axis they would not be there.
        kernels: how many of these the host of an eager program under DDP starts.
    """

    total_s: Numbers = 0.0
    exposed_s: Numbers = 0.0
    copies_s: Numbers = 0.0
    kernels: Numbers = 0.0

    @property
    def added_s(self) -> Numbers:
        """By how much the axis makes the step longer."""
        return self.exposed_s + self.copies_s


@dataclass(frozen=True)
class Machine:
    """A cluster's device and wires, the software on it, and what both lose.

    Attributes:
        cluster: the cluster.
        stack: the software.
        derating: what real machines lose.
        precision: dtype of the linear layers' products; other work is in 16 bits, or 32 where this is 32.
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
        """Bytes of a number of an activation."""
        return {"float64": 8, "float32": 4, "tfloat32": 4}.get(self.precision, 2)

    @cached_property
    def gradient_bytes(self) -> int:
        """Bytes of a number of a gradient that is accumulated and reduced."""
        if self.stack.is_eager:
            return self.width
        if self.precision == "float16":
            return self.stack.float16_gradient_bytes
        return self.stack.narrow_gradient_bytes if self.is_narrow else self.stack.gradient_bytes

    @property
    def shard_width(self) -> int:
        """Bytes of a number of a parameter, and of its gradient's sum, that an eager ZeRO-3 splits."""
        return 4 if self.width == 2 and self.stack.has_wide_shards else self.width

    @property
    def is_narrow(self) -> bool:
        """Whether products are in 8 bits or less."""
        return self.precision in ("float8", "float4")

    @property
    def has_master(self) -> bool:
        """Whether the optimizer keeps a copy of the parameters in 32 bits."""
        return self.width == 2 and self.stack.has_master

    @cached_property
    def plain(self) -> str:
        """The dtype of products that are never in 8 bits or less: attention's, the head's."""
        return "bfloat16" if self.is_narrow else self.precision

    def computed_in(self, dtype: str) -> str:
        """What products of a dtype are computed in: where the device has no units for 8 bits or less, a wider one."""
        peaks = self.device.peak_flops_per_s
        return next((each for each in _INSTEAD.get(dtype, ()) if each in peaks), dtype)

    @property
    def peak_flops_per_s(self) -> float:
        """Of the device, in the dtype that products are computed in."""
        return self.device.peak(self.computed_in(self.precision))

    @cached_property
    def matmul_shares(self) -> dict[str, float]:
        """Of each dtype: what products reach in a training step of what the cost model says of them."""
        return {dtype: self.derating.sustained_share(dtype, self.device) for dtype in self.device.peak_flops_per_s}

    def product_s(
        self,
        m: Numbers,
        n: Numbers,
        k: Numbers,
        batch: Numbers = 1,
        dtype: str = "",
        is_over_tokens: bool = False,
    ) -> Numbers:
        """Seconds of `batch` products [m, k] x [k, n], at the training precision or another dtype.

        A gradient that sums over tokens multiplies a transposed operand: its rows in memory have m numbers, not k.
        """
        dtype = self.computed_in(dtype or self.precision)
        time_s = matmul_time_s(m, n, k, dtype, self.device, batch, (m, n) if is_over_tokens else None)
        return time_s / self.matmul_shares.get(dtype, self.derating.matmul_share)

    def stream_s(self, size_bytes: Numbers, kind: str = "", elements: Numbers = 0) -> Numbers:
        """Seconds to read and write so many bytes of memory, as a kind of operator does (cost/efficiency.py)."""
        return operator_time_s(kind, size_bytes, elements, self.device) / self.derating.memory_share

    def attention_s(
        self, batch: Numbers, heads: Numbers, queries: Numbers, keys: Numbers, d: Numbers, backward: bool
    ) -> Numbers:
        """Seconds of one attention kernel: `heads` of width d, a sequence's `queries` on this rank, all its `keys`."""
        is_flash = self.stack.attention == "flash"

        def kernel_s(width: Numbers) -> Numbers:
            # These queries are some of a sequence of T, from its beginning and end: they see half of it in the mean.
            # (The constants of stacks with fused kernels were fitted with half of a whole kernel.)
            in_mean = is_flash and self.stack.is_eager
            seen = mean_causal_keys(keys, self.device) if in_mean else keys
            time_s = attention_time_s(batch, heads, queries, seen, width, self.plain, self.device, backward=backward)
            return time_s * (causal_share(keys, keys) if is_flash and not in_mean else 1.0) / self.attention_share

        return self._by_generation(kernel_s, d) if is_flash else kernel_s(d)

    def attention_block_s(
        self,
        batch: Numbers,
        heads: Numbers,
        queries: Numbers,
        keys: Numbers,
        d: Numbers,
        backward: bool,
        is_causal: bool,
    ) -> Numbers:
        """Seconds of a flash kernel on one block of the scores: all of it, or with `is_causal` what lies below the
        diagonal."""

        def kernel_s(width: Numbers) -> Numbers:
            sizes = (batch, heads, queries, keys, width)
            time_s = attention_time_s(*sizes, self.plain, self.device, causal=is_causal, backward=backward)
            return time_s / self.attention_share

        return self._by_generation(kernel_s, d)

    def _by_generation(self, kernel_s: Callable[[Numbers], Numbers], d: Numbers) -> Numbers:
        """Seconds of a flash kernel by the width of its heads, where it may be older than its device."""
        if not self.generations_behind:
            return kernel_s(d)
        slower = self.derating.generation_share**self.generations_behind
        return maximum(kernel_s(d), kernel_s(USUAL_WIDTH) * (d / USUAL_WIDTH) / slower)

    @cached_property
    def attention_share(self) -> float:
        """What the newest attention kernel reaches of the cost model's rate."""
        if not self.derating.has_generations:
            return self.derating.matmul_share
        return self.matmul_shares.get(self.plain, self.derating.matmul_share)

    @cached_property
    def generations_behind(self) -> int:
        """How many generations older than the device its attention kernel is (derating.py)."""
        if not self.derating.has_generations:
            return 0
        return max(0, self.device.attention_generation - self.stack.attention_generation)

    def _wires(self, is_collective: bool) -> Cluster:
        """The cluster, its wires at what collectives or single messages reach."""
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
        """Seconds of a collective ("send": a message) of so many bytes over n ranks, `stride` ranks apart."""
        groups = self.messages if name == "send" else self.groups
        return groups.time_s(name, size_bytes, n, stride)

    def in_node(self, n: Numbers, stride: Numbers) -> Numbers:
        """How many of n ranks, `stride` ranks apart, share a node with the first."""
        return minimum(n, ceil_div(self.cluster.devices_per_node, stride))

    @cached_property
    def groups(self) -> RegularGroups:
        """What collectives take, over wires at the share that they reach."""
        return RegularGroups(self._wires(is_collective=True))

    @cached_property
    def messages(self) -> RegularGroups:
        """The same of messages between two ranks."""
        return RegularGroups(self._wires(is_collective=False))

    def time_s(self, work: Pass) -> Numbers:
        """Seconds of a pass; on an eager stack those of the device alone: its host runs ahead (step.py)."""
        if self.stack.is_eager:
            return work.compute_s + work.kernels * self.device.queued_s + work.communication_s
        # The constants of stacks with fused kernels were fitted with all of the overhead on the device.
        device_s = work.compute_s + work.kernels * self.device.kernel_overhead_s + work.communication_s
        return maximum(device_s, self.host_s(work.kernels))

    def host_s(self, kernels: Numbers) -> Numbers:
        """Seconds in which the host starts so many kernels."""
        return kernels * max(self.derating.dispatch_s * self.stack.calls_per_kernel, self.device.launch_s)
