"""LayerNorm in one kernel each way: y = (x - mean) / deviation * w + b; gradients of w and b by partial sums.

    mu = mean_j x_j,  r = 1 / sqrt(mean_j (x_j - mu)^2 + eps),  xn_j = (x_j - mu) r,  y_j = xn_j w_j + b_j
    dx_j = r (g_j - mean_k g_k - xn_j mean_k(g_k xn_k)),    g = w dy
    dw_j = sum over tokens of dy_j xn_j,    db_j = sum over tokens of dy_j

The same form as `rms_norm.py`: a program holds a token's numbers in registers, so that the mean, the variance around it
and the result take one reading. A backward program takes several tokens and writes a line of partial sums for w and b.
The variance is the mean square of x - mu: mean x^2 - mu^2, which needs no mu, loses all digits where mu is large.

Cost for T tokens of D numbers of b bytes, P programs:
    forward    HBM bytes (2 T D + 2 P D) b + 2 T a          as seven operators (mean, subtract, square, mean, two
               products, a sum) 12 T D b
    backward   HBM bytes (3 T D + P D) b + 2 T a + 2 P D a, and the reduction reads 2 P D a and writes 2 D b
               a: bytes of the accumulator's type, 4 (8 for float64)
    FLOPs      7 T D forward, 13 T D backward
Kept for backward: x, w, mu and r (2 T numbers).
Shapes: T tokens, D width, P programs of the kernel: T forward, by default.
Source: Ba, Kiros, Hinton, "Layer Normalization", 2016, arXiv 1607.06450, equation 4; partial sums: Hsu et al., "Liger
Kernel", 2024, arXiv 2410.10989, section 3.2, and Triton's tutorial "Layer Normalization".
Simplified: a token's numbers fit a tile; the partial sums are added by torch.
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
def layer_norm_forward_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, mu_ptr, r_ptr, T, D, tokens, EPS: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr
):
    d = tl.arange(0, BLOCK)
    w = tl.load(w_ptr + d, mask=d < D, other=0.0).to(ACC)
    b = tl.load(b_ptr + d, mask=d < D, other=0.0).to(ACC)
    first = tl.program_id(0).to(tl.int64) * tokens
    for t in range(first, tl.minimum(first + tokens, T)):
        x = tl.load(x_ptr + t * D + d, mask=d < D, other=0.0).to(ACC)
        mu = tl.sum(x, axis=0) / D
        centred = tl.where(d < D, x - mu, 0.0)  # beyond the row x - mu is -mu, which is no part of the variance
        r = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / D + EPS)
        tl.store(y_ptr + t * D + d, centred * r * w + b, mask=d < D)
        tl.store(mu_ptr + t, mu)
        tl.store(r_ptr + t, r)


@jit
def layer_norm_backward_kernel(
    x_ptr, w_ptr, mu_ptr, r_ptr, dy_ptr, dx_ptr, dw_partial_ptr, db_partial_ptr, T, D, tokens,
    ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, BLOCK)
    w = tl.load(w_ptr + d, mask=d < D, other=0.0).to(ACC)
    dw = tl.zeros([BLOCK], ACC)
    db = tl.zeros([BLOCK], ACC)
    first = tl.program_id(0).to(tl.int64) * tokens
    for t in range(first, tl.minimum(first + tokens, T)):
        x = tl.load(x_ptr + t * D + d, mask=d < D, other=0.0).to(ACC)
        dy = tl.load(dy_ptr + t * D + d, mask=d < D, other=0.0).to(ACC)  # beyond the row 0: so are g, dw and db
        r = tl.load(r_ptr + t)
        xn = (x - tl.load(mu_ptr + t)) * r
        g = w * dy
        dx = r * (g - tl.sum(g, axis=0) / D - xn * (tl.sum(g * xn, axis=0) / D))
        tl.store(dx_ptr + t * D + d, dx, mask=d < D)
        dw += dy * xn
        db += dy
    line = tl.program_id(0) * D + d
    tl.store(dw_partial_ptr + line, dw, mask=d < D)
    tl.store(db_partial_ptr + line, db, mask=d < D)


@checked
def layer_norm(
    x: Float[Tensor, "... D"],
    w_D: Float[Tensor, " D"],
    b_D: Float[Tensor, " D"],
    eps: NonNegative = 1e-5,
    tokens: TokensPerProgram | None = None,
) -> Float[Tensor, "... D"]:
    """LayerNorm over the last dimension by the kernels, with gradients of x, w and b.

    Arguments:
        x: contiguous, D at least 1 and at most 65,536.
        eps: added under the root.
        tokens: tokens per program. None: 1 forward, and backward as many as leave each multiprocessor of a GPU 4
            programs (`row_checks.partial_lines`).
    """
    check_inputs("layer_norm", x=x, w=w_D, b=b_D)
    check_rows("layer_norm", x, w=w_D, b=b_D)
    return _LayerNorm.apply(x, w_D, b_D, eps, tokens)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w_D: Tensor, b_D: Tensor, eps: float, tokens: int | None) -> Tensor:
        D = x.shape[-1]
        T = x.numel() // D
        y, mu_T = torch.empty_like(x), x.new_empty(T, dtype=torch.promote_types(x.dtype, torch.float32))
        r_T, block = torch.empty_like(mu_T), next_power_of_2(D)
        tile = {"ACC": accumulator(x.dtype), "BLOCK": block, "num_warps": row_warps(block)}
        tensors, num_programs = (x, w_D, b_D, y, mu_T, r_T), cdiv(T, tokens or 1)
        layer_norm_forward_kernel[(num_programs,)](*tensors, T, D, tokens or 1, EPS=eps, **tile)
        ctx.save_for_backward(x, w_D, mu_T, r_T)
        ctx.tile, ctx.tokens, ctx.b_dtype = tile, tokens, b_D.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, w_D, mu_T, r_T = ctx.saved_tensors
        T, D = len(r_T), len(w_D)
        tokens = ctx.tokens or cdiv(T, partial_lines(T, x.device) or 1)
        num_programs = cdiv(T, tokens or 1)
        dx, (dw_PD, db_PD) = torch.empty_like(x), r_T.new_empty(2, num_programs, D)
        tensors = (x, w_D, mu_T, r_T, gradients[0].contiguous(), dx, dw_PD, db_PD)
        layer_norm_backward_kernel[(num_programs,)](*tensors, T, D, tokens, **ctx.tile)
        return dx, dw_PD.sum(0).to(w_D.dtype), db_PD.sum(0).to(ctx.b_dtype), None, None
