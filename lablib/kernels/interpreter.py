"""Triton's interpreter for one launch: every program in turn, each operation by numpy. All private names of Triton's
are in this file (read in triton 3.7; `triton/runtime/interpreter.py`).

Triton chooses between compiler and interpreter once, when it is imported with TRITON_INTERPRET=1 or without. Here each
launch chooses. While it runs, the functions of `triton.language` are replaced by the interpreter's, for the whole
process: so one launch runs at a time, behind a lock, and everything is restored after it, also after an error.

Additions to Triton's interpreter:
    - every address is looked up in the launch's tensors: reading beyond them is an error that names program and tensor;
    - loads and stores are recorded (`accesses.py`);
    - bfloat16 is rounded to nearest, even ones at a tie, as a GPU does (Triton's cuts off: twice the error), may be
      multiplied by `tl.dot`, and may not be calculated with otherwise (Triton's would add its bits as whole numbers).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import triton.compiler.code_generator  # noqa: F401  it keeps functions of the language: import it before an exchange
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter as triton_interpreter
from triton.runtime.jit import JITFunction

from lablib.kernels.accesses import Access, Kind, Launch, Operand
from lablib.kernels.kernel_source import rewritten

LOCK = threading.RLock()
_TO_TENSOR = partial(triton_interpreter.interpreter_semantic.to_tensor, check_type=False)
_MIN_MAX = triton_interpreter.ReduceOps.min_max
# the same, without a warning where all are NaN
_QUIET: dict[Any, Any] = {np.nanmax: np.fmax.reduce, np.nanmin: np.fmin.reduce}


def interpret(
    function: Callable, arguments: Mapping[str, Any], constants: set[str], launch: Launch, keep: bool
) -> None:
    """Run every program of the launch on CPU tensors, and fill the launch with the accesses if they are to be kept.

    `arguments`: value of each parameter; a tensor becomes a pointer to its first element. `constants`: `tl.constexpr`.
    """
    builder = _Builder(launch, keep)
    with _interpreted_language(builder):
        run = rewritten(function, _TO_TENSOR)
        to_handle = triton_interpreter._implicit_cvt
        values = {name: one if name in constants else to_handle(one) for name, one in arguments.items()}
        builder.set_grid_dim(*launch.grid)
        for program in itertools.product(*map(range, launch.grid)):
            builder.set_grid_idx(*program)
            run(**values)


@contextmanager
def _interpreted_language(builder: _Builder) -> Iterator[None]:
    """Replace `triton.language` by numpy, also in called functions; restore it at the end."""
    with LOCK, np.errstate(all="ignore"):  # inf - inf is allowed in a kernel
        scope = triton_interpreter._LangPatchScope()
        try:
            scope.set_attr(triton_interpreter.interpreter_semantic, "builder", builder)
            scope.set_attr(triton_interpreter.ReduceOps, "min_max", _min_max)
            scope.set_attr(
                JITFunction, "__call__", lambda self, *args, **kw: rewritten(self.fn, _TO_TENSOR)(*args, **kw)
            )
            scope.set_attr(JITFunction, "__get__", lambda self, x, kind=None: self if x is None else partial(self, x))
            for part in (tl, tl.core, tl.math):
                triton_interpreter._patch_builtin(part, builder, scope)
            triton_interpreter._patch_builtin(tl.tensor, builder, scope)
            triton_interpreter._patch_lang_tensor(tl.tensor, scope)
            for part in (tl, tl.core):
                triton_interpreter._patch_lang_core(part, scope)
            triton_interpreter._patch_builtin(tl.core.tensor_descriptor_base, builder, scope)
            yield
        finally:
            scope.restore()


class _Builder(triton_interpreter.InterpreterBuilder):
    """The interpreter's operations for one launch."""

    def __init__(self, launch: Launch, keep: bool) -> None:
        super().__init__()
        self.launch, self.keep = launch, keep

    def create_masked_load(self, ptrs, mask, *rest) -> Any:
        self._note("load", ptrs, mask.data)
        return super().create_masked_load(ptrs, mask, *rest)

    def create_masked_store(self, ptrs, value, mask, *rest) -> Any:
        self._note("store", ptrs, mask.data)
        return super().create_masked_store(ptrs, value, mask, *rest)

    def create_atomic_rmw(self, op, ptr, val, mask, *rest) -> Any:
        self._note("atomic", ptr, mask.data)
        return super().create_atomic_rmw(op, ptr, val, mask, *rest)

    def create_atomic_cas(self, ptr, *rest) -> Any:
        self._note("atomic", ptr, np.ones(1, bool))
        return super().create_atomic_cas(ptr, *rest)

    def _note(self, kind: Kind, pointers: Any, mask: np.ndarray) -> None:
        """Record an access; raise for one outside all tensors."""
        addresses = pointers.data[np.broadcast_to(mask, pointers.data.shape)].astype(np.int64)
        left = np.ones(addresses.shape, bool)
        for operand in self.launch.tensors.values():
            if not left.any():
                return
            elements = operand.elements(addresses)
            here = left & (elements >= 0)
            left &= ~here
            if self.keep and here.any():
                access = Access(self.grid_idx, kind, operand.name, elements[here], operand.itemsize)
                self.launch.accesses.append(access)
        if left.any():
            raise IndexError(self._outside(kind, int(addresses[left][0])))

    def _outside(self, kind: str, address: int) -> str:
        near = min(self.launch.tensors.values(), key=lambda one: max(one.address - address, address - one.end))
        index = (address - near.address) // near.itemsize
        return (
            f"program {self.grid_idx} of {self.launch.kernel} may only {kind} elements of its tensors: got element "
            f"{index} of {near.name}, of shape {near.shape} and strides {near.strides}; mask it, or fix the offsets."
        )

    def cast_impl(self, src, dst_type) -> Any:
        if (src.dtype.scalar, dst_type.scalar) == (tl.float32, tl.bfloat16):
            return triton_interpreter.TensorHandle(_to_bfloat16(src.data), tl.bfloat16)
        return super().cast_impl(src, dst_type)

    def create_dot(self, a, b, d, *rest) -> Any:
        return super().create_dot(_wide(a), _wide(b), d, *rest)

    def binary_op(self, lhs, rhs, op) -> Any:
        _refuse_bfloat16(lhs, op)
        return super().binary_op(lhs, rhs, op)

    def unary_op(self, arg, op) -> Any:
        _refuse_bfloat16(arg, op)
        return super().unary_op(arg, op)


def _min_max(reduction: Any, values: Any, val_reduce_op: Callable | None, idx_reduce_op: Callable | None = None) -> Any:
    return _MIN_MAX(reduction, values, _QUIET.get(val_reduce_op, val_reduce_op), idx_reduce_op)


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The upper 16 bits of float32 after rounding to nearest, even at a tie; as whole numbers, for numpy has none."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def _wide(handle: Any) -> Any:
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return triton_interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _refuse_bfloat16(handle: Any, op: Callable) -> None:
    if handle.dtype.scalar == tl.bfloat16:
        raise TypeError(f"{op.__name__} needs float32 here: got bfloat16; widen it with .to(tl.float32).")


def operands(tensors: Mapping[str, Tensor]) -> dict[str, Operand]:
    """Tensors by the kernel's names for them, as the accesses know them."""
    return {
        name: Operand(name, tuple(one.shape), one.stride(), one.element_size(), one.data_ptr())
        for name, one in tensors.items()
    }
