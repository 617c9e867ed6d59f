"""nbgrader's own commands on right, wrong, empty and odd submissions: hand out, grade, and read the gradebook.

Where nbgrader is not installed (`pip install -r requirements-grading.lock`), this is skipped; CI installs it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from lablib.course.build import build_nbgrader
from lablib.course.places import Lab
from tests.course.conftest import EXAMPLE

pytest.importorskip("nbgrader", reason="nbgrader is not installed: pip install -r requirements-grading.lock")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NAME = "90_example"
RIGHT = {"mean": "def mean(values):\n    return sum(values) / len(values)", "size": "size_bytes = 40"}
WARNS = "import sys, warnings\n\ndef mean(values):\n    warnings.warn('careful')\n    print('!', file=sys.stderr)\n"


def nbgrader(course: Path, *words: str) -> str:
    """One of nbgrader's commands in this course folder; what it said."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # it calls alembic by name
    environment = os.environ | {"PATH": beside, "LAB_LABS": str(EXAMPLE), "LAB_PROGRESS": str(course / "progress.json")}
    command = [sys.executable, "-m", "nbgrader", *words, f"--course-dir={course}"]
    done = subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def answered(answers: dict[str, str]) -> Callable[[NotebookNode], None]:
    """A learner who writes these answers over the stubs."""

    def work(notebook: NotebookNode) -> None:
        for cell in notebook.cells:
            name = cell.metadata.get("nbgrader", {}).get("grade_id")
            cell.source = answers.get(name, cell.source)

    return work


def tampered(notebook: NotebookNode) -> None:
    """A learner who would rather pass than answer: checks, and the cell that makes them, are written over."""
    for cell in notebook.cells:
        marks = cell.metadata.get("nbgrader", {})
        if marks.get("locked"):
            cell.source = "pass"


NOISY = {"mean": f"{WARNS}    return sum(values) / len(values)", "size": RIGHT["size"]}
WRONG = {"mean": "def mean(values):\n    return sum(values)", "size": "size_bytes = 10"}
BROKEN = {"mean": "def mean(values: this is no Python", "size": RIGHT["size"]}
SUBMISSIONS = {
    "right": (answered(RIGHT), {"check-mean": 2.0, "check-size": 1.0}),
    "right, with warnings": (answered(NOISY), {"check-mean": 2.0, "check-size": 1.0}),
    "wrong": (answered(WRONG), {}),
    "empty": (answered({}), {}),
    "half, and no Python": (answered(BROKEN), {"check-size": 1.0}),
    "tampered": (tampered, {}),
}


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course folder in which the assignment was handed out, worked on, graded and answered with feedback."""
    course = tmp_path_factory.mktemp("course")
    build_nbgrader([Lab(NAME, EXAMPLE)], course)
    nbgrader(course, "generate_assignment", NAME)
    released = course / "release" / NAME / f"{NAME}.ipynb"
    for student, (work, _) in SUBMISSIONS.items():
        notebook = nbformat.read(released, as_version=4)
        work(notebook)
        submitted = course / "submitted" / student / NAME / f"{NAME}.ipynb"
        submitted.parent.mkdir(parents=True)
        nbformat.write(notebook, submitted)
    said = nbgrader(course, "autograde", NAME)
    assert "partial credit" not in said  # what it says of a graded cell that ends in something else than points
    nbgrader(course, "generate_feedback", NAME)
    return course


@pytest.fixture(scope="module")
def scores(course: Path) -> dict[str, dict[str, float]]:
    """Points by student and check, from the gradebook."""
    code = (
        "import json, sys\n"
        "from nbgrader.api import Gradebook\n"
        "with Gradebook('sqlite:///' + sys.argv[1]) as book:\n"
        "    submissions = book.assignment_submissions(sys.argv[2])\n"
        "    print(json.dumps({s.student.id: {g.name: g.auto_score for n in s.notebooks for g in n.grades}"
        " for s in submissions}))\n"
    )
    command = [sys.executable, "-c", code, str(course / "gradebook.db"), NAME]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("student", SUBMISSIONS)
def test_each_answer_has_its_points(scores: dict[str, dict[str, float]], student: str):
    assert scores[student] == {"check-mean": 0.0, "check-size": 0.0} | SUBMISSIONS[student][1]


def test_what_is_handed_out_has_no_solution(course: Path):
    text = (course / "release" / NAME / f"{NAME}.ipynb").read_text()
    assert "SOLUTION" not in text and "sum(values) / len" not in text and "NotImplementedError" in text


def test_feedback_says_which_rule_was_broken(course: Path):
    page = (course / "feedback" / "wrong" / NAME / f"{NAME}.html").read_text()
    assert "lab 90, mean" in page and "passed" in (course / "feedback" / "right" / NAME / f"{NAME}.html").read_text()


def test_grading_writes_no_progress_of_whoever_grades(course: Path):
    assert not (course / "progress.json").exists()
