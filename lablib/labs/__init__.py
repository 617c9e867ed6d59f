"""Helper code of single labs: their figures, and comparisons that a learner does not write."""

import os
from typing import Any


def __getattr__(name: str) -> Any:
    """Before a lab's first import: its functions of the learner's, if they are asked for."""
    if os.environ.get("LAB_MINE") == "1" and name[:3] == "lab":
        from lablib.labs.mine import put_in_place

        print(put_in_place(name.removeprefix("lab")))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")  # Python then imports the file
