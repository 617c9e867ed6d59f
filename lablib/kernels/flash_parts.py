"""Parts of FlashAttention's kernels, forward and backward: rows of a head, scores of a tile, arguments of a launch.

A packed tensor [T, H, K] is contiguous: row i of head h begins at number (i H + h) K. A tile is as wide as the head,
rounded up to a power of two that matrix units take; elements beyond the head or the document are masked.

Cost: scores of a tile of B queries and C keys 2 B C K FLOPs.
Shapes: T queries and S keys of all documents, H heads, G heads of keys and values, K width of a head.
Source: Dao, "FlashAttention-2", 2023, arXiv 2307.08691, section 3.1.
Simplified: the mask is also computed in tiles below the diagonal.
"""

from typing import Any

import torch
from torch import Tensor

from lablib.kernels.attention_plan import AttentionPlan
from lablib.kernels.jit import SMALLEST_DOT, accumulator, check_dot_tiles, jit, next_power_of_2, tl


@jit
def document_span(starts_q_ptr, starts_k_ptr, document):
    """First query and number of queries of a document, first key and number of keys."""
    first_q, first_k = tl.load(starts_q_ptr + document), tl.load(starts_k_ptr + document)
    t, s = tl.load(starts_q_ptr + document + 1) - first_q, tl.load(starts_k_ptr + document + 1) - first_k
    return first_q, t, first_k, s


@jit
def load_rows(x_ptr, first, rows, length, num_heads, head, K, BLOCK_W: tl.constexpr):
    """Rows of one head of the document that begins at `first`; zeros beyond its length."""
    w = tl.arange(0, BLOCK_W)
    place = ((first + rows)[:, None] * num_heads + head) * K + w[None, :]
    return tl.load(x_ptr + place, mask=(rows < length)[:, None] & (w < K)[None, :], other=0.0)


@jit
def store_rows(x_ptr, values, first, rows, length, num_heads, head, K, BLOCK_W: tl.constexpr):
    """The same rows, written in the tensor's dtype."""
    w = tl.arange(0, BLOCK_W)
    place = ((first + rows)[:, None] * num_heads + head) * K + w[None, :]
    mask = (rows < length)[:, None] & (w < K)[None, :]
    tl.store(x_ptr + place, values.to(x_ptr.dtype.element_ty), mask=mask)


@jit
def masked_scores(q_i, k_j, i, j, t, s, SCALE: tl.constexpr, IS_CAUSAL: tl.constexpr):
    """scale q k^T of a tile: rows are the queries i of t, columns the keys j of s; -inf where i does not see j."""
    seen = (i < t)[:, None] & (j < s)[None, :]
    if IS_CAUSAL:
        seen = seen & (j[None, :] <= i[:, None] + s - t)
    return tl.where(seen, tl.dot(q_i, tl.trans(k_j), input_precision="ieee") * SCALE, float("-inf"))


def launch_arguments(q_THK: Tensor, k_SGK: Tensor, plan: AttentionPlan, scale: float) -> tuple[Any, ...]:
    """The kernels' arguments from `starts_q` on."""
    check_dot_tiles("flash_attention", q_THK.device, queries=plan.tiles.queries, keys=plan.tiles.keys)
    starts = (torch.tensor(starts, device=q_THK.device) for starts in (plan.starts_q, plan.starts_k))
    T, H, K = q_THK.shape
    blocks = int(plan.tiles.queries), int(plan.tiles.keys), tile_width(K)
    return *starts, T, H, k_SGK.shape[1], K, scale, plan.is_causal, accumulator(q_THK.dtype), *blocks


def tile_width(K: int) -> int:
    """Width of a tile of a head of width K."""
    return max(SMALLEST_DOT, next_power_of_2(K))


def heads_first(q_THK: Tensor, k_SGK: Tensor, v_SGK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[H T K], [H S K] twice: each head of keys repeated for its group of queries; at least in float32."""
    wide = torch.promote_types(q_THK.dtype, torch.float32)
    group = q_THK.shape[1] // k_SGK.shape[1]
    k_HSK, v_HSK = (x_SGK.to(wide).transpose(0, 1).repeat_interleave(group, 0) for x_SGK in (k_SGK, v_SGK))
    return q_THK.to(wide).transpose(0, 1), k_HSK, v_HSK


def or_zero(x: Tensor) -> Tensor:
    """-inf, the maximum of a row without keys, as 0: exp(-inf - 0) is 0, exp(-inf - -inf) would be NaN."""
    return x.where(x > -torch.inf, 0)
