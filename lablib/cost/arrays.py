"""Minimum, maximum and rounding up that work on numbers and on numpy arrays alike, so that one formula serves both.

The simulator prices one operator at a time, with plain numbers; a planner prices thousands of plans at once, with
arrays. Plain numbers stay plain (numpy's scalars are ten times slower).
"""

from typing import Any

import numpy as np

Numbers = Any  # a number, or a numpy array of them


def least(a: Numbers, b: Numbers) -> Numbers:
    """The smaller of two, element by element."""
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def most(a: Numbers, b: Numbers) -> Numbers:
    """The larger of two, element by element."""
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


def ceil_div(a: Numbers, b: Numbers) -> Numbers:
    """a / b, rounded up."""
    return -(-a // b)
