"""Writing a file all or nothing: a reader sees the old text or the new one, never half of either.

The new text goes to a temporary file in the same directory (a rename is atomic only inside one file system), is
forced to disk, and takes the old file's name in one step. Whatever goes wrong before that step leaves the old file as
it was and no temporary file behind.
"""

import contextlib
import errno
import os
import tempfile
from pathlib import Path

from lablib.course.errors import CourseFailure


def write_atomic(path: Path, text: str) -> None:
    """Make `path` hold `text` (UTF-8), or leave it untouched. Creates missing parent directories.

    Raises:
        OSError: no space, no permission, ...; `path` is then as it was before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(_mode_of(path))
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _mode_of(path: Path) -> int:
    """The permissions the written file should have: those of the file it replaces, or what the umask gives."""
    try:
        return path.stat().st_mode & 0o777
    except OSError:
        umask = os.umask(0)
        os.umask(umask)
        return 0o666 & ~umask


def cannot_write(path: Path, error: OSError) -> CourseFailure:
    """The sentence for a file that could not be written."""
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
