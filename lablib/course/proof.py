"""Proving a check: the solution passes, the stub is "not attempted", and wrong answers are rejected.

An answer is tried in a fresh namespace that holds what its exercise needs and no more. What it needs is read from the
source: a cell is run if it binds a name that a later needed cell uses.

    import torch                    <- needed: `scale` uses torch
    parameters                      <- always
    figure(run)                        not needed: binds nothing
    def scale(x): ...               <- needed: the exercise calls it
    exercise: def mean(x): ...      <- replaced by the answer
    check.mean(mean)                <- evaluated

So a proof takes the time of its check, not that of the lab. A cell that changes a value in place without binding its
name is not seen; bind the name again there (`x = filled(x)`).
"""

import ast
import contextlib
import io
import linecache
import symtable
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lablib.course.check import Exercise, exercises_of, run_check
from lablib.course.errors import CourseError
from lablib.course.master import Cell, Master, at
from lablib.course.result import Result
from lablib.course.solution import to_stub

_SETTINGS = {"backend": "sim", "interactive": False, "quick": True}


@dataclass(frozen=True)
class WrongAnswer:
    """A plausible mistake.

    Attributes:
        label: what is wrong with it.
        answer: source that replaces the exercise's cell (text), or the answer itself (a function, a number).
        message: part of the message it must get.
    """

    label: str
    answer: Any
    message: str


def try_solution(master: Master, exercise: Cell, check: Cell) -> Result:
    """The check's result for the master's own solution."""
    return _try(master, exercise, check, exercise.source)


def try_stub(master: Master, exercise: Cell, check: Cell) -> Result:
    """The check's result for what the learner starts from."""
    return _try(master, exercise, check, to_stub(exercise.source))


def try_wrong(master: Master, exercise: Cell, check: Cell, wrong: WrongAnswer) -> Result:
    """The check's result for a wrong answer."""
    return _try(master, exercise, check, wrong.answer)


def needed_cells(master: Master, exercise: Cell, check: Cell) -> list[Cell]:
    """The code cells above `exercise` that it and its check need, in order."""
    bound, needed = names(exercise.source)
    needed = (needed | names(check.source)[1]) - bound
    chosen: list[Cell] = []
    for cell in reversed(master.cells[: master.cells.index(exercise)]):
        if cell.kind != "code" or cell.tagged("check"):
            continue
        binds, uses = names(cell.source)
        if binds & needed or cell.tagged("parameters"):
            chosen.insert(0, cell)
            needed |= uses
    return chosen


def names(source: str) -> tuple[set[str], set[str]]:
    """The global names a cell binds, and those it uses (inside its functions too).

    >>> names("import math\\ndef area(r):\\n    return math.pi * scale(r)") == ({"math", "area"}, {"math", "scale"})
    True
    """

    def used(table: symtable.SymbolTable) -> Iterator[str]:
        top = table.get_type() == "module"
        yield from (s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global()))
        for child in table.get_children():
            yield from used(child)

    table = symtable.symtable(source, "<cell>", "exec")
    bound = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    in_place = {  # `x += 1` uses x too, which a symbol table does not say
        node.target.id
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    return bound, set(used(table)) | in_place


def _try(master: Master, exercise: Cell, check: Cell, answer: Any) -> Result:
    """Run what the exercise needs, then the answer, then the check."""
    declared = {e.name: e for e in exercises_of(master.lab)}
    namespace: dict[str, Any] = {"__name__": f"lab_{master.lab.number}", "display": lambda *shown, **options: None}
    with contextlib.chdir(master.lab.labs), contextlib.redirect_stdout(io.StringIO()):
        for cell in needed_cells(master, exercise, check):
            _execute(master, cell, cell.source, namespace)
            if cell.tagged("parameters"):
                namespace.update(_SETTINGS)
        if isinstance(answer, str):
            _execute(master, exercise, textwrap.dedent(answer).strip("\n"), namespace)
        else:
            namespace[_answer_name(master, check)] = answer
        # The check's own call, with a `check` that records nothing and never raises.
        trial = _Trial(master.lab.number, declared)
        _execute(master, check, check.source, namespace | {"check": trial})
    assert trial.result is not None  # a check cell ends in check.name(...): rule 6 of lint
    return trial.result


class _Trial:
    """Stands in for `check`: `trial.name(answer)` keeps the result."""

    def __init__(self, lab: str, declared: dict[str, Exercise]):
        self._lab, self._declared = lab, declared
        self.result: Result | None = None

    def __getattr__(self, name: str) -> Any:
        def call(*answer: Any, **options: Any) -> Result:
            self.result = run_check(self._lab, self._declared[name], *answer, **options)
            return self.result

        return call


def _execute(master: Master, cell: Cell, source: str, namespace: dict[str, Any]) -> None:
    """Run a cell so that tracebacks and `inspect` find its source."""
    filename = f"<lab {master.lab.number}, cell in line {cell.line}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), namespace)


def _answer_name(master: Master, check: Cell) -> str:
    """The name under which the notebook hands its answer to the check."""
    call = check.check_call
    if call is None or not call.args or not isinstance(call.args[0], ast.Name):
        raise CourseError(str(at(master, check, "a check must be given its answer by name: check.name(answer).")))
    return call.args[0].id
