"""Checks and hints in a notebook.

In a notebook:                                     In labs/masters/08_collectives/checks.py:

    from lablib.course import checks_for               @exercise("Ring all-reduce", hints=["...", "..."])
    check = checks_for("08")                           def ring_all_reduce(expect, answer):
    check.ring_all_reduce(ring_all_reduce)                 run = expect.launch(program, answer, ranks=4)
    check.ring_all_reduce.hint()                           expect.equal("every rank holds the sum", run.values, ...)
    check.ring_all_reduce.solution()                       # after the last hint

A check reports any error in a learner's code, and the lab goes on. With `LAB_STRICT=1`, as CI proves solutions, an
exercise that is not passed raises.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stderr
from dataclasses import replace
from typing import Any

from lablib.course.building.master import read_master
from lablib.course.building.solution import without_markers
from lablib.course.checks.exercise import RESERVED, Exercise, exercises_of
from lablib.course.checks.result import Hint, Result, ShownSource
from lablib.course.checks.trial import run_check
from lablib.course.errors import CourseError
from lablib.course.mine import save_answer
from lablib.course.places import find_lab, find_labs, find_labs_folder
from lablib.course.progress import Entry, Progress, progress_path
from lablib.course.translation import say_for
from lablib.errors import unknown_name
from lablib.signature import checked
from lablib.text.units import plural


class Check:
    """`check.name`: call it with an answer; `.hint()` gives the next hint, and then `.solution()` the solution."""

    def __init__(self, lab: str, exercise: Exercise, progress: Progress, solutions: bool = True):
        self.lab, self.exercise, self._progress, self._solutions = lab, exercise, progress, solutions
        self.__doc__ = (
            f"{exercise.title}. Call with your answer; .hint() gives the next of "
            f"{plural(len(exercise.hints), 'hints')}."
        )

    def __call__(self, *answer: Any, **options: Any) -> Result:
        """Check an answer and save the outcome.

        Raises AssertionError: the exercise is not passed, and `LAB_STRICT=1`.
        """
        # nbgrader gives no points to a cell that writes to stderr, and a right answer may make a library warn.
        with redirect_stderr(sys.stdout) if "NBGRADER_EXECUTION" in os.environ else nullcontext():
            result = run_check(self.lab, self.exercise, *answer, with_input=True, **options)
        entry, notes = self._progress.change(self.lab, self.exercise.name, lambda e: e.attempted(result.status))
        if self._progress.path is not None:
            notes += save_answer(find_lab(self.lab, find_labs_folder()), self.exercise, result.status, answer)
        result = replace(result, next_step=self._next_step(result, entry), notes=tuple(notes))
        return result.require() if os.environ.get("LAB_STRICT") == "1" else result

    @property
    def is_passed(self) -> bool:
        """Whether an attempt passed, in this kernel or before."""
        return bool(self._progress.entry(self.lab, self.exercise.name).passed_at)

    def hint(self) -> Hint:
        """The next hint, with those before it. Saves the hints taken."""
        total = len(self.exercise.hints)
        entry, _ = self._progress.change(self.lab, self.exercise.name, lambda e: e.hinted(total))
        say = say_for(self.lab)
        shown = tuple(map(say, self.exercise.hints[: entry.hints]))
        return Hint(say(self.exercise.title), shown, total - entry.hints)

    def solution(self) -> ShownSource:
        """The solution, after the last hint or once the exercise is passed; otherwise the reason why not."""
        text = "this copy of the lab has no solutions; ask the person who gave it to you."
        if self._has_solution:
            left = len(self.exercise.hints) - self._progress.entry(self.lab, self.exercise.name).hints
            text = f"the solution follows the last hint: check.{self.exercise.name}.hint() ({left} left)."
            if left <= 0 or self.is_passed:
                exercises = read_master(find_lab(self.lab, find_labs_folder())).exercises
                cells = {check.check_name: cell for cell, check in exercises}
                text = without_markers(cells[self.exercise.name].source)
        say = say_for(self.lab)
        return ShownSource(say(self.exercise.title), say(text), is_open=True)

    @property
    def _has_solution(self) -> bool:
        """Are solutions shown here? Not where nbgrader runs a learner's code next to the masters."""
        is_allowed = self._solutions and "NBGRADER_EXECUTION" not in os.environ
        return is_allowed and find_lab(self.lab, find_labs_folder()).master.is_file()

    def __repr__(self) -> str:
        entry = self._progress.entry(self.lab, self.exercise.name)
        say = say_for(self.lab)
        status = say("passed" if entry.passed_at else entry.status)
        return f"check.{self.exercise.name}: {say(self.exercise.title)} ({status})"

    def _next_step(self, result: Result, entry: Entry) -> str:
        left = max(0, len(self.exercise.hints) - entry.hints)
        if result.status not in ("failed", "not attempted") or not (left or self._has_solution):
            return result.next_step
        call = f"hint() gives a hint ({left} left)" if left else "solution() shows the solution"
        return f"{result.next_step} check.{self.exercise.name}.{call}."


class Checks:
    """All checks of one lab, as attributes. Made by `checks_for`."""

    def __init__(self, lab: str, exercises: Sequence[Exercise], progress: Progress, solutions: bool = True):
        self._lab = lab
        self._checks = {e.name: Check(lab, e, progress, solutions) for e in exercises}

    @property
    def names(self) -> list[str]:
        return list(self._checks)

    def hint(self, name: str) -> Hint:
        """The next hint of the exercise `name`; the same as `check.name.hint()`."""
        return getattr(self, name).hint()

    def __getattr__(self, name: str) -> Check:
        if not name.startswith("_") and name in self._checks:
            return self._checks[name]
        if name.startswith("_"):  # Jupyter and copy ask every object for such names
            raise AttributeError(name)
        raise AttributeError(str(unknown_name(f"check of lab {self._lab}", name, self.names)))

    def __dir__(self) -> list[str]:
        return [*self._checks, *RESERVED]

    def __repr__(self) -> str:
        return "\n".join([say_for()(f"lab {self._lab}:"), *(f"  {check!r}" for check in self._checks.values())])


@checked
def checks_for(lab: str | int, solutions: bool = True) -> Checks:
    """The checks of a lab, by number: `checks_for("08")`. `solutions=False`, as in an assignment, shows no solutions.

    Raises CourseError: no such lab has checks.
    """
    number = f"{int(lab):02d}" if str(lab).isdecimal() else str(lab)
    with_checks = {lab.number: lab for lab in find_labs(find_labs_folder()) if lab.checks.is_file()}
    if number not in with_checks:
        raise CourseError(str(unknown_name("lab with checks", number, sorted(with_checks))))
    return Checks(number, exercises_of(with_checks[number]), Progress(progress_path()), solutions)
