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

import torch
from torch import Tensor

from lablib.kernels.attention_plan import AttentionPlan


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


def heads_first(q_THK: Tensor, k_SGK: Tensor, v_SGK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[H T K], [H S K] twice: each head of keys repeated for its group of queries; in float32 at least."""
    wide = torch.promote_types(q_THK.dtype, torch.float32)
    group = q_THK.shape[1] // k_SGK.shape[1]
    k_HSK, v_HSK = (x_SGK.to(wide).transpose(0, 1).repeat_interleave(group, 0) for x_SGK in (k_SGK, v_SGK))
    return q_THK.to(wide).transpose(0, 1), k_HSK, v_HSK


def or_zero(x: Tensor) -> Tensor:
    """-inf, the maximum of a row that has seen no key, as 0: exp(-inf - 0) is 0, exp(-inf - -inf) would be NaN."""
    return x.where(x > -torch.inf, 0)
