"""A chain of element-wise operators, one kernel each or all in one kernel: limited by bytes.

An element-wise operator does a few FLOPs per number, and moves every number through the device's memory: a kernel reads
its operands from there and writes its result there. In sequence, k operators on N numbers read back the numbers just
written. One fused kernel keeps them in registers:

    x -> [relu] -> memory -> [mul] -> memory -> [add y] -> out        x -> [relu, mul, add y] -> out

                   kernels    bytes                        FLOPs        intensity, FLOP per byte
    unfused        k          (2 k + b) N itemsize         k N          k / ((2 k + b) itemsize)    < 1 / (2 itemsize)
    fused          1          (2 + b) N itemsize           k N          k / ((2 + b) itemsize)      grows with k

b of the operators take a second tensor. Both do the same arithmetic; the ridge of an H100 lies at 20 FLOP per byte for
float32 outside its tensor cores, so both wait for memory, and the ratio of times goes to (2 k + b) / (2 + b).

Cost: seconds = kernels * (launch + bytes of one / bandwidth), by the cost model (lablib/cost).
Shapes: N numbers in each tensor, none broadcast.
Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009; NVIDIA, "GPU Performance Background User's Guide"
(DU-09798-001), 2023, section 4.3 (element-wise operations are limited by memory).
Simplified: an operator is one FLOP per number, also `exp` and `tanh`, which take several; computed at the float32 rate.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType
from typing import Annotated

import torch
from torch import Tensor

from lablib.cost.memory import memory_bound_time_s
from lablib.hardware.device import Device
from lablib.run import Span, Timeline
from lablib.signature import Count, NonEmpty, NonNegativeInt, OneOf, checked

ONE_OPERAND: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "neg": torch.neg,
        "abs": torch.abs,
        "relu": torch.relu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "exp": torch.exp,
        "double": lambda x: x * 2,
        "plus_one": lambda x: x + 1,
    }
)
TWO_OPERANDS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.maximum}
)
Chain = Annotated[Sequence[Annotated[str, OneOf((*ONE_OPERAND, *TWO_OPERANDS))]], NonEmpty(), 'try ["relu"]']


@dataclass(frozen=True, slots=True)
class ChainCost:
    """Cost of a chain: bytes that each of its kernels reads and writes, FLOPs of all."""

    kernel_bytes: tuple[int, ...]
    flops: int

    @property
    def kernels(self) -> int:
        """Kernels started."""
        return len(self.kernel_bytes)

    @property
    def size_bytes(self) -> int:
        """Bytes read and written by all kernels."""
        return sum(self.kernel_bytes)

    @property
    def intensity(self) -> float:
        """FLOP per byte; 0 if no bytes are moved."""
        return self.flops / self.size_bytes if self.size_bytes else 0.0


@checked
def num_second_operands(chain: Chain) -> int:
    """Number of operators of a chain that take a second tensor."""
    return sum(name in TWO_OPERANDS for name in chain)


@checked
def unfused_cost(chain: Chain, numel: NonNegativeInt, itemsize: Count) -> ChainCost:
    """A kernel for each operator: reads its one or two operands, writes its result."""
    tensors = [3 if name in TWO_OPERANDS else 2 for name in chain]
    return ChainCost(tuple(count * numel * itemsize for count in tensors), len(chain) * numel)


@checked
def fused_cost(chain: Chain, numel: NonNegativeInt, itemsize: Count) -> ChainCost:
    """One kernel: reads x and the second operands, writes the last result."""
    second = num_second_operands(chain)
    return ChainCost(((2 + second) * numel * itemsize,), len(chain) * numel)


@checked
def run_unfused(chain: Chain, x: Tensor, others: Sequence[Tensor]) -> Tensor:
    """The chain on x. ValueError unless `others` has, in order, a tensor like x for each operator that needs one."""
    second = num_second_operands(chain)
    if len(others) != second or any(y.shape != x.shape or y.dtype != x.dtype for y in others):
        raise ValueError(
            f"a chain must have one tensor like x, {list(x.shape)} {x.dtype}, for each of its {second} operators with "
            f"two operands: got {[(list(y.shape), y.dtype) for y in others]}."
        )
    left = iter(others)
    for name in chain:
        x = ONE_OPERAND[name](x) if name in ONE_OPERAND else TWO_OPERANDS[name](x, next(left))
    return x


@torch.library.custom_op("lablib::elementwise_chain", mutates_args=())
def _fused(x: Tensor, others: list[Tensor], chain: str) -> Tensor:
    """One operator of torch, and so one kernel: the simulator sees its operands and its result."""
    return run_unfused(chain.split(","), x, others)


@_fused.register_fake
def _(x: Tensor, others: list[Tensor], chain: str) -> Tensor:
    return torch.empty_like(x)


@checked
def run_fused(chain: Chain, x: Tensor, others: Sequence[Tensor]) -> Tensor:
    """The same as one operator, like a fused kernel; this machine computes the operators one by one."""
    return _fused(x, list(others), ",".join(chain))


@checked
def chain_time_s(cost: ChainCost, device: Device) -> float:
    """Seconds of a chain by the cost model: its kernels wait for memory, or for the cache if a kernel's data fits."""
    return sum(device.queued_s + float(memory_bound_time_s(size, device)) for size in cost.kernel_bytes)


@checked
def chain_timeline(costs: Mapping[str, ChainCost], device: Device) -> Timeline:
    """A span per way to run a chain, for `lablib.figures.figure_roofline`. ValueError: a device that has no roof."""
    if not isfinite(device.memory_bandwidth_bytes_per_s):
        raise ValueError(f"a roofline needs a device with a bandwidth: got {device.name!r}; try H100-80GB-SXM.")
    spans, now_s = [], 0.0
    for name, cost in costs.items():
        end_s = now_s + chain_time_s(cost, device)
        amounts = float(cost.flops), float(cost.size_bytes)
        spans.append(Span(0, "compute", name, "chain", now_s, end_s, *amounts, "float32"))
        now_s = end_s
    return Timeline.of(spans, 1)
