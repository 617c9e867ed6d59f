"""Answers in a learner's notebooks as functions, for programs that continue with them.

    found, notes = own_answers({"all_reduce": ("08", "ring_all_reduce")}, folder=None)

An answer is taken only if its check passes today; a note says which was left out, and why. Without a folder these are
the answers saved in work/mine (mine.py), and of an exercise that progress lists as passed without one the answer in
work/; with a folder, every attempted answer of its notebooks. An answer of a notebook is the cell of its exercise
alone, with torch, dist, math and lablib.parallel.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lablib import parallel
from lablib.course.building.carry_over import exercise_names
from lablib.course.building.notebook import read_notebook
from lablib.course.checks.exercise import exercises_of
from lablib.course.checks.result import Result
from lablib.course.checks.trial import run_check
from lablib.course.errors import CourseError
from lablib.course.mine import saved_answer, saved_path
from lablib.course.overview import own_progress
from lablib.course.places import Lab, find_lab, find_labs_folder
from lablib.course.progress import entry_of

Wanted = Mapping[str, tuple[str, str]]  # a name for the program -> number of the lab, name of the exercise


def own_answers(wanted: Wanted, folder: Path | None = None) -> tuple[dict[str, Callable[..., Any]], list[str]]:
    """The answers that pass their checks, by the program's names, and a note for each that is left out.

    CourseError: the folder has no notebook of these labs.
    """
    labs, progress = find_labs_folder(), own_progress() if folder is None else {}
    found, notes, seen = dict[str, Callable[..., Any]](), list[str](), 0
    for part, (number, name) in wanted.items():
        lab = find_lab(number, labs)
        path = lab.work if folder is None else folder / f"{lab.name}.ipynb"
        is_saved = folder is None and saved_path(lab, name).is_file()
        if not (is_saved or (entry_of(progress, number, name).passed_at if folder is None else path.is_file())):
            continue
        seen += 1
        try:
            answer = saved_answer(lab, name) if is_saved else answer_of(path, name)
            result = checked_answer(lab, name, answer)
        except Exception as error:  # of the learner's own code
            notes.append(f"{name} of lab {number} is left out: {error}")
            continue
        if result.status == "passed":
            found[part] = answer
        elif folder is None or result.status != "not attempted":
            notes.append(f"{name} of lab {number} is left out, as its check does not pass: {result.message}")
    if folder is not None and not seen:
        names = ", ".join(sorted({find_lab(number, labs).name for number, _ in wanted.values()}))
        raise CourseError(f"a folder of answers must have a notebook of {names}: got {folder}; give your work folder")
    return found, notes


def answer_of(notebook: Path, name: str) -> Callable[..., Any]:
    """The function `name` of the exercise with that check in a learner's notebook.

    OSError, ValueError, SyntaxError: no such notebook or exercise. NameError: it needs another cell.
    """
    cells = read_notebook(notebook)
    source = next((cells.cells[at].source for at, each in exercise_names(cells).items() if each == name), None)
    if source is None:
        raise ValueError(f"{notebook.name} must have the exercise {name}: it was not found; give the function yourself")
    names: dict[str, Any] = {"__name__": "__main__", "torch": torch, "dist": dist, "math": math, "parallel": parallel}
    exec(compile(source, f"{notebook.name}, {name}", "exec"), names)  # the learner's own code
    answer = names.get(name)
    if not callable(answer):
        raise ValueError(f"the cell of {name} must define it: got {answer!r}; give the function yourself")
    return answer


def checked_answer(lab: Lab, name: str, answer: Callable[..., Any]) -> Result:
    """The result of the exercise's check today; progress is not changed."""
    exercise = next(each for each in exercises_of(lab) if each.name == name)
    return run_check(lab.number, exercise, answer)
