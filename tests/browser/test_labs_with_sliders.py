"""Labs as a learner sees them: every cell runs, and pictures follow their sliders, in folded sections too."""

import ast
from pathlib import Path
from typing import Any

import nbformat
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(480)]

LABS = Path(__file__).parents[2] / "labs"
LONG = [
    "09_data_parallel.ipynb",
    "10_zero.ipynb",
    "11_compression.ipynb",
    "13_pipeline_parallel.ipynb",
    "14_combining.ipynb",
    "15_longer_and_wider.ipynb",
    "16_cost.ipynb",
    "17_production.ipynb",
    "18_capstone.ipynb",
]
NOTEBOOKS = ["12_tensor_parallel.ipynb", *(pytest.param(name, marks=pytest.mark.thorough) for name in LONG)]


@pytest.fixture(scope="module")
def server(start_server: Any, chromium: str) -> Any:
    return start_server(LABS)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_lab_runs_in_jupyterlab_and_its_figures_follow_their_sliders(server, notebook_page, name: str):
    notebook = notebook_page(server, name)
    notebook.screenshot("opened")
    notebook.run_all()
    assert notebook.errors() == []

    notebook.unfold()
    moved = 0
    for handle in notebook.sliders_with_a_figure():
        before, position = _figure_data(handle), handle.get_attribute("aria-valuenow")
        notebook.screenshot(f"slider-{moved}-before")
        handle.focus()
        # From the last position there is no way to the right.
        is_last = position == handle.get_attribute("aria-valuemax")
        notebook.page.keyboard.press("ArrowLeft" if is_last else "ArrowRight")
        _wait_until(notebook.page, lambda handle=handle, before=before: _figure_data(handle) != before)
        notebook.screenshot(f"slider-{moved}-after")
        assert handle.get_attribute("aria-valuenow") != position
        assert _figure_data(handle) != before, "the slider moved and the figure stayed"
        moved += 1
    assert (moved >= 1) == has_controls(name), f"{name} shows {moved} sliders with a figure"


def has_controls(name: str) -> bool:
    """Whether a cell passes `interactive` to a function other than `guess`: labs 15 and 18 ask for guesses alone."""
    cells = nbformat.read(LABS / name, as_version=4).cells
    trees = [ast.parse(cell.source) for cell in cells if cell.cell_type == "code"]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(
        ast.unparse(call.func).split(".")[-1] != "guess"
        and any(ast.unparse(given) == "interactive" for given in [*call.args, *(each.value for each in call.keywords)])
        for call in calls
    )


def _figure_data(handle: Any) -> str:
    """What the plotly figures in the slider's cell show, as text to compare: their data, and what is drawn over it."""
    return handle.evaluate(
        "e => JSON.stringify([...e.closest('.jp-Cell').querySelectorAll('.js-plotly-plot')].map("
        "plot => [plot.data, plot.layout.shapes, plot.layout.annotations]))"
    )


def _wait_until(page: Any, condition: Any, timeout_s: float = 20) -> None:
    for _ in range(int(timeout_s * 10)):
        if condition():
            return
        page.wait_for_timeout(100)
