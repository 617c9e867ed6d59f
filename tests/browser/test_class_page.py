"""The class page in Chromium: 30 learners on one screen, readable in light and dark."""

import re
from pathlib import Path
from typing import Any

import pytest

from lablib.course.class_page import class_html
from lablib.course.overview import exercises_of_labs
from lablib.course.places import find_labs
from tests.browser.conftest import ARTIFACTS
from tests.contrast import contrast
from tests.course.made_up_class import NOW, made_up_class

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
_COLORS = """
() => {
    const screen = document.body.appendChild(document.createElement("p"))
    screen.style.background = "Canvas"
    const color = (of, name) => getComputedStyle(of)[name]
    const texts = ["h1", "caption", "tbody th", ".stuck td:nth-child(2)", ".quiet td:nth-child(2)"]
    return [color(screen, "backgroundColor"), ...texts.map(text => color(document.querySelector(text), "color"))]
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_thirty_learners_fit_a_screen_of_1280_by_720(browser: Any, tmp_path: Path, scheme: str):
    exercises = exercises_of_labs(find_labs(ROOT / "labs"))
    (tmp_path / "class.html").write_text(class_html(exercises, made_up_class(exercises), NOW), "utf-8")
    context = browser.new_context(viewport={"width": 1280, "height": 720}, color_scheme=scheme)
    page = context.new_page()
    page.goto((tmp_path / "class.html").as_uri())
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / f"class_page_{scheme}.png")
    size = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
    assert size[0] <= 1280 and size[1] <= 720
    assert page.locator("tbody tr").count() == 30
    assert page.locator("tbody tr").last.is_visible()
    heights = page.locator("tbody tr").evaluate_all("rows => rows.map(row => row.getBoundingClientRect().height)")
    assert max(heights) - min(heights) < 2  # no row wraps
    screen, *texts = ("#" + "".join(f"{int(n):02x}" for n in re.findall(r"\d+", c)[:3]) for c in page.evaluate(_COLORS))
    assert min(contrast(text, screen) for text in texts) >= 4.5
    context.close()
