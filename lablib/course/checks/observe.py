"""Side effects of a call: the arguments that it changed, and whether its value shares their memory.

    run = launch(lambda: observe(answer, x), ranks=4)      run.values[rank].value, .changed, .aliased

Observing costs no simulated time or memory: bytes are read past torch, which would price each operation.
"""

import ctypes
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType, GeneratorType
from typing import Any

from torch import Tensor, nn

from lablib.course.checks.own_code import instructions


@dataclass(frozen=True)
class Observed:
    """One call.

    Attributes:
        value: its return value; of a generator, the list of yielded values.
        args: its arguments after the call.
        changed: positions of the arguments with a tensor of other bytes, or a list or dict with other items.
        aliased: positions of the arguments that share memory with the value, or a tensor in it.
        moved: positions of the arguments with a tensor that got other memory (`x.data = y`).
        rebinds: the function, or one in its closure, assigns to its first argument's name (`x = ...`).
    """

    value: Any
    args: tuple[Any, ...]
    changed: tuple[int, ...]
    aliased: tuple[int, ...]
    moved: tuple[int, ...] = ()
    rebinds: bool = False


def observe(function: Callable[..., Any], *args: Any) -> Observed:
    """Call `function(*args)` and record its effects on the tensors in `args`.

    Observed: tensors, lists, tuples and dicts with their items, parameters and buffers of modules; not their gradients.
    """
    before = [_content(arg) for arg in args]
    places = [[(tensor, _place(tensor)) for tensor in _tensors(arg)] for arg in args]
    held = [{_address(tensor) for tensor in _tensors(arg)} for arg in args]
    value = function(*args)
    value = list(value) if isinstance(value, GeneratorType) else value  # runs the generator, which may change arguments
    after = [_content(arg) for arg in args]
    returned = {_address(tensor) for tensor in _tensors(value)}
    return Observed(
        value=value,
        args=args,
        changed=tuple(i for i in range(len(args)) if before[i] != after[i]),
        aliased=tuple(i for i in range(len(args)) if held[i] & returned - {0}),
        moved=tuple(i for i, arg in enumerate(places) if any(_place(tensor) != place for tensor, place in arg)),
        rebinds=_rebinds(function),
    )


def _content(value: Any) -> Any:
    """The content to compare before and after: bytes of tensors, items of lists and dicts, numbers and texts."""
    if isinstance(value, list | tuple):
        return [_content(item) for item in value]
    if isinstance(value, dict):
        return [(key, _content(item)) for key, item in value.items()]
    if isinstance(value, int | float | str):
        return repr(value)  # equal for nan too
    return [_bytes(tensor) for tensor in _tensors(value)]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _address(tensor: Tensor) -> int:
    """Address of a tensor's memory; 0 without memory (empty, or without values)."""
    return 0 if tensor.is_meta else tensor.untyped_storage().data_ptr()


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Location of a tensor's values: memory, offset, shape."""
    return _address(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


def _rebinds(function: Any) -> bool:
    """Does the function, or one in its closure (a check wraps the answer), assign to its first argument's name?"""
    function = inspect.unwrap(getattr(function, "func", function))
    if not isinstance(function, FunctionType):
        return False
    if _assigns_to_its_first_name(function.__code__):
        return True
    inside = [cell.cell_contents for cell in function.__closure__ or ()]
    return any(_rebinds(held) for held in inside if isinstance(held, FunctionType) and held is not function)


@lru_cache(maxsize=256)  # a check observes one answer many times on each of its ranks
def _assigns_to_its_first_name(code: CodeType) -> bool:
    stores = (stored for operation, stored in instructions(code) if operation in ("STORE_FAST", "STORE_DEREF"))
    return any((stored,) == code.co_varnames[:1] for stored in stores)


def _bytes(tensor: Tensor) -> bytes:
    address = _address(tensor)
    return ctypes.string_at(address, tensor.untyped_storage().nbytes()) if address else b""
