"""`lab regrade FOLDER`: grade earlier submissions with the current checks, and list changed grades.

    submissions   in a course folder of nbgrader the notebooks in autograded/, and those in submitted/ that were not
                  graded; in any other folder every notebook of a lab, including a learner's copy of a whole lab
    before        the grade in the outputs of a notebook's check cells
    now           the current assignment (assignment.py) with the learner's answers and added cells, run in a separate
                  kernel as nbgrader runs it

Nothing is written: `nbgrader autograde --force` updates the gradebook. Learners' code runs with your rights.
"""

import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from lablib.course.building.carry_over import carry_over, exercise_names
from lablib.course.building.master import read_master
from lablib.course.building.notebook import read_notebook
from lablib.course.building.solution import to_stub
from lablib.course.errors import CourseError
from lablib.course.grading.assignment import make_assignment
from lablib.course.grading.settings import CELL_TIMEOUT_S, STARTUP_TIMEOUT_S, reason_not_graded
from lablib.course.places import Lab, find_lab, find_labs_folder
from lablib.course.running.environment import environment

_CHECK = re.compile(r"\bcheck\.(\w+)\(")
_SHOWN = re.compile(r"^(?:lab \w+, \w+: )?(passed|failed|not attempted): ")


@dataclass(frozen=True)
class Regraded:
    """A submission: its points by exercise, before and now (None: no grade); the reason for no grade now, or ""."""

    name: str
    points: dict[str, float]
    before: dict[str, float | None] = field(default_factory=dict)
    now: dict[str, float | None] = field(default_factory=dict)
    reason: str = ""

    @property
    def lines(self) -> list[str]:
        """A line for each grade that changes."""
        return [
            f"{self.name}: {name}: {_in_words(self.before.get(name))} before, now {_in_words(now)} of {most:g}"
            for name, most in self.points.items()
            if (now := self.now.get(name)) != self.before.get(name)
        ]


def regrade(folder: Path) -> Iterator[Regraded]:
    """Grade each submission in a folder again, one by one.

    Raises CourseError: it is no folder, or contains no notebook.
    """
    if not folder.is_dir():
        raise CourseError(f"lab regrade takes a folder of notebooks: {folder} is none; name an nbgrader course folder.")
    found = _submissions(folder)
    if not found:
        raise CourseError(f"lab regrade takes a folder of notebooks: no .ipynb file in {folder}; name another folder.")
    labs = find_labs_folder()
    for name, path in found.items():
        try:
            notebook = _valid(read_notebook(path))
            lab = find_lab(str(notebook.metadata.lablib.get("lab") or path.stem), labs)
            assignment = make_assignment(read_master(lab))
        except (OSError, ValueError) as error:  # includes CourseError
            yield Regraded(name, {}, reason=(getattr(error, "strerror", None) or str(error)).rstrip("."))
            continue
        yield _regraded(name, path, lab, notebook, assignment)


def _submissions(folder: Path) -> dict[str, Path]:
    """The notebooks to grade, by their names in a report; autograded/ takes precedence over submitted/."""
    parts = [folder / part for part in ("submitted", "autograded") if (folder / part).is_dir()]
    found = {
        path.relative_to(root).with_suffix("").as_posix(): path
        for root in parts or [folder]
        for path in root.rglob("*.ipynb")
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
    }
    return dict(sorted(found.items()))


def _valid(notebook: NotebookNode) -> NotebookNode:
    """The notebook, with an id per cell and metadata of our form. Raises ValueError for an invalid notebook."""
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        raise ValueError(f"it is no valid notebook: {error.message}") from None
    if not isinstance(notebook.metadata.setdefault("lablib", {}), dict):
        notebook.metadata["lablib"] = {}
    for number, cell in enumerate(notebook.cells):
        cell.setdefault("id", f"cell-{number}")
        if not isinstance(cell.metadata.get("nbgrader", {}), dict):
            del cell.metadata["nbgrader"]
    return notebook


