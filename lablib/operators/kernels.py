"""Number of kernels that one operator launches; each costs `kernel_overhead_s`.

    nearly all                      1
    _foreach_, _fused_ (lists)      by the size of the lists: a launch has the addresses of at most 110, 64, 48, 36 or
                                    30 tensors (for 1, 2, 3, 4 or 5 lists), and 320 chunks of 65,536 numbers
    layer, RMS norm, backward       2: the input's gradient; the sums over rows
    flash attention, backward       3: the rows' dot products; the gradients; the query's, converted
    embedding, backward             2: the zeros; the rows added to them
    a fused encoder layer           12: 2 norms, 4 products, attention, 2 biases with activation, 2 sums, a transpose

So one `_foreach_add_` over 1,000 tensors is 16 launches where a loop is 1,000.

Source: torch, aten/src/ATen/native/cuda/MultiTensorApply.cuh (`depth_to_max_tensors`, `depth_to_max_blocks`,
`kChunkSize`; builds for CUDA 12.1 and later hold seven times as many where the driver allows). Simplified: the counts
of a GPU also apply to a CPU; splits of K, sorts and the like count as one.
"""

from functools import cache
from typing import Any

from lablib.operators.op_bytes import tensors_in
from lablib.torch_compat import schema

_TENSORS_A_LAUNCH = (110, 64, 48, 36, 30)
_CHUNKS_A_LAUNCH = 320
_CHUNK = 65536

_KERNELS = {
    "native_layer_norm_backward": 2,
    "_fused_rms_norm_backward": 2,
    "embedding_dense_backward": 2,
    "_scaled_dot_product_flash_attention_backward": 3,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 3,
    "_scaled_dot_product_efficient_attention_backward": 3,
    "_scaled_dot_product_cudnn_attention_backward": 3,
    "_scaled_dot_product_fused_attention_overrideable_backward": 3,
    "_native_multi_head_attention": 5,
    "_transformer_encoder_layer_fwd": 12,
}


@cache
def _count(op: Any) -> int:
    """Kernels of an operator, 0 if the number depends on its lists."""
    name = schema(op).name.split("::")[-1]
    return 0 if name.startswith(("_foreach_", "_fused_")) else _KERNELS.get(name, 1)


def num_kernels(op: Any, args: tuple) -> int:
    """Kernels that one call of an operator launches."""
    if count := _count(op):
        return count
    lists = [
        values
        for values in args
        if isinstance(values, (list, tuple)) and next(iter(tensors_in(values[:1])), None) is not None
    ]
    if not lists:
        return 1
    # A fused optimizer's list of step counts does not count: a launch carries it next to the others.
    depth = len(lists) - schema(op).name.startswith("aten::_fused_")
    tensors = -(-len(lists[0]) // _TENSORS_A_LAUNCH[min(max(depth, 1), 5) - 1])
    chunks = sum(-(-t.numel() // _CHUNK) for t in tensors_in(lists[0]))
    return max(1, tensors, -(-chunks // _CHUNKS_A_LAUNCH))
