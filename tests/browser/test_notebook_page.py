"""The harness sees what is there: a figure that follows its slider, and a cell that fails."""

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]

EXPLORE = """
import plotly.graph_objects as go
from lablib.widgets import IntChoice, explore

explore(
    lambda slope: [slope * x for x in range(5)],
    lambda y: go.Figure(go.Scatter(y=y)),
    [IntChoice("slope", "Slope", range(1, 9), 3)],
)
"""


@pytest.fixture(scope="module")
def server(start_server: Any, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("notebooks")
    _write(folder / "good.ipynb", ["print('hello')", *["'room between'"] * 30, EXPLORE])
    _write(folder / "bad.ipynb", ["1 / 0", "'never reached'"])
    return start_server(folder)


def _write(path: Path, sources: list[str]) -> None:
    cells = [
        {"cell_type": "code", "id": f"c{n}", "metadata": {}, "execution_count": None, "outputs": [], "source": source}
        for n, source in enumerate(sources)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(notebook))


def test_a_figure_far_down_follows_its_slider(server, notebook_page):
    notebook = notebook_page(server, "good.ipynb")
    notebook.run_all()
    assert notebook.errors() == []
    (handle,) = notebook.sliders_with_a_figure()
    data = "e => e.closest('.jp-Cell').querySelector('.js-plotly-plot').data[0].y[4]"
    assert handle.evaluate(data) == 12
    handle.focus()
    notebook.page.keyboard.press("ArrowRight")
    notebook.page.wait_for_timeout(1000)
    assert handle.evaluate(data) == 16


def test_a_failing_cell_is_seen(server, notebook_page):
    notebook = notebook_page(server, "bad.ipynb")
    notebook.run_all()
    assert notebook.errors() == ["ZeroDivisionError: division by zero"]
