"""What a call did beside returning a value: which arguments it changed, and whether the value is one of them.

    run = launch(lambda: observe(answer, x), ranks=4)      run.values[rank].value, .changed, .aliased

Looking costs no simulated time and no simulated memory: bytes are read past torch, which would price each operation.
"""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Observed:
    """One call.

    Attributes:
        value: what it returned.
        args: its arguments as it left them.
        changed: positions of the arguments with a tensor whose bytes changed.
        aliased: positions of the arguments whose memory the value, or a tensor in it, shares.
    """

    value: Any
    args: tuple[Any, ...]
    changed: tuple[int, ...]
    aliased: tuple[int, ...]


def observe(function: Callable[..., Any], *args: Any) -> Observed:
    """Call `function(*args)` and look at what it did to the tensors in `args`.

    Looked at: tensors, those in lists, tuples and dicts, parameters and buffers of modules; not their gradients.
    """
    before = [[_bytes(tensor) for tensor in _tensors(arg)] for arg in args]
    held = [{_address(tensor) for tensor in _tensors(arg)} for arg in args]
    value = function(*args)
    after = [[_bytes(tensor) for tensor in _tensors(arg)] for arg in args]
    returned = {_address(tensor) for tensor in _tensors(value)}
    return Observed(
        value=value,
        args=args,
        changed=tuple(i for i in range(len(args)) if before[i] != after[i]),
        aliased=tuple(i for i in range(len(args)) if held[i] & returned - {0}),
    )


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
    """Where its memory begins; 0 where it has none (empty, or without values)."""
    return 0 if tensor.is_meta else tensor.untyped_storage().data_ptr()


def _bytes(tensor: Tensor) -> bytes:
    address = _address(tensor)
    return ctypes.string_at(address, tensor.untyped_storage().nbytes()) if address else b""
