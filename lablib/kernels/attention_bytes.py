"""Bytes moved, FLOPs and memory of attention: standard attention, the paper's loop, and the loops of this package.

Between memory and chip, in numbers, for one head of N queries and keys of width d, with room for M numbers on chip:

    standard     read q, k, write s; read s, write p; read p, v, write o:        4 N d + 4 N^2
    the paper's  keys in the outer loop, ceil(N / B_c) times over all of q, o,
                 l and m; B_c = ceil(M / 4d), B_r = min(B_c, d):                 3 N d + 2 N + (3 N d + 4 N) N / B_c
                                                                                 = Theta(N^2 d^2 / M)
    ours         queries in the outer loop, k and v read ceil(N / B) times:      2 N d + 2 N d ceil(N / B) + N
      causal     n = N / B tiles, as wide as high; n (n + 1) / 2 of n^2 visited:  2 N d + d N (n + 1) + N

More room on chip saves bytes: B grows with M / d, so bytes fall as d^2 / M, while standard attention's N^2 does not.

FLOPs of visited tiles: 4 d for each pair of a query and a key forward, and 14 d backward (3 products for dq, 4 for dk
and dv; with p kept, 4 in total). That is more than in standard attention, which is limited by bytes, and these are far
fewer.

Kept for backward: q, k, v, o and N log-sum-exps; standard attention keeps q, k, v and p, N^2 numbers per head.

Cost: O(tiles). Shapes: T queries, S keys, H heads, G heads of keys and values, K width of a head (the paper's d).
Source: Dao et al., "FlashAttention", 2022, arXiv 2205.14135, algorithms 0 and 1, section 3.2 and theorem 2; Dao,
"FlashAttention-2", 2023, arXiv 2307.08691, algorithm 1.
Simplified: no cache between chip and memory: it would serve heads of one group, or programs that run in parallel.
"""

from lablib.kernels.attention_plan import AttentionPlan
from lablib.kernels.jit import cdiv
from lablib.signature import Count, NonNegativeInt, checked

_START_BYTES = 2 * 8  # a program reads where its document starts and ends in cu_seqlens, as int64


@checked
def standard_numbers(N: NonNegativeInt, d: Count) -> int:
    """Numbers that standard attention (algorithm 0) moves for one head."""
    return 4 * N * d + 4 * N * N


@checked
def paper_tiles(d: Count, on_chip_numbers: Count) -> tuple[int, int]:
    """(B_r, B_c), rows of a tile of queries and of keys, with room for M numbers on chip: algorithm 1, line 1."""
    if d > on_chip_numbers:  # theorem 2 needs room for a token
        raise ValueError(f"a head's width must be from 1 to the numbers on chip: got {d} and {on_chip_numbers}.")
    keys = cdiv(on_chip_numbers, 4 * d)
    return min(keys, d), keys


@checked
def paper_flash_numbers(N: NonNegativeInt, d: Count, on_chip_numbers: Count) -> int:
    """Numbers that algorithm 1 moves for one head: its lines 2, 6, 8, 12 and 13, counted."""
    _, keys = paper_tiles(d, on_chip_numbers)
    start = N * d + 2 * N  # o, l and m are written
    once = 2 * N * d  # k and v
    each_time = (N * d + N * d + 2 * N) + (N * d + 2 * N)  # q, o, l, m are read; o, l, m written
    return start + once + cdiv(N, keys) * each_time


@checked
def forward_bytes(plan: AttentionPlan, heads: Count, width: Count, itemsize: Count) -> dict[str, int]:
    """Bytes of each tensor that our forward kernel reads or writes; each head reads the keys of its group separately.

    `itemsize`: bytes of a number of q; the log-sum-exp has 4, or 8 for float64.
    """
    queries = sum(tile.stop - tile.start for tile in plan.query_tiles())
    keys = sum(key.stop - key.start for tile in plan.query_tiles() for key in plan.keys_of(tile))
    each = heads * width * itemsize
    # Each head has the tiles of the longest document, for each document; those past an end return at once.
    longest = max((rows for rows, _ in plan.lengths), default=0)
    programs = heads * len(plan.lengths) * cdiv(longest, plan.tiles.queries)
    return {
        "q": queries * each,
        "k": keys * each,
        "v": keys * each,
        "o": queries * each,
        "lse": queries * heads * max(4, itemsize),
        "starts_q": programs * _START_BYTES,
        "starts_k": programs * _START_BYTES,
    }


@checked
def forward_flops(plan: AttentionPlan, heads: Count, width: Count) -> int:
    """FLOPs of the two products over visited tiles, each cut at its document's end."""
    return 4 * heads * width * visited_pairs(plan)


@checked
def backward_flops(plan: AttentionPlan, heads: Count, width: Count) -> int:
    """FLOPs of the seven products of our backward."""
    return 14 * heads * width * visited_pairs(plan)


@checked
def visited_pairs(plan: AttentionPlan) -> int:
    """Pairs of a query and a key in visited tiles; on the diagonal some of them are masked."""
    return sum(
        (queries.stop - queries.start) * (keys.stop - keys.start)
        for queries in plan.query_tiles()
        for keys in plan.keys_of(queries)
    )


@checked
def kept_bytes(T: int, S: int, heads: int, kv_heads: int, width: int, itemsize: int) -> int:
    """Bytes kept for backward: q, o, k, v and the log-sum-exp."""
    return (2 * T * heads + 2 * S * kv_heads) * width * itemsize + T * heads * max(4, itemsize)
