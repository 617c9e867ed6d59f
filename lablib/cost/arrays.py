"""Minimum, maximum, rounding up and divisors, for numbers and numpy arrays with one formula.

The simulator prices one operator at a time, with plain numbers; a planner prices thousands of plans at once, with
arrays. Plain numbers stay plain (numpy's scalars are ten times slower).
"""

import math
from typing import Any

import numpy as np

Numbers = Any  # a number, or a numpy array of them


def minimum(a: Numbers, b: Numbers) -> Numbers:
    """The smaller of two, element by element."""
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def maximum(a: Numbers, b: Numbers) -> Numbers:
    """The larger of two, element by element."""
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


def ceil_div(a: Numbers, b: Numbers) -> Numbers:
    """a / b, rounded up."""
    return -(-a // b)


def gcd(a: Numbers, b: Numbers) -> Numbers:
    """The largest whole number that divides both."""
    return np.gcd(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else math.gcd(a, b)


def distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct whole numbers of an array, and the index of each element among them.

    As np.unique with its inverse; small numbers use a table instead of sorting.
    """
    if not values.size or values.min() < 0 or values.max() > 4 * values.size + 65536:
        return np.unique(values, return_inverse=True)
    table = np.zeros(int(values.max()) + 1, np.intp)
    table[values] = 1
    found = np.flatnonzero(table)
    table[found] = np.arange(len(found))
    return found, table[values]


def distinct_rows(*columns: Numbers) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """The distinct rows of some columns of whole numbers (arrays of one length, or one number for all), as columns;
    and the index of each row among them."""
    arrays = np.broadcast_arrays(*columns)
    which = np.zeros(arrays[0].shape, np.intp)
    for column in arrays:
        values, of_column = distinct(column)
        _, which = distinct(which * len(values) + of_column)
    place = np.empty(which.max(initial=-1) + 1, np.intp)
    place[which] = np.arange(len(which))
    return tuple(column[place] for column in arrays), which
