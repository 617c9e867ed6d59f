"""Working on copies: updates and pulls destroy nothing, and whoever worked in labs/ finds it in work/."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from lablib.cli.main import main
from lablib.course import work
from lablib.course.building.build import build, check_built
from lablib.course.errors import CourseFailure
from lablib.course.places import Lab
from lablib.course.work import State, open_copies, reset, state_of, update

STUB = 'raise NotImplementedError("your turn")'
ANSWER = "return sum(values) / max(1, len(values))  # mine"


def answer(path: Path) -> bytes:
    """Answer the first exercise, as a learner does; the file as it is then."""
    notebook = nbformat.read(path, as_version=4)
    cell = next(cell for cell in notebook.cells if STUB in cell.source)
    cell.source = cell.source.replace(STUB, ANSWER)
    nbformat.write(notebook, path)
    return path.read_bytes()


def change_master(lab: Lab) -> None:
    lab.master.write_text(lab.master.read_text().replace("in one pass over", "in a single pass over"))


def kept(lab: Lab) -> list[Path]:
    return sorted(path for path in lab.work.parent.glob("*.ipynb") if path != lab.work)


def test_a_lab_that_nobody_has_begun_is_copied_and_kept_up_to_date(lab: Lab):
    assert open_copies([lab]) == [] and state_of(lab) is State.NOT_BEGUN
    change_master(lab)
    assert open_copies([lab]) == []
    assert "in a single pass" in lab.work.read_text() and kept(lab) == []


def test_opening_leaves_work_alone_and_says_in_one_line_that_the_lab_has_changed(lab: Lab):
    open_copies([lab])
    mine = answer(lab.work)
    assert open_copies([lab]) == [] and state_of(lab) is State.BEGUN
    change_master(lab)
    [line] = open_copies([lab])
    assert "`lab update 90`" in line and "carries your answers over" in line and "\n" not in line
    assert lab.work.read_bytes() == mine and state_of(lab) is State.OUTDATED


def test_an_update_brings_the_new_text_with_the_answer_and_keeps_the_old_file(lab: Lab):
    open_copies([lab])
    mine = answer(lab.work)
    change_master(lab)
    [line] = update(lab)
    text = lab.work.read_text()
    assert "in a single pass" in text and ANSWER in text and "your answers to mean" in line
    assert [path.read_bytes() for path in kept(lab)] == [mine] and kept(lab)[0].name in line
    assert state_of(lab) is State.BEGUN
    assert update(lab) == ["90_example: up to date, begun"]


def test_a_reset_is_a_fresh_copy_beside_the_old_one(lab: Lab):
    open_copies([lab])
    mine = answer(lab.work)
    [line] = reset(lab)
    assert ANSWER not in lab.work.read_text() and [path.read_bytes() for path in kept(lab)] == [mine]
    assert kept(lab)[0].name in line
    assert "kept" not in reset(lab)[0] and len(kept(lab)) == 1  # nobody has touched it since
    answer(lab.work)
    reset(lab)
    assert len(kept(lab)) == 2  # two in one second, too


def test_what_was_done_in_labs_is_in_work_after_the_first_opening(lab: Lab):
    build([lab])
    mine = answer(lab.notebook)
    [line] = open_copies([lab])
    assert lab.work.read_bytes() == mine and str(lab.work) in line
    check_built([lab])
    answer(lab.notebook)  # and once more, where there is a copy by now
    open_copies([lab])
    assert lab.work.read_bytes() == mine and [path.name.split("-")[0] for path in kept(lab)] == ["90_example.from"]


def test_what_was_done_in_labs_and_is_old_by_now_is_updated_like_a_copy(lab: Lab):
    """Notebooks from before there was a work/ folder have other ids for their exercises, and no list of their cells."""
    build([lab])
    answer(lab.notebook)
    notebook = nbformat.read(lab.notebook, as_version=4)
    del notebook.metadata.lablib["cells"]
    exercise = next(cell for cell in notebook.cells if ANSWER in cell.source)
    exercise["id"] = "0123abcd"
    nbformat.write(notebook, lab.notebook)
    change_master(lab)
    assert len(open_copies([lab])) == 2  # it was moved; it is outdated
    update(lab)
    text = lab.work.read_text()
    assert text.count(ANSWER) == 1 and "in a single pass" in text and text.count("def mean(") == 1


def test_git_pull_brings_a_changed_lab_to_whoever_works(lab: Lab, tmp_path: Path):
    """The whole of it, with git's own commands."""

    def git(folder: Path, *words: str) -> None:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(folder), *words]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    course, clone = tmp_path, tmp_path / "clone"
    (course / ".gitignore").write_text("/work/\n/clone/\nprogress.json\n")
    build([lab])
    git(course, "init", "-q")
    git(course, "add", ".")
    git(course, "commit", "-qm", "a lab")
    git(course, "clone", "-q", str(course), str(clone))
    own = Lab(lab.name, clone / "labs")
    open_copies([own])
    answer(own.work)
    change_master(lab)
    build([lab])
    git(course, "commit", "-qam", "reworded")
    git(clone, "pull", "-q")
    update(own)
    assert ANSWER in own.work.read_text() and "in a single pass" in own.work.read_text()
    git(clone, "diff", "--exit-code")


