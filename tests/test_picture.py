"""The README's picture: drawn from a timeline, and there."""

import importlib.util
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from lablib import Span, Timeline

ROOT = Path(__file__).parents[1]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("timeline_picture", ROOT / "tools" / "timeline_picture.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_span_is_a_bar_inside_the_picture(tool: ModuleType):
    spans = [
        Span(0, "compute", "mm", "forward", 0.0, 1e-3),
        Span(0, "comm:world", "all_reduce", "forward", 1e-3, 2e-3),
        Span(1, "compute", "mm", "backward", 0.0, 0.5e-3),
        Span(1, "comm:world", "all_reduce", "forward", 1e-3, 2e-3),
    ]
    picture = ElementTree.fromstring(tool.svg(Timeline.of(spans, 2)))
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert {"rank 0", "rank 1", "world", "F", "B", "C"} <= set(texts)
    width, height = map(float, picture.attrib["viewBox"].split()[2:])
    for bar in picture.iter(f"{SVG}rect"):
        x, y = float(bar.get("x", 0)), float(bar.get("y", 0))
        assert 0 <= x <= x + float(bar.attrib["width"]) <= width
        assert 0 <= y <= y + float(bar.attrib["height"]) <= height


def test_the_readme_shows_a_picture_that_is_there_and_small():
    picture = ROOT / "docs" / "timeline.svg"
    assert "(docs/timeline.svg)" in (ROOT / "README.md").read_text("utf-8")
    assert picture.stat().st_size < 300_000
    assert ElementTree.parse(picture).getroot().tag == f"{SVG}svg"
