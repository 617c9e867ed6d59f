"""A copy of the course for students: no solutions in it, and its checks, commands and tests work."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lablib.course.building.export import export_students
from lablib.course.building.master import read_master
from lablib.course.errors import CourseError
from lablib.course.places import Lab, find_labs
from tests.course.solution_text import assert_no_solution

ROOT = Path(__file__).parents[2]
LABS = find_labs(ROOT / "labs")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (ROOT / ".git").exists(), reason="lab export needs a git repository; this is a copy without"
    ),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "students"
    assert f"{len(LABS)} labs" in export_students(LABS, folder)
    return folder


def in_copy(copy: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command in the copy, with the copy's lablib."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAB_")}
    environment |= {"PYTHONPATH": str(copy), "LAB_PROGRESS": "off"}
    return subprocess.run([sys.executable, *command], cwd=copy, env=environment, capture_output=True, text=True)


def test_the_copy_has_no_text_of_a_solution(copy: Path):
    texts = {
        path.relative_to(copy).as_posix(): path.read_text("utf-8", errors="replace")
        for path in copy.rglob("*")
        if path.is_file()
    }
    assert_no_solution(texts, LABS, computing=("lablib/", "labs/masters/", "tools/"))


def test_a_check_in_the_copy_accepts_a_right_answer_and_rejects_a_wrong_one(copy: Path):
    master = read_master(next(lab for lab in LABS if lab.number == "00"))
    (cell,) = [cell for cell, check in master.exercises if check.check_name == "mean_over_ranks"]
    code = f"""
import lablib, torch, torch.distributed as dist
from torch import Tensor
from lablib.course import checks_for
assert lablib.__file__.startswith({str(copy)!r}), lablib.__file__
{cell.source}
def wrong(x):
    return x
check = checks_for("00")
print(check.mean_over_ranks(mean_over_ranks).status, check.mean_over_ranks(wrong).status)
[check.mean_over_ranks.hint() for _ in range(9)]
print(check.mean_over_ranks.solution())
"""
    done = in_copy(copy, "-c", code)
    assert done.stdout.splitlines()[:1] == ["passed failed"], done.stdout + done.stderr
    assert "this copy of the lab has no solutions" in done.stdout


def test_commands_work_in_the_copy_or_say_that_it_has_no_masters(copy: Path):
    for command in (["build"], ["list"], ["progress"]):
        done = in_copy(copy, "-m", "lablib.cli", *command)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    for command in (["build", "--check"], ["build", "--nbgrader", "course"], ["export", "--students", "more"]):
        done = in_copy(copy, "-m", "lablib.cli", *command)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and "no masters" in done.stderr


def test_make_test_checks_the_copy(copy: Path):
    done = in_copy(copy, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "-k", "there_are or 00_first")
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


def test_exporting_again_brings_the_copy_up_to_date_and_keeps_other_files(copy: Path, tmp_path: Path):
    folder = tmp_path / "again"
    shutil.copytree(copy, folder)
    (folder / "labs" / "99_gone.ipynb").write_text("{}")
    (folder / "theirs.txt").write_text("mine")
    (folder / "README.md").write_text("old")
    with open(folder / ".exported-files", "a") as file:
        file.write("labs/99_gone.ipynb\n../theirs-too\n/etc/hostname\n")
    export_students(LABS, folder)
    assert not (folder / "labs" / "99_gone.ipynb").exists() and (folder / "theirs.txt").exists()
    assert (folder / "README.md").read_text() == (ROOT / "README.md").read_text()


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(CourseError, match="new or empty folder, or an earlier export"):
        export_students(LABS, tmp_path)


def test_a_project_that_git_does_not_track_is_refused(lab: Lab, tmp_path: Path):
    with pytest.raises(CourseError, match="no git repository; clone it"):
        export_students([lab], tmp_path / "out")
    subprocess.run(["git", "init", "-q", str(lab.labs.parent)], check=True)
    with pytest.raises(CourseError, match="there is no lablib"):
        export_students([lab], tmp_path / "out")
    assert not (tmp_path / "out").exists()
