"""Notebooks from masters: the same bytes every time, and somebody's work in them moves to work/."""

import errno
from pathlib import Path

import nbformat
import pytest

from lablib.course.building.build import build, build_instructor, build_nbgrader, check_built
from lablib.course.building.master import read_master
from lablib.course.building.notebook import Version, make_notebook, to_text
from lablib.course.errors import CourseFailure
from lablib.course.grading.assignment import make_assignment
from lablib.course.places import Lab
from lablib.text import files


def change_notebook(lab: Lab, source: str = "my_answer = 1") -> None:
    notebook = nbformat.read(lab.notebook, as_version=4)
    notebook.cells[-1].source = source
    nbformat.write(notebook, lab.notebook)


def change_master(lab: Lab) -> None:
    lab.master.write_text(lab.master.read_text().replace("one pass", "a single pass"))


def test_the_learner_notebook_has_stubs_no_solutions_and_no_outputs(lab: Lab):
    assert build([lab]) == ["90_example: built"]
    notebook = nbformat.read(lab.notebook, as_version=4)
    text = lab.notebook.read_text()
    nbformat.validate(notebook)
    assert "SOLUTION" not in text and "sum(values)" not in text and "Ask the class" not in text
    assert text.count("your turn") == 2
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in notebook.cells)
    assert notebook.metadata.kernelspec.name == "python3"
    assert (notebook.nbformat, notebook.nbformat_minor) >= (4, 5)


def test_a_rebuild_is_byte_for_byte_the_same(lab: Lab):
    texts = {to_text(make_notebook(read_master(lab), Version.LEARNER)) for _ in range(3)}
    build([lab])
    assert texts == {lab.notebook.read_text()}
    assert build([lab]) == ["90_example: up to date"]


def test_cell_ids_are_unique_and_survive_a_cell_added_above(lab: Lab):
    def ids() -> list[str]:
        return [cell.id for cell in make_notebook(read_master(lab), Version.LEARNER).cells]

    before = ids()
    text = lab.master.read_text()
    lab.master.write_text(text.replace("# %%\nfrom", "# %%\n1\n\n# %%\n1\n\n# %%\nfrom"))
    after = ids()
    assert len(set(after)) == len(after) == len(before) + 2
    assert [name for name in after if name in before] == before


def test_the_instructor_version_has_solutions_and_notes(lab: Lab, tmp_path: Path):
    build_instructor([lab], tmp_path / "out")
    text = (tmp_path / "out" / "90_example.ipynb").read_text()
    assert "sum(values) / len(values)" in text and "Ask the class" in text and "your turn" not in text
    assert not lab.notebook.exists()


def test_the_nbgrader_version_has_its_metadata(lab: Lab, tmp_path: Path):
    """Schema 3, as nbgrader's own validator demands: these six keys, points on what is graded, ids unique."""
    build_nbgrader([lab], tmp_path)
    notebook = nbformat.read(tmp_path / "source" / "90_example" / "90_example.ipynb", as_version=4)
    marked = [cell for cell in notebook.cells if "nbgrader" in cell.metadata]
    cells = [cell for cell in marked if not cell.metadata.nbgrader.grade_id.startswith("needed-")]
    found = [dict(cell.metadata.nbgrader) for cell in cells]
    common = {"schema_version": 3, "task": False}
    exercise = {**common, "grade": False, "locked": False, "solution": True}
    check = {**common, "grade": True, "locked": True, "solution": False}
    assert found == [
        {**exercise, "grade_id": "mean"},
        {**check, "grade_id": "check-mean", "points": 2.0},
        {**exercise, "grade_id": "size"},
        {**check, "grade_id": "check-size", "points": 1.0},
    ]
    assert "### BEGIN SOLUTION" in cells[0].source
    # nbgrader gives no points to a cell that raises, and all points to one that does not.
    assert cells[1].source == "display(check.mean(mean).require())"
    locked = [cell for cell in marked if cell not in cells]
    assert all(cell.metadata.nbgrader.locked and not cell.metadata.nbgrader.grade for cell in locked)
    assert [cell.source.split()[0] for cell in locked] == ["backend:", "from"]
    assert 'check = checks_for("90", solutions=False)' in locked[1].source
    assert "Ask the class" not in str(notebook)


