"""Telling what happened in a learner's code from an exception: a stub that was reached, or a mistake, and where.

An exception may come straight from the function, or from a rank of a launch; then the launch's error has the original
as its cause.
"""

import linecache
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

import lablib
from lablib.course.solution import YOUR_TURN
from lablib.errors import LaunchError

_PACKAGE = str(Path(lablib.__file__).parent)
_PATHS = sysconfig.get_paths()
_NOT_THE_LEARNERS = (_PACKAGE, _PATHS["purelib"], _PATHS["platlib"], _PATHS["stdlib"], "<frozen")
_LAST_FRAMES = 3


def is_stub(error: BaseException, check_file: str = "") -> bool:
    """Was a stub reached: ours, or nbgrader's, which has no words? Libraries raise NotImplementedError too."""
    return any(
        isinstance(e, NotImplementedError)
        and (str(e) == YOUR_TURN or (str(e) == "" and bool(learner_frames(e, check_file))))
        for e in chain(error)
    )


def chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, its cause, the cause's cause, ..."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__


def program_error(error: BaseException) -> BaseException:
    """The exception of the program itself, where a launch wrapped it into one of its own."""
    while isinstance(error, LaunchError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def learner_frames(error: BaseException, check_file: str = "") -> str:
    """The last lines of the learner's own code on the way to the exception; "" if it passed through none.

    Everything is the learner's but Python, installed packages, lablib, and the file the check is in.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != check_file
        and not frame.filename.startswith(_NOT_THE_LEARNERS)
        and "site-packages" not in frame.filename
    ]
    lines = []
    for frame in frames[-_LAST_FRAMES:]:
        code = frame.line or linecache.getline(frame.filename, frame.lineno or 0).strip()
        lines.append(f"line {frame.lineno} in {frame.name}: {code}")
    return "\n".join(lines)
