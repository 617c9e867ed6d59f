"""FlashAttention: exact attention with memory linear in the tokens, not quadratic.

    flash_attention           [B H T K], as torch's scaled_dot_product_attention takes it
    flash_attention_varlen    documents of different lengths one after another, [T H K], with `cu_seqlens`

Both are one pair of loops: a batch is B documents of one length. Forward (flash_forward.py) keeps q, k, v, o and one
number per row, the log-sum-exp; backward (flash_backward.py) recomputes the scores. attention_plan.py has the pairs of
tiles; attention_bytes.py has bytes, FLOPs and tiles that fit.

Cost for T tokens, H heads of width K, G heads of keys and values: kept for backward 2 (H + G) T K + H T numbers, in
standard attention H T^2 more; FLOPs 4 H T^2 K forward and 14 H T^2 K backward (standard attention 8), about half when
causal.
Shapes: B batch, T queries, S keys, H heads, G heads of keys and values (G divides H), K width of a head.
Source: Dao et al., "FlashAttention", 2022, arXiv 2205.14135; Dao, "FlashAttention-2", 2023, arXiv 2307.08691; Ainslie
et al., "GQA", 2023, arXiv 2305.13245, section 2.
Conventions: causal is "bottom-right" for T != S, as in flash_attn: the last query sees all keys. torch's
`is_causal=True` is "top-left"; for T = S they are the same. A query that sees no key gets zeros.
Simplified: no dropout, no window, no bias; k and v have one width.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from lablib.kernels.attention_plan import AttentionPlan, AttentionTiles, equal_lengths
from lablib.kernels.flash_backward import tiled_backward, triton_backward
from lablib.kernels.flash_forward import tiled_forward, triton_forward
from lablib.kernels.jit import FLOATS
from lablib.kernels.tile_choice import attention_tiles
from lablib.signature import checked


class KernelPasses(NamedTuple):
    """forward(q, k, v, plan, scale) -> o, lse; backward(do, q, k, v, o, lse, plan, scale) -> dq, dk, dv."""

    forward: Callable[..., tuple[Tensor, Tensor]]
    backward: Callable[..., tuple[Tensor, Tensor, Tensor]]


TRITON = KernelPasses(triton_forward, triton_backward)
TILED = KernelPasses(tiled_forward, tiled_backward)


@checked
def flash_attention(
    q_BHTK: Float[Tensor, "B H T K"],
    k_BGSK: Float[Tensor, "B G S K"],
    v_BGSK: Float[Tensor, "B G S K"],
    is_causal: bool = False,
    scale: float | None = None,
    tiles: AttentionTiles | None = None,
    passes: KernelPasses = TRITON,
) -> Float[Tensor, "B H T K"]:
    """softmax(scale q k^T) v for a batch of equal lengths.

    Arguments:
        is_causal: query i sees the keys j <= i + S - T.
        scale: of the scores; 1 / sqrt(K) when None.
        tiles: rows of a tile, forward and backward; chosen by dtype and width when None (tile_choice.py).
        passes: TRITON, the kernels, interpreted on a CPU; or TILED, the same loops in plain torch.

    Raises ValueError: heads, dtypes or devices that do not fit each other, or a tile that the kernel cannot take.
    """
    for name, x in (("q_BHTK", q_BHTK), ("k_BGSK", k_BGSK), ("v_BGSK", v_BGSK)):
        if x.ndim != 4:
            raise ValueError(f"{name} must have 4 dimensions, as its name says: got shape {tuple(x.shape)}.")
    batch, _, t, _ = q_BHTK.shape
    if k_BGSK.shape != v_BGSK.shape or len(k_BGSK) != batch:
        shapes = f"{tuple(q_BHTK.shape)}, {tuple(k_BGSK.shape)} and {tuple(v_BGSK.shape)}"
        raise ValueError(f"q, k and v must have one batch, and k and v one shape: got {shapes}.")
    plan = _with_tiles(equal_lengths(batch, t, k_BGSK.shape[2], is_causal, tiles), q_BHTK, tiles)
    # [B H T K] made from [B T H K] by a transpose, as in a transformer, is not copied here.
    q_THK, k_SGK, v_SGK = (x.transpose(1, 2).flatten(0, 1) for x in (q_BHTK, k_BGSK, v_BGSK))
    o_THK = _attend(q_THK, k_SGK, v_SGK, plan, scale, passes)
    return o_THK.unflatten(0, (batch, t)).transpose(1, 2)


@checked
def flash_attention_varlen(
    q_THK: Float[Tensor, "T H K"],
    k_SGK: Float[Tensor, "S G K"],
    v_SGK: Float[Tensor, "S G K"],
    cu_seqlens_q: Int[Tensor, " starts"],
    cu_seqlens_k: Int[Tensor, " starts"] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    tiles: AttentionTiles | None = None,
    passes: KernelPasses = TRITON,
) -> Float[Tensor, "T H K"]:
    """The same for concatenated documents, which do not see each other.

    Arguments:
        cu_seqlens_q: first query of each document, and T: 0, l_1, l_1 + l_2, ...; a document may be empty.
        cu_seqlens_k: the same for the keys; cu_seqlens_q when None.
        others: see `flash_attention`.

    Raises ValueError: as `flash_attention`, or cu_seqlens that do not begin with 0, that fall, or that do not end at T.
    """
    starts_k = cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
    plan = AttentionPlan(_starts(cu_seqlens_q), _starts(starts_k), is_causal, tiles or AttentionTiles())
    plan = _with_tiles(plan, q_THK, tiles)
    for name, starts, x in (("cu_seqlens_q", plan.starts_q, q_THK), ("cu_seqlens_k", plan.starts_k, k_SGK)):
        if x.ndim != 3:
            raise ValueError(f"packed q, k and v must be [tokens, heads, width]: got shape {tuple(x.shape)}.")
        if starts[-1] != len(x):
            raise ValueError(f"{name} must end at the number of tokens, {len(x)}: got {starts[-1]}.")
    return _attend(q_THK, k_SGK, v_SGK, plan, scale, passes)


class FlashAttention(torch.autograd.Function):
    """Keeps q, k, v, o and the log-sum-exp; double backward is not supported."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, scale: float, by: KernelPasses
    ) -> Tensor:
        o, lse = by.forward(q, k, v, plan, scale)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.call = plan, scale, by
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        plan, scale, by = ctx.call
        return *by.backward(gradients[0], *ctx.saved_tensors, plan.for_backward(), scale), None, None, None


