"""Activation compression: keep what backward needs in 8 bits instead of 32.

Forward computes with full precision. What autograd would keep is quantized as it is packed, and dequantized when
backward unpacks it: groups of G numbers share a scale and an offset (asymmetric, as activations after GELU are not
centred):

    scale = (max - min) / 255        code = round((x - min) / scale), 0 .. 255        x ~ code scale + min

The error of x is at most scale / 2, and the gradient is linear in what was kept: dw = dy^T x is off by dy^T (x~ - x),
at most scale / 2 times the sum of |dy|. Rounded stochastically, the gradient is right in the mean.

Cost: 1 + 8 / G bytes a number instead of 4; two passes over memory for each kept tensor.
Shapes: any; a tensor is cut into groups of G in the order of its memory, the last perhaps shorter.
Source: Chen et al., "ActNN: Reducing Training Memory Footprint via 2-Bit Activation Compressed Training", 2021, arXiv
2104.14129, section 3 (per-group, stochastic; they go down to 2 bits).
Simplified: 8 bits; parameters, small tensors and whole numbers (indices, masks) are kept as they are.
"""

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from lablib.signature import checked

LEVELS = 255


@dataclass(frozen=True, slots=True, eq=False)
class Compressed:
    """A tensor in 8 bits: codes (groups, G), the scale and the least value of each group, and what it was."""

    codes: Tensor
    scale: Tensor
    offset: Tensor
    shape: torch.Size
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.codes, self.scale, self.offset))


@checked
def compress(x: Tensor, group_size: int = 256, generator: torch.Generator | None = None) -> Compressed:
    """`x` in 8 bits, stochastically rounded. Not changed.

    Raises:
        ValueError: a group of fewer than 2 numbers.
    """
    if group_size < 2:
        raise ValueError(f"a group has at least 2 numbers: got group_size={group_size}.")
    flat = x.detach().reshape(-1).float()
    padding = -len(flat) % group_size
    if padding:  # with the last number: the range of its group stays
        flat = torch.cat([flat, flat[-1:].expand(padding)])
    groups = flat.reshape(-1, group_size)
    offset, top = groups.aminmax(dim=1, keepdim=True)
    scale = (top - offset) / LEVELS
    noise = torch.rand(groups.shape, generator=generator, device=x.device)
    steps = (groups - offset) / torch.where(scale > 0, scale, torch.ones_like(scale))
    codes = (steps + noise).floor().clamp(0, LEVELS).to(torch.uint8)
    return Compressed(codes, scale, offset, x.shape, x.dtype)


@checked
def decompress(compressed: Compressed) -> Tensor:
    """The numbers that the codes stand for, in the shape and dtype of the tensor."""
    values = compressed.codes * compressed.scale + compressed.offset
    return values.flatten()[: compressed.shape.numel()].reshape(compressed.shape).to(compressed.dtype)


@checked
def compressed_activations(
    parameters: Collection[Tensor] = (),
    *,
    group_size: int = 256,
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
    owned = {parameter.untyped_storage().data_ptr() for parameter in parameters}

    def pack(tensor: Tensor) -> Tensor | Compressed:
        is_owned = tensor.untyped_storage().data_ptr() in owned
        if is_owned or not tensor.is_floating_point() or tensor.numel() < min_numel:
            return tensor
        return compress(tensor, group_size, generator)

    def unpack(kept: Tensor | Compressed) -> Tensor:
        return decompress(kept) if isinstance(kept, Compressed) else kept

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
