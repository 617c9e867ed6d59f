"""Every lab runs from top to bottom: as the learner gets it, unsolved, and with its solutions; at two settings; and in
nbval. And every notebook is what its master gives.
"""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from lablib.course.build import check_built
from lablib.course.execute import run_lab
from lablib.course.places import Lab, find_labs

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "quick": {"quick": True},
    "two-ranks-on-a-dgx-a100": {"quick": True, "ranks": 2, "cluster": "dgx-a100"},
}

# Warnings of papermill, nbconvert and their libraries are theirs to mend.
pytestmark = pytest.mark.filterwarnings("default")


def test_there_are_labs():
    """Everything else here runs once a lab, and would pass if none were found."""
    assert [lab for lab in find_labs(ROOT / "labs") if lab.master.exists()], "no masters in labs/masters"


def test_every_folder_of_a_lab_holds_its_master():
    folders = {path for path in (ROOT / "labs" / "masters").iterdir() if path.is_dir() and path.name[0] != "_"}
    assert folders == {lab.folder for lab in find_labs(ROOT / "labs") if lab.master.exists()}


def test_notebooks_are_what_their_masters_give():
    check_built(find_labs(ROOT / "labs"))


def check_results(notebook: Path) -> list[str]:
    """The first line that each cell tagged `check` shows."""
    cells = [c for c in nbformat.read(notebook, as_version=4).cells if "check" in c.metadata.get("tags", [])]
    return [cell.outputs[-1]["data"]["text/plain"].splitlines()[0] for cell in cells]


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_learners_lab_runs_unsolved(lab: Lab, setting: str, tmp_path: Path):
    notebook, page = run_lab(lab, SETTINGS[setting], out=tmp_path)
    results = check_results(notebook)
    assert results and all(line.startswith("not attempted") for line in results), results
    assert page.stat().st_size > 0


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_solved_lab_passes_every_check(lab: Lab, setting: str, tmp_path: Path):
    notebook, _ = run_lab(lab, SETTINGS[setting], instructor=True, out=tmp_path)
    results = check_results(notebook)
    assert results and all(line.startswith("passed") for line in results), results


def test_nbval_runs_the_learners_lab(lab: Lab):
    """A learner's own settings of pytest do not matter here, so the project's are left out too (`-c`)."""
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(lab.labs), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--nbval-lax", "--nbval-current-env", "-q", str(lab.notebook)],
        cwd=lab.labs, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
