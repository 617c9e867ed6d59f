"""What the hardware's records ask of figures, and their methods of places: numbers, and no time without an end."""

from collections.abc import Mapping
from math import inf
from numbers import Real
from typing import Any

from lablib.signature import check_type


def check_numbers(whose: str, figures: Mapping[str, Any]) -> None:
    """Raises ValueError for a figure that is no number: "80 GB" is none, 80e9 is one."""
    for name, value in figures.items():
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"{name} must be a number: got {value!r} for {whose}; give 80e9 for 80 GB, 2e-6 for 2 us")


def check_times(whose: str, figures: Mapping[str, Any]) -> None:
    """Raises ValueError for seconds that are below 0 or endless: then nothing would ever be done."""
    check_numbers(whose, figures)
    for name, value in figures.items():
        if not 0 <= value:
            raise ValueError(f"{name} must be 0 or more: got {value} for {whose}")
        if value == inf:
            raise ValueError(f"{name} must be finite: got {value} for {whose}")


def check_places(what: str, first: Any, second: Any = 0) -> None:
    """Raises ValueError for a rank or a node that is none: they are whole numbers from 0 on."""
    if type(first) is type(second) is int and first >= 0 and second >= 0:  # the simulator asks often
        return
    for place in (first, second):
        check_type(what, place, int)
        if place < 0:
            raise ValueError(f"{what} must be 0 or more: got {place}; they are counted from 0")


def check_size(size_bytes: Any) -> None:
    """Raises ValueError for bytes that are no number, 0 or more."""
    check_type("size_bytes", size_bytes, float)
    if not size_bytes >= 0:
        raise ValueError(f"size_bytes must be 0 or more: got {size_bytes}; give the bytes of the message")
