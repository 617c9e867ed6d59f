"""Activation compression: keep the tensors saved for backward in 8 bits instead of 32.

Forward computes with full precision. Saved tensors are quantized when autograd packs them, and dequantized when
backward unpacks them: groups of G numbers share a scale and an offset (asymmetric, as activations after GELU are not
centred). Rounding is stochastic and unbiased:

    scale = (max - min) / 255       code = floor((x - min) / scale + u), u uniform in [0, 1)       x~ = code scale + min

The error of a gradient. The error of each number is below its group's scale, |x~ - x| < s, and zero in expectation. For
a product y = x w^T the gradient dw = dy^T x is linear in x, so it is unbiased too, and

    |dw~ - dw|_fd < sum over tokens t of |dy_tf| s_td       standard deviation at most 1/2 sqrt(sum of (dy_tf s_td)^2)

while dx = dy w has no error. An elementwise y = f(x) has dx = dy f'(x), with an error below |dy| s max |f''|, which
propagates to the layers below and is not zero in expectation.

Cost: 1 + 8 / G bytes per number instead of 4; two passes over memory for each kept tensor.
Shapes: any; a tensor is cut into groups of G in the order of its memory, the last one padded.
Source: Chen et al., "ActNN: Reducing Training Memory Footprint via 2-Bit Activation Compressed Training", 2021, arXiv
2104.14129, section 3 (per-group, stochastic, unbiased; the paper goes down to 2 bits).
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
    """A tensor in 8 bits: codes (groups, G), scale and minimum of each group, and the original shape and dtype."""

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
        """Upper bound of the error of each number: the scale of its group."""
        return self._cut(self.scale.expand(self.codes.shape))

    def _cut(self, groups: Tensor) -> Tensor:
        """Groups in the shape and dtype of the tensor, without the padding."""
        return groups.flatten()[: self.shape.numel()].reshape(self.shape).to(self.dtype)


@checked
def compress(x: Tensor, group_size: GroupSize = 256, generator: torch.Generator | None = None) -> Compressed:
    """`x` in 8 bits, stochastically rounded. A group with an infinity or NaN decompresses to NaN.

    `group_size` numbers share a scale; `generator` draws the rounding (None: torch's own). ValueError: `x` is empty or
    not floating-point.
    """
    if not x.is_floating_point() or not x.numel():
        raise ValueError(f"floating-point numbers are compressed: got {x.numel()} of {x.dtype}; keep them as they are.")
    flat = x.detach().reshape(-1).to(torch.promote_types(x.dtype, torch.float32))
    padding = -len(flat) % group_size
    if padding:  # with the last number, so the range of its group does not change
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
    """In this block, autograd keeps saved tensors in 8 bits: `with compressed_activations(model.parameters()): ...`

    `parameters`, which stay in memory anyway, and tensors below `min_numel` are kept as they are; others: `compress`.
    """
    pack = partial(compress, group_size=group_size, generator=generator)
    return packed_memory(pack, decompress, parameters, min_numel)
