"""Tensors in a program's arguments: moved to the rank's GPU by a launch, or left in host memory.

Moved: tensors and modules, also in lists, tuples and dicts, in the arguments of a `functools.partial`, and the object
of a bound method if it is a module. Left: tensors inside other objects (for example a corpus that is read from the
host), and tensors that the function takes from globals or a closure. A program that computes with these on the GPU
fails, as under torchrun; `note_what_is_left` then adds their names and a remedy.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from lablib.torch_compat import tree_map

# Words in the errors of torch and its NCCL backend for a tensor that is not on the GPU.
_SAYINGS = ("on the same device", "associated with device type cpu", "must be CUDA and dense", ") and weight type (")


def replaced(value: Any, move: Callable[[Any], Any]) -> Any:
    """Replace each tensor and module of `value` that a launch moves by `move(one)`.

    An object that occurs several times is moved once and remains one object.
    """
    moved: dict[int, Any] = {}

    def once(leaf: Any) -> Any:
        if id(leaf) not in moved:
            moved[id(leaf)] = each(leaf)
        return moved[id(leaf)]

    def each(leaf: Any) -> Any:
        if isinstance(leaf, (Tensor, nn.Module)):
            return move(leaf)
        if isinstance(leaf, partial):
            func, args, keywords = tree_map(once, (leaf.func, leaf.args, leaf.keywords))
            return partial(func, *args, **keywords)
        if isinstance(leaf, MethodType) and isinstance(leaf.__self__, nn.Module):
            return MethodType(leaf.__func__, once(leaf.__self__))
        return leaf

    return tree_map(once, value)


def placed(value: Any, device: torch.device) -> Any:
    """The value with its tensors on `device`. A leaf of autograd remains one, with its gradient.

    Simplified: views of one storage become separate tensors.
    """

    def move(one: Tensor | nn.Module) -> Tensor | nn.Module:
        if isinstance(one, nn.Module):
            return one.to(device)
        there = one.detach().to(device).requires_grad_(one.requires_grad)
        there = nn.Parameter(there, one.requires_grad) if isinstance(one, nn.Parameter) else there
        there.grad = None if one.grad is None else one.grad.to(device)
        return there

    return replaced(value, move)


def note_what_is_left(error: BaseException, program: tuple[Any, tuple, dict[str, Any]]) -> None:
    """Add to an error about tensors on two devices the names of tensors that the launch left in host memory."""
    if not isinstance(error, RuntimeError) or not any(saying in str(error) for saying in _SAYINGS):
        return
    names: list[str] = []
    with suppress(Exception):  # inspecting the program's objects must not hide its error
        names += dict.fromkeys(_left(*program))
    if names:
        error.add_note(
            f"In host memory: {', '.join(names)}. A launch moves to each rank's GPU the tensors and modules among the "
            "program's arguments (in lists, tuples and dicts, too), and nothing else: pass them as arguments, or move "
            "them inside with .to(torch.get_default_device())."
        )


def _left(fn: Any, args: tuple, kwargs: dict[str, Any]) -> Iterator[str]:
    """Descriptions of tensors in host memory that the program reaches."""
    for name, value in (*enumerate(args), *kwargs.items()):
        for attribute, held in getattr(value, "__dict__", {}).items():
            if not isinstance(value, (Tensor, nn.Module)) and _is_on_host(held):
                yield f"{attribute!r} of argument {name}"
    todo, seen = [inspect.unwrap(fn) if callable(fn) else fn], set()
    while todo:
        function = todo.pop(0)
        if isinstance(function, partial):
            todo.append(function.func)
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        used = inspect.getclosurevars(function)
        for name, value in (*used.nonlocals.items(), *used.globals.items()):
            if _is_on_host(value):
                yield f"{name!r}, which {function.__qualname__}() uses"
            elif isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
                todo.append(value)


def _is_on_host(value: Any) -> bool:
    """Whether a value is a tensor or module in host memory, or contains one in lists, tuples and dicts."""
    found = []
    replaced(value, found.append)
    tensors = (t for one in found for t in (one.parameters() if isinstance(one, nn.Module) else [one]))
    return any(tensor.device.type == "cpu" for tensor in tensors)
