"""Every lab there is, for tests that hold of all of them.

A test that takes `lab` runs once for each master; one that takes `lab` and `exercise_name`, once for each exercise.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lablib.course.building.master import read_master
from lablib.course.places import Lab, find_labs

ROOT = Path(__file__).parents[2]
LABS = [lab for lab in find_labs(ROOT / "labs") if lab.master.exists()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "exercise_name" in metafunc.fixturenames:
        pairs = [(lab, name) for lab in LABS for name in exercise_names(lab)]
        ids = [f"{lab.number}-{name}" for lab, name in pairs]
        metafunc.parametrize(("lab", "exercise_name"), pairs, ids=ids)
    elif "lab" in metafunc.fixturenames:
        metafunc.parametrize("lab", LABS, ids=[lab.name for lab in LABS])


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
    """Labs measure this machine once for all tests, and leave the profile of whoever runs them alone."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # which all test processes share
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_MACHINE", str(folder / "this-machine.toml"))
        yield
