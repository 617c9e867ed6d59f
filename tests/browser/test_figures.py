"""Figures as a reader meets them: named for a screen reader, in either theme, and there without kernel or network."""

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from lablib.figures import figure_roofline, figure_timeline, figure_traffic_matrix
from lablib.figures.show import picture_bundle
from lablib.figures.theme import THEME_CSS
from lablib.hardware import DEVICES
from lablib.run import Span, Timeline, Traffic, Transfer

ARTIFACTS = Path(__file__).parents[2] / "artifacts"
pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(480)]

SHOW = """
from lablib.figures import figure_lines, show
show(figure_lines([1, 2, 3], {"loss": [3.0, 2.0, 1.5]}, "step", "loss", y_unit="nats"))
"""
EXPLORE = """
from lablib.widgets import IntChoice, explore

explore(
    lambda slope: [float(slope * x) for x in range(5)],
    lambda y: figure_lines(range(5), {"line": y}, "x", "y"),
    [IntChoice("slope", "Slope", range(1, 9), 3)],
)
"""
SENTENCES = [
    "Loss while step goes from 1 to 3: loss from 3 nats to 1.5 nats.",
    "Y while x goes from 0 to 4: line from 0 to 12.",
]


@pytest.fixture(scope="module")
def server(start_server: Any, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """JupyterLab with the notebook before it ran, and with what is saved after it ran."""
    folder = tmp_path_factory.mktemp("notebooks")
    cells = [nbformat.v4.new_code_cell(source) for source in (SHOW, EXPLORE)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, folder / "figures.ipynb")
    NotebookClient(notebook, timeout=240, store_widget_state=False).execute()
    nbformat.write(notebook, folder / "saved.ipynb")
    return start_server(folder)


@pytest.fixture
def saved(server: Any) -> Path:
    return Path(server.folder) / "saved.ipynb"


def names(page: Any) -> list[str]:
    """What a screen reader calls each plotly figure that can be seen."""
    return page.evaluate(
        "() => [...document.querySelectorAll('.js-plotly-plot')].filter(plot => plot.offsetHeight)"
        ".map(plot => plot.closest('[role=img]')?.getAttribute('aria-label'))"
    )


def wait_until(page: Any, condition: Any, timeout_s: float = 30) -> None:
    for _ in range(int(timeout_s * 10)):
        if condition():
            return
        page.wait_for_timeout(100)
    raise AssertionError("not in time")


def assert_drawn(page: Any, script: str, expected: Any, timeout_s: float = 30) -> None:
    """What `script` reads from the page becomes `expected`.

    Plotly draws a picture again when its place gets another size, and throws away the elements of the first drawing:
    one script reads everything at once, and reads it again until the page has settled.
    """
    found = page.evaluate(script)
    for _ in range(int(timeout_s * 10)):
        if found == expected:
            return
        page.wait_for_timeout(100)
        found = page.evaluate(script)
    assert found == expected


def test_figures_have_their_sentence_as_name_and_follow_the_theme(server, notebook_page):
    notebook = notebook_page(server, "figures.ipynb")
    notebook.run_all()
    assert notebook.errors() == []
    page = notebook.page
    wait_until(page, lambda: names(page) == SENTENCES)
    # The widget hides what stands for it where there is no kernel.
    wait_until(page, lambda: not page.locator(".lablib-without-kernel").is_visible())
    assert page.locator("svg[role=img], .jp-RenderedSVG").filter(visible=True).count() == 0
    notebook.screenshot("figures-light")
    page.locator(".noUi-handle").focus()
    page.keyboard.press("ArrowRight")
    wait_until(page, lambda: names(page)[1] == "Y while x goes from 0 to 4: line from 0 to 16.")

    page.evaluate("() => document.body.dataset.jpThemeLight = 'false'")
    assert_drawn(
        page,
        """() => [...document.querySelectorAll(".js-plotly-plot")].map(plot => [
            getComputedStyle(plot.querySelector(".main-svg")).backgroundColor,
            getComputedStyle(plot.querySelector(".xtitle")).fill])""",
        [["rgb(17, 17, 17)", "rgb(230, 230, 230)"]] * 2,
    )
    notebook.screenshot("figures-dark")


def test_lanes_waiting_and_heat_maps_can_be_read_on_a_dark_page(browser, tmp_path):
    spans = [Span(0, "compute", "mm", "forward", 0.0, 1.0), Span(0, "wait:world", "all_reduce", "forward", 1.0, 2.0)]
    spans.append(Span(0, "comm:world", "all_reduce", "forward", 2.0, 3.0))
    sent = Transfer("world", "send", (0, 1), "direct", 8.0, (8.0, 0.0), 0.0, 1.0)
    shown = [figure_timeline(Timeline.of(spans, 1)), figure_traffic_matrix(Traffic((sent,)))]
    pages = [picture_bundle(figure, plotlyjs=number == 0)["text/html"] for number, figure in enumerate(shown)]
    body = (
        f"<style>{THEME_CSS}</style><body data-jp-theme-light='false' style='background:#111'>{''.join(pages)}</body>"
    )
    (tmp_path / "dark.html").write_text(f"<!DOCTYPE html><style>{THEME_CSS}</style>{body}", "utf-8")
    page = browser.new_page(viewport={"width": 900, "height": 900})
    page.goto(f"file://{tmp_path / 'dark.html'}")
    assert_drawn(
        page,
        """() => {
            const [timeline, matrix] = document.querySelectorAll(".js-plotly-plot");
            if (!matrix || !matrix.querySelector(".main-svg")) return null;
            const fill = element => element && getComputedStyle(element).fill;
            const paper = plot => getComputedStyle(plot.querySelector(".main-svg")).backgroundColor;
            const labels = [...timeline.querySelectorAll(".ytick tspan")];
            const waiting = [...timeline.querySelectorAll(".trace pattern rect, defs pattern rect")];
            return {
                label: fill(labels.find(one => one.textContent.includes("world"))),
                waiting: waiting.some(one => fill(one) === "rgb(17, 17, 17)"),
                paper: [paper(timeline), paper(matrix)],
                inverted: [timeline, matrix].map(plot => getComputedStyle(plot).filter),
            };
        }""",
        {
            "label": "rgb(181, 181, 181)",
            "waiting": True,
            "paper": ["rgb(17, 17, 17)", "rgb(255, 255, 255)"],
            "inverted": ["none", "invert(0.9333) hue-rotate(180deg)"],  # white becomes (17, 17, 17)
        },
    )
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=str(ARTIFACTS / "figures-dark-page.png"), full_page=True)
    page.close()


