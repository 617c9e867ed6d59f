"""The whole site in Chromium: `make site`, then `make site-test`. Without `--site FOLDER` the tests are skipped."""

import html
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lablib.course.building.master import read_master
from lablib.course.places import find_labs, find_labs_folder
from tests.browser.conftest import ARTIFACTS
from tests.contrast import contrast
from tests.course.solution_text import solutions, squeezed

pytestmark = [pytest.mark.browser, pytest.mark.slow]
SAMPLE = ("index", "gallery", "planner_page", "docs/validation", "techniques/index", "techniques/optim/adamw", "search")
MAX_BYTES = 60e6

# Colour of each visible text and of its background, both opaque: [text colour, background, words].
COLORS = """() => {
  const rgba = css => { const [r, g, b, a = 1] = css.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
  const over = ([r, g, b, a], below) => [r, g, b].map((c, k) => a * c + (1 - a) * below[k]);
  const ground = element => {
    if (!element) return [255, 255, 255];
    const color = rgba(getComputedStyle(element).backgroundColor);
    return color[3] === 1 ? color.slice(0, 3) : over(color, ground(element.parentElement));
  };
  const hex = color => "#" + color.map(c => Math.round(c).toString(16).padStart(2, "0")).join("");
  const found = new Map(), texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const words = texts.currentNode.textContent.trim(), element = texts.currentNode.parentElement;
    if (!words || element.closest("svg, script, style, .headerlink")) continue;
    if (!element.checkVisibility({ visibilityProperty: true })) continue;
    let color = rgba(getComputedStyle(element).color);
    for (let each = element; each; each = each.parentElement) color[3] *= Number(getComputedStyle(each).opacity);
    const below = ground(element);
    found.set(hex(over(color, below)) + hex(below), [hex(over(color, below)), hex(below), words.slice(0, 40)]);
  }
  return [...found.values()];
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    given = request.config.getoption("--site")
    if given is None:
        pytest.skip("no site: `make site`, then `make site-test`")
    return Path(given).resolve()


@pytest.fixture(scope="module")
def pages(folder: Path) -> list[str]:
    """The labs, and one or more pages of each other kind."""
    return [f"labs/{path.stem}" for path in sorted((folder / "labs").glob("*.html"))] + list(SAMPLE)


@pytest.fixture
def visit(browser: Any, folder: Path) -> Iterator[Callable[..., Any]]:
    """Call it with a page, a width and a colour scheme. At the end: no message in the console, and no other host."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    site, complaints = f"http://127.0.0.1:{server.server_port}/", []

    def note(request: Any) -> None:
        if not request.url.startswith((site, "data:", "blob:")):
            complaints.append(f"asks {request.url}")

    def visit_page(name: str, width: int = 1280, scheme: str = "light") -> Any:
        for context in browser.contexts:
            context.close()
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("console", lambda said: said.type == "log" or complaints.append(f"{name}: {said.text}"))
        page.on("pageerror", lambda error: complaints.append(f"{name}: {error}"))
        page.on("request", note)
        page.goto(f"{site}{name}.html")
        return page

    yield visit_page
    for context in browser.contexts:
        context.close()
    server.shutdown()
    server.server_close()
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_fits_its_width(visit, pages, width, scheme):
    ARTIFACTS.mkdir(exist_ok=True)
    for name in pages:
        page = visit(name, width, scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        page.screenshot(path=str(ARTIFACTS / f"site-{name.replace('/', '-')}-{scheme}-{width}.png"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_is_legible(visit, pages, scheme):
    for name in pages:
        found = visit(name, 1280, scheme).evaluate(COLORS)
        faint = [each for each in found if contrast(each[0], each[1]) < 4.5]
        assert len(found) > 3 and faint == [], name


def test_the_keyboard_reaches_contents_search_theme_answers_and_controls(visit, pages):
    page = visit("labs/08_collectives")
    page.keyboard.press("Tab")
    assert "Skip to content" in page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    assert page.url.endswith("#furo-main-content")
    page.locator("button.theme-toggle").filter(visible=True).first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.body.dataset.theme") != "auto"
    answer = page.locator("details.hide summary").first
    answer.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.querySelector('details.hide').open")
    before = page.inner_text(".lablib-explorer .lablib-caption-of p")
    page.locator(".lablib-explorer input").first.focus()
    page.keyboard.press("End")
    page.wait_for_function(
        "words => document.querySelector('.lablib-explorer .lablib-caption-of p').textContent !== words", arg=before
    )
    page.locator(".lablib-explorer .lablib-live .main-svg").first.wait_for()
    page.get_by_placeholder("Search").first.focus()
    page.keyboard.type("bubble")
    page.keyboard.press("Enter")
    page.locator("#search-results li a").nth(5).wait_for(timeout=20_000)


def test_every_control_and_every_figure_without_svg_is_drawn(visit, pages):
    for name in pages:
        page = visit(name)
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        for figure in page.locator("[data-late]").all():
            figure.scroll_into_view_if_needed()
            figure.locator(".lablib-live .main-svg").first.wait_for(timeout=20_000)
        for explorer in page.locator(".lablib-explorer").all():
            for control in explorer.locator("input, select").all():
                control.press("End")
                control.press("Home")
            shown = explorer.locator(".lablib-live .main-svg, .lablib-message:not(:empty)")
            shown.first.wait_for(timeout=20_000)
            assert "server" not in explorer.locator(".lablib-message").inner_text()


def test_a_figure_turns_interactive_under_the_pointer_and_keeps_its_height(visit):
    page = visit("labs/08_collectives")
    figure = page.locator(".lablib-figure").filter(visible=True).first
    height = figure.bounding_box()["height"]
    figure.hover()
    figure.locator(".lablib-live .main-svg").first.wait_for(timeout=20_000)
    assert abs(figure.bounding_box()["height"] - height) <= 2
    assert (
        page.evaluate("document.scripts.length && [...document.scripts].filter(s => /plotly/.test(s.src)).length") == 1
    )


def test_no_file_has_a_solution_and_all_together_are_small(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MAX_BYTES
    texts = {}
    for path in files:
        if path.suffix in (".html", ".js", ".json", ".ipynb", ".txt") and "planner" not in path.parts:
            plain = html.unescape(re.sub(r"<[^>]*>", "", path.read_text("utf-8")))
            texts[path.relative_to(folder).as_posix()] = squeezed(plain)
    found = []
    for lab in find_labs(find_labs_folder()):
        master = read_master(lab)
        given = squeezed("\n".join(cell.source for cell in master.cells if not cell.tagged("exercise")))
        for name, lines in solutions(master):
            whole, longest = squeezed("\n".join(lines)), squeezed(max(lines, key=len))
            found += [(lab.name, name, path) for path, text in texts.items() if len(lines) > 1 and whole in text]
            if longest not in given and len(longest) > 25:
                found += [(lab.name, name, path) for path, text in texts.items() if longest in text]
    assert found == []
