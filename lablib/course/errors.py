"""Errors of `lab`, without traceback: one sentence with the rule, the value and the remedy.

Exit code 2: the request was invalid, and nothing was done. Exit code 1: the request was valid, was tried, and failed.
"""

import errno
from pathlib import Path


class CourseError(ValueError):
    """A request of the user that cannot be done. `str(error)` is complete in itself.

    >>> CourseError("ranks must be an int: got 'four'; try --ranks 4").exit_code
    2
    """

    exit_code = 2


class CourseFailure(CourseError):
    """A valid request that failed: a cell raised, a disk was full, a notebook is stale."""

    exit_code = 1


def cannot_write(
    path: Path | str, error: OSError, otherwise: str = "choose another folder with --out"
) -> CourseFailure:
    """The error for a file that could not be written: cause, state left behind, remedy."""
    remedies = {
        errno.ENOSPC: "free some disk space, or ",
        errno.EDQUOT: "your disk quota is used up: free some space, or ",
        errno.EACCES: "make the folder writable, or ",
        errno.EPERM: "make the folder writable, or ",
        errno.EROFS: "the file system is read-only: ",
        errno.ENOTDIR: "a part of that path is a file: ",
        errno.EEXIST: "a file has the folder's name: ",
    }
    reason, remedy = (error.strerror or str(error)).lower(), remedies.get(error.errno or 0, "") + otherwise
    return CourseFailure(f"cannot write {path}: {reason}; nothing half-written was left. To go on, {remedy}.")
