"""Reductions over ranks, for `all_reduce`, `reduce` and `reduce_scatter`.

Sums run in rank order, ((t0 + t1) + t2) + ..., in the input's dtype or wider: 16-bit floats are added in float32 and
rounded once. So a result is bit-identical on any host.

MIN and MAX ignore a NaN if another rank has a number, as NCCL does (`fminf`, `fmaxf` in its
src/device/reduce_kernel.h); with gloo it depends on the order of ranks. Check for overflow before a reduction.

The work is done in blocks that fit in the cache: each operand is read once and each result written once, instead of a
running sum that goes to memory and back for every rank.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# Elements: 1 MiB of float32, about a second-level cache; smaller blocks cost more calls than they save.
_BLOCK = 1 << 18

RedOp: Any = dist.ReduceOp.RedOpType  # an enum of torch's C++ side, missing in its type stubs
Op = tuple[Any, Any]  # kind of reduction, factor


_COMBINE: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    RedOp.SUM: Tensor.add_,
    RedOp.AVG: Tensor.add_,
    RedOp.PREMUL_SUM: Tensor.add_,
    RedOp.PRODUCT: Tensor.mul_,
    RedOp.MIN: lambda acc, t: torch.fmin(acc, t, out=acc),
    RedOp.MAX: lambda acc, t: torch.fmax(acc, t, out=acc),
    RedOp.BAND: Tensor.bitwise_and_,
    RedOp.BOR: Tensor.bitwise_or_,
    RedOp.BXOR: Tensor.bitwise_xor_,
}
_COMBINE_BOOL = {**_COMBINE, RedOp.SUM: Tensor.logical_or_, RedOp.PRODUCT: Tensor.logical_and_}
_BITWISE = (RedOp.BAND, RedOp.BOR, RedOp.BXOR)


def reduce_op(op: Any, dtypes: Iterable[torch.dtype]) -> Op:
    """The kind of a `ReduceOp` and its factor (None except for PREMUL_SUM)."""
    for kind in _COMBINE:  # the first is the usual one
        if op == kind:
            break
    else:
        raise TypeError(f"unknown reduction {op}: choose from {', '.join(kind.name for kind in _COMBINE)}")
    for dtype in dtypes:
        if kind in _BITWISE and (dtype.is_floating_point or dtype.is_complex):
            raise TypeError(f"bitwise reductions need integers: got {kind.name} of {dtype}; use SUM, MIN or MAX")
        if kind in (RedOp.AVG, RedOp.PREMUL_SUM) and dtype == torch.bool:
            raise TypeError(f"{kind.name} needs numbers: got {dtype}; use SUM (or) or PRODUCT (and)")
        if kind in (RedOp.MIN, RedOp.MAX) and dtype.is_complex:
            raise TypeError(f"complex numbers have no order: got {kind.name} of {dtype}; use SUM or PRODUCT")
    return kind, op.__getstate__()[1] if kind == RedOp.PREMUL_SUM else None


@cache
def op_of_dtype(op: Any, dtype: torch.dtype) -> Op:
    """`reduce_op` of one dtype, cached. Not for PREMUL_SUM: two of these compare equal with different factors."""
    return reduce_op(op, [dtype])


def reduce_to_all(operands: Sequence[Tensor], results: Sequence[Tensor], op: Op) -> None:
    """Write the reduction of `operands` (one per rank, same shape) into every tensor of `results`.

    A result may be one of the operands.
    """
    kind, factor = op
    flat_in = [_flat(t) for t in operands]
    flat_out = [_flat(t) for t in results]
    if any(t is None for t in flat_in) or any(t is None for t in flat_out):
        total = _reduce_block(list(operands), kind, factor)
        for result in results:
            result.copy_(total)
        return
    for start in range(0, operands[0].numel(), _BLOCK):
        total = _reduce_block([t[start : start + _BLOCK] for t in flat_in], kind, factor)  # type: ignore[index]
        for result in flat_out:
            result[start : start + _BLOCK].copy_(total)  # type: ignore[index]


def _flat(t: Tensor) -> Tensor | None:
    """A one-dimensional view; None if not contiguous."""
    return t.view(-1) if t.is_contiguous() else None


def _reduce_block(operands: list[Tensor], kind: Any, factor: Any) -> Tensor:
    dtype = operands[0].dtype
    combine = (_COMBINE_BOOL if dtype == torch.bool else _COMBINE)[kind]
    is_narrow = dtype.is_floating_point and dtype.itemsize < 4
    widen: Callable[[Tensor], Tensor] = Tensor.float if is_narrow else lambda t: t
    scale: Callable[[Tensor], Tensor] = (lambda t: t * factor) if kind == RedOp.PREMUL_SUM else lambda t: t
    total = scale(widen(operands[0]).clone() if not is_narrow else widen(operands[0]))
    for operand in operands[1:]:
        total = combine(total, scale(widen(operand)))
    if kind == RedOp.AVG:
        total = total.div_(len(operands), rounding_mode=None if dtype.is_floating_point else "trunc")
    return total.to(dtype)
