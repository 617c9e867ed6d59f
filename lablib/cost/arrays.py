"""Minimum, maximum, rounding up and divisors, for numbers and numpy arrays with one formula.

The simulator prices one operator at a time, with plain numbers; a planner prices thousands of plans at once, with
arrays. Plain numbers stay plain (numpy's scalars are ten times slower). They need no numpy, which `np` imports on first
use: so predictions and replays also run where it is not installed, as in a browser.
"""

import math
import sys
from typing import TYPE_CHECKING, Any

Numbers = Any  # a number, or a numpy array of them
_PLAIN = frozenset({int, float, bool})


class _Numpy:
    """The module numpy, imported on the first use of one of its names."""

    def __getattr__(self, name: str) -> Any:
        import numpy

        found = getattr(numpy, name)
        setattr(self, name, found)
        return found


if TYPE_CHECKING:
    import numpy as np
    from numpy import ndarray as Array
else:
    np, Array = _Numpy(), Any


def is_array(value: Numbers) -> bool:
    """Whether a value is a numpy array. Does not import numpy."""
    if type(value) in _PLAIN:
        return False
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def has_numpy() -> bool:
    """Whether numpy is imported already: without it there are no arrays."""
    return sys.modules.get("numpy") is not None


def minimum(a: Numbers, b: Numbers) -> Numbers:
    """The smaller of two, element by element."""
    if type(a) in _PLAIN and type(b) in _PLAIN:
        return b if b < a else a
    return np.minimum(a, b) if is_array(a) or is_array(b) else min(a, b)


def maximum(a: Numbers, b: Numbers) -> Numbers:
    """The larger of two, element by element."""
    if type(a) in _PLAIN and type(b) in _PLAIN:
        return b if b > a else a
    return np.maximum(a, b) if is_array(a) or is_array(b) else max(a, b)


def ceil_div(a: Numbers, b: Numbers) -> Numbers:
    """a / b, rounded up."""
    return -(-a // b)


def gcd(a: Numbers, b: Numbers) -> Numbers:
    """The largest whole number that divides both."""
    return np.gcd(a, b) if is_array(a) or is_array(b) else math.gcd(a, b)


def lowest(values: Numbers) -> Numbers:
    """The smallest number of an array; a number itself."""
    return values.min() if is_array(values) else values


def highest(values: Numbers) -> Numbers:
    """The largest number of an array; a number itself."""
    return values.max() if is_array(values) else values


def arrays(*columns: list[float]) -> tuple[Any, ...]:
    """Lists of numbers as arrays; the lists themselves where numpy is not installed."""
    try:
        return tuple([np.array(column, float) for column in columns])
    except ImportError:
        return columns


def plain(values: Any) -> list[float]:
    """An array or a list of numbers as a list."""
    return values.tolist() if is_array(values) else values


def distinct(values: Array) -> tuple[Array, Array]:
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


def distinct_rows(*columns: Numbers) -> tuple[tuple[Array, ...], Array]:
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
