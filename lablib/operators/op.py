"""Cost of one torch operator on one device.

An operator computes and moves bytes at the same time, so the slower of the two counts, and each kernel has a launch
(files of lablib/cost):

    time = max( arithmetic, bytes / bandwidth ) + kernels * kernel overhead

    matrix products        arithmetic by shape: tiles, waves and depth            matmul.py
                           / the device's share of that rate within a step        hardware/device.py, step_share
    attention              arithmetic by algorithm                                attention.py
    convolutions           FLOPs / (peak * efficiency)
    functions on a CPU     seconds per element, as measured                       elements.py
    other operators        negligible arithmetic: bytes                           memory.py
    of these, on a GPU     bytes at the rate of this kind of operator             efficiency.py
    views, reservations    nothing

FLOPs follow torch's formulas (torch.utils.flop_counter; a multiply-add is two, a causal mask saves nothing). Only
shapes, strides and dtypes are read: a tensor without data (`meta`) costs the same as a real one.

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
Simplified: one operator after another, as an eager program runs; none overlaps the next one's launch.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch

from lablib.cost.attention import flash_compute_s
from lablib.cost.efficiency import MOST_UNSORTED, operator_time_s
from lablib.cost.elements import function_time_s
from lablib.cost.matmul import matmul_compute_s
from lablib.cost.memory import stream_time_s
from lablib.hardware.device import Device
from lablib.operators.kernels import num_kernels
from lablib.operators.op_bytes import num_bytes, op_bytes, tensors_in
from lablib.operators.peaks import peak_name
from lablib.torch_compat import schema

__all__ = ["OpCost", "has_arithmetic", "is_free", "num_bytes", "op_cost", "tensors_in"]


@dataclass(frozen=True, slots=True)
class OpCost:
    """Seconds, floating-point operations, bytes read and written, and the row of `peak_flops_per_s` it computed at.

    `launch_s`: of the seconds, the part in which the host launches the kernels and the device waits
    (`Device.launch_s`).
    """

    time_s: float
    flops: float
    size_bytes: float
    dtype: str = ""
    launch_s: float = 0.0


# These reserve memory or read metadata: no kernel runs. (Autograd takes the view `_unsafe_view` for a new tensor.)
_FREE = frozenset(
    (
        *("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "_local_scalar_dense", "item"),
        *("promote_types", "_unsafe_view"),
    )
)


@cache
def is_free(op: Any) -> bool:
    """Whether an operator starts no kernel: views, reservations, and operators outside aten."""
    if op.namespace not in ("aten", "prims"):
        return op.namespace in ("profiler", "c10d", "_c10d_functional", "c10d_functional", "prim")
    name = schema(op).name.split("::")[-1]
    # An alias annotation without a write marks a view.
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema(op).returns)
    return name in _FREE or is_view or torch.Tag.inplace_view in op.tags


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call of an operator; `call["query"]` is an argument by name, positional or keyword."""

    op: Any
    args: tuple
    kwargs: dict
    out: Any

    def __getitem__(self, name: str) -> Any:
        position, default = _signature(self.op)[name]
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)


@cache
def _signature(op: Any) -> dict[str, tuple[int, Any]]:
    return {
        argument.name: (position, argument.default_value if argument.has_default_value() else None)
        for position, argument in enumerate(schema(op).arguments)
    }


_Seconds = Callable[[OperatorCall, Device], float]
_Flops = Callable[[OperatorCall], float]


@cache
def is_convolution(op: Any) -> bool:
    """Whether an operator is a convolution, with cuDNN's precision setting (peaks.py)."""
    return "conv" in schema(op).name


def _dtype(call: OperatorCall) -> str:
    dtype = next(iter(tensors_in((*call.args, *call.kwargs.values())))).dtype
    return peak_name(dtype, is_convolution(call.op))


# ---- matrix products ----


def _product_s(m: int, n: int, k: int, dtype: str, device: Device, **options: Any) -> float:
    """Seconds of a product within a step; arguments as in `matmul_compute_s`."""
    return float(matmul_compute_s(m, n, k, dtype, device, **options) / device.step_share)


