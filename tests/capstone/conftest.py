"""A finished report on a small brief, and the file of that brief."""

from pathlib import Path

import pytest

from lablib.capstone import Report
from tests.capstone.finished import BRIEF, BRIEF_TOML, LARGE, finished


@pytest.fixture(scope="session")
def report() -> Report:
    """A report without findings."""
    return finished(BRIEF, LARGE, (("parallel.zero_stage=1",), ("parallel.tensor=2",)))


@pytest.fixture
def brief_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(BRIEF_TOML)
    return path