def _attend(q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, scale: float | None, by: KernelPasses) -> Tensor:
    _check(q, k, v)
    return FlashAttention.apply(q, k, v, plan, 1 / math.sqrt(q.shape[-1]) if scale is None else scale, by)


def _with_tiles(plan: AttentionPlan, q: Tensor, tiles: AttentionTiles | None) -> AttentionPlan:
    """The plan with default tiles for q's dtype, width and device, if none were given."""
    if tiles is not None or q.device.type == "cpu":
        return plan
    forward, backward = attention_tiles(q.dtype, q.shape[-1], q.device)
    return replace(plan, tiles=forward, backward_tiles=backward)


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    if k.shape != v.shape or k.shape[-1] != q.shape[-1]:
        raise ValueError(
            "k and v must have one shape, and the width of q's heads: "
            f"got {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)} as [tokens, heads, width]."
        )
    heads, kv_heads, width = q.shape[1], k.shape[1], q.shape[2]
    if 0 in (heads, kv_heads, width) or heads % kv_heads:
        raise ValueError(
            "the heads of k and v must divide the heads of q, and a head have a width: "
            f"got {heads} heads, {kv_heads} of k and v, width {width}."
        )
    if q.dtype not in FLOATS or not q.dtype == k.dtype == v.dtype:
        raise ValueError(
            "q, k and v must be of one dtype, float16, bfloat16, float32 or float64: "
            f"got {q.dtype}, {k.dtype} and {v.dtype}; convert them with .to(...)."
        )
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k and v must be on one device: got {q.device}, {k.device} and {v.device}.")


def _starts(cu_seqlens: Tensor) -> tuple[int, ...]:
    if cu_seqlens.ndim != 1 or cu_seqlens.is_floating_point():
        raise ValueError(
            f"cu_seqlens must be whole numbers in one row: got {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}."
        )
    return tuple(int(start) for start in cu_seqlens.tolist())
