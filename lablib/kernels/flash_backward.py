"""FlashAttention, backward: the scores are made again, tile by tile, from q, k and the log-sum-exp.

With s = scale q k^T, p = softmax(s) = exp(s - lse), o = p v, and do the gradient of o:

    dv = p^T do        dp = do v^T        ds = p (dp - D)        dq = scale ds k        dk = scale ds^T q

The softmax's gradient subtracts from dp its mean under p, a sum over the whole row: sum_j p_ij dp_ij. Since
dp_ij = do_i . v_j, that sum is do_i . (sum_j p_ij v_j) = do_i . o_i: over the head's width instead of over the keys.

    D  = rowsum(do o)                                   once, before the tiles
    for a tile of queries, over the tiles of keys:      dq
    for a tile of keys, over the tiles of queries:      dk and dv, summed over the heads of its group

Cost for one head, t queries, s keys, width K, tiles of B queries and C keys: FLOPs 14 t s K: seven products, as both
loops make s and dp (one loop would need five, but then several programs add to the same dq). Kept from forward: q, k,
v, o and lse. HBM: dq t K (3 + 2 s / B) + 2 t, dk and dv 4 s K + (2 t K + 2 t) s / C, D 2 t K + t numbers.
Shapes: T queries and S keys of all documents, H heads, G heads of keys and values, K width of a head.
Source: Dao et al., "FlashAttention", 2022, arXiv 2205.14135, appendix B and algorithm 4; Dao, "FlashAttention-2", 2023,
arXiv 2307.08691, algorithm 2; Ainslie et al., "GQA", 2023, arXiv 2305.13245.
Simplified: algorithm 2 is one loop that adds to dq, as `tiled_backward` is. On a GPU tiles run at the same time, and
the paper adds atomically; our kernels give dq a loop of its own, so that sums have one order: the same bits every time.
"""

import torch
from torch import Tensor

from lablib.kernels.attention_plan import AttentionPlan
from lablib.kernels.flash_forward import heads_first, or_zero


def tiled_backward(
    do_THK: Tensor,
    q_THK: Tensor,
    k_SGK: Tensor,
    v_SGK: Tensor,
    o_THK: Tensor,
    lse_HT: Tensor,
    plan: AttentionPlan,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The loops in plain torch: dq [T H K], dk and dv [S G K]."""
    q_HTK, k_HSK, v_HSK = heads_first(q_THK, k_SGK, v_SGK)
    do_HTK, o_HTK = (x_THK.to(q_HTK.dtype).transpose(0, 1) for x_THK in (do_THK, o_THK))
    d_HT1, lse_HT1 = (do_HTK * o_HTK).sum(-1, keepdim=True), or_zero(lse_HT)[..., None]
    dq_HTK, dk_HSK, dv_HSK = torch.zeros_like(q_HTK), torch.zeros_like(k_HSK), torch.zeros_like(v_HSK)
    for queries in plan.query_tiles():
        rows = plan.rows(queries)
        for keys in plan.keys_of(queries):
            columns = plan.columns(keys)
            s_HBC = scale * q_HTK[:, rows] @ k_HSK[:, columns].mT
            s_HBC = s_HBC.masked_fill(~plan.mask(queries, keys, s_HBC.device), -torch.inf)
            p_HBC = torch.exp(s_HBC - lse_HT1[:, rows])
            dv_HSK[:, columns] += p_HBC.mT @ do_HTK[:, rows]
            dp_HBC = do_HTK[:, rows] @ v_HSK[:, columns].mT
            ds_HBC = p_HBC * (dp_HBC - d_HT1[:, rows])
            dq_HTK[:, rows] += scale * ds_HBC @ k_HSK[:, columns]
            dk_HSK[:, columns] += scale * ds_HBC.mT @ q_HTK[:, rows]
    # Each head of keys and values served its whole group of queries.
    dk_SGK, dv_SGK = (x.unflatten(0, (k_SGK.shape[1], -1)).sum(1).transpose(0, 1) for x in (dk_HSK, dv_HSK))
    return dq_HTK.transpose(0, 1).to(q_THK.dtype), dk_SGK.to(k_SGK.dtype), dv_SGK.to(v_SGK.dtype)
