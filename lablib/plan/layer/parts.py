"""Parts of layers: linear layers, kernels between them, sums over the tensor axis.

    linear      forward [R, k] x [k, n], backward [R, n] x [n, k] for the input and [k, R] x [R, n] for the weight
    kernel      bytes read and written, forward and backward
    exchange    R D numbers: an all-reduce, or with sequence parallelism an all-gather and a reduce-scatter

Legend, source, simplifications: `__init__.py`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from lablib.cost.arrays import Numbers
from lablib.models.transformer import Transformer
from lablib.plan.layer.work import Sizes, Work
from lablib.plan.machine import Machine, PassTime

# Bytes per number kept for a product in 8 or 4 bits: 16 numbers of 4 bits share an 8-bit scale.
NARROW: Mapping[str, float] = MappingProxyType({"float8": 1, "float4": 0.5625})


def linear(
    machine: Machine,
    rows: Numbers,
    k: Numbers,
    n: Numbers,
    dtype: str = "",
    keeps_input: bool = True,
    matrices: Numbers = 1,
) -> Work:
    """A linear layer [rows, k] x [k, n]; its gradients are one product each.

    Arguments:
        dtype: of the products; the training precision by default.
        keeps_input: False if another product keeps the same input.
        matrices: that share the rows evenly, in one grouped kernel: the experts of a rank.
    """
    width = machine.width
    dtype = dtype or machine.precision
    cast_forward_s = cast_backward_s = 0.0
    if dtype in NARROW:
        # Operands are cast by their producer: 2 bytes read, 1 written, and a transposed copy for the backward pass.
        cast_forward_s = machine.stream_s(rows * k * (width + 2))
        cast_backward_s = machine.stream_s(rows * n * (width + 2))
    # Without fused accumulation of weight gradients: sum and gradient are read, the sum is written.
    is_added = not machine.stack.fused_accumulation
    adding_s = machine.stream_s(matrices * k * n * machine.gradient_bytes * 3) if is_added else 0.0
    each = rows / matrices
    weight_s = machine.product_s(k, n, each, matrices, dtype, is_over_tokens=True)
    return Work(
        PassTime(product_s=machine.product_s(each, n, k, matrices, dtype), memory_s=cast_forward_s, kernels=1),
        PassTime(product_s=machine.product_s(each, k, n, matrices, dtype), memory_s=cast_backward_s, kernels=1),
        PassTime(product_s=weight_s, kernels=1),
        saved_bytes=rows * k * NARROW.get(dtype, width) if keeps_input else 0.0,
        output_bytes=rows * n * width,
        accumulate=PassTime(memory_s=adding_s, kernels=1),
    )


def passes(machine: Machine, numbers: Numbers, forward: float, backward: float, saved_bytes: Numbers = 0.0) -> Work:
    """A kernel that reads and writes a tensor of `numbers` elements so many times."""
    size = numbers * machine.width
    return Work(
        PassTime(memory_s=machine.stream_s(size * forward), kernels=1),
        PassTime(memory_s=machine.stream_s(size * backward), kernels=1),
        PassTime(),
        saved_bytes=saved_bytes,
    )


def norm(machine: Machine, model: Transformer, outside: Numbers) -> Work:
    """The norm of a tensor of `outside` elements, which is kept."""
    stack = machine.stack
    reads = stack.passes_rms_norm if model.norm == "rms" and stack.passes_rms_norm else stack.passes_norm
    return passes(machine, outside, *reads, saved_bytes=outside * machine.width)


def residual(machine: Machine, outside: Numbers) -> Work:
    """Bias, dropout and the sum with the residual: the dropout's mask is kept."""
    return passes(machine, outside, *machine.stack.passes_residual, saved_bytes=outside * machine.stack.has_dropout)


def tensor_exchange(machine: Machine, model: Transformer, sizes: Sizes) -> Work:
    """Communication of one block over the tensor axis: a sum forward, a sum backward (or both halves of each)."""
    size = sizes.rows * model.d_model * machine.width
    reduce_s = machine.collective_s("all_reduce", size, sizes.tensor)
    # A reduce-scatter takes as long as an all-gather of the same size.
    halves_s = 2 * machine.collective_s("all_gather", size, sizes.tensor)
    is_split = sizes.sequence_shards > 1
    once = PassTime(tensor_s=reduce_s + is_split * (halves_s - reduce_s), kernels=(sizes.tensor > 1) * 1.0)
    return Work(once, once, PassTime())
