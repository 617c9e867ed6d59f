"""What one operation costs on one device: the roofline.

An operation must do its arithmetic and move its bytes; a device does both at once, so the slower one counts:

    time = max( FLOPs / (peak(dtype) * efficiency),  bytes / bandwidth ) + kernel overhead

FLOPs of matrix products, convolutions and attention come from torch's own formulas (torch.utils.flop_counter; a
multiply-add is two; a causal mask saves nothing). Every other operation is taken to be limited by memory: it reads its
inputs and writes its outputs once. Operations that only make a new view of a tensor, or reserve memory, cost nothing.

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
Simplified: one efficiency for all shapes (no tile or wave quantization), no cache: every operand comes from memory.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from lablib.hardware.device import Device


@dataclass(frozen=True, slots=True)
class OpCost:
    """Seconds, floating-point operations, and bytes read and written."""

    time_s: float
    flops: float
    size_bytes: float


# Reserve memory or read metadata: no kernel runs. (`_unsafe_view` is a view that autograd takes for a new tensor.)
_FREE = frozenset(
    {
        "empty",
        "empty_strided",
        "empty_like",
        "new_empty",
        "new_empty_strided",
        "_local_scalar_dense",
        "item",
        "_unsafe_view",
    }
)
# Write their first argument without reading it. (`zeros_like` and `new_zeros` only look at its shape.)
_OVERWRITES = frozenset({"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_"})


@cache
def is_free(op: Any) -> bool:
    """Whether an operator starts no kernel: views, reservations, and what lives outside aten."""
    if op.namespace not in ("aten", "prims"):
        return op.namespace in ("profiler", "c10d", "_c10d_functional", "c10d_functional", "prim")
    name = op._schema.name.split("::")[-1]
    # An alias annotation without a write is what makes a view a view.
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)
    return name in _FREE or is_view or torch.Tag.inplace_view in op.tags


@cache
def _flop_formula(op: Any) -> Any:
    # Imported on first use: it costs 0.2 s, which a program that never multiplies should not pay.
    from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

    name = op._schema.name
    # The CPU's own fused attention is missing from torch's table; its products are those of any attention.
    if name == "aten::_scaled_dot_product_flash_attention_for_cpu":
        return lambda q, k, v, *_, **__: sdpa_flop_count(q.shape, k.shape, v.shape)
    if name == "aten::_scaled_dot_product_flash_attention_for_cpu_backward":
        return lambda do, q, k, v, *_, **__: sdpa_backward_flop_count(do.shape, q.shape, k.shape, v.shape)
    return flop_registry.get(op.overloadpacket)


@dataclass(frozen=True, slots=True)
class _Roles:
    """Arguments that are not simply read.

    Attributes:
        first_is_unread: the first argument is overwritten (`copy_`), or gives nothing but its shape (`zeros_like`).
        unread: keyword arguments that are overwritten: `out=`.
        unreturned: position and name of those written though the operator does not return them (`_foreach_add_`
            returns nothing).
    """

    first_is_unread: bool
    unread: frozenset[str]
    unreturned: tuple[tuple[int, str], ...]


@cache
def _roles(op: Any) -> _Roles:
    schema = op._schema
    name = schema.name.split("::")[-1]
    returned = {alias for r in schema.returns if r.alias_info for alias in r.alias_info.before_set}
    return _Roles(
        first_is_unread=name in _OVERWRITES or name.startswith("new_") or name.endswith("_like"),
        unread=frozenset(argument.name for argument in schema.arguments if argument.is_out),
        unreturned=tuple(
            (position, argument.name)
            for position, argument in enumerate(schema.arguments)
            if argument.is_write and not returned.intersection(argument.alias_info.before_set)
        ),
    )


def _moved_bytes(op: Any, args: tuple, kwargs: dict, out: Any) -> float:
    """Bytes read and written: every operand once, one that is updated in place twice."""
    roles = _roles(op)
    size_bytes = sum(num_bytes(t) for t in tensors_in(args[1:] if roles.first_is_unread else args))
    size_bytes += sum(num_bytes(t) for t in tensors_in(kwargs[name] for name in kwargs if name not in roles.unread))
    size_bytes += sum(num_bytes(t) for t in tensors_in((out,)))
    for position, name in roles.unreturned:
        value = args[position] if position < len(args) else kwargs.get(name)
        size_bytes += sum(num_bytes(t) for t in tensors_in((value,)))
    return float(size_bytes)


def op_cost(op: Any, args: tuple, kwargs: dict, out: Any, device: Device) -> OpCost:
    """The cost of one dispatched operator.

    Args:
        op: the `OpOverload`.
        args, kwargs: what it was called with; tensors may be of any device, real or meta.
        out: what it returned.
        device: where it would run.
    """
    size_bytes = _moved_bytes(op, args, kwargs, out)
    flops, compute_s = 0.0, 0.0
    if formula := _flop_formula(op):
        flops = float(formula(*args, **kwargs, out_val=out))
        dtype = next(iter(tensors_in((*args, *kwargs.values())))).dtype
        compute_s = flops / (device.peak(_dtype_name(dtype)) * device.matmul_efficiency)
    memory_s = size_bytes / device.memory_bandwidth_bytes_per_s
    return OpCost(max(compute_s, memory_s) + device.kernel_overhead_s, flops, size_bytes)


def num_bytes(t: torch.Tensor) -> int:
    """Bytes of a tensor's elements; of a sparse one, those that it stores, with their indices."""
    if t.layout == torch.strided:
        return t.nbytes
    if t.layout == torch.sparse_coo:
        return t._indices().nbytes + t._values().nbytes
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return t.crow_indices().nbytes + t.col_indices().nbytes + t.values().nbytes
    if t.layout in (torch.sparse_csc, torch.sparse_bsc):
        return t.ccol_indices().nbytes + t.row_indices().nbytes + t.values().nbytes
    return t.numel() * t.element_size()


def tensors_in(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    """The tensors in nested lists and tuples."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def _dtype_name(dtype: torch.dtype) -> str:
    """The row of a device's peak table: float32 runs as tfloat32 where the program allows it."""
    if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        return "tfloat32"
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return "float8"
    return str(dtype).removeprefix("torch.")
