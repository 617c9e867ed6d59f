"""Refuse a launch inside a rank of a launch: each rank would start as many again, without end.

That happens by accident: a script without `if __name__ == "__main__":` that a worker imports, a notebook's cell that is
run by what the cell launched. Simulated ranks know what they are. A process that is a rank finds its number in its
environment, and so do the processes that it starts.
"""

import os

from lablib.errors import LaunchError

RANK_VARIABLE = "LABLIB_RANK"


def check_outside(remedy: str) -> None:
    """Raise LaunchError when this is inside a rank of a launch, on any backend, or in a process that a rank started.

    `remedy` says what to do instead: "call launch from the notebook, not from the program it runs".
    """
    from lablib.sim import is_rank  # here: it imports torch, a second's work that the command line does not need

    if is_rank():
        raise LaunchError(f"this is inside a rank of a launch: {remedy}.")
    if RANK_VARIABLE in os.environ:
        raise LaunchError(
            f"this is inside a rank of a launch: {remedy} (in a script, behind 'if __name__ == \"__main__\":')."
        )
