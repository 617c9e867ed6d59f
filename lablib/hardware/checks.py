"""Bounds of figures in hardware records; checks of sizes, ranks and nodes."""

from math import inf
from typing import Annotated, Any

from lablib.signature import Range, check_type

# An infinite rate or size is an idealization; infinite seconds would never end.
Size = Annotated[float, Range(gt=0), "give 80e9 for 80 GB, GB/s or GFLOP/s"]
Power = Annotated[float, Range(gt=0), "give 700 for 700 W"]
Cache = Annotated[float, Range(ge=0), "give 50e6 for 50 MB; 0: none"]
Seconds = Annotated[float, Range(ge=0, lt=inf), "give 2e-6 for 2 us"]


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