def _product(first: str, second: str) -> _Seconds:
    """[..., M, K] times [..., K, N]; the second has one matrix per batch, or one for all."""

    def seconds(call: OperatorCall, device: Device) -> float:
        (*batch, m, k), n = call[first].shape, call[second].shape[-1]
        rows = (_row(call[first]), _row(call[second]), n)
        return _product_s(m, n, k, peak_name(call[first].dtype), device, batch=prod(batch), rows=rows)

    return seconds


def _row(matrix: torch.Tensor) -> int:
    """Distance of a matrix's rows in memory, in numbers; of its columns if it is transposed."""
    down, right = matrix.stride()[-2:]
    return down if right == 1 else right


def _linear(call: OperatorCall, device: Device) -> float:
    (*rows, k), n = call["input"].shape, call["weight"].shape[0]
    return _product_s(prod(rows), n, k, _dtype(call), device)


def _matmul(call: OperatorCall, device: Device) -> float:
    m, n, k, batch = _matmul_sizes(call)
    return _product_s(m, n, k, _dtype(call), device, batch=batch)


def _matmul_sizes(call: OperatorCall) -> tuple[int, int, int, int]:
    """M, N, K and batch of torch.matmul; operands may be vectors or be broadcast over the batch."""
    a, b = call["self"].shape, call["other"].shape
    m, n = (a[-2] if len(a) > 1 else 1), (b[-1] if len(b) > 1 else 1)
    return m, n, a[-1], call.out.numel() // max(1, m * n)


