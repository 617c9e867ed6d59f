"""Every lab there is, for tests that hold of all of them.

A test that takes `lab` runs once for each master; one that takes `lab` and `exercise_name`, once for each exercise.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lablib.calibration import this_machine
from lablib.calibration.machine import machine_text, versions
from lablib.course.building.master import read_master
from lablib.course.places import Lab, find_labs
from lablib.hardware import find_cluster, save_cluster
from lablib.hardware.catalogue import THIS_MACHINE
from tests.labs.forks import Forks, forks

ROOT = Path(__file__).parents[2]
LABS = [lab for lab in find_labs(ROOT / "labs") if lab.master.exists()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_of_a_whole_lab = metafunc.definition.get_closest_marker("each_lab")
    marks = {lab: [pytest.mark.labs] if is_of_a_whole_lab else [] for lab in LABS[1:]} | {LABS[0]: []}
    if "exercise_name" in metafunc.fixturenames:
        pairs = [(lab, name) for lab in LABS for name in exercise_names(lab)]
        values = [pytest.param(lab, name, id=f"{lab.number}-{name}", marks=marks[lab]) for lab, name in pairs]
        metafunc.parametrize(("lab", "exercise_name"), values)
    elif "lab" in metafunc.fixturenames:
        metafunc.parametrize("lab", [pytest.param(lab, id=lab.name, marks=marks[lab]) for lab in LABS])


def exercise_names(lab: Lab) -> list[str]:
    """The exercises of a lab. A master that cannot be read has none here; `test_labs_run` says why."""
    try:
        return [check.check_name or "" for _, check in read_master(lab).exercises]
    except ValueError:
        return []


@pytest.fixture(autouse=True)
def nobodys_progress(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests leave the progress of whoever runs them alone, and their copies in work/."""
    monkeypatch.setenv("LAB_PROGRESS", "off")
    monkeypatch.delenv("LAB_STRICT", raising=False)
    monkeypatch.setenv("LAB_LABS", str(ROOT / "labs"))
    monkeypatch.setenv("LAB_WORK", str(tmp_path / "work"))


@pytest.fixture(autouse=True, scope="session")
def nobodys_profile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Labs find a typical laptop's figures, and not the profile of whoever runs them, for each number of real ranks.

    A calibration takes 40 s of a core: only one lab measures (test_labs_run.py).
    """
    first = tmp_path_factory.mktemp("profile") / "this-machine.toml"
    for ranks, path in {2: first, 4: first.with_name(f"{first.stem}-gloo-4.toml")}.items():
        profile = versions() | {"machine": machine_text(on_gpu=False), "backend": "gloo", "ranks": str(ranks)}
        save_cluster(find_cluster("laptop").replace(name=THIS_MACHINE, shared_cores=2, profile=profile), path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_MACHINE", str(first))
        assert all(this_machine(ranks).source.startswith("the machine at hand") for ranks in (2, 4)), "not measured"
        yield


@pytest.fixture(scope="session")
def notebooks() -> Iterator[Forks]:
    """With the libraries of notebooks, and without lablib: a notebook's first cell imports it, as for a learner."""
    runners = "nbval", "papermill", "nbconvert"
    with forks("torch._dynamo", "pandas", "plotly.graph_objects", "ipywidgets", "ipykernel.kernelapp", *runners) as one:
        yield one