def test_a_damaged_copy_is_one_sentence_and_the_others_are_updated(lab: Lab, capsys: pytest.CaptureFixture):
    other = Lab("89_other", lab.labs)
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")]), other.notebook)
    open_copies([lab, other])
    lab.work.write_text("{oops")
    assert main(["update"]) == 1
    said = capsys.readouterr()
    assert "90_example.ipynb is not a notebook: `lab reset 90` keeps it" in said.err and said.err.count("\n") == 1
    assert "89_other: up to date" in said.out
    assert main(["reset", "90"]) == 0 and [path.read_text() for path in kept(lab) if "90" in path.name] == ["{oops"]


def test_a_lab_without_a_master_is_worked_on_in_a_copy_too(labs: Path):
    lab = Lab("91_foreign", labs)
    cells = [nbformat.v4.new_markdown_cell("Read."), nbformat.v4.new_code_cell("1", execution_count=3)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), lab.notebook)
    before = lab.notebook.read_bytes()
    assert open_copies([lab]) == [] and state_of(lab) is State.NOT_BEGUN
    notebook = nbformat.read(lab.work, as_version=4)
    notebook.cells[1].source = "2"
    nbformat.write(notebook, lab.work)
    assert lab.notebook.read_bytes() == before and state_of(lab) is State.BEGUN
    cells[0].source = "Read this."
    nbformat.write(nbformat.v4.new_notebook(cells=cells), lab.notebook)
    update(lab)
    assert [cell.source for cell in nbformat.read(lab.work, as_version=4).cells] == ["Read this.", "2"]


def test_a_master_that_is_being_written_stops_no_other_lab(lab: Lab):
    open_copies([lab])
    mine = answer(lab.work)
    lab.master.write_text("# %%\nx = (\n")
    assert open_copies([lab]) == [] and lab.work.read_bytes() == mine
    with pytest.raises(CourseFailure, match="a master must be valid Python"):
        update(lab)


def test_a_folder_that_cannot_be_written_is_one_sentence_with_the_remedy(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    lab.work.parent.write_text("a file in its place")
    with pytest.raises(CourseFailure, match=r"cannot write .*work.*; .*LAB_WORK=~/labs-of-mine lab open\.$") as raised:
        open_copies([lab])
    assert "\n" not in str(raised.value) and raised.value.exit_code == 1
    monkeypatch.setenv("LAB_WORK", str(tmp_path / "mine"))
    open_copies([lab])
    assert lab.work == tmp_path / "mine" / "90_example.ipynb" and lab.work.exists()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="root may write everywhere")
def test_a_course_that_may_only_be_read_is_worked_on_elsewhere(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    build([lab])
    monkeypatch.setenv("LAB_WORK", str(tmp_path / "mine"))
    lab.labs.chmod(0o555)
    try:
        open_copies([lab])
        answer(lab.work)
        assert update(lab) == ["90_example: up to date, begun"]
    finally:
        lab.labs.chmod(0o755)


def test_checks_are_found_from_the_folder_of_the_copies(lab: Lab):
    """Whoever starts JupyterLab or an editor there without `lab open` has no LAB_LABS."""
    open_copies([lab])
    environment = {name: value for name, value in os.environ.items() if name != "LAB_LABS"}
    command = [sys.executable, "-c", "from lablib.course import checks_for; print(checks_for('90').names)"]
    done = subprocess.run(command, cwd=lab.work.parent, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "['mean', 'size']", done.stderr


def test_an_update_that_fails_at_writing_leaves_the_old_copy(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    open_copies([lab])
    mine = answer(lab.work)
    change_master(lab)

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(work, "write_text", full)
    with pytest.raises(CourseFailure, match="free some disk space"):
        update(lab)
    assert lab.work.read_bytes() == mine and kept(lab) == []
