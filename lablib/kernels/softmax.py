"""Row softmax in one kernel, forward and backward; and online softmax, for rows that no tile can hold.

    y_i = exp(x_i - m) / s,    m = max_j x_j,    s = sum_j exp(x_j - m)        m: so that exp cannot overflow

As operators (max, subtract, exp, sum, divide) each passes over memory again. A program that holds a whole row in
registers reads it once and writes it once. If the row is longer than a tile, m is known only at the end, but s can be
summed on the way with the largest value so far, and corrected whenever a tile brings a larger one (online softmax):

    m' = max(m, max of the tile)
    s' = s exp(m - m') + sum over the tile of exp(x_j - m')         the old sum, as if m' had been used from the start

A second pass then reads x again and writes y. Two pairs (m, s) of different parts of a row are joined by the same rule;
FlashAttention is this loop with a product inside.

    backward   dx_i = y_i (dy_i - sum_j y_j dy_j)

Cost for N rows of M numbers of b bytes:
    HBM bytes  a row a tile: forward 2 N M b, backward 3 N M b; longer rows: forward 3 N M b, backward 5 N M b
               five operators: (8 N M + 4 N) b forward
    FLOPs      5 N M forward (7 N M online), 4 N M backward
Kept for backward: y.
Shapes: N rows, M numbers of a row.
Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv 1805.02867, algorithm 3;
Triton's tutorial "Fused Softmax" (a row a program).
Simplified: over the last dimension, contiguous. A row of -inf alone is NaN, as torch has it.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lablib.kernels.jit import TileSize, accumulator, jit, next_power_of_2, tl
from lablib.kernels.launch_checks import check_inputs
from lablib.signature import checked

LONGEST_ROW = 8192  # numbers that a program holds in registers: 64 for each of 128 threads


@jit
def softmax_kernel(x_ptr, y_ptr, M, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """A row a program: read once, written once."""
    row = tl.program_id(0).to(tl.int64) * M
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row + at, mask=at < M, other=-float("inf")).to(ACC)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row + at, e / tl.sum(e, axis=0), mask=at < M)


@jit
def online_softmax_kernel(x_ptr, y_ptr, M, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """A row a program, tile by tile: read twice, written once."""
    row = tl.program_id(0).to(tl.int64) * M
    m = tl.full([], -float("inf"), ACC)
    s = tl.zeros([], ACC)
    for start in range(0, M, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + at, mask=at < M, other=-float("inf")).to(ACC)
        m_new = tl.maximum(m, tl.max(x, axis=0))
        shift = tl.where(m_new == -float("inf"), 0.0, m_new)  # only -inf so far: -inf - -inf would be NaN for good
        s = s * tl.exp(m - shift) + tl.sum(tl.exp(x - shift), axis=0)
        m = m_new
    for start in range(0, M, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + at, mask=at < M, other=-float("inf")).to(ACC)
        tl.store(y_ptr + row + at, tl.exp(x - m) / s, mask=at < M)


@jit
def softmax_backward_kernel(y_ptr, dy_ptr, dx_ptr, M, ACC: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * M
    at = tl.arange(0, BLOCK)
    y = tl.load(y_ptr + row + at, mask=at < M, other=0.0).to(ACC)
    dy = tl.load(dy_ptr + row + at, mask=at < M, other=0.0).to(ACC)
    tl.store(dx_ptr + row + at, y * (dy - tl.sum(y * dy, axis=0)), mask=at < M)


@jit
def long_softmax_backward_kernel(y_ptr, dy_ptr, dx_ptr, M, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """The sum over the row first, tile by tile, then the gradient: y and dy are read twice."""
    row = tl.program_id(0).to(tl.int64) * M
    total = tl.zeros([], ACC)
    for start in range(0, M, BLOCK):
        at = start + tl.arange(0, BLOCK)
        y = tl.load(y_ptr + row + at, mask=at < M, other=0.0).to(ACC)
        total += tl.sum(y * tl.load(dy_ptr + row + at, mask=at < M, other=0.0).to(ACC), axis=0)
    for start in range(0, M, BLOCK):
        at = start + tl.arange(0, BLOCK)
        y = tl.load(y_ptr + row + at, mask=at < M, other=0.0).to(ACC)
        dy = tl.load(dy_ptr + row + at, mask=at < M, other=0.0).to(ACC)
        tl.store(dx_ptr + row + at, y * (dy - total), mask=at < M)


@checked
def softmax(x: Float[Tensor, "... M"], block: TileSize = LONGEST_ROW) -> Float[Tensor, "... M"]:
    """Softmax over the last dimension of a contiguous x by the kernels, with gradients; rows over `block` are tiled."""
    check_inputs("softmax", x=x)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"softmax: a row must have at least one number: got shape {tuple(x.shape)}.")
    return _Softmax.apply(x, int(block))


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, block: int) -> Tensor:
        y, M = torch.empty_like(x), x.shape[-1]
        kernel, tile = (softmax_kernel, next_power_of_2(M)) if M <= block else (online_softmax_kernel, block)
        kernel[(x.numel() // M,)](x, y, M, ACC=accumulator(x.dtype), BLOCK=tile)
        ctx.save_for_backward(y)
        ctx.block = block
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        dx, M = torch.empty_like(y), y.shape[-1]
        one_tile = ctx.block >= M
        kernel = softmax_backward_kernel if one_tile else long_softmax_backward_kernel
        tile = next_power_of_2(M) if one_tile else ctx.block
        kernel[(y.numel() // M,)](y, gradients[0].contiguous(), dx, M, ACC=accumulator(y.dtype), BLOCK=tile)
        return dx, None
