"""`lab prove`: test a check with the solution, the stub, and known wrong and right answers.

The solution passes, the stub is "not attempted", wrong answers are rejected, and unusual right ones accepted.
The solution must also pass on a stand-in for a GPU, which refuses the same operations as CUDA (on_gpu.py).

An answer is tried in a fresh namespace with only the cells that its exercise needs. They are read from the source: a
cell is run if it binds a name that a later needed cell uses.

    import torch                    <- needed: `scale` uses torch
    parameters                      <- always
    figure(run)                        not needed: binds nothing
    def scale(x): ...               <- needed: the exercise calls it
    exercise: def mean(x): ...      <- replaced by the answer
    check.mean(mean)                <- evaluated

The expression that ends a needed cell is left out: it shows a figure or a run, and binds nothing. So a proof takes the
time of its check, not the time of the lab. A cell that changes a value in place without binding its name is not found;
bind the name again there (`x = filled(x)`).

`wrong_answers.py` in the lab's folder holds `WRONG_ANSWERS`, exercise -> [(label, answer, part of its message), ...],
and `RIGHT_ANSWERS`, exercise -> [(label, answer), ...]: right answers in an unusual style.
"""

import ast
import contextlib
import io
import linecache
import runpy
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lablib.course.building.master import Cell, Master, at, read_master
from lablib.course.building.names import bound_at_once, names
from lablib.course.building.solution import to_stub
from lablib.course.checks.exercise import Exercise, exercises_of
from lablib.course.checks.result import Result
from lablib.course.checks.trial import run_check
from lablib.course.errors import CourseError, CourseFailure
from lablib.course.places import Lab
from lablib.errors import unknown_name

MIN_WRONG = 2
FEW_RIGHT = 2  # right answers of a short proof, next to the solution
_RIGHT = "RIGHT_ANSWERS"
SETTINGS = {"backend": "sim", "interactive": False, "quick": True}


@dataclass(frozen=True)
class WrongAnswer:
    """A plausible mistake: its label, its answer as in `try_answer`, and part of the expected message."""

    label: str
    answer: Any
    message: str


@dataclass(frozen=True)
class Proof:
    """Result of the proof of one exercise: number of answers tried, findings, and the seconds it took."""

    exercise: str
    tried: int
    findings: list[str]
    time_s: float


@dataclass(frozen=True)
class Answers:
    """The content of a lab's `wrong_answers.py`, by exercise."""

    wrong: dict[str, list[WrongAnswer]]
    right: dict[str, list[tuple[str, Any]]]


def answers_of(lab: Lab) -> Answers:
    """The wrong answers and the unusual right answers of a lab; none if it has no such file.

    Raises CourseFailure: the file cannot be run, or lists other objects.
    """
    if not lab.wrong_answers.is_file():
        return Answers({}, {})
    try:
        listed = runpy.run_path(str(lab.wrong_answers))
        wrong = {name: [WrongAnswer(*one) for one in many] for name, many in listed["WRONG_ANSWERS"].items()}
        right = {name: [(label, answer) for label, answer in many] for name, many in listed.get(_RIGHT, {}).items()}
    except Exception as error:
        raise CourseFailure(
            f"{lab.wrong_answers} must list WRONG_ANSWERS as (label, answer, part of its message), and {_RIGHT} as "
            f"(label, answer): {type(error).__name__}: {error}; correct it."
        ) from None
    return Answers(wrong, right)


def prove(lab: Lab, only: str = "", seeds: Sequence[int] = (0,), *, every_answer: bool = True) -> Iterator[Proof]:
    """Prove every exercise of a lab, or the one called `only`, with each seed of the inputs.

    `every_answer`: try every answer; otherwise the first wrong one for each message, and the first two right ones.
    Raises CourseError: no such exercise, or a master, checks or answers that do not match.
    """
    master, answers = read_master(lab), answers_of(lab)
    if not every_answer:
        wrong = {name: _one_of_each(listed) for name, listed in answers.wrong.items()}
        answers = Answers(wrong, {name: listed[:FEW_RIGHT] for name, listed in answers.right.items()})
    used = [check.check_name or "" for _, check in master.exercises]
    problem = _problem(lab, used, answers)
    if problem:
        raise CourseFailure(f"{lab.folder}: {problem}")
    if only and only not in used:
        raise CourseError(str(unknown_name(f"exercise of lab {lab.number}", only, used)))
    for name in [only] if only else used:
        start_s = time.perf_counter()
        found = [text for seed in seeds for text in _findings(master, name, answers, seed)]
        tried = 2 + len(answers.wrong.get(name, [])) + len(answers.right.get(name, []))
        yield Proof(name, tried * len(seeds), list(dict.fromkeys(found)), time.perf_counter() - start_s)


def _one_of_each(wrong: list[WrongAnswer]) -> list[WrongAnswer]:
    """The first wrong answer for each message; all, where that is fewer than an exercise needs."""
    first = {one.message: one for one in reversed(wrong)}
    chosen = [one for one in wrong if first[one.message] is one]
    return chosen if len(chosen) >= MIN_WRONG else wrong


