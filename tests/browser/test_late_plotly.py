"""A picture follows its slider although the browser starts the widgets, or plotly, long after the slider was moved."""

from typing import Any

import nbformat
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

SOURCE = """
from lablib.figures import figure_lines
from lablib.widgets import IntChoice, explore

explore(
    lambda slope: [float(slope * x) for x in range(5)],
    lambda y: figure_lines(range(5), {f"line {number}": y for number in range(1 + (y[1] > 5))}, "x", "y"),
    [IntChoice("slope", "Slope", range(1, 9), 3)],
)
"""
# JavaScript of a widget longer than the number of characters waits until the test opens the gate.
GATE = """
const opened = new Promise(open => { window.openGate = open; });
const Plain = window.Blob;
window.waitForGate = () => opened;
window.Blob = class extends Plain {
  constructor(parts, options) {
    const isLate = options?.type === "text/javascript" && parts[0].length > LONGEST;
    super(isLate ? ["await window.waitForGate();\\n", ...parts] : parts, options);
  }
};
"""
LATE_S = 3  # anywidget waits 2 s


@pytest.fixture(scope="module")
def server(start_server: Any, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("notebooks")
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [nbformat.v4.new_code_cell(SOURCE)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), folder / "late.ipynb")
    return start_server(folder)


def wait_for_lines(page: Any, last: float, count: int) -> None:
    """So many lines are drawn, each ends at `last`; the picture's name and the caption say the same."""
    page.wait_for_function(
        """([last, count]) => [...document.querySelectorAll(".js-plotly-plot")].some(plot =>
            plot.offsetHeight && plot.querySelectorAll(".scatterlayer .trace").length == count &&
            plot.calcdata.every(points => points.at(-1).y == last) &&
            plot.getAttribute("aria-label")?.includes(`from 0 to ${last}`) &&
            [...document.querySelectorAll("[role=status]")].some(one => one.textContent.includes(`from 0 to ${last}`)))
        """,
        arg=[last, count],
        timeout=30_000,
    )


def press(page: Any, *keys: str) -> None:
    page.locator(".noUi-handle").filter(visible=True).focus()
    for key in keys:
        page.keyboard.press(key)
        page.wait_for_timeout(300)  # each is a change of its own


@pytest.mark.parametrize(
    "longest", [pytest.param(1_000_000, id="plotly"), pytest.param(0, id="widgets", marks=pytest.mark.thorough)]
)
def test_the_picture_follows_a_slider_that_was_moved_before_it_could_start(server, notebook_page, longest):
    notebook = notebook_page(server, "late.ipynb", GATE.replace("LONGEST", str(longest)))
    page = notebook.page
    notebook.run_all()
    page.wait_for_timeout(1000 * LATE_S)
    press(page, "ArrowRight", "ArrowRight", "ArrowRight")  # 4; 5; 6, which has a second line
    assert page.locator(".js-plotly-plot").count() == 0, "the gate is closed"
    page.evaluate("() => window.openGate()")
    wait_for_lines(page, 24, 2)
    press(page, "ArrowLeft")
    wait_for_lines(page, 20, 1)
    press(page, "ArrowRight")
    wait_for_lines(page, 24, 2)
    notebook.screenshot("followed")


@pytest.mark.thorough
def test_a_page_that_is_loaded_again_shows_the_last_picture(server, notebook_page):
    notebook = notebook_page(server, "late.ipynb")
    notebook.run_all()
    press(notebook.page, "ArrowRight", "ArrowRight", "ArrowRight")
    wait_for_lines(notebook.page, 24, 2)
    notebook.save()
    notebook.page.reload()
    wait_for_lines(notebook.page, 24, 2)
    press(notebook.page, "ArrowLeft")
    wait_for_lines(notebook.page, 20, 1)
