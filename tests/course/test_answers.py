"""Answers of a learner's notebooks: those that pass are taken, and each other one is named."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from lablib.capstone.small_run import ANSWERS
from lablib.course.answers import answer_of, own_answers
from lablib.course.building.master import read_master
from lablib.course.building.notebook import Version, make_notebook
from lablib.course.errors import CourseError
from lablib.course.places import find_lab, find_labs_folder
from lablib.course.progress import Progress


def solved(folder: Path, numbers: list[str], version: Version = Version.INSTRUCTOR) -> None:
    """The notebooks of these labs; an instructor's have the solutions."""
    for number in numbers:
        lab = find_lab(number, find_labs_folder())
        nbformat.write(make_notebook(read_master(lab), version), folder / f"{lab.name}.ipynb")


def broken(folder: Path, number: str, old: str, new: str) -> None:
    path = folder / f"{find_lab(number, find_labs_folder()).name}.ipynb"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_all_solutions_are_taken_from_a_folder(tmp_path: Path):
    solved(tmp_path, ["04", "05", "08", "09"])
    found, notes = own_answers(ANSWERS, tmp_path)
    assert list(found) == list(ANSWERS) and notes == []
    assert found["schedule"](0, 10, 1, 2) == 0.5


def test_a_wrong_answer_is_left_out_with_a_note_and_a_stub_without(tmp_path: Path):
    solved(tmp_path, ["04"])
    broken(tmp_path, "04", "return (step + 1) / (num_warmup + 1)", "return step / (num_warmup + 1)")
    solved(tmp_path, ["05"], Version.LEARNER)
    found, (note,) = own_answers(ANSWERS, tmp_path)
    assert found == {} and note.startswith("wsd of lab 04 is left out, as its check does not pass: ")


def test_passed_answers_are_taken_from_work_if_they_still_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LAB_WORK", str(tmp_path))
    monkeypatch.setenv("LAB_PROGRESS", str(tmp_path / "progress.json"))
    solved(tmp_path, ["04"])
    assert own_answers(ANSWERS) == ({}, [])  # none was passed
    progress = Progress(tmp_path / "progress.json")
    progress.change("04", "wsd", lambda entry: entry.attempted("passed"))
    progress.change("05", "adamw_step", lambda entry: entry.attempted("passed"))
    found, notes = own_answers(ANSWERS)
    assert list(found) == ["schedule"] and "adamw_step of lab 05 is left out" in notes[0]
    solved(tmp_path, ["04"], Version.LEARNER)
    found, notes = own_answers(ANSWERS)
    assert found == {} and "wsd of lab 04 is left out, as its check does not pass" in notes[0]


def test_a_folder_without_notebooks_is_an_error(tmp_path: Path):
    with pytest.raises(CourseError, match="must have a notebook of 04_batches, .* give your work folder"):
        own_answers(ANSWERS, tmp_path)


def test_an_answer_that_is_not_there_is_an_error(tmp_path: Path):
    path = tmp_path / "04.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("x = 1")]), path)
    with pytest.raises(ValueError, match="must have the exercise wsd"):
        answer_of(path, "wsd")
    with pytest.raises(OSError):
        answer_of(tmp_path / "none.ipynb", "wsd")
