"""A tiled matrix product with a fused epilogue: bias and activation before the result leaves the chip.

    c = activation(a b + bias)

A program makes one tile of c. It walks along the inner dimension, reads a tile of a and a tile of b at each step, and
adds their product to a sum that stays on chip, in float32 at least. A number that was read serves a whole row or column
of the tile: larger tiles, fewer bytes. What follows on c number by number costs no further trip to memory.

Fused, bias and activation move nothing but the bias. Unfused, each reads c and writes it: 4 M N numbers more.

Cost: FLOPs 2 M N K; backward 4 M N K, and 2 M N K where z = a b + bias is made again for an activation. Numbers moved
M N K (1 / n + 1 / m) + M N (matmul_plan.py). On chip: (m + n) k numbers of a and b, m n of the sum.
Shapes: a [M K], b [K N], c [M N]; tiles m, n, k.
Source: Tillet, Kung and Cox, "Triton", 2019, MAPL, doi 10.1145/3315508.3329973.
Simplified: no split of the inner dimension among programs, so a small c leaves processors idle; no persistent programs.
"""

from dataclasses import astuple
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lablib.kernels.jit import FLOATS, accumulator, cdiv, check_dot_tiles, jit, tl
from lablib.kernels.matmul_plan import MatmulTiles
from lablib.kernels.tile_choice import matmul_options, matmul_tiles
from lablib.signature import OneOf, checked

ACTIVATIONS = {"none": lambda z: z, "relu": F.relu, "gelu": F.gelu, "silu": F.silu}
Activation = Annotated[str, OneOf(ACTIVATIONS)]


