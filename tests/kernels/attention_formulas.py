"""Bytes of attention by formulas: what the kernels of backward move, and what a program of forward has on chip."""

from lablib.kernels.attention_plan import AttentionPlan, AttentionTiles
from lablib.kernels.flash_parts import tile_width
from lablib.kernels.jit import cdiv


def backward_bytes(
    plan: AttentionPlan, heads: int, kv_heads: int, width: int, itemsize: int
) -> dict[str, dict[str, int]]:
    """Bytes of each tensor that the three kernels of backward read or write, as `forward_bytes` of forward."""
    rows, columns = plan.starts_q[-1], plan.starts_k[-1]
    pairs = [(tile, key) for tile in plan.query_tiles() for key in plan.keys_of(tile)]
    read_rows, read_keys = (sum(pair[i].stop - pair[i].start for pair in pairs) for i in (0, 1))
    each, each_kv, wide = heads * width * itemsize, kv_heads * width * itemsize, heads * max(4, itemsize)
    per_row = {"q": each, "do": each, "lse": wide, "d": wide}
    of_dq = {name: rows * size for name, size in per_row.items()}
    of_dk_dv = {name: read_rows * size for name, size in per_row.items()}
    starts_dq, starts_dkv = (
        dict.fromkeys(("starts_q", "starts_k"), programs * 2 * 8)
        for programs in (heads * launched(plan, of_queries=True), kv_heads * launched(plan, of_queries=False))
    )
    return {
        "row_sums": {"do": rows * each, "o": rows * each, "d": rows * wide},
        "dq": of_dq | {"k": read_keys * each, "v": read_keys * each, "dq": rows * each} | starts_dq,
        "dk_dv": of_dk_dv | dict.fromkeys(("k", "v", "dk", "dv"), columns * each_kv) | starts_dkv,
    }


def on_chip_bytes(tiles: AttentionTiles, width: int, itemsize: int) -> int:
    """Bytes on chip, shared memory and registers together, that a program of the forward kernel works on.

    q, k and v in their dtype; scores and output at least in float32. The width of a tile is the next power of two.
    """
    wide, padded = max(4, itemsize), tile_width(width)
    as_given = (tiles.queries + 2 * tiles.keys) * padded
    in_sums = tiles.queries * padded + tiles.queries * tiles.keys + 2 * tiles.queries
    return as_given * itemsize + in_sums * wide


def launched(plan: AttentionPlan, of_queries: bool) -> int:
    """Programs of one head: tiles of the longest document, for each document; those past an end return at once."""
    size = plan.tiles.queries if of_queries else plan.tiles.keys
    longest = max((lengths[0 if of_queries else 1] for lengths in plan.lengths), default=0)
    return len(plan.lengths) * cdiv(longest, size)
