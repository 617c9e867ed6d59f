"""Checks: what a notebook asks about a learner's answer, and what it is told.

In a notebook:                                     In labs/masters/08_collectives/checks.py:

    from lablib.course import checks_for               @exercise("Ring all-reduce", hints=["...", "..."])
    check = checks_for("08")                           def ring_all_reduce(expect, solution):
    check.ring_all_reduce(ring_all_reduce)                 run = launch(program, solution, ranks=4)
    check.ring_all_reduce.hint()                           expect.equal("every rank holds the sum", run.values, ...)

Whatever a learner's code does, a check reports it and the lab goes on. With `LAB_STRICT=1`, as solutions are proven in
CI, an exercise that is not passed raises.
"""

import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from lablib.course.errors import CourseError
from lablib.course.expect import Expect, NotAttempted, RuleBroken
from lablib.course.learner_code import chain, is_stub, learner_frames, program_error
from lablib.course.places import Lab, find_labs, find_labs_folder
from lablib.course.progress import Entry, Progress, progress_path
from lablib.course.result import Hint, Result
from lablib.errors import LaunchError, RankError, UnwaitedWarning, unknown_name
from lablib.signature import checked

_RESERVED = ("hint", "names")


@dataclass(frozen=True)
class Exercise:
    """One exercise as its check declares it. `run(expect, answer, ...)` returns if the answer is right."""

    name: str
    title: str
    hints: tuple[str, ...]
    run: Callable[..., None]


@checked
def exercise(title: str, hints: Sequence[str] = ()) -> Callable[[Callable[..., None]], Exercise]:
    """Declare a check; its name is the function's.

    Args:
        title: what the learner sees.
        hints: from the first nudge to nearly the answer.

    Raises:
        ValueError: a name the notebook needs for something else, or hints that are not a list.
    """
    if isinstance(hints, str):
        raise ValueError(f"hints must be a list of texts: got one text, {hints!r}; put it in brackets.")

    def declare(run: Callable[..., None]) -> Exercise:
        if run.__name__ in _RESERVED or run.__name__.startswith("_"):
            raise ValueError(f"a check must not be called {run.__name__!r}: choose a name of its own.")
        return Exercise(run.__name__, title, tuple(hints), run)

    return declare


def run_check(lab: str, exercise: Exercise, *answer: Any, **options: Any) -> Result:
    """Try one answer. Nothing is recorded, and nothing that happens in the learner's code is raised."""
    result = Result(lab, exercise.name, exercise.title, "not attempted", next_step="solve the exercise above.")
    if not answer or answer[0] is None or answer[0] is Ellipsis:
        return result
    expect = Expect()
    try:
        with _everything_waited_for():
            exercise.run(expect, *answer, **options)
    except NotAttempted:
        return result
    except Exception as error:
        check_file = exercise.run.__code__.co_filename
        if is_stub(error, check_file) or any(isinstance(e, NotAttempted) for e in chain(error)):
            return result
        rule, saw, expected, trace = _explain(error, check_file)
        return replace(
            result,
            status="failed",
            rule=rule,
            saw=saw,
            expected=expected,
            trace=trace,
            measured=tuple(expect.measured),
            next_step="correct it, run its cell, and check again.",
        )
    return replace(result, status="passed", measured=tuple(expect.measured), next_step="")


@contextmanager
def _everything_waited_for() -> Iterator[None]:
    """Break a rule when a launch inside drops the handle of a communication: its values are right by luck, if at all.

    A rule that such values break is the consequence; this one is what the learner must know.
    """
    broken: RuleBroken | None = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnwaitedWarning)
        try:
            yield
        except RuleBroken as error:
            broken = error
    for warning in caught:
        if issubclass(warning.category, UnwaitedWarning):
            raise RuleBroken(
                "every communication is waited for", str(warning.message), "a wait() for each asynchronous call"
            ) from broken
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if broken is not None:
        raise broken


