"""The property of every fuzzed call: a right answer, or an error that we raise and explain; never a hang.

An error is ours when its innermost frame is a `raise` statement of lablib, or when Python itself says that the
arguments do not fit the signature. An AttributeError, a KeyError or a ZeroDivisionError from our insides is none.
"""

import ast
import re
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import lablib
from lablib.course.errors import CourseError
from lablib.data.sources import CorpusUnavailableError
from lablib.errors import LaunchError

OURS = Path(lablib.__file__).parent
DOCUMENTED = (ValueError, TypeError, OSError, IndexError, LaunchError, CourseError, CorpusUnavailableError)
BINDING = re.compile(r"missing \d+ required|unexpected keyword|positional argument|multiple values|takes no arguments")
MAX_LETTERS = 4000
SECONDS = 20.0


class Hang(BaseException):
    """A call took too long."""


def outcome(counts: Counter[str], call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What the call returned; None after an error that is explained. Fails for any other end. Counts what happened."""
    counts["calls"] += 1
    try:
        with at_most(SECONDS):
            answer = call(*args, **kwargs)
    except Exception as error:
        counts[type(error).__name__] += 1
        assert_explained(error)
        return None
    counts["answers"] += 1
    return answer


def assert_explained(error: BaseException) -> None:
    """It is of a documented kind, is ours, and says something that a reader can take in."""
    where = "".join(traceback.format_tb(error.__traceback__)[-3:])
    said = str(error)
    assert isinstance(error, DOCUMENTED), f"{type(error).__name__}: {said[:300]}\n{where}"
    assert is_ours(error), f"raw {type(error).__name__}: {said[:300]}\n{where}"
    assert said.strip() and len(said) <= MAX_LETTERS, f"{len(said)} letters: {said[:300]}\n{where}"


def is_ours(error: BaseException) -> bool:
    """Raised by a `raise` of lablib, or by Python where the arguments do not fit the signature."""
    if isinstance(error, OSError) and error.filename:
        return True  # the system's own word on a file, which the docstring promises
    if type(error).__module__.startswith("jaxtyping"):
        return True  # tests check the shapes of some packages before their functions can say anything
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    in_lablib = OURS in Path(last.filename).parents
    if isinstance(error, TypeError) and BINDING.search(str(error)):
        return not in_lablib or _is_raise(last.filename, last.lineno)
    return in_lablib and _is_raise(last.filename, last.lineno)


def _is_raise(file: str, line: int | None) -> bool:
    return line is not None and any(first <= line <= end for first, end in _raises(file))


@cache
def _raises(file: str) -> list[tuple[int, int]]:
    """First and last line of every `raise` statement."""
    found = [node for node in ast.walk(ast.parse(Path(file).read_text("utf-8"))) if isinstance(node, ast.Raise)]
    return [(node.lineno, node.end_lineno or node.lineno) for node in found]


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `Hang` inside the block when it takes longer. For the main thread."""

    def ring(_: int, frame: FrameType | None) -> None:
        where = "".join(traceback.format_stack(frame)[-3:])
        raise Hang(f"still running after {seconds} s:\n{where}")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
