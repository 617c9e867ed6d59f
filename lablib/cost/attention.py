"""Time of attention by algorithm: softmax(Q K^T) V over B sequences and H heads.

    FLOPs       forward 2 products of 2 B H S T K each; backward 4, and one more if the scores were not kept
    unfused     writes the S x T scores and reads them again: (2 products) + a pass of softmax over B H S T numbers;
                a causal mask saves nothing: masked scores are computed and discarded
    flash       keeps the scores in the cores: moves Q, K, V, O and one number per row, in backward also their
                gradients; computes the scores again in backward (5 products instead of 4); skips blocks behind a
                causal mask

A flash kernel does not reach the rate of a product. For each 4 K FLOPs of a score it computes one exponential and
rescales a sum, and cores have few units for these: an A100's core has 1,024 multiply-adds per clock in its tensor cores
and 16 exponentials, so one exponential takes as long as 64 multiply-adds, 32 for each of the two products. So

    rate = rate of large products * K / (K + 32)        in backward K / (K + 48), for the softmax's gradient

Legend: S queries, T keys, K width of a head (the mean of the widths of keys and values).

The start and the end of a block of queries take as long as 128 keys; with a causal mask half of the last block of
128 keys is computed and discarded, in a sliding window half of the first block, too. Backward sums the gradient of Q in
32 bits in memory: zeros, sums, a conversion, and the dot products of the rows of O and its gradient, 16 + 3 w bytes for
each number of w bytes.

Rows must be multiples of 16 bytes: a head of another width is padded, at 16 bits to the next multiple of 8.

With `causal` the work counts the pairs (query, key <= query): (S + 1) / 2 S of all pairs where S = T. FLOPs are counted
as in torch and published figures, with the masked half; so a causal kernel may seem to exceed the peak.

Source: Dao et al., "FlashAttention", 2022, arXiv 2205.14135; Dao, "FlashAttention-2", 2023, arXiv 2307.08691 (up to
73% of an A100's peak forward); Shah et al., "FlashAttention-3", 2024, arXiv 2407.08608 (up to 740 TFLOP/s on an H100).
Both effects are visible in cuDNN's kernels on an H200 (tests/operators/measured/h200.jsonl): 512 keys take twice the
time per pair of 8,192 keys.
Padding: Dao-AILab/flash-attention, flash_attn/flash_attn_interface.py at 7153673 (issue 1347).
Simplified: one depth of softmax for every device; no split of the keys over cores when there are few queries.
"""

from lablib.cost.arrays import Numbers, ceil_div, maximum, minimum
from lablib.cost.matmul import matmul_time_s
from lablib.cost.memory import memory_bound_time_s, stream_time_s
from lablib.cost.precision import bytes_per_number
from lablib.errors import unknown_name
from lablib.hardware.device import Device

_SOFTMAX_DEPTH = 32
_BLOCK_KEYS = 128
ALGORITHMS = ("flash", "unfused")


def causal_share(queries: Numbers, keys: Numbers) -> Numbers:
    """Share of all pairs that a causal mask leaves: query i sees keys 0 to i."""
    square = minimum(queries, keys)
    pairs = square * (square + 1) / 2 + (queries - square) * keys
    return pairs / maximum(queries * keys, 1)


def keys_in_window(keys: Numbers, window: int, is_chunked: bool = False, causal: bool = True) -> Numbers:
    """Keys of a query in a window of w tokens, averaged over a sequence of `keys`.

    A query's last w keys, its own included: (T w - w (w - 1) / 2) / T with w <= T. Of chunks of w tokens, r of them in
    the last one: ((T - r) (w + 1) + r (r + 1)) / 2 T. Without the causal mask: min(w, T), or ((T - r) w + r r) / T.
    """
    if is_chunked:
        last = keys % window
        return ((keys - last) * (window + causal) + last * (last + causal)) / ((1 + causal) * keys)
    near = minimum(window, keys)
    return near - near * (near - 1) / (2 * keys) if causal else near


