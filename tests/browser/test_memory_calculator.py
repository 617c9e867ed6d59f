"""The memory calculator in JupyterLab: a moved slider redraws, a click on the peak shows its line."""

from typing import Any

import nbformat
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

SOURCE = """
from lablib.widgets import memory_calculator
memory_calculator(model="gpt2")
"""


@pytest.fixture(scope="module")
def server(start_server: Any, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("notebooks")
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [nbformat.v4.new_code_cell(SOURCE)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), folder / "calculator.ipynb")
    return start_server(folder)


def wait_for_text(page: Any, text: str) -> None:
    page.wait_for_function(
        "text => [...document.querySelectorAll('[role=status]')].some(one => one.textContent.includes(text))",
        arg=text,
        timeout=30_000,
    )


def test_a_slider_redraws_and_a_click_on_the_peak_shows_its_line(server, notebook_page):
    notebook = notebook_page(server, "calculator.ipynb")
    notebook.run_all()
    assert notebook.errors() == []
    page = notebook.page
    wait_for_text(page, "gpt2 holds")
    page.locator(".js-plotly-plot .main-svg").first.wait_for(timeout=30_000)
    notebook.screenshot("calculator")
    # The second slider is the micro-batch: one step to the right of 4.
    page.locator(".noUi-handle").nth(1).focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "() => document.querySelector('.js-plotly-plot .gtitle')?.textContent.startsWith('gpt2, 5 x 1,024 tokens')",
        timeout=30_000,
    )
    peak = page.locator(".js-plotly-plot .scatterlayer .points path.point").last
    peak.scroll_into_view_if_needed()
    box = peak.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_timeout(500)
    page.mouse.down()
    page.mouse.up()
    wait_for_text(page, "At this moment ")
    wait_for_text(page, "return F.cross_entropy(")
    notebook.screenshot("calculator-peak")
