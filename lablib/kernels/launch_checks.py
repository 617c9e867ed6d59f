"""Checks of a launch before any program runs: its grid, options, dtypes and tensors.

A wrong grid raises no error: with a program too few, some numbers silently keep their old values. n / BLOCK instead of
cdiv(n, BLOCK) gives such a grid. A tensor without memory (torch's fake or sparse tensors) has address 0 or no address:
reading there would crash Python.
"""

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")  # of the compiler; the interpreter ignores them


def checked_grid(kernel: str, grid: Any) -> tuple[int, int, int]:
    """A grid of one, two or three numbers, as three."""
    sizes = tuple(grid) if isinstance(grid, (tuple, list)) else ()
    if len(sizes) == 1 and type(sizes[0]) is int and sizes[0] >= 0:  # nearly always
        return sizes[0], 1, 1
    if not 1 <= len(sizes) <= 3 or any(isinstance(n, bool) or not isinstance(n, Integral) or n < 0 for n in sizes):
        raise ValueError(
            f"{kernel}: a grid must be a tuple of one to three whole numbers, none below 0: got {grid!r}; "
            "count tiles with cdiv(n, BLOCK)."
        )
    x, y, z = [*map(int, sizes), 1, 1][:3]
    return x, y, z


def check_options(kernel: str, given: Iterable[str], parameters: Iterable[str]) -> None:
    """Raise ValueError for a name that is neither a parameter nor an option."""
    known = [*parameters, *OPTIONS]
    if unknown := [name for name in given if name not in known]:
        raise ValueError(f"{kernel}: an argument must be one of {', '.join(known)}: got {', '.join(unknown)}.")


def check_memory(kernel: str, tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError for a tensor without memory."""
    for name, one in tensors.items():
        # A fake tensor's address is 0 or raises: only its class is safe to look at.
        if one.layout != torch.strided or any("Fake" in kind.__name__ for kind in type(one).__mro__):
            raise ValueError(
                f"{kernel}: {name} must be a dense tensor with memory: got a {type(one).__name__} of layout "
                f"{one.layout}; call {name}.to_dense(), or launch outside the mode that made it."
            )


def check_dtypes(function: str, dtypes: Iterable[torch.dtype], **tensors: Tensor) -> None:
    """Raise ValueError if a tensor has none of the dtypes."""
    for name, one in tensors.items():
        if one.dtype not in dtypes:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise ValueError(f"{function}: {name} must be one of {known}: got {one.dtype}; convert it with .to(...).")


def check_inputs(function: str, **tensors: Tensor) -> None:
    """Raise ValueError for whole numbers, as results would be rounded to whole numbers, and for strided rows."""
    check_dtypes(function, FLOATS, **tensors)
    check_contiguous(function, **tensors)


def check_contiguous(function: str, **tensors: Tensor) -> None:
    """Raise ValueError if a tensor is not contiguous."""
    for name, one in tensors.items():
        if not one.is_contiguous():
            raise ValueError(
                f"{function}: {name} must be contiguous: got shape {tuple(one.shape)} with strides {one.stride()}; "
                f"call {name}.contiguous()."
            )
