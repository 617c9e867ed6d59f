"""Every lab runs from top to bottom: as the learner gets it, unsolved, and with its solutions.

Each lab runs unsolved, in nbval, with widgets, at its own settings; in papermill, at other settings, one lab runs
solved, and with `--all` (`make test-all`) every lab, unsolved and solved.
"""

import json
from pathlib import Path

import nbformat
import pytest

from lablib.course.building.build import check_built
from lablib.course.building.master import read_master
from lablib.course.places import Lab, find_labs
from lablib.course.running.execute import run_lab
from tests.labs.forks import Forks

ROOT = Path(__file__).parents[2]
MIN_EXERCISES = 3
SETTINGS = {"quick": {"quick": True}, "two-ranks-on-a-dgx-a100": {"quick": True, "ranks": 2, "cluster": "dgx-a100"}}
FOLDED = "jp-MarkdownHeadingCollapsed"  # of JupyterLab alone
OTHER = "two-ranks-on-a-dgx-a100"  # than the lab's own

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


def test_every_notebook_keeps_the_rules_of_its_format(lab: Lab):
    """For editors other than JupyterLab: an unknown name in the metadata would be lost, and no cell needs one."""
    notebook = nbformat.read(lab.notebook, as_version=4)
    nbformat.validate(notebook)  # ids are unique, too
    assert (notebook.nbformat, notebook.nbformat_minor) >= (4, 5)
    assert {name for cell in notebook.cells for name in cell.metadata} <= {"tags", "minutes", FOLDED}
    folded = [cell for cell in notebook.cells if FOLDED in cell.metadata]
    assert all(cell.source.startswith("#") and "further" in cell.metadata.tags for cell in folded)


def setting_of(lab: Lab, name: str) -> dict:
    """Values for those of the setting's parameters that the lab has."""
    has = {parameter.name for parameter in read_master(lab).parameters}
    return {parameter: value for parameter, value in SETTINGS[name].items() if parameter in has}


def check_results(cells: list) -> list[str]:
    """The first line that each cell tagged `check` shows."""
    return [outputs[-1]["data"]["text/plain"].splitlines()[0] for tags, outputs in cells if "check" in tags]


def executed(notebook: Path) -> list:
    """Tags and outputs of the code cells of an executed notebook."""
    cells = [cell for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]
    return [(cell.metadata.get("tags", []), cell.outputs) for cell in cells]


def test_a_lab_has_exercises(lab: Lab):
    assert len(read_master(lab).exercises) >= MIN_EXERCISES


@pytest.mark.labs
@pytest.mark.timeout(1500)  # lab 05 has taken 600 s on a slow machine
def test_the_learners_lab_runs_unsolved_in_nbval(
    lab: Lab, notebooks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if lab == find_labs(ROOT / "labs")[0]:  # it calibrates; the others find a profile
        monkeypatch.setenv("LAB_MACHINE", str(tmp_path / "this-machine.toml"))
    failed = notebooks.run("run_in_nbval", str(lab.notebook), str(tmp_path / "outputs.json"), output=tmp_path / "said")
    assert not failed, failed[-4000:]
    cells = json.loads((tmp_path / "outputs.json").read_text())
    results = check_results([(cell["tags"], cell["outputs"]) for cell in cells])
    assert len(results) == len(read_master(lab).exercises)
    assert all(line.startswith("not attempted") for line in results), results
    shown = [output["data"] for cell in cells for output in cell["outputs"] if "data" in output]
    assert all("text/plain" in data for data in shown), "an editor that draws no figure has nothing to show"


@pytest.mark.timeout(600)
def test_a_solved_lab_passes_every_check(tmp_path: Path):
    check_run(find_labs(ROOT / "labs")[0], OTHER, True, tmp_path)


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_solved", [True, False], ids=["solved", "unsolved"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_lab_runs_and_its_checks_say_so(lab: Lab, setting: str, is_solved: bool, tmp_path: Path):
    check_run(lab, setting, is_solved, tmp_path)


def check_run(lab: Lab, setting: str, is_solved: bool, tmp_path: Path) -> None:
    """Run a lab: with its solutions every check passes, as a learner gets it none is attempted."""
    notebook, page = run_lab(lab, setting_of(lab, setting), instructor=is_solved, out=tmp_path)
    results, expected = check_results(executed(notebook)), "passed" if is_solved else "not attempted"
    assert results and all(line.startswith(expected) for line in results), results
    assert page.stat().st_size > 0
