"""Show a function's source in a notebook; a solution stays folded until the exercise is passed."""

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from lablib.course.checks.check import Check
from lablib.course.checks.result import ShownSource
from lablib.signature import checked
from lablib.text.messages import safe_repr


@checked
def show_source(function: Callable[..., Any] | type, after: Check | None = None) -> ShownSource:
    """The source of a function or a class of lablib.

    `after`: check of the exercise that it solves: folded until that is passed. None: open. Raises ValueError: its
    source cannot be read.
    """
    try:
        text = textwrap.dedent(inspect.getsource(function))
        name = f"{function.__module__}.{function.__qualname__}"
    except (OSError, TypeError, AttributeError):
        message = f"show_source shows a function or a class written in Python: got {safe_repr(function)}"
        raise ValueError(message) from None
    if after is None or after.is_passed:
        return ShownSource(f"The source of {name}", text, is_open=True)
    title = f"{name}: a solution. Solve exercise {after.exercise.title!r} first; then open this and compare."
    return ShownSource(title, text, is_open=False)
