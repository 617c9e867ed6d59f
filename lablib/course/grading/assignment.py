"""An nbgrader assignment from a master: its exercises and their checks, without slow cells.

    text       the lab's head, and the text of each exercise's section down to its check
    code       cells that exercises and checks need (proof.py), locked: nbgrader restores locked cells before it grades;
               cells between an exercise and its check; other code of these sections as text, which is not run
    exercise   with the solution between nbgrader's own markers, from which it makes the stub
    check      raises unless it passes, since nbgrader grades a cell by whether it raises

Training, figures and measurements stay out: a submission is graded in seconds, not minutes. While nbgrader grades,
checks record no progress, which would be the grader's (progress.py).

Metadata: nbgrader's schema 3 (nbgrader.readthedocs.io, "The metadata of nbgrader's cells").
"""

import re

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from lablib.course.building.master import Cell, Master
from lablib.course.building.notebook import Version, make_notebook, stamp
from lablib.course.checks.proof import needed_cells

_CHECKS = re.compile(r"""(\bchecks_for\(["']?\w+["']?)\)""")
_HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)


def make_assignment(master: Master) -> NotebookNode:
    """The input of `nbgrader generate_assignment`, with solutions."""
    notebook = make_notebook(master, Version.INSTRUCTOR)  # one cell for each cell of the master
    needed, shown, tried = set[int](), {0}, set[int]()
    for exercise, check in master.exercises:
        first, last = master.cells.index(exercise), master.cells.index(check)
        above = ((n, master.cells[n]) for n in range(first, 0, -1))
        heading = next((n for n, cell in above if cell.kind != "code" and _HEADING.search(cell.source)), first)
        shown |= set(range(heading, last + 1))
        tried |= set(range(first + 1, last))
        for cell in master.cells[first + 1 : last + 1]:
            if cell.kind == "code":
                needed |= {master.cells.index(one) for one in needed_cells(master, exercise, cell)}
    name_of = {cell: check.check_name or "" for exercise, check in master.exercises for cell in (exercise, check)}
    cells = []
    for position in sorted(shown | needed):
        cell, made = master.cells[position], notebook.cells[position]
        if cell.tagged("exercise"):
            cells.append(_marked(made, name_of[cell], is_solution=True))
        elif cell.tagged("check"):
            made.source = _requiring(cell)
            cells.append(_marked(made, f"check-{name_of[cell]}", is_locked=True, points=cell.points))
        elif position in needed:
            cells.append(_marked(made, f"needed-{made.id}", is_locked=True))
            made.source = _CHECKS.sub(r"\1, solutions=False)", made.source)
        elif cell.kind == "code" and position not in tried:
            cells.append(new_markdown_cell(f"```python\n{cell.source}\n```"))
        elif not cell.tagged("instructor"):
            cells.append(made)
    notebook.cells = cells
    notebook.metadata.lablib["version"] = "nbgrader"
    stamp(notebook)
    return notebook


def _marked(
    made: NotebookNode, grade_id: str, is_solution: bool = False, is_locked: bool = False, points: float | None = None
) -> NotebookNode:
    """A cell with nbgrader's metadata; a cell with points is graded."""
    made.metadata["nbgrader"] = {
        "schema_version": 3,
        "grade": points is not None,
        "grade_id": grade_id,
        "locked": is_locked,
        "solution": is_solution,
        "task": False,
    } | ({} if points is None else {"points": points})
    return made


def _requiring(check: Cell) -> str:
    """The check's source with its call shown and required: an exercise not passed raises, and nbgrader gives 0.

    Shown by `display`, since nbgrader takes the last value of a graded cell for a number of points.
    """
    call = check.check_call
    assert call is not None and call.end_lineno and call.end_col_offset  # rule 6 of lint
    source = check.source.encode()  # ast counts columns in UTF-8 bytes
    starts = [0, *(match.end() for match in re.finditer(rb"\n", source))]
    begin, end = starts[call.lineno - 1] + call.col_offset, starts[call.end_lineno - 1] + call.end_col_offset
    return (source[:begin] + b"display(" + source[begin:end] + b".require())" + source[end:]).decode()
