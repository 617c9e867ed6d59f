"""nbgrader's own commands on right, wrong, empty and odd submissions: hand out, grade, and read the gradebook.

Where nbgrader is not installed (`pip install -r requirements-grading.lock`), this is skipped; CI installs it.
"""

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from lablib.course.building.build import build_nbgrader
from lablib.course.places import Lab
from tests.course.conftest import EXAMPLE

pytest.importorskip("nbgrader", reason="nbgrader is not installed: pip install -r requirements-grading.lock")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NAME = "90_example"
RIGHT = {"mean": "def mean(values):\n    return sum(values) / len(values)", "size": "size_bytes = 40"}
WARNS = "import sys, warnings\n\ndef mean(values):\n    warnings.warn('careful')\n    print('!', file=sys.stderr)\n"


def nbgrader(course: Path, *words: str, labs: Path = EXAMPLE, exit_code: int = 0, **variables: str) -> str:
    """The output of an nbgrader command in this course folder; its environment is not on PATH."""
    environment = os.environ | {"PATH": os.defpath, "LAB_LABS": str(labs)} | variables
    environment["LAB_PROGRESS"] = str(course / "progress.json")
    command = [sys.executable, "-m", "nbgrader", *words, f"--CourseDirectory.root={course}"]
    done = subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True)
    assert done.returncode == exit_code, done.stdout + done.stderr
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


SLOW_S = 33  # more than the 30 s after which nbgrader stops a cell by default
SLOW_MODULE = f"""import os, time
time.sleep(float(os.environ.get("SLOW_IMPORT_S", {SLOW_S})))
if "BROKEN_IMPORT" in os.environ:
    raise ImportError("no such library on this machine")
"""


def exported_scores(course: Path, labs: Path) -> list[str]:
    nbgrader(course, "export", labs=labs)
    with open(course / "grades.csv") as file:
        return [row["score"] for row in csv.DictReader(file)]


@pytest.mark.timeout(1200)
def test_a_locked_cell_that_is_slow_or_fails_never_gives_a_right_answer_zero(tmp_path: Path):
    labs = tmp_path / "labs"
    shutil.copytree(EXAMPLE, labs)
    master = Lab(NAME, labs).master
    master.write_text(
        master.read_text().replace("from lablib.course import checks", "import slow\nfrom lablib.course import checks")
    )
    (tmp_path / "slow.py").write_text(SLOW_MODULE)
    course, path = tmp_path / "course", {"labs": labs, "PYTHONPATH": str(tmp_path)}
    build_nbgrader([Lab(NAME, labs)], course)
    nbgrader(course, "generate_assignment", NAME, labs=labs)
    notebook = nbformat.read(course / "release" / NAME / f"{NAME}.ipynb", as_version=4)
    answered(RIGHT)(notebook)
    (course / "submitted" / "ada" / NAME).mkdir(parents=True)
    nbformat.write(notebook, course / "submitted" / "ada" / NAME / f"{NAME}.ipynb")

    nbgrader(course, "autograde", NAME, **path)
    assert exported_scores(course, labs) == ["3.0"]
    said = nbgrader(course, "autograde", NAME, "--force", "--Execute.timeout=1", **path, exit_code=1)
    assert "ada is not graded: locked cell 3, `import slow`, was stopped by a timeout" in said
    assert exported_scores(course, labs) == ["not graded"]  # neither 0 nor the earlier score
    said = nbgrader(course, "autograde", NAME, **path, SLOW_IMPORT_S="0", BROKEN_IMPORT="1", exit_code=1)
    assert "locked cell 3, `import slow`, raised ImportError: no such library on this machine" in said
    assert exported_scores(course, labs) == ["not graded"]
    nbgrader(course, "autograde", NAME, **path, SLOW_IMPORT_S="0")
    assert exported_scores(course, labs) == ["3.0"]
