"""nbgrader settings for assignments: timeouts, and no grade for a notebook that failed elsewhere.

`lab build --nbgrader FOLDER` writes FOLDER/nbgrader_config.py, which calls `configure`. nbgrader's default settings
stop a cell after 30 s. On a busy machine the cell of imports takes longer, every check after it ends in a NameError,
and nbgrader records 0 points for right answers. With these settings

    a cell, the start of a kernel and its messages have minutes
    a notebook in which a locked cell fails, or any cell is stopped, is not graded: autograde reports the reason and
    continues with the next one, and `nbgrader export` writes "not graded" instead of a number (grades_export.py)
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from lablib.course.errors import CourseFailure, cannot_write
from lablib.text.files import read_text, write_text

CELL_TIMEOUT_S = 600  # twice the longest time of a check
STARTUP_TIMEOUT_S = 300
_MESSAGE_TIMEOUT_S = 60  # nbclient's 4 s are too short on a busy machine
_STOPPED = ("CellTimeoutError", "KeyboardInterrupt")
_NOT_CHECKED = re.compile(r"lab \w+, \w+: not checked\b")
_CALL = "lablib.course.grading.settings"
_CONFIG = f'''"""Settings of nbgrader for assignments of lablib."""

from {_CALL} import configure

c = get_config()
configure(c, cell_timeout_s={CELL_TIMEOUT_S}, startup_timeout_s={STARTUP_TIMEOUT_S})
'''


class NotGraded(CourseFailure):
    """A cell around the answers of a notebook failed, so the answers cannot be graded."""


def write_config(folder: Path) -> str:
    """Write `nbgrader_config.py` into a course folder, unless it exists. Returns a message."""
    path = folder / "nbgrader_config.py"
    try:
        if not path.exists():
            write_text(path, _CONFIG)
            return f"{path}: written"
        if _CALL in read_text(path):
            return f"{path}: up to date"
    except (OSError, ValueError) as error:
        raise cannot_write(path, error) if isinstance(error, OSError) else CourseFailure(f"{error}.") from None
    lines = "; ".join(line for line in _CONFIG.splitlines() if "configure" in line)
    return (
        f"{path}: yours, left as it is. Without our settings nbgrader stops a cell after 30 s and gives 0 points for "
        f"what did not run; add below `c = get_config()`: {lines}"
    )


def configure(c: Any, cell_timeout_s: int = CELL_TIMEOUT_S, startup_timeout_s: int = STARTUP_TIMEOUT_S) -> None:
    """Fill in nbgrader's configuration object; called from nbgrader_config.py."""
    from nbgrader.converters import Autograde  # pyright: ignore[reportMissingImports]

    # nbgrader calls alembic by name, so its environment must be on PATH.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    c.Execute.timeout = cell_timeout_s
    c.Execute.startup_timeout = startup_timeout_s
    c.Execute.iopub_timeout = _MESSAGE_TIMEOUT_S
    steps = c.Autograde.get("autograde_preprocessors") or Autograde.class_traits()["autograde_preprocessors"].default()
    first = steps[:1]  # runs the notebook
    c.Autograde.autograde_preprocessors = [clear_grades, *first, require_run, *steps[1:]]
    c.ExportApp.plugin_class = "lablib.course.grading.grades_export.GradesExport"


def reason_not_graded(notebook: NotebookNode) -> str:
    """Reason why the answers of an executed notebook cannot be graded, or ""."""
    for number, cell in enumerate(notebook.cells, 1):
        marks = cell.metadata.get("nbgrader", {})
        errors = [output for output in cell.get("outputs", []) if output.output_type == "error"]
        kind = "check" if marks.get("grade") else "locked" if marks.get("locked") else "answer"
        is_stopped = any(error.ename in _STOPPED for error in errors)
        # An error in an answer is the learner's. A check turns every failure of an answer into an AssertionError, which
        # says "not checked" on a busy machine; a NameError means that the cell of the answer did not run to its end.
        allowed = {"answer": {error.ename for error in errors}, "check": {"AssertionError", "NameError"}}.get(
            kind, set()
        )
        failed = [error for error in errors if error.ename not in allowed or _NOT_CHECKED.match(error.evalue)]
        if is_stopped or failed:
            first = next(iter(cell.source.strip().splitlines()), "")
            said = "was stopped by a timeout" if is_stopped else f"raised {failed[0].ename}: {failed[0].evalue}"
            return f"{kind} cell {number}, `{first}`, {said.splitlines()[0]}"
    return ""


def clear_grades(notebook: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
    """A preprocessor: delete automatic grades before the notebook runs, so that a failed run leaves no old grades."""
    from nbgrader.api import Gradebook  # pyright: ignore[reportMissingImports]

    about = resources["nbgrader"]
    with Gradebook(about["db_url"]) as book:
        for grade in book.find_submission_notebook(about["notebook"], about["assignment"], about["student"]).grades:
            grade.auto_score, grade.needs_manual_grade = None, False
        book.db.commit()
    return notebook, resources


def require_run(notebook: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
    """A preprocessor: stop grading a notebook with answers that cannot be graded; autograde reports the error.

    Raises NotGraded: with the cell and the reason.
    """
    reason = reason_not_graded(notebook)
    if reason:
        about = resources["nbgrader"]
        again = f"nbgrader autograde {about['assignment']} --student={about['student']}"
        raise NotGraded(f"{about['student']} is not graded: {reason}; once that is corrected, run `{again}`.")
    return notebook, resources
