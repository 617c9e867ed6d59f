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

from __future__ import annotations

import torch
from torch import Tensor

from lablib.kernels.attention_plan import AttentionPlan
from lablib.kernels.flash_forward import heads_first, launch_arguments, or_zero
from lablib.kernels.jit import accumulator, cdiv, jit, next_power_of_2, tl


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


@jit
def row_sums_kernel(do_ptr, o_ptr, d_ptr, T, H, K, SUM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_W: tl.constexpr):
    """D = rowsum(do o). One program: a tile of queries of one head, whatever their documents."""
    tile, head = tl.program_id(0), tl.program_id(1)
    rows, w = tile * BLOCK_Q + tl.arange(0, BLOCK_Q).to(tl.int64), tl.arange(0, BLOCK_W)
    place = (rows[:, None] * H + head) * K + w[None, :]
    mask = (rows < T)[:, None] & (w < K)[None, :]
    do_i = tl.load(do_ptr + place, mask=mask, other=0.0).to(SUM)
    o_i = tl.load(o_ptr + place, mask=mask, other=0.0).to(SUM)
    tl.store(d_ptr + head * T + rows, tl.sum(do_i * o_i, 1), mask=rows < T)


@jit
def dq_kernel(
    q_ptr,  # [T, H, K]
    k_ptr,  # [S, G, K]
    v_ptr,
    do_ptr,  # [T, H, K]
    lse_ptr,  # [H, T]
    d_ptr,
    dq_ptr,  # [T, H, K]
    starts_q_ptr,
    starts_k_ptr,
    T,
    H,
    G,
    K,
    SCALE: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """One program: dq of a tile of queries of one head, over the tiles of keys that it sees."""
    tile, head, document = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_q, first_k = tl.load(starts_q_ptr + document), tl.load(starts_k_ptr + document)
    t, s = tl.load(starts_q_ptr + document + 1) - first_q, tl.load(starts_k_ptr + document + 1) - first_k
    if tile * BLOCK_Q >= t:
        return
    i, j, w = tile * BLOCK_Q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_W)
    rows, in_head = first_q + i, (w < K)[None, :]
    place_i, mask_i = (rows[:, None] * H + head) * K + w[None, :], (i < t)[:, None] & in_head
    q_i, do_i = tl.load(q_ptr + place_i, mask=mask_i, other=0.0), tl.load(do_ptr + place_i, mask=mask_i, other=0.0)
    lse_i = tl.load(lse_ptr + head * T + rows, mask=i < t, other=0.0)
    lse_i = tl.where(lse_i == float("-inf"), 0.0, lse_i)
    d_i = tl.load(d_ptr + head * T + rows, mask=i < t, other=0.0)
    dq_i = tl.zeros([BLOCK_Q, BLOCK_W], SUM)
    stop = s
    if IS_CAUSAL:
        stop = min(s, (tile + 1) * BLOCK_Q + s - t)
    for at in range(0, stop, BLOCK_K):
        place = ((first_k + at + j)[:, None] * G + head // (H // G)) * K + w[None, :]
        in_document = at + j < s
        k_j = tl.load(k_ptr + place, mask=in_document[:, None] & in_head, other=0.0)
        v_j = tl.load(v_ptr + place, mask=in_document[:, None] & in_head, other=0.0)
        seen = (i < t)[:, None] & in_document[None, :]
        if IS_CAUSAL:
            seen = seen & (at + j[None, :] <= i[:, None] + s - t)
        scores = tl.where(seen, tl.dot(q_i, tl.trans(k_j), input_precision="ieee") * SCALE, float("-inf"))
        p = tl.exp(scores - lse_i[:, None])
        ds = p * (tl.dot(do_i, tl.trans(v_j), input_precision="ieee") - d_i[:, None])
        dq_i += tl.dot(ds.to(k_j.dtype), k_j, input_precision="ieee") * SCALE
    tl.store(dq_ptr + place_i, dq_i.to(dq_ptr.dtype.element_ty), mask=mask_i)


@jit
def dk_dv_kernel(
    q_ptr,  # [T, H, K]
    k_ptr,  # [S, G, K]
    v_ptr,
    do_ptr,  # [T, H, K]
    lse_ptr,  # [H, T]
    d_ptr,
    dk_ptr,  # [S, G, K]
    dv_ptr,
    starts_q_ptr,
    starts_k_ptr,
    T,
    H,
    G,
    K,
    SCALE: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """One program: dk and dv of a tile of keys of one of their heads, over its group and the queries that see them."""
    tile, kv_head, document = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_q, first_k = tl.load(starts_q_ptr + document), tl.load(starts_k_ptr + document)
    t, s = tl.load(starts_q_ptr + document + 1) - first_q, tl.load(starts_k_ptr + document + 1) - first_k
    if tile * BLOCK_K >= s:
        return
    i, j, w = tl.arange(0, BLOCK_Q), tile * BLOCK_K + tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_W)
    in_head = (w < K)[None, :]
    place_j, mask_j = ((first_k + j)[:, None] * G + kv_head) * K + w[None, :], (j < s)[:, None] & in_head
    k_j, v_j = tl.load(k_ptr + place_j, mask=mask_j, other=0.0), tl.load(v_ptr + place_j, mask=mask_j, other=0.0)
    dk_j, dv_j = tl.zeros([BLOCK_K, BLOCK_W], SUM), tl.zeros([BLOCK_K, BLOCK_W], SUM)
    start = 0 * t
    if IS_CAUSAL:  # the tile that holds the first query which sees the first key
        start = max(0, tile * BLOCK_K - (s - t)) // BLOCK_Q * BLOCK_Q
    for head in range(kv_head * (H // G), (kv_head + 1) * (H // G)):
        for at in range(start, t, BLOCK_Q):
            rows, in_document = first_q + at + i, at + i < t
            place = (rows[:, None] * H + head) * K + w[None, :]
            q_i = tl.load(q_ptr + place, mask=in_document[:, None] & in_head, other=0.0)
            do_i = tl.load(do_ptr + place, mask=in_document[:, None] & in_head, other=0.0)
            lse_i = tl.load(lse_ptr + head * T + rows, mask=in_document, other=0.0)
            lse_i = tl.where(lse_i == float("-inf"), 0.0, lse_i)
            d_i = tl.load(d_ptr + head * T + rows, mask=in_document, other=0.0)
            seen = in_document[:, None] & (j < s)[None, :]
            if IS_CAUSAL:
                seen = seen & (j[None, :] <= at + i[:, None] + s - t)
            scores = tl.where(seen, tl.dot(q_i, tl.trans(k_j), input_precision="ieee") * SCALE, float("-inf"))
            p = tl.exp(scores - lse_i[:, None])
            dv_j += tl.dot(tl.trans(p.to(do_i.dtype)), do_i, input_precision="ieee")
            ds = p * (tl.dot(do_i, tl.trans(v_j), input_precision="ieee") - d_i[:, None])
            dk_j += tl.dot(tl.trans(ds.to(q_i.dtype)), q_i, input_precision="ieee") * SCALE
    tl.store(dk_ptr + place_j, dk_j.to(dk_ptr.dtype.element_ty), mask=mask_j)
    tl.store(dv_ptr + place_j, dv_j.to(dv_ptr.dtype.element_ty), mask=mask_j)


def triton_backward(
    do_THK: Tensor,
    q_THK: Tensor,
    k_SGK: Tensor,
    v_SGK: Tensor,
    o_THK: Tensor,
    lse_HT: Tensor,
    plan: AttentionPlan,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same as three launches: D, then dq, then dk and dv."""
    q_THK, k_SGK, v_SGK, do_THK = (x.contiguous() for x in (q_THK, k_SGK, v_SGK, do_THK))
    d_HT, dq_THK, dk_SGK, dv_SGK = (torch.empty_like(x) for x in (lse_HT, q_THK, k_SGK, v_SGK))
    shared, tiles, (T, H, K) = launch_arguments(q_THK, k_SGK, plan, scale), plan.tiles, q_THK.shape
    inputs = q_THK, k_SGK, v_SGK, do_THK, lse_HT, d_HT
    if q_THK.numel():
        choices = accumulator(q_THK.dtype), tiles.queries, next_power_of_2(K)
        row_sums_kernel[cdiv(T, tiles.queries), H](do_THK, o_THK, d_HT, T, H, K, *choices)
        dq_kernel[plan.grid(plan.starts_q, tiles.queries, H)](*inputs, dq_THK, *shared)
    if k_SGK.numel():
        dk_dv_kernel[plan.grid(plan.starts_k, tiles.keys, k_SGK.shape[1])](*inputs, dk_SGK, dv_SGK, *shared)
    return dq_THK, dk_SGK, dv_SGK
