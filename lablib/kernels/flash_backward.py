"""FlashAttention, backward: recompute the scores, tile by tile, from q, k and the log-sum-exp.

With s = scale q k^T, p = softmax(s) = exp(s - lse), o = p v, and do the gradient of o:

    dv = p^T do        dp = do v^T        ds = p (dp - D)        dq = scale ds k        dk = scale ds^T q

The softmax's gradient subtracts from dp its mean under p, a sum over the whole row: sum_j p_ij dp_ij. Since
dp_ij = do_i . v_j, that sum is do_i . (sum_j p_ij v_j) = do_i . o_i: over the head's width instead of over the keys.

    D  = rowsum(do o)                                   once, before the tiles
    for a tile of queries, over the tiles of keys:      dq
    for a tile of keys, over the tiles of queries:      dk and dv, summed over the heads of its group

Cost for one head, t queries, s keys, width K, tiles of B queries and C keys: FLOPs 14 t s K: seven products, as both
loops compute s and dp (one loop would need five, but then several programs add to the same dq). Kept from forward: q,
k, v, o and lse. HBM: dq t K (3 + 2 s / B) + 2 t, dk and dv 4 s K + (2 t K + 2 t) s / C, D 2 t K + t numbers.
Shapes: T queries and S keys of all documents, H heads, G heads of keys and values, K width of a head.
Source: Dao et al., "FlashAttention", 2022, arXiv 2205.14135, appendix B and algorithm 4; Dao, "FlashAttention-2", 2023,
arXiv 2307.08691, algorithm 2; Ainslie et al., "GQA", 2023, arXiv 2305.13245.
Simplified: algorithm 2 is one loop that adds to dq, as `tiled_backward` is. On a GPU tiles run at the same time, and
the paper adds atomically; our kernels have a second loop for dq, so that sums have a fixed order and are deterministic.
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
    tile_width,
)
from lablib.kernels.jit import accumulator, cdiv, jit, tl
from lablib.kernels.tile_choice import attention_options


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
def row_sums_kernel(do_ptr, o_ptr, d_ptr, T, H, K, ACC: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_W: tl.constexpr):
    """D = rowsum(do o). One program: a tile of queries of one head, across documents."""
    head, rows = tl.program_id(1), tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q).to(tl.int64)
    do_i = load_rows(do_ptr, 0, rows, T, H, head, K, BLOCK_W).to(ACC)
    o_i = load_rows(o_ptr, 0, rows, T, H, head, K, BLOCK_W).to(ACC)
    tl.store(d_ptr + head * T + rows, tl.sum(do_i * o_i, 1), mask=rows < T)


@jit
def row_numbers(lse_ptr, d_ptr, rows, mask):
    """lse, 0 where it is -inf (see `or_zero`), and D of some rows."""
    lse = tl.load(lse_ptr + rows, mask=mask, other=0.0)
    return tl.where(lse == float("-inf"), 0.0, lse), tl.load(d_ptr + rows, mask=mask, other=0.0)


@jit
def dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, d_ptr, dq_ptr, starts_q_ptr, starts_k_ptr, T, H, G, K, SCALE: tl.constexpr,
    IS_CAUSAL: tl.constexpr, ACC: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """One program: dq of a tile of queries of one head, over the tiles of keys that it sees.

    q, do, dq [T, H, K]; k, v [S, G, K]; lse, d [H, T].
    """
    tile, head, document = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_q, t, first_k, s = document_span(starts_q_ptr, starts_k_ptr, document)
    if tile * BLOCK_Q >= t:
        return
    i = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    q_i = load_rows(q_ptr, first_q, i, t, H, head, K, BLOCK_W)
    do_i = load_rows(do_ptr, first_q, i, t, H, head, K, BLOCK_W)
    lse_i, d_i = row_numbers(lse_ptr, d_ptr, head * T + first_q + i, i < t)
    dq_i = tl.zeros([BLOCK_Q, BLOCK_W], ACC)
    stop = s
    if IS_CAUSAL:  # the tile's last query sees the keys below this
        stop = min(s, (tile + 1) * BLOCK_Q + s - t)
    for at in range(0, stop, BLOCK_K):
        j = at + tl.arange(0, BLOCK_K)
        k_j = load_rows(k_ptr, first_k, j, s, G, head // (H // G), K, BLOCK_W)
        v_j = load_rows(v_ptr, first_k, j, s, G, head // (H // G), K, BLOCK_W)
        p = tl.exp(masked_scores(q_i, k_j, i, j, t, s, SCALE, IS_CAUSAL) - lse_i[:, None])
        ds = p * (tl.dot(do_i, tl.trans(v_j), input_precision="ieee") - d_i[:, None])
        dq_i += tl.dot(ds.to(k_j.dtype), k_j, input_precision="ieee") * SCALE
    store_rows(dq_ptr, dq_i, first_q, i, t, H, head, K, BLOCK_W)


@jit
def dk_dv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, d_ptr, dk_ptr, dv_ptr, starts_q_ptr, starts_k_ptr, T, H, G, K,
    SCALE: tl.constexpr, IS_CAUSAL: tl.constexpr, ACC: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """One program: dk and dv of a tile of keys of one of their heads, over its group and the queries that see them.

    q, do [T, H, K]; k, v, dk, dv [S, G, K]; lse, d [H, T].
    """
    tile, kv_head, document = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_q, t, first_k, s = document_span(starts_q_ptr, starts_k_ptr, document)
    if tile * BLOCK_K >= s:
        return
    j = tile * BLOCK_K + tl.arange(0, BLOCK_K)
    k_j = load_rows(k_ptr, first_k, j, s, G, kv_head, K, BLOCK_W)
    v_j = load_rows(v_ptr, first_k, j, s, G, kv_head, K, BLOCK_W)
    dk_j, dv_j = tl.zeros([BLOCK_K, BLOCK_W], ACC), tl.zeros([BLOCK_K, BLOCK_W], ACC)
    start = 0 * t
    if IS_CAUSAL:  # the tile that holds the first query which sees the first key
        start = max(0, tile * BLOCK_K - (s - t)) // BLOCK_Q * BLOCK_Q
    for head in range(kv_head * (H // G), (kv_head + 1) * (H // G)):
        for at in range(start, t, BLOCK_Q):
            i = at + tl.arange(0, BLOCK_Q)
            q_i = load_rows(q_ptr, first_q, i, t, H, head, K, BLOCK_W)
            do_i = load_rows(do_ptr, first_q, i, t, H, head, K, BLOCK_W)
            lse_i, d_i = row_numbers(lse_ptr, d_ptr, head * T + first_q + i, i < t)
            p = tl.exp(masked_scores(q_i, k_j, i, j, t, s, SCALE, IS_CAUSAL) - lse_i[:, None])
            dv_j += tl.dot(tl.trans(p.to(do_i.dtype)), do_i, input_precision="ieee")
            ds = p * (tl.dot(do_i, tl.trans(v_j), input_precision="ieee") - d_i[:, None])
            dk_j += tl.dot(tl.trans(ds.to(q_i.dtype)), q_i, input_precision="ieee") * SCALE
    store_rows(dk_ptr, dk_j, first_k, j, s, G, kv_head, K, BLOCK_W)
    store_rows(dv_ptr, dv_j, first_k, j, s, G, kv_head, K, BLOCK_W)


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
        choices = accumulator(q_THK.dtype), int(tiles.queries), tile_width(K)
        row_sums_kernel[cdiv(T, tiles.queries), H](do_THK, o_THK, d_HT, T, H, K, *choices)
        options = attention_options("dq", tiles, K, q_THK.dtype, q_THK.device)
        dq_kernel[plan.grid(plan.starts_q, tiles.queries, H)](*inputs, dq_THK, *shared, **options)
    if k_SGK.numel():
        options = attention_options("dk_dv", tiles, K, q_THK.dtype, q_THK.device)
        grid = plan.grid(plan.starts_k, tiles.keys, k_SGK.shape[1])
        dk_dv_kernel[grid](*inputs, dk_SGK, dv_SGK, *shared, **options)
    return dq_THK, dk_SGK, dv_SGK