class Check:
    """`check.name`: call it with an answer; `.hint()` gives the next hint."""

    def __init__(self, lab: str, exercise: Exercise, progress: Progress):
        self.lab, self.exercise, self._progress = lab, exercise, progress
        self.__doc__ = (
            f"{exercise.title}. Call with your answer; .hint() gives the next of {len(exercise.hints)} hints."
        )

    def __call__(self, *answer: Any, **options: Any) -> Result:
        """Check an answer and save the outcome.

        Raises:
            AssertionError: the exercise is not passed, and `LAB_STRICT=1`.
        """
        result = run_check(self.lab, self.exercise, *answer, **options)
        entry, notes = self._progress.change(self.lab, self.exercise.name, lambda e: e.attempted(result.status))
        result = replace(result, next_step=self._next_step(result, entry), notes=tuple(notes))
        return result.require() if os.environ.get("LAB_STRICT") == "1" else result

    def hint(self) -> Hint:
        """The next hint; the ones before it are shown too. Which hints were taken is saved."""
        total = len(self.exercise.hints)
        entry, _ = self._progress.change(
            self.lab, self.exercise.name, lambda e: replace(e, hints=min(e.hints + 1, total))
        )
        return Hint(self.exercise.title, self.exercise.hints[: entry.hints], total - entry.hints)

    def __repr__(self) -> str:
        entry = self._progress.entry(self.lab, self.exercise.name)
        return f"check.{self.exercise.name}: {self.exercise.title} ({'passed' if entry.passed_at else entry.status})"

    def _next_step(self, result: Result, entry: Entry) -> str:
        left = max(0, len(self.exercise.hints) - entry.hints)
        if result.status == "passed" or not left:
            return result.next_step
        return f"{result.next_step} check.{self.exercise.name}.hint() gives a hint ({left} left)."


class Checks:
    """All checks of one lab; each is an attribute. Made by `checks_for`."""

    def __init__(self, lab: str, exercises: Sequence[Exercise], progress: Progress):
        self._lab = lab
        self._checks = {e.name: Check(lab, e, progress) for e in exercises}

    @property
    def names(self) -> list[str]:
        """Names of the lab's exercises, in order."""
        return list(self._checks)

    def hint(self, name: str) -> Hint:
        """The next hint of the exercise called `name`; the same as `check.name.hint()`."""
        return getattr(self, name).hint()

    def __getattr__(self, name: str) -> Check:
        if not name.startswith("_") and name in self._checks:
            return self._checks[name]
        if name.startswith("_"):  # what Jupyter and copy ask every object for
            raise AttributeError(name)
        raise AttributeError(str(unknown_name(f"check of lab {self._lab}", name, self.names)))

    def __dir__(self) -> list[str]:
        return [*self._checks, *_RESERVED]

    def __repr__(self) -> str:
        return "\n".join([f"lab {self._lab}:", *(f"  {check!r}" for check in self._checks.values())])


@checked
def checks_for(lab: str | int) -> Checks:
    """The checks of a lab, by number: `checks_for("08")`.

    Raises:
        CourseError: no such lab has checks.
    """
    number = f"{int(lab):02d}" if str(lab).isdecimal() else str(lab)
    with_checks = {lab.number: lab for lab in find_labs(find_labs_folder()) if lab.checks.is_file()}
    if number not in with_checks:
        raise CourseError(str(unknown_name("lab with checks", number, sorted(with_checks))))
    return Checks(number, exercises_of(with_checks[number]), Progress(progress_path()))


def exercises_of(lab: Lab) -> list[Exercise]:
    """The exercises that a lab's file of checks declares, in order; none if it has no such file."""
    if not lab.checks.is_file():
        return []
    # Run anew each time, as its author may have changed it, under a name that no two labs share.
    name = f"lablib_checks_of_{lab.name}"
    spec = importlib.util.spec_from_file_location(name, lab.checks)
    assert spec and spec.loader, lab.checks  # a .py file always has a loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [value for value in vars(module).values() if isinstance(value, Exercise)]


def _explain(error: Exception, check_file: str) -> tuple[str, str, str, str]:
    """An exception of a check as rule, saw, expected and where in the learner's code."""
    broken = next((e for e in chain(error) if isinstance(e, RuleBroken)), None)
    if broken is not None:
        return broken.rule, broken.saw, broken.expected, ""
    cause = program_error(error)
    name = type(cause).__name__
    where = f" on rank {error.rank}" if isinstance(error, RankError) else ""
    trace = learner_frames(cause, check_file) or (error.rank_traceback if isinstance(error, RankError) else "")
    if isinstance(error, LaunchError) and cause is error:  # a diagnosis: it names ranks and lines itself
        return "every rank runs to its end", f"{name}: {error}", "no deadlock, mismatch or lost worker", ""
    if trace:
        return "your code runs without an exception", f"{name}{where}: {cause}", "a returned value", trace
    rule = "your code returns what the exercise asks for"
    return rule, f"{name} when the check used it: {cause}", "see the exercise's text and docstring", ""