def test_an_assignment_has_what_its_exercises_need_and_nothing_else(lab: Lab):
    before, exercise = lab.master.read_text().split('# %% tags=["exercise"]\n', 1)
    slow = "# %%\ntrained = train_for_an_hour()\nfigure(trained)\n\n"
    shown = "# %%\nwrong_mean = lambda values: values[0]\n\n"
    tried = "# %%\nmean(values) if values else None\n\n"
    exercise = exercise.replace('# %% tags=["check"]', tried + '# %% tags=["check"]', 1)
    head = before.rindex("# %%", 0, before.index("# ## Exercise 1"))
    lab.master.write_text(f'{before[:head]}{slow}{before[head:]}{shown}# %% tags=["exercise"]\n{exercise}')
    cells = make_assignment(read_master(lab)).cells
    kinds = [(cell.cell_type, cell.source.splitlines()[0]) for cell in cells]
    assert ("markdown", "# Lab 90: An example") in kinds and ("markdown", "## Exercise 1: the mean (4 min)") in kinds
    assert ("code", "mean(values) if values else None") in kinds
    assert "```python\nwrong_mean = lambda values: values[0]\n```" in [cell.source for cell in cells]
    assert "train_for_an_hour" not in str(cells) and "print(f" not in str(cells)


def test_a_build_moves_a_learners_work_to_the_folder_for_it(lab: Lab):
    build([lab])
    change_notebook(lab)
    mine = lab.notebook.read_bytes()
    change_master(lab)
    [moved, built] = build([lab])
    assert f"is now {lab.work}" in moved and built == "90_example: built"
    assert lab.work.read_bytes() == mine
    check_built([lab])


def test_outputs_alone_are_work_too(lab: Lab):
    build([lab])
    notebook = nbformat.read(lab.notebook, as_version=4)
    notebook.cells[1]["outputs"] = [nbformat.v4.new_output("stream", text="4\n")]
    nbformat.write(notebook, lab.notebook)
    change_master(lab)
    build([lab])
    assert nbformat.read(lab.work, as_version=4).cells[1].outputs


def test_a_file_that_is_no_notebook_is_kept_too(lab: Lab):
    lab.notebook.write_text("my notes")
    build([lab])
    [kept] = lab.work.parent.iterdir()
    assert kept.read_text() == "my notes" and kept.name.startswith("90_example.from-labs-")
    check_built([lab])


def test_what_jupyterlab_adds_on_opening_is_not_work(lab: Lab):
    build([lab])
    notebook = nbformat.read(lab.notebook, as_version=4)
    notebook.metadata["language_info"]["version"] = "3.13.1"
    nbformat.write(notebook, lab.notebook)
    change_master(lab)
    assert build([lab]) == ["90_example: built"] and not lab.work.exists()


def test_check_says_which_notebook_is_not_up_to_date_and_why(lab: Lab):
    with pytest.raises(CourseFailure, match=r"90_example.ipynb is missing; run `lab build 90`"):
        check_built([lab])
    build([lab])
    check_built([lab])
    change_notebook(lab)
    with pytest.raises(CourseFailure, match=r"differs from its master; run `lab build 90`"):
        check_built([lab])
    build([lab])
    change_master(lab)
    with pytest.raises(CourseFailure, match=r"differs from its master; run `lab build 90`"):
        check_built([lab])
    build([lab])
    notebook = nbformat.read(lab.notebook, as_version=4)
    notebook.cells[1]["execution_count"] = 1
    nbformat.write(notebook, lab.notebook)
    with pytest.raises(CourseFailure, match="has outputs or execution counts"):
        check_built([lab])


def test_check_names_a_notebook_without_a_master(lab: Lab):
    build([lab])
    lab.master.unlink()
    with pytest.raises(CourseFailure, match="has no master"):
        check_built([lab])


def test_one_bad_master_and_nothing_is_written(lab: Lab):
    good = Lab("89_good", lab.labs)
    text = lab.master.read_text().replace("90", "89")
    good.folder.mkdir()
    good.master.write_text(text)
    good.checks.write_bytes(lab.checks.read_bytes())
    lab.master.write_text("# %%\nx = (\n")
    with pytest.raises(CourseFailure, match=r"lab.py:2: .* Nothing was written") as raised:
        build([good, lab])
    assert raised.value.exit_code == 1
    assert not good.notebook.exists() and not lab.notebook.exists()


def test_a_full_disk_leaves_the_old_notebook_and_no_rubbish(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    build([lab])
    before = lab.notebook.read_bytes()
    change_master(lab)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(CourseFailure, match="no space left on device; nothing half-written was left"):
        build([lab])
    assert lab.notebook.read_bytes() == before
    assert sorted(path.name for path in lab.labs.iterdir()) == ["90_example.ipynb", "masters"]
