"""The notebooks as they are handed out: their checks are there, and no exercise is solved. Needs no masters."""

from pathlib import Path

import pytest

from lablib.course.building.master import of_notebook
from lablib.course.building.notebook import read_notebook
from lablib.course.checks.proof import try_answer
from lablib.course.places import Lab, find_labs

ROOT = Path(__file__).parents[2]
LABS = [lab for lab in find_labs(ROOT / "labs") if lab.notebook.exists()]

pytestmark = pytest.mark.filterwarnings("default")  # labs run in notebooks, where a warning is printed


def test_there_are_notebooks():
    assert LABS


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_no_exercise_is_solved(lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name, value in {"LAB_PROGRESS": "off", "LAB_LABS": str(lab.labs), "LAB_WORK": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    notebook = of_notebook(lab, read_notebook(lab.notebook))
    assert notebook.exercises
    for exercise, check in notebook.exercises:
        assert try_answer(notebook, exercise, check, exercise.source).status == "not attempted", check.check_name
