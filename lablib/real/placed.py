"""A program's arguments on the rank's GPU: they travel through the host's memory, and arrive where the rank computes.

Moved: tensors and modules, also in lists, tuples and dicts, those that a `functools.partial` brings along, and the
object of a bound method if it is a module. What two arguments share, they share on the GPU.
Simplified: tensors that other objects hold, and those that the function takes from globals or a closure, stay in the
host's memory; views of one storage become tensors of their own.
"""

from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from lablib.torch_compat import tree_map


def placed(value: Any, device: torch.device) -> Any:
    """The value with its tensors on `device`. A leaf of autograd stays one, with its gradient."""
    moved: dict[int, Any] = {}

    def place(leaf: Any) -> Any:
        if id(leaf) not in moved:
            moved[id(leaf)] = _placed(leaf, device, place)
        return moved[id(leaf)]

    return tree_map(place, value)


def _placed(leaf: Any, device: torch.device, place: Any) -> Any:
    if isinstance(leaf, nn.Module):
        return leaf.to(device)
    if isinstance(leaf, Tensor):
        there = leaf.detach().to(device).requires_grad_(leaf.requires_grad)
        there = nn.Parameter(there, leaf.requires_grad) if isinstance(leaf, nn.Parameter) else there
        there.grad = None if leaf.grad is None else leaf.grad.to(device)
        return there
    if isinstance(leaf, partial):
        func, args, keywords = tree_map(place, (leaf.func, leaf.args, leaf.keywords))
        return partial(func, *args, **keywords)
    if isinstance(leaf, MethodType) and isinstance(leaf.__self__, nn.Module):
        return MethodType(leaf.__func__, place(leaf.__self__))
    return leaf
