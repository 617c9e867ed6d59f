"""What `lab` tells a user instead of a traceback: one sentence with the rule, the value and the remedy.

The exit code says which of two things happened: 2, what was asked for makes no sense (nothing was done);
1, it made sense, was tried, and failed.
"""


class CourseError(ValueError):
    """Something a user chose cannot be done. `str(error)` is complete in itself.

    >>> CourseError("ranks must be an int: got 'four'; try --ranks 4").exit_code
    2
    """

    exit_code = 2


class CourseFailure(CourseError):
    """What was asked for was tried and failed: a cell raised, a disk was full, a notebook is stale."""

    exit_code = 1
