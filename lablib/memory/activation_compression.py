"""Activation compression: keep what backward needs in 8 bits instead of 32.

Forward computes with full precision. What autograd would keep is quantized as it is packed, and dequantized when
backward unpacks it: groups of G numbers share a scale and an offset (asymmetric, as activations after GELU are not
centred). Rounding is stochastic, up or down so that the mean is right:

    scale = (max - min) / 255       code = floor((x - min) / scale + u), u uniform in [0, 1)       x~ = code scale + min

The error of a gradient. Each number is off by less than its group's scale, |x~ - x| < s, and right in the mean. Of a
product y = x w^T the gradient dw = dy^T x is linear in what was kept, so it is right in the mean too, and

    |dw~ - dw|_fd < sum over tokens t of |dy_tf| s_td       standard deviation at most 1/2 sqrt(sum of (dy_tf s_td)^2)

while dx = dy w has no error at all. An elementwise y = f(x) has dx = dy f'(x), off by less than |dy| s max |f''|; that
error goes on to the layers below, and is not zero in the mean.

Cost: 1 + 8 / G bytes a number instead of 4; two passes over memory for each kept tensor.
Shapes: any; a tensor is cut into groups of G in the order of its memory, the last one filled up.
Source: Chen et al., "ActNN: Reducing Training Memory Footprint via 2-Bit Activation Compressed Training", 2021, arXiv
2104.14129, section 3 (per-group, stochastic, unbiased; they go down to 2 bits).
Simplified: 8 bits; parameters, small tensors and whole numbers (indices, masks) are kept as they are.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from lablib.memory.packed_memory import packed_memory
from lablib.signature import Range, checked

LEVELS = 255


GroupSize = Annotated[int, Range(ge=2)]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Compressed:
    """A tensor in 8 bits: codes (groups, G), the scale and the least value of each group, and what it was."""

    codes: Tensor
    scale: Tensor
    offset: Tensor
    shape: torch.Size
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        """Bytes kept."""
        return self.codes.nbytes + self.scale.nbytes + self.offset.nbytes

    def error_bound(self) -> Tensor:
        """For each number of the tensor, what its error is less than: the scale of its group."""
        return self._cut(self.scale.expand(self.codes.shape))

    def _cut(self, groups: Tensor) -> Tensor:
        """Groups in the shape and dtype of the tensor, without what fills up the last one."""
        return groups.flatten()[: self.shape.numel()].reshape(self.shape).to(self.dtype)


@checked
def compress(x: Tensor, group_size: GroupSize = 256, generator: torch.Generator | None = None) -> Compressed:
    """`x` in 8 bits, stochastically rounded; not changed. A group with an infinity or NaN comes back as NaN.

    Arguments:
        x: numbers, of any shape; not empty.
        group_size: numbers that share a scale, at least 2.
        generator: what rounding draws from; None: torch's own.

    Raises:
        ValueError: nothing to compress, or no floating-point numbers.
    """
    if not x.is_floating_point() or not x.numel():
        raise ValueError(f"floating-point numbers are compressed: got {x.numel()} of {x.dtype}; keep them as they are.")
    flat = x.detach().reshape(-1).to(torch.promote_types(x.dtype, torch.float32))
    padding = -len(flat) % group_size
    if padding:  # with the last number: the range of its group stays
        flat = torch.cat([flat, flat[-1:].expand(padding)])
    groups = flat.reshape(-1, group_size)
    offset, top = groups.aminmax(dim=1, keepdim=True)
    scale = (top - offset) / LEVELS
    noise = torch.rand(groups.shape, generator=generator, device=x.device)
    steps = (groups - offset) / torch.where(scale > 0, scale, 1.0)
    codes = (steps + noise).floor().clamp(0, LEVELS).to(torch.uint8)
    return Compressed(codes, scale, offset, x.shape, x.dtype)


@checked
def decompress(compressed: Compressed) -> Tensor:
    """The numbers of the codes, in the shape and dtype of the tensor."""
    return compressed._cut(compressed.codes * compressed.scale + compressed.offset)


@checked
def compressed_activations(
    parameters: Iterable[Tensor] = (),
    *,
    group_size: GroupSize = 256,
    min_numel: int = 1024,
    generator: torch.Generator | None = None,
) -> AbstractContextManager[None]:
    """Within this block, what autograd keeps is kept in 8 bits: `with compressed_activations(model.parameters()): ...`

    Arguments:
        parameters: kept as they are, since they stay in memory anyway.
        group_size: numbers that share a scale.
        min_numel: smaller tensors are kept as they are.
        generator: what rounding draws from.
    """
    pack = partial(compress, group_size=group_size, generator=generator)
    return packed_memory(pack, decompress, parameters, min_numel)
