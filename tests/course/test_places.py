"""Finding the labs folder, and the lab a user means."""

from pathlib import Path

import pytest

from lablib.course import places
from lablib.course.errors import CourseError
from lablib.course.places import Lab, find_lab, find_labs, find_labs_folder


@pytest.mark.parametrize(
    "text",
    [
        "90",
        "90_example",
        "example",
        "90_example.ipynb",
        "{labs}/masters/90_example/lab.py",
        "{labs}/masters/90_example",
    ],
)
def test_a_lab_is_found_by_number_name_or_path(labs: Path, text: str):
    assert find_lab(text.format(labs=labs), labs) == Lab("90_example", labs)


def test_a_learners_copy_is_found_by_its_path(lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert lab.work == lab.labs.parent / "work" / "90_example.ipynb"
    monkeypatch.setenv("LAB_WORK", str(tmp_path / "mine"))
    assert lab.work == tmp_path / "mine" / "90_example.ipynb"
    lab.work.parent.mkdir()
    lab.work.touch()
    assert find_lab(str(lab.work), lab.labs) == lab


def test_a_number_needs_no_leading_zero(labs: Path):
    (labs / "07_data.ipynb").write_text("{}")
    assert find_lab("7", labs).name == find_lab("07", labs).name == "07_data"
    assert [lab.number for lab in find_labs(labs)] == ["07", "90"]


@pytest.mark.parametrize("name", ["90_ada", "90_zoe"])
def test_a_number_means_the_lab_with_a_master_beside_a_notebook_saved_by_another_name(labs: Path, name: str):
    (labs / f"{name}.ipynb").write_text("{}")
    assert find_lab("90", labs).name == "90_example"
    assert find_lab(name, labs).name == name


@pytest.mark.parametrize(
    ("text", "message"),
    [("exampel", "unknown lab 'exampel': did you mean 'example'? Valid: 90_example."), ("3", "Valid: 90_example.")],
)
def test_an_unknown_lab_has_the_nearest_names(labs: Path, text: str, message: str):
    with pytest.raises(CourseError) as raised:
        find_lab(text, labs)
    assert message in str(raised.value)


def test_a_folder_without_labs_says_what_it_expected(tmp_path: Path):
    with pytest.raises(CourseError, match="expected masters/NN_name/lab.py"):
        find_lab("9", tmp_path)


def test_the_labs_folder_is_found_from_here_and_from_below(labs: Path, monkeypatch: pytest.MonkeyPatch):
    assert find_labs_folder() == labs  # LAB_LABS
    monkeypatch.delenv("LAB_LABS")
    for start in (labs, labs.parent, labs / "masters", labs / "masters" / "90_example"):
        assert find_labs_folder(start) == labs


def test_some_other_folder_called_labs_is_passed_by(labs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LAB_LABS")
    below = labs / "notes"
    (below / "labs").mkdir(parents=True)
    assert find_labs_folder(below) == labs


def test_no_labs_folder_anywhere_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LAB_LABS", raising=False)
    monkeypatch.setattr(places, "_PACKAGE", tmp_path / "lablib")
    with pytest.raises(CourseError, match="run `lab` inside the project, or set LAB_LABS"):
        find_labs_folder(tmp_path)
    monkeypatch.setenv("LAB_LABS", str(tmp_path / "nowhere"))
    with pytest.raises(CourseError, match="LAB_LABS must name the labs folder"):
        find_labs_folder(tmp_path)
