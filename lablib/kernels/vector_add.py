"""Vector addition z = x + y: the smallest kernel, and the form of every other.

A kernel is one program, run many times at once. Program p takes tile p of BLOCK numbers, reads them from the GPU's
memory (HBM) into registers, calculates there, and writes its tile back:

    x  | tile 0 | tile 1 | tile 2 | t..|      n = 3.5 tiles: the last program masks what lies beyond n
          p = 0    p = 1    p = 2   p = 3

Cost for n numbers of b bytes: HBM bytes 3 n b (two read, one written); FLOPs n. With b = 4 a FLOP for every 12 bytes: a
GPU that can do 100 FLOPs in the time of a byte is idle 99.9% of it. Nothing in the kernel can change that: only fewer
bytes can, which is what fusing is for (`bias_gelu.py`).
Shapes: n numbers, B of a tile.
Source: Tillet, Kung, Cox, "Triton", 2019 (MAPL), https://doi.org/10.1145/3315508.3329973; Triton's first tutorial.
Simplified: no broadcasting.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lablib.kernels.jit import TileSize, accumulator, cdiv, jit, tl
from lablib.kernels.launch_checks import check_inputs
from lablib.signature import checked


@jit
def vector_add_kernel(x_ptr, y_ptr, z_ptr, n, ACC: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = start + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask).to(ACC)
    y = tl.load(y_ptr + at, mask=mask).to(ACC)
    tl.store(z_ptr + at, x + y, mask=mask)


@checked
def vector_add(
    x: Float[Tensor, "*shape"], y: Float[Tensor, "*shape"], block: TileSize = 1024
) -> Float[Tensor, "*shape"]:
    """x + y by the kernel, with gradients: both contiguous, of one shape and dtype; `block` numbers per tile."""
    if x.shape != y.shape or x.dtype != y.dtype:
        raise ValueError(
            "vector_add: x and y must have one shape and dtype: "
            f"got {x.dtype} {tuple(x.shape)}, {y.dtype} {tuple(y.shape)}."
        )
    check_inputs("vector_add", x=x, y=y)
    return _VectorAdd.apply(x, y, int(block))


class _VectorAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, block: int) -> Tensor:
        z = torch.empty_like(x)
        grid = (cdiv(x.numel(), block),)
        vector_add_kernel[grid](x, y, z, x.numel(), ACC=accumulator(x.dtype), BLOCK=block)
        return z

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradients[0], gradients[0], None
