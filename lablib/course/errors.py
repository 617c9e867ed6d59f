"""Errors of `lab`, without traceback: one sentence with the rule, the value and the remedy.

Exit code 2: the request was invalid, and nothing was done. Exit code 1: the request was valid, was tried, and failed.
"""


class CourseError(ValueError):
    """A request of the user that cannot be done. `str(error)` is complete in itself.

    >>> CourseError("ranks must be an int: got 'four'; try --ranks 4").exit_code
    2
    """

    exit_code = 2


class CourseFailure(CourseError):
    """A valid request that failed: a cell raised, a disk was full, a notebook is stale."""

    exit_code = 1
