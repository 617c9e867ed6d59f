"""FlashAttention, forward: softmax(scale q k^T) v tile by tile, without a matrix of scores in memory.

A row of the softmax needs its maximum and its sum before any of its values, so it seems to need the whole row of
scores. Online softmax takes the scores in any order and rescales its sums when the maximum grows. For a tile of queries
keep per row the maximum m, the sum l and the output o not yet divided; for each tile of keys:

    s  = scale q k^T                     scores of this tile
    m' = max(m, row maximum of s)
    p  = exp(s - m')                     never above 1: no overflow for any scores
    l' = exp(m - m') l + row sum of p    the old sum, rescaled to the new maximum
    o' = exp(m - m') o + p v

and at the end o / l and lse = m + log l, one number per row: with it backward recomputes p = exp(s - lse) directly.

Cost for one head, t queries, s keys, width K, tiles of B queries: FLOPs 4 t s K, about half when causal (tiles above
the diagonal are not visited). HBM: q and o once, k and v once for each tile of queries, t K (2 + 2 s / B) + t numbers
(attention_bytes.py counts them); standard attention moves the t s scores four times. On chip: q, k, v, s, o of a tile.
Shapes: T queries and S keys of all documents, H heads, G heads of keys and values, K width of a head.
Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv 1805.02867; Dao et al.,
"FlashAttention", 2022, arXiv 2205.14135, algorithms 1 and 2; Dao, "FlashAttention-2", 2023, arXiv 2307.08691,
algorithm 1 (queries in the outer loop, one division at the end); Ainslie et al., "GQA", 2023, arXiv 2305.13245.
Simplified: no dropout; scores are multiplied by the scale after the product, not q before the loop.
"""

import torch
from torch import Tensor

from lablib.kernels.attention_plan import AttentionPlan
from lablib.kernels.flash_parts import (
    document_span,
    heads_first,
    launch_arguments,
    load_rows,
    masked_scores,
    or_zero,
    store_rows,
)
from lablib.kernels.jit import jit, tl
from lablib.kernels.tile_choice import attention_options


def tiled_forward(
    q_THK: Tensor, k_SGK: Tensor, v_SGK: Tensor, plan: AttentionPlan, scale: float
) -> tuple[Tensor, Tensor]:
    """The loop over tiles in plain torch: o [T H K] and lse [H T], the log of each row's sum of exp(scores).

    A query that sees no key gets o = 0 and lse = -inf.
    """
    q_HTK, k_HSK, v_HSK = heads_first(q_THK, k_SGK, v_SGK)
    o_HTK, lse_HT = torch.zeros_like(q_HTK), q_HTK.new_full(q_HTK.shape[:2], -torch.inf)
    for queries in plan.query_tiles():
        rows = plan.rows(queries)
        q_HBK = q_HTK[:, rows]
        o_HBK, l_HB1 = torch.zeros_like(q_HBK), q_HBK.new_zeros(*q_HBK.shape[:2], 1)
        m_HB1 = torch.full_like(l_HB1, -torch.inf)
        for keys in plan.keys_of(queries):
            columns = plan.columns(keys)
            s_HBC = scale * q_HBK @ k_HSK[:, columns].mT
            s_HBC = s_HBC.masked_fill(~plan.mask(queries, keys, q_HTK.device), -torch.inf)
            new_m_HB1 = torch.maximum(m_HB1, s_HBC.amax(-1, keepdim=True))
            p_HBC = torch.exp(s_HBC - or_zero(new_m_HB1))
            shrink_HB1 = torch.exp(m_HB1 - or_zero(new_m_HB1))
            l_HB1 = shrink_HB1 * l_HB1 + p_HBC.sum(-1, keepdim=True)
            o_HBK = shrink_HB1 * o_HBK + p_HBC @ v_HSK[:, columns]
            m_HB1 = new_m_HB1
        o_HTK[:, rows] = o_HBK / l_HB1.where(l_HB1 > 0, 1)
        lse_HT[:, rows] = (m_HB1 + l_HB1.log())[..., 0]
    return o_HTK.transpose(0, 1).to(q_THK.dtype), lse_HT


@jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, starts_q_ptr, starts_k_ptr, T, H, G, K, SCALE: tl.constexpr,
    IS_CAUSAL: tl.constexpr, ACC: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """One program: a tile of queries of one head of one document, over the tiles of keys that it sees.

    q, o [T, H, K]; k, v [S, G, K]; lse [H, T]; starts_q: first query of each document, and T.
    """
    tile, head, document = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_q, t, first_k, s = document_span(starts_q_ptr, starts_k_ptr, document)
    if tile * BLOCK_Q >= t:
        return  # this document is shorter than the longest
    i = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    q_i = load_rows(q_ptr, first_q, i, t, H, head, K, BLOCK_W)
    m_i, l_i = tl.full([BLOCK_Q], float("-inf"), ACC), tl.zeros([BLOCK_Q], ACC)
    o_i = tl.zeros([BLOCK_Q, BLOCK_W], ACC)
    stop = s
    if IS_CAUSAL:  # the tile's last query sees the keys below this
        stop = min(s, (tile + 1) * BLOCK_Q + s - t)
    for at in range(0, stop, BLOCK_K):
        j = at + tl.arange(0, BLOCK_K)
        k_j = load_rows(k_ptr, first_k, j, s, G, head // (H // G), K, BLOCK_W)
        v_j = load_rows(v_ptr, first_k, j, s, G, head // (H // G), K, BLOCK_W)
        scores = masked_scores(q_i, k_j, i, j, t, s, SCALE, IS_CAUSAL)
        # m' = max(m, row maximum of s); -inf before the first key, and exp(-inf - -inf) would be NaN
        new_m = tl.maximum(m_i, tl.max(scores, 1))
        base = tl.where(new_m == float("-inf"), 0.0, new_m)
        p = tl.exp(scores - base[:, None])
        shrink = tl.exp(m_i - base)
        l_i = shrink * l_i + tl.sum(p, 1)
        o_i = shrink[:, None] * o_i + tl.dot(p.to(v_j.dtype), v_j, input_precision="ieee")
        m_i = new_m
    l_i = tl.where(l_i == 0.0, 1.0, l_i)
    store_rows(o_ptr, o_i / l_i[:, None], first_q, i, t, H, head, K, BLOCK_W)
    tl.store(lse_ptr + head * T + first_q + i, m_i + tl.log(l_i), mask=i < t)


def triton_forward(
    q_THK: Tensor, k_SGK: Tensor, v_SGK: Tensor, plan: AttentionPlan, scale: float
) -> tuple[Tensor, Tensor]:
    """The same as one launch of the Triton kernel: o [T H K] and lse [H T]."""
    q_THK, k_SGK, v_SGK = (x.contiguous() for x in (q_THK, k_SGK, v_SGK))
    (T, H, _), wide = q_THK.shape, torch.promote_types(q_THK.dtype, torch.float32)
    o_THK, lse_HT = torch.empty_like(q_THK), q_THK.new_empty(H, T, dtype=wide)
    if q_THK.numel():
        grid = plan.grid(plan.starts_q, plan.tiles.queries, H)
        options = attention_options("forward", plan.tiles, q_THK.shape[2], q_THK.dtype, q_THK.device)
        shared = launch_arguments(q_THK, k_SGK, plan, scale)
        forward_kernel[grid](q_THK, k_SGK, v_SGK, o_THK, lse_HT, *shared, **options)
    return o_THK, lse_HT