def mean_causal_keys(keys: Numbers, device: Device, window: int | None = None, is_chunked: bool = False) -> Numbers:
    """Number of unmasked keys that take as long as `keys` causal ones, averaged over the queries of a sequence."""
    if window is None:
        return keys * causal_share(keys, keys) + _BLOCK_KEYS / 2 * device.is_gpu
    # A sliding window cuts the first block of keys as well as the last one.
    cut_blocks = 1 + (window < keys) * (not is_chunked)
    return keys_in_window(keys, window, is_chunked) + _BLOCK_KEYS / 2 * cut_blocks * device.is_gpu


def flash_compute_s(
    batch: Numbers,
    heads: Numbers,
    queries: Numbers,
    keys: Numbers,
    d_head: Numbers,
    dtype: str,
    device: Device,
    *,
    causal: bool = False,
    backward: bool = False,
) -> Numbers:
    """Seconds of a fused kernel's arithmetic alone. Arguments as in `attention_time_s`."""
    products, softmax = (5, 1.5 * _SOFTMAX_DEPTH) if backward else (2, _SOFTMAX_DEPTH)
    rows = max(1, device.matmul_tile[0] // 2)
    blocks = batch * heads * ceil_div(queries, rows)  # one per core: a block of queries of one head
    if device.num_cores:
        blocks = ceil_div(blocks, device.num_cores) * device.num_cores
    share = causal_share(queries, keys) if causal else 1.0
    if device.row_alignment_bytes:
        in_a_load = max(1, int(device.row_alignment_bytes / bytes_per_number(dtype)))
        d_head = ceil_div(d_head, in_a_load) * in_a_load
    keys_of_a_block = keys * share
    if device.is_gpu:
        keys_of_a_block = keys_of_a_block + _BLOCK_KEYS * (1 + causal / 2)
    rate = device.matmul_rate(dtype) * device.attention_efficiency
    compute_s = 2 * products * blocks * rows * keys_of_a_block * (d_head + softmax) / rate
    if not (backward and device.is_gpu):
        return compute_s
    numbers = batch * heads * queries * d_head
    return compute_s + stream_time_s(numbers * (16 + 3 * bytes_per_number(dtype)), device)


def attention_time_s(
    batch: Numbers,
    heads: Numbers,
    queries: Numbers,
    keys: Numbers,
    d_head: Numbers,
    dtype: str,
    device: Device,
    *,
    causal: bool = False,
    backward: bool = False,
    algorithm: str = "flash",
) -> Numbers:
    """Seconds of attention, forward or backward, without launches. ValueError: an unknown algorithm or dtype.

    Arguments:
        batch, heads, queries, keys, d_head: B, H, S, T and K of the legend; whole numbers or numpy arrays.
        dtype: "float32", "tfloat32", "float16", "bfloat16", ...
        causal: whether query i sees only keys 0 to i.
        backward: the time of the gradients alone, not of both.
        algorithm: "flash" or "unfused".
    """
    if algorithm not in ALGORITHMS:
        raise unknown_name("attention algorithm", algorithm, ALGORITHMS)
    size, pairs = bytes_per_number(dtype), batch * heads
    if algorithm == "flash":
        compute_s = flash_compute_s(
            batch, heads, queries, keys, d_head, dtype, device, causal=causal, backward=backward
        )
        # Q, K, V in and O out; in backward Q, K, V, O and its gradient in, three gradients out.
        passes = 2 if not backward else 4
        size_bytes = passes * pairs * (queries + keys) * d_head * size
        return maximum(compute_s, stream_time_s(size_bytes, device))
    scores = matmul_time_s(queries, keys, d_head, dtype, device, batch=pairs)
    values = matmul_time_s(queries, d_head, keys, dtype, device, batch=pairs)
    softmax_s = memory_bound_time_s((3 if backward else 2) * pairs * queries * keys * size, device)
    if not backward:
        return scores + softmax_s + values
    # Gradients of V and K have T rows and depth S; the scores' gradient is shaped as the scores, Q's gradient as O.
    transposed = matmul_time_s(keys, d_head, queries, dtype, device, batch=pairs, rows=(keys, d_head))
    return scores + values + 2 * transposed + softmax_s
