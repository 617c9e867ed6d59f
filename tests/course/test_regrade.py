"""Earlier submissions, graded again with today's checks."""

import json
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_output

from lablib.cli.main import main
from lablib.course.building.master import read_master
from lablib.course.building.notebook import Version, make_notebook
from lablib.course.grading.assignment import make_assignment
from lablib.course.grading.regrade import regrade, with_answers
from lablib.course.places import Lab
from tests.course.conftest import EXAMPLE

RIGHT = "def mean(values):\n    return sum(values) / len(values)"
WRONG = "def mean(values):\n    return sum(values)"
HELPED = "def mean(values):\n    return divided(sum(values), len(values))"
HELPER = "def divided(a, b):\n    return a / b"
ASSIGNMENT = make_assignment(read_master(Lab("90_example", EXAMPLE)))
PLAIN = make_notebook(read_master(Lab("90_example", EXAMPLE)), Version.LEARNER)


def answered(notebook: NotebookNode, **answers: str) -> NotebookNode:
    """The notebook with these answers in the cells of the exercises, which begin in this order."""
    notebook = deepcopy(notebook)
    exercises = [cell for cell in notebook.cells if "exercise" in cell.metadata.get("tags", [])]
    for cell, name in zip(exercises, ("mean", "size"), strict=True):
        cell.source = answers.get(name, "pass")
    return notebook


def shown(notebook: NotebookNode, **texts: str) -> NotebookNode:
    """The notebook with outputs of its checks: a result, or an error for a text that begins with "lab"."""
    for cell in notebook.cells:
        for name, text in texts.items():
            if f"check.{name}(" in cell.source:
                error = new_output("error", ename="AssertionError", evalue=text, traceback=[])
                data = new_output("display_data", data={"text/plain": text})
                cell.outputs = [error if text.startswith("lab") else data]
    return notebook


def save(notebook: NotebookNode, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


def test_a_course_folder_lists_the_grades_that_change(labs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    course, name = tmp_path / "course", "90_example/90_example.ipynb"
    refused = shown(
        answered(ASSIGNMENT, mean=RIGHT, size="size_bytes = 40"), mean="lab 90, mean: failed: x", size="passed: y"
    )
    save(refused, course / "autograded" / "ada" / name)
    save(answered(ASSIGNMENT, mean=WRONG), course / "submitted" / "ada" / name)  # the graded one counts
    stays = shown(
        answered(ASSIGNMENT, mean=WRONG), mean="lab 90, mean: failed: x", size="lab 90, size: not attempted: y"
    )
    save(stays, course / "autograded" / "bob" / name)
    save(answered(ASSIGNMENT, mean=WRONG, size="size_bytes = 40"), course / "submitted" / "cyd" / name)
    assert main(["regrade", str(course)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ada/90_example/90_example: mean: 0 before, now 2 of 2",
        "cyd/90_example/90_example: mean: not graded before, now 0 of 2",
        "cyd/90_example/90_example: size: not graded before, now 1 of 1",
        "3 of 6 grades in 3 notebooks changed.",
    ]


def test_a_plain_notebook_is_graded_with_the_cells_that_its_learner_added(labs: Path, tmp_path: Path):
    notebook = shown(answered(PLAIN, mean=HELPED, size="size_bytes = 320"), mean="failed: x", size="passed: y")
    position = next(n for n, cell in enumerate(notebook.cells) if cell.source == HELPED)
    notebook.cells.insert(position, new_code_cell(HELPER))
    del notebook.cells[2]  # the cell that makes `check`
    save(notebook, tmp_path / "class" / "ada.ipynb")
    (one,) = regrade(tmp_path / "class")
    assert one.reason == "" and one.lines == ["ada: mean: 0 before, now 2 of 2", "ada: size: 1 before, now 0 of 1"]


def test_a_locked_cell_that_fails_gives_no_grade(labs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    master = labs / "masters" / "90_example" / "lab.py"
    master.write_text(
        master.read_text().replace("from lablib.course import", "import not_there\nfrom lablib.course import")
    )
    save(shown(answered(PLAIN, mean=RIGHT), mean="passed: x", size="failed: y"), tmp_path / "class" / "ada.ipynb")
    assert main(["regrade", str(tmp_path / "class")]) == 1
    said = capsys.readouterr()
    assert "ada is not graded: locked cell 3, `import not_there`, raised ModuleNotFoundError" in said.err
    assert "ada: mean: 2 before, now not graded of 2" in said.out and "now 0" not in said.out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not graded: "),
        ("{}", "is not graded: "),
        ('{"cells": 3, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', "is not graded: it is no"),
        *(
            (json.dumps({"cells": [], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}), "unknown lab ")
            for metadata in ({}, {"lablib": 5}, {"lablib": {"lab": ["90_example"]}}, {"lablib": {"lab": "09"}})
        ),
    ],
)
def test_a_file_that_is_no_notebook_of_a_lab_is_one_line(
    labs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
):
    (tmp_path / "ada.ipynb").write_text(text)
    assert main(["regrade", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("lab: ada is not graded: ") and message in said.err and said.err.count("\n") == 1


@pytest.mark.parametrize(("name", "message"), [("missing", "missing is none"), ("empty", "no .ipynb file in")])
def test_a_folder_without_notebooks_is_one_error(
    labs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
):
    (tmp_path / "empty").mkdir()
    assert main(["regrade", str(tmp_path / name)]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


@given(st.sampled_from([ASSIGNMENT, PLAIN]), st.text(), st.text())
def test_every_answer_is_graded_as_it_was_handed_in(notebook: NotebookNode, mean: str, size: str):
    solution = next(cell.source for cell in ASSIGNMENT.cells if "def mean" in cell.source)
    for answers in ({"mean": mean, "size": size}, {"mean": solution, "size": size}):
        graded = with_answers(ASSIGNMENT, answered(notebook, **answers))
        exercises = [cell.source for cell in graded.cells if cell.metadata.get("nbgrader", {}).get("solution")]
        assert exercises == [answers["mean"], answers["size"]]


@given(st.data())
def test_whatever_is_done_to_locked_cells_they_are_those_of_the_assignment(data: st.DataObject):
    notebook = answered(data.draw(st.sampled_from([ASSIGNMENT, PLAIN])), mean=RIGHT, size="size_bytes = 40")
    cells = []
    for cell in notebook.cells:
        is_answer = cell.source in (RIGHT, "size_bytes = 40")
        done = "kept" if is_answer else data.draw(st.sampled_from(["kept", "deleted", "edited", "added before"]))
        if done == "added before":
            cells.append(new_code_cell("x = 1"))
        if done == "edited":
            cell.source = "pass"
        if done != "deleted":
            cells.append(cell)
    notebook.cells = cells
    graded = with_answers(ASSIGNMENT, notebook)
    locked = [cell.source for cell in graded.cells if cell.metadata.get("nbgrader", {}).get("locked")]
    assert locked == [cell.source for cell in ASSIGNMENT.cells if cell.metadata.get("nbgrader", {}).get("locked")]
