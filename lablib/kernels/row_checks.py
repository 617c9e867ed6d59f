"""What kernels share whose programs hold whole rows: the checks of their arguments."""

from __future__ import annotations

from math import isfinite

from torch import Tensor

LONGEST_ROW = 65_536  # numbers; beyond it a row spills from a program's registers


def check_rows(function: str, x: Tensor, tokens: int) -> None:
    """Raise ValueError for rows that no program can hold, or for a program that takes no token."""
    if x.dim() == 0 or not 1 <= x.shape[-1] <= LONGEST_ROW:
        raise ValueError(f"{function}: a row of x must have 1 to {LONGEST_ROW:,} numbers: got shape {tuple(x.shape)}.")
    if tokens < 1:
        raise ValueError(f"{function}: tokens of a program must be at least 1: got {tokens}; try 16.")


def check_vector(function: str, x: Tensor, **vectors: Tensor) -> None:
    """Raise ValueError for a vector that has not a number for each of a row."""
    for name, one in vectors.items():
        if one.shape != x.shape[-1:]:
            raise ValueError(
                f"{function}: {name} must have {x.shape[-1]} numbers, as x's rows have: got shape {tuple(one.shape)}."
            )


def check_eps(function: str, eps: float) -> None:
    """Raise ValueError where the root of a row of zeros would be NaN."""
    if not (isfinite(eps) and eps >= 0):
        raise ValueError(f"{function}: eps must be 0 or more, and finite: got {eps}; try 1e-6.")