def test_names_of_points_have_a_dark_shadow_on_a_dark_page(browser, tmp_path):
    spans = [Span(0, "compute", "aten.mm", "forward", 0.0, 1.0, flops=1e14, size_bytes=1e12, dtype="bfloat16")]
    shown = picture_bundle(figure_roofline(Timeline.of(spans, 1), DEVICES["A100-80GB-SXM"]), plotlyjs=True)["text/html"]
    body = f"<style>{THEME_CSS}</style><body data-jp-theme-light='false'>{shown}</body>"
    (tmp_path / "dark.html").write_text(f"<!DOCTYPE html>{body}", "utf-8")
    page = browser.new_page(viewport={"width": 900, "height": 900})
    page.goto(f"file://{tmp_path / 'dark.html'}")
    assert_drawn(
        page,
        """() => {
            const texts = [...document.querySelectorAll(".js-plotly-plot text")];
            const names = texts.filter(one => one.textContent === "mm");
            return names.map(one => getComputedStyle(one).textShadow.split(" 0px")[0]);
        }""",
        ["rgb(17, 17, 17)"],
    )
    page.close()


def test_a_saved_notebook_shows_its_figures_without_kernel_script_or_network(server, browser, saved, tmp_path):
    content = json.loads(saved.read_text("utf-8"))
    assert len(saved.read_text("utf-8")) < 500_000
    (widget_cell,) = [cell for cell in content["cells"] if "explore(" in "".join(cell["source"])]
    svg = [
        output["data"]["image/svg+xml"]
        for output in widget_cell["outputs"]
        if "image/svg+xml" in output.get("data", {})
    ]
    assert len(svg) == 1 and "<script" not in "".join(svg[0]), "what GitHub shows"

    from nbconvert import HTMLExporter

    page_html, _ = HTMLExporter().from_filename(str(saved))
    (tmp_path / "figures.html").write_text(page_html, "utf-8")
    context = browser.new_context(java_script_enabled=False, offline=True, viewport={"width": 1000, "height": 1400})
    page = context.new_page()
    page.goto(f"file://{tmp_path / 'figures.html'}", wait_until="domcontentloaded")
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=str(ARTIFACTS / "figures-offline.png"), full_page=True)
    assert [one.is_visible() for one in page.get_by_text("loss from 3 nats").all()].count(True) >= 1
    assert [one.is_visible() for one in page.get_by_text("line from 0 to").all()].count(True) >= 1
    boxes = [box for one in page.locator("svg[role=img], img").all() if (box := one.bounding_box())]
    assert len([box for box in boxes if box["width"] > 400 and box["height"] > 200]) == 2
    context.close()


def test_jupyterlab_shows_the_static_figure_of_a_widget_that_has_not_run(server, notebook_page):
    ran = notebook_page(server, "figures.ipynb")
    ran.run_all()
    ran.save()
    # JupyterLab trusts what it ran itself, under another name too; there it has a kernel that knows no widget.
    text = (Path(server.folder) / "figures.ipynb").read_text("utf-8")
    (Path(server.folder) / "reopened.ipynb").write_text(text, "utf-8")
    notebook = notebook_page(server, "reopened.ipynb")
    page = notebook.page
    # The tab of the notebook that ran may be opened again behind it.
    wait_until(page, lambda: page.locator(".lablib-without-kernel").filter(visible=True).count() == 1)
    wait_until(page, lambda: page.locator(".jp-RenderedSVG").filter(visible=True).count() == 1)
    notebook.screenshot("figures-reopened")


def test_jupyterlab_shows_the_words_of_a_widget_in_a_notebook_that_it_does_not_trust(server, notebook_page, saved):
    page = notebook_page(server, saved.name).page
    wait_until(page, lambda: page.locator(".lablib-without-kernel").filter(visible=True).count() == 1)
    assert "line from 0 to 12" in page.locator(".lablib-without-kernel").filter(visible=True).inner_text()
