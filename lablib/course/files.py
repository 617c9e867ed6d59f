"""Error message for a file that could not be written: cause, state left behind, remedy."""

import errno
from pathlib import Path

from lablib.course.errors import CourseFailure


def cannot_write(path: Path, error: OSError) -> CourseFailure:
    """The error for a file that could not be written."""
    remedies = {
        errno.ENOSPC: "free some disk space, or choose another folder with --out",
        errno.EDQUOT: "your disk quota is used up: free some space, or choose another folder with --out",
        errno.EACCES: "make the folder writable, or choose another one with --out",
        errno.EPERM: "make the folder writable, or choose another one with --out",
        errno.EROFS: "the file system is read-only: choose another folder with --out",
        errno.ENOTDIR: "a part of that path is a file: choose another folder with --out",
        errno.EEXIST: "a file has the folder's name: choose another folder with --out",
    }
    remedy = remedies.get(error.errno or 0, "choose another folder with --out")
    reason = (error.strerror or str(error)).lower()
    return CourseFailure(f"cannot write {path}: {reason}; nothing half-written was left. To go on, {remedy}.")
