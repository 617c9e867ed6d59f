"""RMSNorm in one kernel each way: y = x / rms(x) * w, and the weight's gradient by partial sums.

    r = 1 / sqrt(mean_j x_j^2 + eps),    y_j = x_j r w_j              one r for each token
    dx_j = r (g_j - xn_j mean_k(g_k xn_k)),    g = w dy,  xn = x r
    dw_j = sum over tokens of dy_j xn_j

A program holds a token's numbers in registers: they are read once, although the mean must be known before the first is
divided. Forward, a program takes one token by default; w is read again by each, mostly from the cache. dw is a sum
over all tokens: a backward program takes several, one after the other, and writes one line of partial sums; a small
reduction adds the P lines (`row_checks.py`).

Cost for T tokens of D numbers of b bytes, P programs:
    forward    HBM bytes (2 T D + P D) b + T a               as operators (square, mean, rsqrt, two products) 7 T D b
    backward   HBM bytes (3 T D + P D) b + T a + P D a, and the reduction reads P D a and writes D b
               a: bytes of the accumulator's type, 4 (8 for float64)
    FLOPs      4 T D forward, 9 T D backward
Kept for backward: x, w, and r (T numbers).
Shapes: T tokens, D width, P programs of the kernel: T forward, by default.
Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv 1910.07467, equation 4; backward fused
with partial sums: Hsu et al., "Liger Kernel", 2024, arXiv 2410.10989, section 3.2, and Triton's tutorial "Layer
Normalization".
Simplified: a token's numbers fit a tile; the product with w is made before rounding to x's dtype (some models round
first); the partial sums are added by torch.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lablib.kernels.jit import accumulator, cdiv, jit, next_power_of_2, tl
from lablib.kernels.launch_checks import check_inputs
from lablib.kernels.row_checks import TokensPerProgram, check_rows, partial_lines, row_warps
from lablib.signature import NonNegative, checked


@jit
def rms_norm_forward_kernel(
    x_ptr, w_ptr, y_ptr, r_ptr, T, D, tokens, EPS: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr
):
    d = tl.arange(0, BLOCK)
    w = tl.load(w_ptr + d, mask=d < D, other=0.0).to(ACC)
    first = tl.program_id(0).to(tl.int64) * tokens
    for t in range(first, tl.minimum(first + tokens, T)):
        x = tl.load(x_ptr + t * D + d, mask=d < D, other=0.0).to(ACC)
        r = 1 / tl.sqrt(tl.sum(x * x, axis=0) / D + EPS)
        tl.store(y_ptr + t * D + d, x * r * w, mask=d < D)
        tl.store(r_ptr + t, r)


@jit
def rms_norm_backward_kernel(
    x_ptr, w_ptr, r_ptr, dy_ptr, dx_ptr, partial_ptr, T, D, tokens, ACC: tl.constexpr, BLOCK: tl.constexpr
):
    d = tl.arange(0, BLOCK)
    w = tl.load(w_ptr + d, mask=d < D, other=0.0).to(ACC)
    dw = tl.zeros([BLOCK], ACC)
    first = tl.program_id(0).to(tl.int64) * tokens
    for t in range(first, tl.minimum(first + tokens, T)):
        r = tl.load(r_ptr + t)
        xn = tl.load(x_ptr + t * D + d, mask=d < D, other=0.0).to(ACC) * r
        dy = tl.load(dy_ptr + t * D + d, mask=d < D, other=0.0).to(ACC)
        g = w * dy
        dx = r * (g - xn * (tl.sum(g * xn, axis=0) / D))
        tl.store(dx_ptr + t * D + d, dx, mask=d < D)
        dw += dy * xn
    tl.store(partial_ptr + tl.program_id(0) * D + d, dw, mask=d < D)


@checked
def rms_norm(
    x: Float[Tensor, "... D"], w_D: Float[Tensor, " D"], eps: NonNegative = 1e-6, tokens: TokensPerProgram | None = None
) -> Float[Tensor, "... D"]:
    """RMSNorm over the last dimension by the kernels, with gradients of x and w. Arguments as of `layer_norm`."""
    check_inputs("rms_norm", x=x, w=w_D)
    check_rows("rms_norm", x, w=w_D)
    return _RMSNorm.apply(x, w_D, eps, tokens)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w_D: Tensor, eps: float, tokens: int | None) -> Tensor:
        D = x.shape[-1]
        T = x.numel() // D
        y, r_T = torch.empty_like(x), x.new_empty(T, dtype=torch.promote_types(x.dtype, torch.float32))
        block = next_power_of_2(D)
        tile = {"ACC": accumulator(x.dtype), "BLOCK": block, "num_warps": row_warps(block)}
        rms_norm_forward_kernel[(cdiv(T, tokens or 1),)](x, w_D, y, r_T, T, D, tokens or 1, EPS=eps, **tile)
        ctx.save_for_backward(x, w_D, r_T)
        ctx.tile, ctx.tokens = tile, tokens
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, w_D, r_T = ctx.saved_tensors
        T, D = len(r_T), len(w_D)
        tokens = ctx.tokens or cdiv(T, partial_lines(T, x.device) or 1)
        num_programs = cdiv(T, tokens or 1)
        dx, partial_PD = torch.empty_like(x), r_T.new_empty(num_programs, D)
        dy = gradients[0].contiguous()
        rms_norm_backward_kernel[(num_programs,)](x, w_D, r_T, dy, dx, partial_PD, T, D, tokens, **ctx.tile)
        return dx, partial_PD.sum(0).to(w_D.dtype), None, None
