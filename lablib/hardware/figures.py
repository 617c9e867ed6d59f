"""What every record of the hardware asks of a figure: that it is a number at all, and no time without an end."""

from collections.abc import Mapping
from math import inf
from numbers import Real
from typing import Any


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
