"""`torch.autocast` under `fidelity="shapes"`: its casts, on tensors without values.

Autocast is specific to a device, and "meta" has none: torch does not cast such tensors. So each torch function that the
program calls within autocast is tried once, for each set of dtypes, on fake CPU tensors; the casts that torch makes
there are made here before the function runs.

    program calls    F.linear(x, weight)    x bfloat16, weight float32
    on fake tensors  weight is cast         cached for (F.linear, bfloat16, float32)
    on "meta"        F.linear(x, weight.to(bfloat16))

As in torch, the cast of a parameter is kept until the outermost autocast block ends.

A function of `torch` or `torch.nn.functional` that is written in Python runs line by line, so that the functions that
it calls are tried in turn.

Cost: a millisecond for each function and set of dtypes, then a look-up.
Source: torch 2.13, aten/src/ATen/autocast_mode.h (`cached_cast`).
Simplified: inside a function written in C, the casts of its arguments, their views and copies are seen, and no others,
such as that of a recurrent layer's hidden state in every step.
"""

from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch
from torch import Tensor

from lablib.torch_compat import (
    FakeTensorMode,
    TorchDispatchMode,
    disable_current_modes,
    is_view,
    storage_id,
    to_copy,
    tree_flatten,
    tree_unflatten,
)

_WRITTEN_IN_C = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
_IN_PYTHON = ("torch.functional", "torch.nn.functional")
_CLONE = torch.ops.aten.clone.default
_ASKED = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


class AutocastOnMeta:
    """The casts of one rank's program."""

    def __init__(self):
        self._rules: dict[tuple, Mapping[int, torch.dtype]] = {}
        self._casts: dict[int, tuple[Tensor, Tensor]] = {}

    def clear_cache(self) -> None:
        """Clear the cached casts when the outermost autocast block ends."""
        self._casts.clear()

    def cast(self, func: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments after autocast's casts."""
        if not isinstance(func, _WRITTEN_IN_C):
            return args, kwargs
        values, tree = tree_flatten((args, kwargs))
        dtypes = [value.dtype if isinstance(value, Tensor) else None for value in values]
        if not any(dtype is not None and dtype.is_floating_point for dtype in dtypes):
            return args, kwargs
        key = (func, torch.get_autocast_dtype("cpu"), *dtypes)
        rule = self._rules.get(key)
        if rule is None:
            rule = self._rules[key] = casts_on_cpu(func, values, tree)
        for place, dtype in rule.items():  # in torch's order
            values[place] = self._to(values[place], dtype)
        return tree_unflatten(values, tree)

    def _to(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        is_lower = dtype == torch.get_autocast_dtype("cpu") and value.dtype == torch.float32
        is_parameter = value.requires_grad and value.is_leaf and not is_view(value)
        if not (is_lower and is_parameter and torch.is_autocast_cache_enabled()):
            return value.to(dtype)
        if id(value) not in self._casts:
            self._casts[id(value)] = value, value.to(dtype)
        return self._casts[id(value)][1]


def body(func: Any) -> FunctionType | None:
    """A copy of a function written in Python that calls no mode for itself, only for the functions in it."""
    if not isinstance(func, FunctionType) or func.__module__ not in _IN_PYTHON:
        return None
    names = func.__globals__ | dict.fromkeys(_ASKED, lambda *_: False)
    copy = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


def casts_on_cpu(func: Any, values: list[Any], tree: Any) -> Mapping[int, torch.dtype]:
    """The casts of the CPU's autocast for a function's arguments: place in the flat list -> dtype."""
    with disable_current_modes(), FakeTensorMode(), torch.no_grad():
        on_cpu = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu") if isinstance(x, Tensor) else x
            for x in values
        ]
        args, kwargs = tree_unflatten(on_cpu, tree)
        with _Casts(on_cpu) as casts:
            try:
                func(*args, **kwargs)
            except Exception as error:
                if "at::autocast" in str(error):  # its refusal of two 16-bit dtypes, which "meta" would take
                    raise
                return {}  # it fails again with the program's arguments
    return casts.seen


class _Casts(TorchDispatchMode):
    """Records the casts of arguments, of their views and of their copies: place in the list -> dtype."""

    def __init__(self, values: list[Any]):
        super().__init__()
        self.seen: dict[int, torch.dtype] = {}
        self._values = values  # alive: each storage has an address of its own
        self._places = {_storage(value): i for i, value in enumerate(values) if isinstance(value, Tensor)}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        place = self._places.get(_storage(args[0])) if func in (to_copy, _CLONE) else None
        if func is to_copy and kwargs.get("dtype") and place is not None:
            self.seen.setdefault(place, kwargs["dtype"])
        result = func(*args, **kwargs)
        if func is _CLONE and place is not None:
            self._values.append(result)
            self._places[_storage(result)] = place
        return result


def _storage(tensor: Tensor) -> int:
    return storage_id(tensor.untyped_storage())
