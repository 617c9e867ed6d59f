"""Classify an exception in a learner's code: a stub that was reached, or a mistake, and its place.

The exception comes from the function itself or from a rank of a launch; the launch's error then has the original as its
cause.
"""

import ast
import inspect
import linecache
import traceback
from collections.abc import Iterator
from types import FrameType, FunctionType
from typing import Any

from lablib.course.building.solution import YOUR_TURN
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.errors import LaunchError
from lablib.process.whose_code import is_users
from lablib.text.files import parse_python

_LAST_FRAMES = 3


def is_stub(error: BaseException, check_file: str = "") -> bool:
    """Was a stub reached: ours, or nbgrader's, which has no message? Libraries raise NotImplementedError too.

    A stub's line in a branch (`else: raise NotImplementedError("your turn")`) does not count: the rest has been
    written.
    """
    return any(is_left_stub(e, check_file) and not _is_in_a_branch(e) for e in chain(error))


def is_empty(answer: Any) -> bool:
    """Is it a function that contains only `...`, `pass` or text?"""
    code = answer.__code__ if isinstance(answer, FunctionType) else None
    tree = _tree_of(code.co_filename) if code else None
    found = [
        node.body
        for node in ast.walk(tree or ast.Module([], []))
        if isinstance(node, ast.FunctionDef)
        and code
        and (node.name, node.lineno) == (code.co_name, code.co_firstlineno)
    ]
    return bool(found) and all(_is_empty(statement) for statement in found[0])


def _is_empty(statement: ast.stmt) -> bool:
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Pass) or is_constant


def is_left_stub(error: BaseException, check_file: str = "") -> bool:
    """Is this the exception of a stub's line?"""
    return isinstance(error, NotImplementedError) and (
        str(error) == YOUR_TURN or (str(error) == "" and bool(learner_frames(error, check_file)))
    )


def unfinished(error: BaseException, check_file: str = "") -> str:
    """The message for a stub's line left in a function with other code; "" where the stub is the whole function."""
    left = next((e for e in chain(error) if is_left_stub(e, check_file)), None)
    frame = traceback.extract_tb(left.__traceback__)[-1] if left is not None else None
    line = frame.lineno or 0 if frame else 0
    tree = _tree_of(frame.filename) if frame else None
    around = [node for node in ast.walk(tree) if _holds(node, line)] if tree else []
    function = around[-1] if around else None  # the innermost: `ast.walk` goes from the outside in
    if not isinstance(function, ast.FunctionDef):
        return ""
    written = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.stmt)
        and not _is_empty(node)
        and not node.lineno <= line <= (node.end_lineno or 0)  # the stub's line, and the statements around it
    ]
    told = f"line {line} of {function.name} still raises NotImplementedError: remove it when your code is there."
    return told if written else ""


def _tree_of(filename: str) -> ast.Module | None:
    """The syntax tree of a file or a cell; None without a source."""
    try:
        return parse_python("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return None


def _is_in_a_branch(error: BaseException) -> bool:
    """Is the line that raised under an `if`, a `while`, a `try` or a `match` of its function?"""
    frames = traceback.extract_tb(error.__traceback__)
    tree = _tree_of(frames[-1].filename) if frames else None
    if tree is None:
        return False  # unknown
    line = frames[-1].lineno or 0
    return any(
        isinstance(node, ast.If | ast.While | ast.Try | ast.Match)
        and node.lineno < line <= (node.end_lineno or 0)
        and not any(_holds(inner, line) for inner in ast.walk(node))
        for node in ast.walk(tree)
    )


def _holds(node: ast.AST, line: int) -> bool:
    """Is this a function that contains the line?"""
    return isinstance(node, ast.FunctionDef | ast.Lambda) and node.lineno <= line <= (node.end_lineno or 0)


def chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, its cause, the cause's cause, ..."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__


def program_error(error: BaseException) -> BaseException:
    """The exception of the program, where a launch wrapped it."""
    while isinstance(error, LaunchError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def learner_frames(error: BaseException, check_file: str = "") -> str:
    """The last lines of the learner's own code in the traceback, and the arguments of its first function at that time;
    "" if there are none.

    All code counts as the learner's except Python, installed packages, lablib, and the file of the check.
    """
    lines = learner_lines(traceback.extract_tb(error.__traceback__), check_file)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [f for f in frames if f.f_code.co_filename != check_file and is_users(f.f_code.co_filename)]
    called = _arguments(own[0]) if own else ""
    return f"{lines}\n{called}" if lines and called else lines


def _arguments(frame: FrameType) -> str:
    """A function's arguments; "" where there are none, or where one cannot be shown."""
    found = inspect.getargvalues(frame)
    names = [name for name in found.args if name in found.locals]
    try:
        shown = ", ".join(f"{name} = {short_repr(found.locals[name])}" for name in names)
    except Exception:  # a learner's object may not even have a repr
        return ""
    return f"there: {shown}" if shown else ""


def learner_lines(stack: traceback.StackSummary, check_file: str = "") -> str:
    """The last lines of the learner's own code in a stack."""
    frames = [frame for frame in stack if frame.filename != check_file and is_users(frame.filename)]
    lines = []
    for frame in frames[-_LAST_FRAMES:]:
        code = frame.line or linecache.getline(frame.filename, frame.lineno or 0).strip()
        lines.append(f"line {frame.lineno} in {frame.name}: {code}")
    return "\n".join(lines)


def exited(end: SystemExit) -> RuleBroken:
    """The broken rule for a `sys.exit()` in an answer."""
    where = learner_lines(traceback.extract_tb(end.__traceback__)).splitlines()[-1:]
    saw = f"it ended the process: SystemExit({end.code!r})" + "".join(f", {line}" for line in where)
    return RuleBroken("your code returns to its caller", saw, "a return, and no sys.exit()")
