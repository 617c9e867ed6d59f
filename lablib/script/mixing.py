"""Devices of operator arguments: combinations of host and device tensors that CUDA accepts or rejects.

All tensors are really on the CPU, where no combination would fail. The rules:

    most operators              all tensors on one device (checked by the dispatcher, or by the kernel)
    element by element          one 0-dim tensor may be on the host, if it is only read; `where`: several
    x[i], x[i] = v              an index on the host or on x's device; v on x's device, or a single number
    fill_, masked_fill          the value, a single number, on any device
    copy_, to                   between any two devices
    a generator                 of the device on which the numbers are drawn

Source: pytorch 2.13: aten/src/ATen/TensorIterator.cpp, `compute_types` (CPU scalars: at most one, no output);
native/TensorAdvancedIndexing.cpp, `index_put_`; ATen/core/Generator.h, `check_generator`.
Simplified: an operator works element by element if torch tags it so, or if it is one of a few that lack the tag. Some
of these (`lerp`, `clamp` with tensors) accept no CPU scalar in some versions of torch; here they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from lablib.script.classes import is_on_device
from lablib.script.marks import index_of, is_memory
from lablib.torch_compat import schema

_COPIES = {"copy_", "copy", "_to_copy", "to", "_foreach_copy_", "_foreach_copy", "clone", "set_"}
_FILLS = {"fill_": 1, "fill": 1, "masked_fill_": 2, "masked_fill": 2}  # position of the value argument
_INDEXED = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"}
_UNTAGGED = {"floor_divide", "floor_divide_", "masked_scatter", "masked_scatter_"}
_MANY_SCALARS = {"where"}


def check_devices(func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Raise for an operator with these arguments if CUDA would."""
    namespace, name = schema(func).name.split("::")
    if namespace != "aten" or name in _COPIES:
        return
    tensors = list(_tensors((*args, *kwargs.values())))
    if len({index_of(t) for t in tensors}) < 2:
        return
    if name in _INDEXED:
        _check_indexed(args, name)
    elif name in _FILLS:
        _check_same([t for t in tensors if t is not args[_FILLS[name]]], name)
    elif _is_elementwise(func):
        _check_elementwise(func, args, kwargs, tensors, name)
    else:
        _check_same(tensors, name)


def device_name(index: int | None) -> str:
    return "cpu" if index is None else f"cuda:{index}"


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            if is_memory(value) and not value.is_meta:
                yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


@cache
def _is_elementwise(func: Any) -> bool:
    name = schema(func).name.split("::")[1]
    return torch.Tag.pointwise in func.tags or name in _UNTAGGED or name.startswith("_foreach_")


def _check_same(tensors: Iterable[Tensor], name: str) -> None:
    if len(indices := {index_of(t) for t in tensors}) > 1:
        raise _differ(indices, name)


def _check_elementwise(func: Any, args: tuple, kwargs: dict[str, Any], tensors: list[Tensor], name: str) -> None:
    written = list(_tensors(_written(func, args, kwargs)))
    on_host = [t for t in tensors if index_of(t) is None]
    scalars = [t for t in on_host if t.dim() == 0 and not any(t is w for w in written)]
    _check_same([t for t in tensors if not any(t is s for s in scalars)], name)
    if len(scalars) > 1 and name not in _MANY_SCALARS and not name.startswith("_foreach_"):
        raise RuntimeError(f"Trying to pass too many CPU scalars to non-CPU kernel! (in {name}; move them with .to)")


def _written(func: Any, args: tuple, kwargs: dict[str, Any]) -> Iterator[Any]:
    for position, argument in enumerate(schema(func).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[position] if position < len(args) else kwargs.get(argument.name)


def _check_indexed(args: tuple, name: str) -> None:
    x, indices, *values = args
    where = index_of(x)
    for index in _tensors(indices):
        if index_of(index) not in (None, where):
            rule = f"indices should be either on cpu or on the same device as the indexed tensor ({device_name(where)})"
            raise RuntimeError(f"{rule}: got one on {device_name(index_of(index))}")
    for value in _tensors(values):
        if value.dim() > 0:
            _check_same([x, value], name)


def check_generator(generator: Any, index: int | None, name: str) -> None:
    """Reject a generator of another device than the drawn numbers (index None: the host). Raises RuntimeError.

    Call it with the program's object: torch's C++ sees every generator here as the host's.
    """
    drawn, own = ("cpu" if index is None else "cuda"), ("cuda" if is_on_device(generator) else "cpu")
    if drawn != own:
        raise RuntimeError(
            f"Expected a '{drawn}' device type for generator but found '{own}' (in {name}; draw with "
            f"device=generator.device and move the numbers, or make the generator with device={drawn!r})"
        )


def _differ(indices: Iterable[int | None], name: str) -> RuntimeError:
    names = sorted((device_name(index) for index in indices), reverse=True)
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {names[0]} and {names[1]}! "
        f"(in {name}; move one of them with .to(device))"
    )
