"""Detect notebook variables that a program changed: real ranks would change copies.

A launched function refers to variables around it: globals of its module, variables of enclosing functions. Simulated
ranks share them with the notebook. All variables named in the function, and in the functions of the program that it
refers to, are compared before and after the run, and a difference becomes a note: `counter` is another object, a list
has other items, a tensor was written in place, a parameter has another gradient.

Simplified: the comparison is limited (`_MAX_OBJECTS` objects, `_DEPTH` levels), so a change deep inside is missed, and
the rank that made the change is unknown.
"""

import itertools
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lablib.process.whose_code import TEXT, is_users
from lablib.torch_compat import version

_MAX_OBJECTS = 2000  # objects compared per variable
_DEPTH = 6
_SAMPLE = 1000  # numbers compared per array
_CONTAINERS = (list, tuple, set, frozenset, deque)
_VALUES = (int, float, complex, str, bytes, bool, type(None))


class Notebook:
    """The variables that a program refers to, with their values at construction."""

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any]):
        self._places = {(id(where), name): (where, name, what) for where, name, what in _variables((fn, *args))}
        self._before = {key: _look(where, name) for key, (where, name, _) in self._places.items()}

    def notes(self) -> list[str]:
        """A sentence on the changed variables, or none."""
        changed = [place for key, place in self._places.items() if _look(*place[:2]) != self._before[key]]
        names = ", ".join(sorted({f"{name} ({what})" for _, name, what in changed}))
        if not names:
            return []
        return [
            f"the program changed {names} of the notebook, which simulated ranks share: on real processes each rank "
            "changes a separate copy, and the notebook's does not change; return the values that the notebook needs"
        ]


def _variables(values: Sequence[Any]) -> Iterator[tuple[Any, str, str]]:
    """(container, name, kind) of every variable that functions among these values refer to."""
    left, seen = list(values), set()
    while left:
        fn = left.pop()
        if id(fn) in seen:
            continue
        seen.add(id(fn))
        if _is(fn, partial):
            left += [fn.func, *fn.args, *fn.keywords.values()]
        elif _is(fn, types.MethodType):
            left.append(fn.__func__)
        elif _is(fn, type) and _is_programs(fn):
            left += vars(fn).values()
        if not _is(fn, types.FunctionType) or not _is_written(fn.__code__):
            continue
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            yield cell, name, "variable of an enclosing function"
            left.append(_value(cell, name))
        for name in _names(fn.__code__) & fn.__globals__.keys():
            yield fn.__globals__, name, "global"
            left.append(fn.__globals__[name])


def _names(code: types.CodeType) -> set[str]:
    """Names that code may look up among the globals, including code of nested functions."""
    inner = (constant for constant in code.co_consts if _is(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _value(where: Any, name: str) -> Any:
    if not isinstance(where, types.CellType):
        return where.get(name)
    try:
        return where.cell_contents
    except ValueError:  # still empty
        return None


def _look(where: Any, name: str) -> Any:
    value = _value(where, name)
    try:
        return _mark(value, [_MAX_OBJECTS], _DEPTH)
    except Exception:  # a class of the program that cannot be inspected must not fail the run
        return id(value)


def _mark(value: Any, left: list[int], depth: int) -> Any:
    """A small fingerprint that differs after a change."""
    left[0] -= 1
    if type(value) in _VALUES:
        return type(value), value
    if left[0] < 0 or not depth:
        return id(value)
    size = 0
    parts: Any = ()
    if _is(value, Tensor):
        written = 0 if value.is_inference() else version(value)
        return id(value), written, _mark(value.grad if value.is_leaf else None, left, depth - 1)
    if _is(value, np.ndarray) and value.dtype != object:
        return id(value), value.flat[:: max(1, value.size // _SAMPLE)].tobytes()
    if _is(value, (dict, *_CONTAINERS)):
        size, parts = len(value), value
    elif _is(value, (nn.Module, torch.optim.Optimizer)) or _is_programs(type(value)):
        parts = _attributes(value)
    elif _is(value, type) and _is_programs(value):
        parts = {name: part for name, part in vars(value).items() if not name.startswith("__")}
    if _is(parts, dict):
        parts = itertools.chain(parts, parts.values())
    return id(value), size, [_mark(part, left, depth - 1) for part in itertools.islice(parts, max(0, left[0]))]


def _is(value: Any, kind: Any) -> bool:
    """isinstance without `__class__` of the object, which its class may override."""
    return issubclass(type(value), kind)


def _attributes(value: Any) -> dict[str, Any]:
    """An instance's `__dict__`, without attribute hooks of its class."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


def _is_programs(kind: type) -> bool:
    """Whether a class belongs to the program: internals of library objects are not compared."""
    code = getattr(kind.__init__, "__code__", None)
    return kind.__module__ == "__main__" or (code is not None and _is_written(code))


def _is_written(code: types.CodeType) -> bool:
    """Whether the user wrote this code: not a library, nor Python, which generates methods of dataclasses."""
    return code.co_filename != TEXT and is_users(code.co_filename)
