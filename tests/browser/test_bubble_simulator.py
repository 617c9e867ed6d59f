"""The bubble simulator in JupyterLab: keys step through the plan, sliders and fields redraw, a deadlock is told."""

from typing import Any

import nbformat
import pytest

from lablib.widgets.bubble_simulator import DEADLOCK_EXAMPLE, OWN

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

SOURCE = """
from lablib.widgets import bubble_simulator
bubble_simulator(stages=3, microbatches=4)
"""


@pytest.fixture(scope="module")
def server(start_server: Any, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("notebooks")
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [nbformat.v4.new_code_cell(SOURCE)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), folder / "bubbles.ipynb")
    return start_server(folder)


@pytest.fixture
def notebook(server: Any, notebook_page: Any) -> Any:
    """The simulator, run and drawn."""
    notebook = notebook_page(server, "bubbles.ipynb")
    notebook.run_all()
    assert notebook.errors() == []
    wait_for_name(notebook.page, "1f1b takes 18 s")
    return notebook


def wait_for_name(page: Any, text: str) -> None:
    """The picture, as a screen reader calls it, says this."""
    page.wait_for_function(
        "text => [...document.querySelectorAll('.js-plotly-plot')].filter(plot => plot.offsetHeight)"
        ".some(plot => plot.closest('[role=img]')?.getAttribute('aria-label').includes(text))",
        arg=text,
        timeout=30_000,
    )


def wait_for_line(page: Any, at: float | None) -> None:
    """The line of the moment stands there; None: there is none, the whole plan is looked at."""
    page.wait_for_function(
        "at => [...document.querySelectorAll('.js-plotly-plot')].filter(plot => plot.offsetHeight)"
        ".flatMap(plot => plot._fullLayout.shapes.filter(one => one.type == 'line').map(one => one.x0))"
        ".join() == (at == null ? '' : String(at))",
        arg=at,
        timeout=30_000,
    )


def control(page: Any, label: str) -> Any:
    """The row of a control, by the beginning of its label."""
    return page.locator(".widget-inline-hbox", has_text=label).filter(visible=True).first


def test_the_arrow_keys_step_from_moment_to_moment(notebook):
    page = notebook.page
    moment = control(page, "Moment").locator(".noUi-handle")
    assert moment.evaluate("handle => handle.closest('.noUi-target').offsetWidth") > 25, "a track to pull the handle on"
    moment.focus()
    for text in ("At 0 s: rank 0 0F0, rank 1 idle", "At 1 s: rank 0 0F1, rank 1 1F0", "At 2 s: rank 0 0F2"):
        page.keyboard.press("ArrowRight")
        wait_for_name(page, text)
    page.keyboard.press("ArrowLeft")
    wait_for_name(page, "At 1 s: rank 0 0F1")
    notebook.screenshot("moment")


@pytest.mark.thorough
def test_a_line_stands_at_the_moment(notebook):
    page = notebook.page
    wait_for_line(page, None)
    control(page, "Moment").locator(".noUi-handle").focus()
    for second in (0, 1, 2):
        page.keyboard.press("ArrowRight")
        wait_for_line(page, second)


@pytest.mark.thorough
def test_sliders_and_fields_redraw_and_what_cannot_be_is_said(notebook):
    page = notebook.page
    control(page, "Micro-batches").locator(".noUi-handle").focus()
    page.keyboard.press("ArrowRight")
    wait_for_name(page, "1f1b takes 21 s")
    page.keyboard.press("ArrowLeft")
    wait_for_name(page, "1f1b takes 18 s")

    field = control(page, "Limit").locator("input")
    field.fill("3 1 1")
    field.press("Enter")
    wait_for_name(page, "At most 3, 1, 1 micro-batches may be held: rank 1 holds more.")
    notebook.screenshot("limit")
    field.fill("3 2")
    field.press("Enter")
    page.get_by_text("the limit takes one number, or one for each of the 3 ranks").wait_for(timeout=30_000)
    field.fill("")
    field.press("Enter")

    control(page, "Schedule").locator("select").select_option(OWN)
    wait_for_name(page, "your plan takes 18 s")
    own = page.locator("textarea.widget-input, .widget-textarea textarea").filter(visible=True).first
    own.fill(DEADLOCK_EXAMPLE)
    own.blur()
    wait_for_name(page, "your plan deadlocks after 2 of 8 actions: rank 0 waits at step 2, 0B0")
    notebook.screenshot("deadlock")
