"""A pytest plugin beside nbval: writes the outputs of the cells that nbval ran, one JSON list a cell.

    pytest -p tests.labs.nbval_outputs --nbval-lax --outputs FILE.json lab.ipynb

nbval runs a notebook and keeps nothing; with this, one run shows that nbval passes and what the cells printed.
"""

import json
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outputs", type=Path, required=True, help="the file to write")


def pytest_sessionfinish(session: pytest.Session) -> None:
    items: list[Any] = [item for item in session.items if hasattr(item, "test_outputs")]  # nbval's
    cells = [{"tags": item.cell.metadata.get("tags", []), "outputs": item.test_outputs} for item in items]
    Path(str(session.config.getoption("--outputs"))).write_text(json.dumps(cells, default=str))
