"""Refuse a launch inside a rank of a launch, which would start ranks recursively without end.

It happens by accident: a script without `if __name__ == "__main__":` that a worker imports, or a notebook cell run by
its own launch. Simulated ranks are detected by their thread. A process that is a rank has its number in the
environment, and so do its child processes.
"""

import os
import sys

from lablib.errors import LaunchError

RANK_VARIABLE = "LABLIB_RANK"


def check_outside(remedy: str) -> None:
    """Raise LaunchError inside a rank of a launch, on any backend, and in a process that a rank started.

    `remedy` is the advice in the message: "call launch from the notebook, not from the program it runs".
    """
    if "lablib.sim" in sys.modules:  # without it no thread is a rank, and torch need not be imported for the answer
        from lablib.sim import is_rank

        if is_rank():
            raise LaunchError(f"this is inside a rank of a launch: {remedy}.")
    if RANK_VARIABLE in os.environ:
        raise LaunchError(
            f"this is inside a rank of a launch: {remedy} (in a script, behind 'if __name__ == \"__main__\":')."
        )