@jit
def matmul_kernel(
    a_ptr, b_ptr, bias_ptr, c_ptr, M, N, K, a_row, a_column, b_row, b_column, ACTIVATION: tl.constexpr,
    ACC: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One program: a tile of c, along the inner dimension, and its epilogue.

    a [M, K] and b [K, N] of any strides; bias [N] or None; c [M, N]; sums of dtype ACC.
    """
    program = tl.program_id(0)
    num_m, num_n = (M + BLOCK_M - 1) // BLOCK_M, (N + BLOCK_N - 1) // BLOCK_N
    first = program // (GROUP * num_n) * GROUP
    rows_of_group, in_group = min(GROUP, num_m - first), program % (GROUP * num_n)
    m = (first + in_group % rows_of_group) * BLOCK_M + tl.arange(0, BLOCK_M).to(tl.int64)
    n = in_group // rows_of_group * BLOCK_N + tl.arange(0, BLOCK_N).to(tl.int64)
    in_m, in_n = (m < M)[:, None], (n < N)[None, :]
    z = tl.zeros([BLOCK_M, BLOCK_N], ACC)
    for at in range(0, K, BLOCK_K):
        k = at + tl.arange(0, BLOCK_K).to(tl.int64)
        a_mk = tl.load(a_ptr + m[:, None] * a_row + k[None, :] * a_column, mask=in_m & (k < K)[None, :], other=0.0)
        b_kn = tl.load(b_ptr + k[:, None] * b_row + n[None, :] * b_column, mask=(k < K)[:, None] & in_n, other=0.0)
        z += tl.dot(a_mk, b_kn, input_precision="ieee")
    # The epilogue, on the chip
    if bias_ptr is not None:
        z += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(ACC)[None, :]
    if ACTIVATION == "relu":
        z = tl.where(z < 0.0, 0.0, z)
    if ACTIVATION == "gelu":
        z = 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))
    if ACTIVATION == "silu":  # z / (1 + exp(-z)), with no exp of a positive number
        shrink = tl.exp(-tl.abs(z))
        z = z * tl.where(z < 0.0, shrink, 1.0) / (1.0 + shrink)
    tl.store(c_ptr + m[:, None] * N + n[None, :], z.to(c_ptr.dtype.element_ty), mask=in_m & in_n)


@checked
def matmul(
    a_MK: Float[Tensor, "M K"],
    b_KN: Float[Tensor, "K N"],
    bias_N: Float[Tensor, " N"] | None = None,
    activation: Activation = "none",
    tiles: MatmulTiles | None = None,
) -> Float[Tensor, "M N"]:
    """activation(a b + bias) by the kernel, with gradients.

    Arguments:
        b_KN: of any strides: a linear layer's is weight.T, which is not copied.
        activation: a name of `ACTIVATIONS`; "gelu" is by erf.
        tiles: chosen by dtype, sizes and GPU when None (tile_choice.py).

    Raises ValueError: shapes, dtypes or devices that do not fit, or a tile that a GPU's matrix units cannot take.
    """
    _check(a_MK, b_KN, bias_N)
    return _Matmul.apply(a_MK, b_KN, bias_N, activation, tiles)


class _Matmul(torch.autograd.Function):
    """Keeps a, b and the bias. The activation's input is not kept: backward makes it again."""

    @staticmethod
    def forward(
        ctx: Any, a_MK: Tensor, b_KN: Tensor, bias_N: Tensor | None, activation: str, tiles: MatmulTiles | None
    ) -> Tensor:
        ctx.save_for_backward(a_MK, b_KN, bias_N)
        ctx.choices = activation, tiles
        return _launch(a_MK, b_KN, bias_N, activation, tiles)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (a_MK, b_KN, bias_N), (activation, tiles), dz_MN = ctx.saved_tensors, ctx.choices, gradients[0]
        if activation != "none":
            with torch.enable_grad():
                z_MN = _launch(a_MK, b_KN, bias_N, "none", tiles).requires_grad_()
                (dz_MN,) = torch.autograd.grad(ACTIVATIONS[activation](z_MN), z_MN, dz_MN)
        needs_a, needs_b, needs_bias, *_ = ctx.needs_input_grad
        da_MK = _launch(dz_MN, b_KN.T, None, "none", tiles) if needs_a else None
        db_KN = _launch(a_MK.T, dz_MN, None, "none", tiles) if needs_b else None
        return da_MK, db_KN, dz_MN.sum(0) if needs_bias else None, None, None


def _launch(a_MK: Tensor, b_KN: Tensor, bias_N: Tensor | None, activation: str, tiles: MatmulTiles | None) -> Tensor:
    M, K, N = *a_MK.shape, b_KN.shape[1]
    tiles = tiles or matmul_tiles(a_MK.dtype, M, N, a_MK.device)
    check_dot_tiles("matmul", a_MK.device, m=tiles.m, n=tiles.n, k=tiles.k)
    options = matmul_options(tiles, a_MK.dtype, a_MK.device)
    c_MN = a_MK.new_empty(M, N)
    if c_MN.numel():
        bias_N = None if bias_N is None else bias_N.contiguous()
        sizes = M, N, K, *a_MK.stride(), *b_KN.stride()
        choices = activation, accumulator(a_MK.dtype), *map(int, astuple(tiles))
        grid = (cdiv(M, tiles.m) * cdiv(N, tiles.n),)
        matmul_kernel[grid](a_MK, b_KN, bias_N, c_MN, *sizes, *choices, **options)
    return c_MN


def _check(a_MK: Tensor, b_KN: Tensor, bias_N: Tensor | None) -> None:
    bias_shape = None if bias_N is None else tuple(bias_N.shape)
    if a_MK.ndim != 2 or b_KN.ndim != 2 or a_MK.shape[1] != b_KN.shape[0] or bias_shape not in (None, b_KN.shape[1:]):
        raise ValueError(
            "a must be [M, K], b [K, N] and the bias [N]: "
            f"got {tuple(a_MK.shape)}, {tuple(b_KN.shape)} and {bias_shape}; a linear layer's b is weight.T."
        )
    given = [x for x in (a_MK, b_KN, bias_N) if x is not None]
    if a_MK.dtype not in FLOATS or any(x.dtype != a_MK.dtype for x in given):
        raise ValueError(
            "a, b and the bias must be of one dtype, float16, bfloat16, float32 or float64: "
            f"got {', '.join(str(x.dtype) for x in given)}; convert them with .to(...)."
        )
    if any(x.device != a_MK.device for x in given):
        raise ValueError(f"a, b and the bias must be on one device: got {', '.join(str(x.device) for x in given)}.")
