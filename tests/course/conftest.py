"""A small labs folder of its own for each test, and a progress file that is nobody's."""

import shutil
from pathlib import Path

import pytest

from lablib.course.places import Lab

EXAMPLE = Path(__file__).parent / "example" / "labs"


@pytest.fixture
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example labs folder, which the commands find."""
    folder = tmp_path / "labs"
    shutil.copytree(EXAMPLE, folder)
    monkeypatch.setenv("LAB_LABS", str(folder))
    monkeypatch.setenv("LAB_PROGRESS", str(tmp_path / "progress.json"))
    for name in ("LAB_STRICT", "LAB_WORK"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def lab(labs: Path) -> Lab:
    """The example lab."""
    return Lab("90_example", labs)
