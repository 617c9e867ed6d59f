"""Safe text of any object, even if its `__str__` or `__repr__` fails.

Exceptions and values of a program have classes of the user. Their methods may raise, return very long text, or
misreport the type. That must not hide the original error: the launcher then reports less, and continues.
"""

import traceback
from collections.abc import Callable, Iterator
from typing import Any

_LONGEST_MESSAGE = 100_000  # characters of an exception's message or traceback
_LONGEST_VALUE = 500  # characters of a value in a sentence


def safe_str(value: Any) -> str:
    """`str(value)`, shortened in the middle beyond 100,000 characters; if it fails, the failure. Never raises."""
    return _said(value, str, _LONGEST_MESSAGE)


def safe_repr(value: Any) -> str:
    """`repr(value)`, shortened in the middle beyond 500 characters; if it fails, the failure. Never raises."""
    return _said(value, repr, _LONGEST_VALUE)


def type_name(value: Any) -> str:
    """The name of an object's type, without code of its metaclass."""
    return type.__dict__["__name__"].__get__(type(value))


def error_text(error: BaseException) -> str:
    """ "ValueError: the message", or only the type's name if the message is empty."""
    text = safe_str(error)
    return f"{type_name(error)}: {text}" if text else type_name(error)


def traceback_text(
    error: BaseException, programs: Callable[[traceback.StackSummary], traceback.StackSummary] = lambda stack: stack
) -> str:
    """The traceback of an exception, with chained and grouped exceptions if they can be formatted.

    `programs`: selects the frames of a stack to show. Called for each stack.
    """
    for text in (_whole_report, _own_report):
        try:
            return _cut(text(error, programs), _LONGEST_MESSAGE)
        except BaseException:  # noqa: B036 - methods of the user's class may raise anything
            continue
    return error_text(error)


def _whole_report(error: BaseException, programs: Callable[[traceback.StackSummary], traceback.StackSummary]) -> str:
    report = traceback.TracebackException.from_exception(error)
    for one in _chain(report):
        one.stack = programs(one.stack)
    return "".join(report.format()).rstrip()


def _chain(report: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    pending: list[traceback.TracebackException | None] = [report]
    while pending:
        one = pending.pop()
        if one is not None:
            yield one
            pending += [one.__cause__, one.__context__, *(one.exceptions or ())]


def _own_report(error: BaseException, programs: Callable[[traceback.StackSummary], traceback.StackSummary]) -> str:
    own_traceback = BaseException.__dict__["__traceback__"].__get__(error)  # a class may have an attribute of that name
    stack = programs(traceback.extract_tb(own_traceback))
    return "".join(["Traceback (most recent call last):\n", *stack.format(), error_text(error)])


def _said(value: Any, how: Callable[[Any], str], max_length: int) -> str:
    try:
        said = str.__str__(how(value))  # plain text, without code of a str subclass
    except BaseException as error:  # noqa: B036 - methods of the user's class may raise anything
        return f"<a {type_name(value)} whose __{how.__name__}__ raised {type_name(error)}>"
    return _cut(said, max_length)


def _cut(text: str, max_length: int) -> str:
    """The text without its middle if too long, and without unprintable surrogates."""
    if len(text) > max_length:
        half = max_length // 2
        text = f"{text[:half]} ... {len(text) - 2 * half:,} characters more ... {text[-half:]}"
    return text.encode(errors="backslashreplace").decode()
