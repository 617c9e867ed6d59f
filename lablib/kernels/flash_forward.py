"""FlashAttention, forward: softmax(scale q k^T) v tile by tile, with no matrix of scores in memory.

A row of the softmax needs its maximum and its sum before any of its values, so it seems to need the whole row of
scores. Online softmax takes the scores as they come and mends what it has when the maximum grows. For a tile of queries
keep per row the maximum m, the sum l and the output o not yet divided; for each tile of keys:

    s  = scale q k^T                     scores of this tile alone
    m' = max(m, row maximum of s)
    p  = exp(s - m')                     never above 1: no overflow, however large the scores
    l' = exp(m - m') l + row sum of p    what was summed under the old maximum, brought to the new one
    o' = exp(m - m') o + p v

and at the end   o / l   and   lse = m + log l, one number a row: with it backward has p = exp(s - lse) again at once.

Cost for one head, t queries, s keys, width K, tiles of B queries: FLOPs 4 t s K, about half when causal (tiles above
the diagonal are not visited). HBM: q and o once, k and v once for each tile of queries, t K (2 + 2 s / B) + t numbers
(attention_bytes.py counts them); standard attention moves the t s scores four times. On chip: q, k, v, s, o of a tile.
Shapes: T queries and S keys of all documents, H heads, G heads of keys and values, K width of a head.
Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv 1805.02867; Dao et al.,
"FlashAttention", 2022, arXiv 2205.14135, algorithms 1 and 2; Dao, "FlashAttention-2", 2023, arXiv 2307.08691,
algorithm 1 (queries in the outer loop, one division at the end); Ainslie et al., "GQA", 2023, arXiv 2305.13245.
Simplified: no dropout; the mask is computed in tiles below the diagonal too; width of a tile is the head's, rounded up
to a power of two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lablib.kernels.attention_plan import AttentionPlan
from lablib.kernels.jit import accumulator, jit, next_power_of_2, tl


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
    q_ptr,  # [T, H, K]
    k_ptr,  # [S, G, K]
    v_ptr,
    o_ptr,  # [T, H, K]
    lse_ptr,  # [H, T]
    starts_q_ptr,  # first query of each document, and T
    starts_k_ptr,
    T,
    H,
    G,
    K,
    SCALE: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    SUM: tl.constexpr,  # dtype of sums: float32, or float64 for float64
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_W: tl.constexpr,  # K, rounded up to a power of two
):
    """One program: a tile of queries of one head of one document, over the tiles of keys that it sees."""
    tile, head, document = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_q, first_k = tl.load(starts_q_ptr + document), tl.load(starts_k_ptr + document)
    t, s = tl.load(starts_q_ptr + document + 1) - first_q, tl.load(starts_k_ptr + document + 1) - first_k
    if tile * BLOCK_Q >= t:
        return  # this document is shorter than the longest
    i, j, w = tile * BLOCK_Q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_W)
    rows, in_head = first_q + i, (w < K)[None, :]
    q_i = tl.load(q_ptr + (rows[:, None] * H + head) * K + w[None, :], mask=(i < t)[:, None] & in_head, other=0.0)
    m_i, l_i = tl.full([BLOCK_Q], float("-inf"), SUM), tl.zeros([BLOCK_Q], SUM)
    o_i = tl.zeros([BLOCK_Q, BLOCK_W], SUM)
    stop = s
    if IS_CAUSAL:  # the tile's last query sees the keys below this
        stop = min(s, (tile + 1) * BLOCK_Q + s - t)
    for at in range(0, stop, BLOCK_K):
        place = ((first_k + at + j)[:, None] * G + head // (H // G)) * K + w[None, :]
        in_document = at + j < s
        k_j = tl.load(k_ptr + place, mask=in_document[:, None] & in_head, other=0.0)
        v_j = tl.load(v_ptr + place, mask=in_document[:, None] & in_head, other=0.0)
        # s = scale q k^T
        seen = in_document[None, :]
        if IS_CAUSAL:
            seen = seen & (at + j[None, :] <= i[:, None] + s - t)
        scores = tl.where(seen, tl.dot(q_i, tl.trans(k_j), input_precision="ieee") * SCALE, float("-inf"))
        # m' = max(m, row maximum of s); -inf where no key was seen yet, and exp(-inf - -inf) would be NaN
        new_m = tl.maximum(m_i, tl.max(scores, 1))
        base = tl.where(new_m == float("-inf"), 0.0, new_m)
        p = tl.exp(scores - base[:, None])
        shrink = tl.exp(m_i - base)
        l_i = shrink * l_i + tl.sum(p, 1)
        o_i = shrink[:, None] * o_i + tl.dot(p.to(v_j.dtype), v_j, input_precision="ieee")
        m_i = new_m
    l_i = tl.where(l_i == 0.0, 1.0, l_i)
    place = (rows[:, None] * H + head) * K + w[None, :]
    tl.store(o_ptr + place, (o_i / l_i[:, None]).to(o_ptr.dtype.element_ty), mask=(i < t)[:, None] & in_head)
    tl.store(lse_ptr + head * T + rows, m_i + tl.log(l_i), mask=i < t)


def triton_forward(
    q_THK: Tensor, k_SGK: Tensor, v_SGK: Tensor, plan: AttentionPlan, scale: float
) -> tuple[Tensor, Tensor]:
    """The same as one launch of the Triton kernel: o [T H K] and lse [H T]."""
    q_THK, k_SGK, v_SGK = (x.contiguous() for x in (q_THK, k_SGK, v_SGK))
    o_THK, sums = torch.empty_like(q_THK), torch.promote_types(q_THK.dtype, torch.float32)
    lse_HT = q_THK.new_empty(q_THK.shape[1], q_THK.shape[0], dtype=sums)
    if q_THK.numel():
        grid = plan.grid(plan.starts_q, plan.tiles.queries, heads=q_THK.shape[1])
        forward_kernel[grid](q_THK, k_SGK, v_SGK, o_THK, lse_HT, *launch_arguments(q_THK, k_SGK, plan, scale))
    return o_THK, lse_HT


def launch_arguments(q_THK: Tensor, k_SGK: Tensor, plan: AttentionPlan, scale: float) -> tuple:
    """What the kernels of forward and backward take after q, k, v and their kin: from `starts_q` on."""
    starts = (torch.tensor(starts, device=q_THK.device) for starts in (plan.starts_q, plan.starts_k))
    T, H, K = q_THK.shape
    blocks = plan.tiles.queries, plan.tiles.keys, next_power_of_2(K)
    return *starts, T, H, k_SGK.shape[1], K, scale, plan.is_causal, accumulator(q_THK.dtype), *blocks


def heads_first(q_THK: Tensor, k_SGK: Tensor, v_SGK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[H T K], [H S K] twice: each head of keys repeated for its group of queries; in float32 at least."""
    wide = torch.promote_types(q_THK.dtype, torch.float32)
    group = q_THK.shape[1] // k_SGK.shape[1]
    k_HSK, v_HSK = (x_SGK.to(wide).transpose(0, 1).repeat_interleave(group, 0) for x_SGK in (k_SGK, v_SGK))
    return q_THK.to(wide).transpose(0, 1), k_HSK, v_HSK


def or_zero(x: Tensor) -> Tensor:
    """-inf, the maximum of a row that has seen no key, as 0: exp(-inf - 0) is 0, exp(-inf - -inf) would be NaN."""
    return x.where(x > -torch.inf, 0)