def _regraded(name: str, path: Path, lab: Lab, notebook: NotebookNode, assignment: NotebookNode) -> Regraded:
    checks = [cell for cell in assignment.cells if cell.metadata.get("nbgrader", {}).get("grade")]
    points = {_CHECK.findall(cell.source)[0]: float(cell.metadata.nbgrader.points) for cell in checks}
    before = {} if reason_not_graded(notebook) else _grades(notebook, points)
    graded = with_answers(assignment, notebook)
    reason = _execute(graded, lab, path.parent) or reason_not_graded(graded)
    now = {} if reason else _grades(graded, points)
    return Regraded(name, points, before, now, reason)


def with_answers(assignment: NotebookNode, notebook: NotebookNode) -> NotebookNode:
    """The assignment with the learner's answers and added cells of an earlier notebook; locked cells are kept."""
    new, old = deepcopy(assignment), deepcopy(notebook)
    for cell in new.cells:
        if _marks(cell).get("solution"):
            cell.source = to_stub(cell.source)
    for cell in old.cells:  # nbgrader may have dropped the tags
        tag = "exercise" if _marks(cell).get("solution") else "check" if _marks(cell).get("grade") else ""
        if tag and tag not in cell.metadata.get("tags", []):
            cell.metadata["tags"] = [tag]
    locked = {cell.id: cell for cell in new.cells if _marks(cell).get("locked")}
    # A locked cell that the learner deleted counts as one that never existed.
    handed_out = [one for one in str(old.metadata.lablib.get("cells", "")).split() if one not in locked]
    old.metadata["lablib"] = {**old.metadata.lablib, "cells": " ".join(handed_out)}
    merged, _ = carry_over(old, new)
    merged.cells = [locked.get(cell.id, cell) for cell in merged.cells]
    # Includes an answer equal to the solution, which is no edit of the assignment.
    answers = {name: old.cells[position].source for position, name in exercise_names(old).items()}
    exercises = {new.cells[position].id: name for position, name in exercise_names(new).items()}
    for cell in merged.cells:
        cell.source = answers.get(exercises.get(cell.id, ""), cell.source)
    return merged


def _grades(notebook: NotebookNode, points: dict[str, float]) -> dict[str, float | None]:
    """Points by exercise, from the outputs of the check cells; a check that did not run has no entry."""
    grades: dict[str, float | None] = {}
    for cell in notebook.cells:
        called = _CHECK.search(cell.source)
        is_check = _marks(cell).get("grade") or "check" in cell.metadata.get("tags", [])
        if cell.cell_type != "code" or not is_check or called is None or called[1] not in points:
            continue
        texts = [output.get("evalue") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
        shown = [match[1] for text in texts if (match := _SHOWN.match(text))]
        if shown:
            grades[called[1]] = points[called[1]] * (shown[-1] == "passed")
        elif any(output.output_type == "error" for output in cell.outputs):
            grades[called[1]] = 0.0
    return grades


def _execute(notebook: NotebookNode, lab: Lab, folder: Path) -> str:
    """Run a notebook in place. Returns the reason if it did not run to its end, or ""."""
    from nbclient import NotebookClient

    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        startup_timeout=STARTUP_TIMEOUT_S,
        interrupt_on_timeout=True,
        allow_errors=True,
        kernel_name="python3",
        extra_arguments=["--log-level=CRITICAL", "--HistoryManager.hist_file=:memory:"],
        resources={"metadata": {"path": str(folder)}},
    )
    try:
        with environment(LAB_LABS=str(lab.labs.absolute()), LAB_PROGRESS="off", NBGRADER_EXECUTION="autograde"):
            client.execute()
    except Exception as error:  # a kernel that died or does not stop
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'the kernel did not answer'}"
    return ""


def _marks(cell: NotebookNode) -> dict:
    return cell.metadata.get("nbgrader", {})


def _in_words(points: float | None) -> str:
    return "not graded" if points is None else f"{points:g}"