def _grouped(call: OperatorCall, device: Device) -> float:
    """One product for each group of rows. Group sizes are values, not shapes: all groups are assumed to be equal."""
    a, b = call["self"], call["mat2"]
    if b.ndim == 3:  # [M, K] x [E, K, N]: the rows are in groups
        sizes = -(-a.shape[0] // b.shape[0]), b.shape[2], a.shape[1]
    else:  # [N, M] x [M, K] -> [E, N, K]: the summed dimension is in groups, as for the gradient of weights
        sizes = a.shape[0], b.shape[1], -(-a.shape[1] // call.out.shape[0])
    groups = b.shape[0] if b.ndim == 3 else call.out.shape[0]
    rows = (_row(a), _row(b), b.shape[-1])
    return _product_s(*sizes, peak_name(a.dtype), device, batch=groups, rows=rows)


# ---- attention ----


def _attention(backward: bool) -> _Seconds:
    def seconds(call: OperatorCall, device: Device) -> float:
        (*pairs, queries, d_key), value = call["query"].shape, call["value"].shape
        width = (d_key + value[-1]) / 2
        causal = bool(call["is_causal"])
        sizes = (1, prod(pairs), queries, value[-2], width)
        compute_s = flash_compute_s(*sizes, _dtype(call), device, causal=causal, backward=backward)
        return compute_s + function_time_s(_name(call.op), prod(pairs) * queries * value[-2], device)

    return seconds


def _sdpa_flops(call: OperatorCall) -> float:
    from torch.utils.flop_counter import sdpa_flop_count

    q, k, v = (call[name].shape for name in ("query", "key", "value"))
    pairs = prod(q[:-2])  # shared heads of keys are read once and multiplied with every head of queries
    return float(sdpa_flop_count((1, pairs, *q[-2:]), (1, pairs, *k[-2:]), (1, pairs, *v[-2:])))


def _sdpa_backward_flops(call: OperatorCall) -> float:
    from torch.utils.flop_counter import sdpa_backward_flop_count

    q, k, v = (call[name].shape for name in ("query", "key", "value"))
    return float(sdpa_backward_flop_count(call["grad_out"].shape, q, k, v))


# ---- functions ----


def _name(op: Any) -> str:
    return schema(op).name.removeprefix("aten::")


def function_name(op: Any, args: tuple, kwargs: dict) -> str:
    """The key of `Device.element_s`: the operator's name, and the text argument that chooses the function."""
    words = [value for value in (*args, *kwargs.values()) if isinstance(value, str) and value != "none"]
    return " ".join([_name(op), *words])


# ---- kinds of operators limited by memory ----

_SUMS = frozenset(
    {"sum", "mean", "amax", "amin", "argmax", "argmin", "max", "min", "prod", "linalg_vector_norm", "var"}
)
_COPIES = frozenset({"clone", "copy_", "_to_copy"})


def operator_kind(op: Any, args: tuple, out: Any) -> str:
    """The key of `lablib.cost.efficiency.RATES`: a property of operands and result, or the operator's name."""
    name = _name(op)
    if name in _SUMS and args:
        return "sum over rows" if _keeps_columns(args, out) else "sum"
    if name in _COPIES:
        source = args[1] if name == "copy_" else args[0]
        if isinstance(out, torch.Tensor) and isinstance(source, torch.Tensor):
            if _innermost(source) != _innermost(out):
                return "transposed copy"
            return "widening" if out.element_size() > source.element_size() else name
    if name == "embedding_dense_backward" and args[1].numel() <= MOST_UNSORTED:
        return ""
    if any(t.dtype == torch.bool for t in tensors_in((*args, out))):
        return "mask"
    return name


def _keeps_columns(args: tuple, out: Any) -> bool:
    x, dims = args[0], args[1] if len(args) > 1 else None
    if not isinstance(out, torch.Tensor) or x.ndim < 2:
        return False
    if isinstance(dims, (list, tuple)) and dims:
        return all(d % x.ndim != x.ndim - 1 for d in dims)
    return out.shape[-1:] == x.shape[-1:]


def _innermost(x: torch.Tensor) -> int:
    """The contiguous dimension, counted from the last; 0 if any dimension would do."""
    if x.layout != torch.strided or x.is_contiguous():
        return -1 if x.numel() > 1 and x.ndim > 1 and x.shape[-1] > 1 else 0
    strides = [(s, d - x.ndim) for d, (s, n) in enumerate(zip(x.stride(), x.shape, strict=True)) if n > 1 and s]
    return min(strides)[1] if strides else 0


# ---- fused layers (the fast path of nn.TransformerEncoderLayer and nn.MultiheadAttention without gradients) ----


def _layer_products(call: OperatorCall) -> list[tuple[int, int]]:
    """[K, N] of the layer's products, each on B T rows."""
    weights = ["qkv_weight", "proj_weight", *(f"ffn_weight_{i}" for i in (1, 2))]
    return [(call[w].shape[1], call[w].shape[0]) for w in weights if w in _signature(call.op)]


def _layer_sizes(call: OperatorCall) -> tuple[int, int, int, int]:
    x = call["src" if "src" in _signature(call.op) else "query"]
    heads = call["num_heads" if "num_heads" in _signature(call.op) else "num_head"]
    return x.shape[0], heads, x.shape[1], call["embed_dim"] // heads


def _layer_flops(call: OperatorCall) -> float:
    batch, heads, length, d_head = _layer_sizes(call)
    products = sum(2 * batch * length * k * n for k, n in _layer_products(call))
    return float(products + 4 * batch * heads * length * length * d_head)


def _layer(call: OperatorCall, device: Device) -> float:
    batch, heads, length, d_head = _layer_sizes(call)
    dtype = _dtype(call)
    products_s = sum(_product_s(batch * length, n, k, dtype, device) for k, n in _layer_products(call))
    return products_s + flash_compute_s(batch, heads, length, length, d_head, dtype, device)


# ---- the table ----


def _plain(call: OperatorCall, device: Device) -> float:
    """FLOPs at the rate of large products: convolutions, and other operators with a FLOP formula in torch."""
    dtype = _dtype(call)
    rate = device.matmul_rate(dtype if dtype in device.peak_flops_per_s else "float32")
    return _flops(call) / rate / device.step_share


_FLASH = ("flash_attention", "efficient_attention", "cudnn_attention", "fused_attention_overrideable")
_SECONDS: dict[str, _Seconds] = {
    "mm": _product("self", "mat2"),
    "addmm": _product("mat1", "mat2"),
    "bmm": _product("self", "mat2"),
    "baddbmm": _product("batch1", "batch2"),
    "_scaled_mm": _product("self", "mat2"),
    "_grouped_mm": _grouped,
    "linear": _linear,
    "matmul": _matmul,
    "scaled_dot_product_attention": _attention(backward=False),
    "_scaled_dot_product_flash_attention_for_cpu": _attention(backward=False),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention(backward=True),
    **{f"_scaled_dot_product_{kind}": _attention(backward=False) for kind in _FLASH},
    **{f"_scaled_dot_product_{kind}_backward": _attention(backward=True) for kind in _FLASH},
    "_transformer_encoder_layer_fwd": _layer,
    "_native_multi_head_attention": _layer,
}

# Missing in torch's table: the CPU's fused attention, fused layers, operators that `inference_mode` keeps whole.
_FLOPS: dict[str, _Flops] = {
    "_grouped_mm": lambda call: 2.0 * call["self"].numel() * call["mat2"].shape[-1],
    "linear": lambda call: 2.0 * call["input"].numel() * call["weight"].shape[0],
    "matmul": lambda call: 2.0 * prod(_matmul_sizes(call)),
    "scaled_dot_product_attention": _sdpa_flops,
    "_scaled_dot_product_flash_attention_for_cpu": _sdpa_flops,
    "_scaled_dot_product_fused_attention_overrideable": _sdpa_flops,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _sdpa_backward_flops,
    "_scaled_dot_product_fused_attention_overrideable_backward": _sdpa_backward_flops,
    "_transformer_encoder_layer_fwd": _layer_flops,
    "_native_multi_head_attention": _layer_flops,
}


# Part of the name of every operator in torch's table. A caller that adds others has imported it.
_MAY_BE_IN_TABLE = re.compile("mm|conv|attention")
_TABLE = "torch.utils.flop_counter"


@cache
def _flop_formula(op: Any) -> _Flops | None:
    name = schema(op).name.removeprefix("aten::")
    if formula := _FLOPS.get(name):
        return formula
    if not _MAY_BE_IN_TABLE.search(name) and _TABLE not in sys.modules:
        return None
    # Imported on first use: it imports Triton, which a program without products does not need.
    from torch.utils.flop_counter import flop_registry

    if formula := flop_registry.get(op.overloadpacket):
        return lambda call: float(formula(*call.args, **call.kwargs, out_val=call.out))
    return None


def _flops(call: OperatorCall) -> float:
    formula = _flop_formula(call.op)
    return formula(call) if formula else 0.0


@cache
def has_arithmetic(op: Any) -> bool:
    """Whether an operator multiplies matrices: its price then depends on its dtype's peak and plain arguments too."""
    return _flop_formula(op) is not None


def op_cost(op: Any, args: tuple, kwargs: dict, out: Any, device: Device) -> OpCost:
    """The cost of one dispatched `OpOverload` from its arguments, tensors of any device or meta, and its result."""
    size_bytes = op_bytes(op, args, kwargs, out)
    time_s = op_time_s(op, args, kwargs, out, device, size_bytes)
    launch_s = num_kernels(op, args) * device.launch_s if device.launch_s else 0.0
    if not has_arithmetic(op):
        return OpCost(time_s, 0.0, size_bytes, "", launch_s)
    call = OperatorCall(op, args, kwargs, out)
    return OpCost(time_s, _flops(call), size_bytes, _dtype(call), launch_s)


def op_time_s(op: Any, args: tuple, kwargs: dict, out: Any, device: Device, size_bytes: float | None = None) -> float:
    """The time of `op_cost` alone, for callers with many devices: counting the FLOPs takes as long again.

    `size_bytes`: result of `op_bytes`, if known.
    """
    size_bytes = op_bytes(op, args, kwargs, out) if size_bytes is None else size_bytes
    if has_arithmetic(op):
        seconds = _SECONDS.get(schema(op).name.removeprefix("aten::"), _plain)
        compute_s = seconds(OperatorCall(op, args, kwargs, out), device)
        time_s = max(compute_s, stream_time_s(size_bytes, device))
    else:
        elements = 0
        if device.is_gpu or device.element_s:  # of the largest operand or result
            elements = max((t.numel() for t in tensors_in((*args, *kwargs.values(), out))), default=0)
        kind = operator_kind(op, args, out) if device.is_gpu else ""
        time_s = operator_time_s(kind, size_bytes, elements, device)
        if device.element_s:
            time_s = max(time_s, function_time_s(function_name(op, args, kwargs), elements, device))
    return float(time_s + num_kernels(op, args) * device.kernel_overhead_s)
