"""Checks of figures, sizes, ranks and nodes in hardware records."""

from collections.abc import Mapping
from math import inf
from numbers import Real
from typing import Any

from lablib.signature import check_type


def check_numbers(whose: str, figures: Mapping[str, Any]) -> None:
    """Raises ValueError for a figure that is not a number: 80e9 is one, "80 GB" is not."""
    for name, value in figures.items():
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"{name} must be a number: got {value!r} for {whose}; give 80e9 for 80 GB, 2e-6 for 2 us")


def check_times(whose: str, figures: Mapping[str, Any]) -> None:
    """Raises ValueError for negative or infinite seconds: an infinite operation would never end."""
    check_numbers(whose, figures)
    for name, value in figures.items():
        if not 0 <= value:
            raise ValueError(f"{name} must be 0 or more: got {value} for {whose}")
        if value == inf:
            raise ValueError(f"{name} must be finite: got {value} for {whose}")


def check_places(what: str, first: Any, second: Any = 0) -> None:
    """Raises ValueError for an invalid rank or node: they are whole numbers from 0 on."""
    if type(first) is type(second) is int and first >= 0 and second >= 0:  # the simulator calls this often
        return
    for place in (first, second):
        check_type(what, place, int)
        if place < 0:
            raise ValueError(f"{what} must be 0 or more: got {place}; they are counted from 0")


def check_size(size_bytes: Any) -> None:
    """Raises ValueError for bytes that are not a number from 0 on."""
    check_type("size_bytes", size_bytes, float)
    if not size_bytes >= 0:
        raise ValueError(f"size_bytes must be 0 or more: got {size_bytes}; give the bytes of the message")
