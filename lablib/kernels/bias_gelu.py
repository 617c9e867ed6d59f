"""Bias and GELU in one kernel: y = gelu(x + b), forward and backward, without x + b in memory.

As two operators the sum is written to the GPU's memory by one, read back by the other, and saved for backward. Fused, a
program holds its tile of x in registers, adds the tile of b, applies GELU and writes only y; backward recomputes x + b
from x and b, with one addition per number and no further bytes.

    erf     gelu(z) = z Phi(z),         Phi(z) = (1 + erf(z / sqrt 2)) / 2      Phi: the normal distribution
            gelu'(z) = Phi(z) + z phi(z),  phi(z) = exp(-z^2 / 2) / sqrt(2 pi)
    tanh    gelu(z) ~ z (1 + tanh u) / 2 = z s(2 u),  u = sqrt(2 / pi) (z + 0.044715 z^3),  s: the sigmoid
            gelu'(z) = s + 2 u' z s (1 - s),          u' = sqrt(2 / pi) (1 + 0.134145 z^2)

The bias was added to every row, so its gradient is a sum over rows, in two stages (`row_checks.py`): each program sums
the rows of its tiles and writes one line of partial sums, P D numbers, which a small reduction adds. (Atomic additions
into D numbers would need no second stage, but their order, and so the last digits, would differ from run to run.)

Cost with R = ceil(T / BLOCK_T) rows of tiles, P programs for each column of tiles, and b bytes per number:
    forward    HBM bytes (2 T D + R D) b                  as two operators (4 T D + D) b
    backward   HBM bytes (3 T D + P D) b, + P D of the partial sums, 4 bytes each (8 for float64), read once more by
               the reduction, which writes D b
    FLOPs      T D (1 + about 10 for GELU)
Shapes: T tokens, D width.
Source: Hendrycks and Gimpel, "Gaussian Error Linear Units (GELUs)", 2016, arXiv 1606.08415, section 2 (both forms);
fused with the bias: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", 2021, arXiv 2104.04473, section 4.2.
Simplified: x is contiguous; the partial sums are added by torch.
"""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lablib.kernels.jit import TileSize, accumulator, cdiv, jit, tl
from lablib.kernels.launch_checks import check_inputs
from lablib.kernels.row_checks import partial_lines
from lablib.signature import checked

Approximate = Literal["none", "tanh"]  # as in torch


@jit
def gelu_of(z, TANH: tl.constexpr):
    if TANH:
        y = z * tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))  # 2 sqrt(2 / pi)
    else:
        y = z * 0.5 * (1 + tl.erf(z * 0.7071067811865476))
    return y


@jit
def gelu_slope(z, TANH: tl.constexpr):
    if TANH:
        s = tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))
        slope = s + z * s * (1 - s) * 1.5957691216057308 * (1 + 0.134145 * z * z)
    else:
        phi = 0.3989422804014327 * tl.exp(-0.5 * z * z)  # 1 / sqrt(2 pi)
        slope = 0.5 * (1 + tl.erf(z * 0.7071067811865476)) + z * phi
    return slope


@jit
def bias_gelu_forward_kernel(
    x_ptr, b_ptr, y_ptr, T, D, TANH: tl.constexpr, ACC: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr
):
    t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    at = t[:, None] * D + d[None, :]
    mask = (t < T)[:, None] & (d < D)[None, :]
    b = tl.load(b_ptr + d, mask=d < D, other=0.0).to(ACC)
    z = tl.load(x_ptr + at, mask=mask, other=0.0).to(ACC) + b[None, :]
    tl.store(y_ptr + at, gelu_of(z, TANH), mask=mask)


@jit
def bias_gelu_backward_kernel(
    x_ptr, b_ptr, dy_ptr, dx_ptr, partial_ptr, T, D, tiles,
    TANH: tl.constexpr, ACC: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: `tiles` tiles of consecutive rows, and the sum of their rows."""
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    b = tl.load(b_ptr + d, mask=d < D, other=0.0).to(ACC)
    db = tl.zeros([BLOCK_D], ACC)
    first = tl.program_id(0).to(tl.int64) * tiles * BLOCK_T
    for start in range(first, tl.minimum(first + tiles * BLOCK_T, T), BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        at = t[:, None] * D + d[None, :]
        mask = (t < T)[:, None] & (d < D)[None, :]
        z = tl.load(x_ptr + at, mask=mask, other=0.0).to(ACC) + b[None, :]
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(ACC)  # beyond the edge 0: adds nothing to the sums
        dx = dy * gelu_slope(z, TANH)
        tl.store(dx_ptr + at, dx, mask=mask)
        db += tl.sum(dx, axis=0)
    tl.store(partial_ptr + tl.program_id(0) * D + d, db, mask=d < D)


@checked
def bias_gelu(
    x: Float[Tensor, "... D"],
    b_D: Float[Tensor, " D"],
    approximate: Approximate = "none",
    block_T: TileSize = 16,
    block_D: TileSize = 128,
) -> Float[Tensor, "... D"]:
    """gelu(x + b) by the kernels, with gradients of both; `approximate` as in `F.gelu`, tiles of block_T by block_D."""
    check_inputs("bias_gelu", x=x, b=b_D)
    if x.shape[-1:] != b_D.shape:
        raise ValueError(f"bias_gelu: b must have a number for each of x's last dimension: got {b_D.shape}, {x.shape}.")
    return _BiasGelu.apply(x, b_D, approximate == "tanh", (int(block_T), int(block_D)))


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, b_D: Tensor, tanh: bool, blocks: tuple[int, int]) -> Tensor:
        y, (T, D, grid) = torch.empty_like(x), _plan(x, blocks)
        tiles = {"TANH": tanh, "ACC": accumulator(x.dtype), "BLOCK_T": blocks[0], "BLOCK_D": blocks[1]}
        bias_gelu_forward_kernel[grid](x, b_D, y, T, D, **tiles)
        ctx.save_for_backward(x, b_D)
        ctx.tiles, ctx.blocks = tiles, blocks
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, b_D = ctx.saved_tensors
        dx, (T, D, (num_rows, columns)) = torch.empty_like(x), _plan(x, ctx.blocks)
        tiles = cdiv(num_rows, partial_lines(num_rows, x.device, columns) or 1)
        grid = cdiv(num_rows, tiles or 1), columns
        partial_PD = x.new_empty(grid[0], D, dtype=torch.promote_types(x.dtype, torch.float32))
        dy = gradients[0].contiguous()
        bias_gelu_backward_kernel[grid](x, b_D, dy, dx, partial_PD, T, D, tiles, **ctx.tiles)
        return dx, partial_PD.sum(0).to(b_D.dtype), None, None


def _plan(x: Tensor, blocks: tuple[int, int]) -> tuple[int, int, tuple[int, int]]:
    """T, D and the grid of tiles."""
    D = x.shape[-1]
    T = x.numel() // max(D, 1)
    return T, D, (cdiv(T, blocks[0]), cdiv(D, blocks[1]))
