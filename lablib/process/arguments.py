"""What a launch moves to a rank's GPU: the tensors among the program's arguments; and what it leaves in host memory.

Moved: tensors and modules, also in lists, tuples and dicts, those that a `functools.partial` brings along, and the
object of a bound method if it is a module. Left: tensors that other objects hold (a corpus that is read from the host,
say), and those that the function takes from globals or a closure. A program that computes with these on the GPU fails,
as under torchrun; `note_what_is_left` then says which they are and what to do.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from lablib.torch_compat import tree_map

# How torch and its NCCL backend say that a tensor is not on the GPU.
_SAYINGS = ("on the same device", "associated with device type cpu", "must be CUDA and dense", ") and weight type (")


def replaced(value: Any, move: Callable[[Any], Any]) -> Any:
    """The value with `move(one)` in the place of each tensor and module of it that a launch moves.

    What is in several places is moved once, and is one object afterwards, too.
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


def note_what_is_left(error: BaseException, program: tuple[Any, tuple, dict[str, Any]]) -> None:
    """Add to an error about tensors in two places which tensors the launch had left in host memory, if any.

    Args:
        error: what the program raised.
        program: function, arguments and keyword arguments, as the rank called it.
    """
    if not isinstance(error, RuntimeError) or not any(saying in str(error) for saying in _SAYINGS):
        return
    names: list[str] = []
    with suppress(Exception):  # whatever the program's objects do when they are looked at, its own error is raised
        names += dict.fromkeys(_left(*program))
    if names:
        error.add_note(
            f"In host memory: {', '.join(names)}. A launch moves to each rank's GPU the tensors and modules among the "
            "program's arguments (in lists, tuples and dicts, too), and nothing else: pass them as arguments, or move "
            "them inside with .to(torch.get_default_device())."
        )


def _left(fn: Any, args: tuple, kwargs: dict[str, Any]) -> Iterator[str]:
    """What is on the host and reached by the program, each in words."""
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
    """Whether a value is, or holds in lists, tuples and dicts, a tensor or a module in host memory."""
    found = []
    replaced(value, found.append)
    tensors = (t for one in found for t in (one.parameters() if isinstance(one, nn.Module) else [one]))
    return any(tensor.device.type == "cpu" for tensor in tensors)