def _problem(lab: Lab, used: list[str], answers: Answers) -> str:
    """The reason why a lab's files cannot be proven; "" if there is none."""
    declared = {exercise.name: exercise for exercise in exercises_of(lab)}
    if set(used) != set(declared):
        return f"checks and exercises must be the same: checks.py has {sorted(declared)}, lab.py uses {sorted(used)}."
    other = (set(answers.wrong) | set(answers.right)) - set(used)
    if other:
        return f"answers to exercises that do not exist: {sorted(other)}."
    few = [name for name in used if len(answers.wrong.get(name, [])) < MIN_WRONG]
    if few:
        return f"every exercise needs {MIN_WRONG} wrong answers: {few[0]} has {len(answers.wrong.get(few[0], []))}."
    bare = [name for name, exercise in declared.items() if not (exercise.hints and exercise.title)]
    return f"every exercise needs a title and hints: {bare[0]} lacks them." if bare else ""


def _findings(master: Master, name: str, answers: Answers, seed: int) -> Iterator[str]:
    from lablib.course.running.on_gpu import try_on_gpu  # here: on_gpu imports this file

    exercise, check = next(pair for pair in master.exercises if pair[1].check_name == name)
    solution = try_answer(master, exercise, check, exercise.source, seed)
    if solution.status != "passed":
        yield f"the solution does not pass (seed {seed}): {solution.message}"
    elif (on_gpu := try_on_gpu(master, exercise, check, seed)).status != "passed":
        yield f"on a GPU the solution would not pass (seed {seed}): {on_gpu.message}"
    stub = try_answer(master, exercise, check, to_stub(exercise.source), seed)
    if stub.status != "not attempted":
        yield f"the stub is not 'not attempted': {stub.message}"
    for label, answer in answers.right.get(name, []):
        result = try_answer(master, exercise, check, answer, seed)
        if result.status != "passed":
            yield f"a right answer does not pass, {label!r} (seed {seed}): {result.message}"
    label_of: dict[tuple[str, str, str], str] = {}
    for wrong in answers.wrong.get(name, []):
        result = try_answer(master, exercise, check, wrong.answer, seed)
        if result.status != "failed":
            yield f"a wrong answer is not rejected, {wrong.label!r} (seed {seed}): {result.message}"
        elif wrong.message not in result.message:
            yield f"{wrong.label!r} must get the message {wrong.message!r} (seed {seed}): {result.message}"
        else:
            said = (result.rule, result.saw, result.expected)
            if said in label_of:
                yield f"{wrong.label!r} and {label_of[said]!r} get the same message (seed {seed}): {result.message}"
            label_of[said] = wrong.label


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
            at_once = bound_at_once(cell.source)
            needed = (needed - at_once) | (uses - at_once)
    return chosen


def try_answer(
    master: Master, exercise: Cell, check: Cell, answer: Any, seed: int | None = 0, with_input: bool = False
) -> Result:
    """The check's result for an answer: run the cells that the exercise needs, then the answer, then the check.

    Args:
        answer: source that replaces the exercise's cell (text), or the answer itself (a function, a number).
        seed: seed of the inputs; None: a new one.
        with_input: find the input on which a wrong answer fails, by a second run of the check.
    """
    declared = {e.name: e for e in exercises_of(master.lab)}
    namespace: dict[str, Any] = {"__name__": f"lab_{master.lab.number}", "display": lambda *shown, **options: None}
    with contextlib.chdir(master.lab.labs), contextlib.redirect_stdout(io.StringIO()):
        for cell in needed_cells(master, exercise, check):
            execute(master, cell, _without_last_value(cell.source), namespace)
            if cell.tagged("parameters"):
                namespace.update(SETTINGS)
        if isinstance(answer, str):
            execute(master, exercise, textwrap.dedent(answer).strip("\n"), namespace)
        else:
            call = check.check_call
            if call is None or not call.args or not isinstance(call.args[0], ast.Name):
                raise CourseError(
                    str(at(master, check, "a check must be given its answer by name: check.name(answer)."))
                )
            namespace[call.args[0].id] = answer
        # The check's own call, with a `check` that records nothing and never raises.
        trial = _Trial(master.lab.number, declared, seed, with_input)
        execute(master, check, check.source, namespace | {"check": trial})
    assert trial.result is not None  # a check cell ends in check.name(...): rule 6 of lint
    return trial.result


class _Trial:
    """Stand-in for `check`: `trial.name(answer)` keeps the result."""

    def __init__(self, lab: str, declared: dict[str, Exercise], seed: int | None, with_input: bool):
        self._lab, self._declared, self._with = lab, declared, {"seed": seed, "with_input": with_input}
        self.result: Result | None = None

    def __getattr__(self, name: str) -> Any:
        def call(*answer: Any, **options: Any) -> Result:
            self.result = run_check(self._lab, self._declared[name], *answer, **self._with, **options)
            return self.result

        return call


def execute(master: Master, cell: Cell, source: str, namespace: dict[str, Any]) -> None:
    """Run a cell so that tracebacks and `inspect` find its source."""
    filename = f"<lab {master.lab.number}, cell in line {cell.line}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), namespace)


def _without_last_value(source: str) -> str:
    """A cell's source without the expression that ends it."""
    statements = ast.parse(source).body
    if not statements or not isinstance(last := statements[-1], ast.Expr):
        return source
    lines = source.splitlines(keepends=True)[: last.lineno]
    return "".join(lines[:-1]) + lines[-1].encode()[: last.col_offset].decode()
