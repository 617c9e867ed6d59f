"""Static pictures: every figure as plain SVG that says what the figure says, and figures that follow a theme."""

# plotly makes its properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
from __future__ import annotations

import re
import sys
from html import unescape
from typing import Any
from xml.etree import ElementTree

import plotly.graph_objects as go
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lablib.figures import describe, figure_lines, figure_schedules, figure_timeline, figure_traffic_matrix
from lablib.figures.show import MAX_SVG_BYTES, caption_html, picture_bundle, show, static_svg, without_subtitle
from lablib.figures.style import FAINT_INK, INK
from lablib.figures.svg.axes import CHARACTER
from lablib.figures.svg.canvas import WIDTH
from lablib.figures.svg.picture import figure_svg
from lablib.figures.theme import AREAS, PAGE, TEXTS, THEME_CSS
from lablib.run import Span, Timeline, Traffic, Transfer
from tests.contrast import contrast

SVG = "{http://www.w3.org/2000/svg}"


def drawn(figure: go.Figure) -> ElementTree.Element:
    """The picture, read as XML."""
    return ElementTree.fromstring(figure_svg(figure))


def words(picture: ElementTree.Element) -> str:
    return " ".join(text.strip() for text in picture.itertext() if text.strip())


def test_every_figure_has_a_picture_without_script_named_by_its_sentence(all_figures):
    for name, figure in all_figures.items():
        picture = drawn(figure)
        assert picture.get("role") == "img" and describe(figure) in (picture.get("aria-label") or ""), name
        tags = {element.tag.removeprefix(SVG) for element in picture.iter()}
        assert not tags & {"script", "image", "foreignObject", "a"}, name
        assert not re.search(r"https?://(?!www\.w3\.org)", figure_svg(figure)), name
        assert len(figure_svg(figure)) < MAX_SVG_BYTES, name


def test_every_part_of_a_picture_stands_inside_it(all_figures):
    for name, figure in all_figures.items():
        picture = drawn(figure)
        width, height = (float(end) for end in (picture.get("viewBox") or "").split()[2:])
        for box in picture.iter(f"{SVG}rect"):
            x, y, w, h = (float(box.get(key) or 0) for key in ("x", "y", "width", "height"))
            assert -1 <= x <= x + w <= width + 1 and -1 <= y <= y + h <= height + 1, (name, box.attrib)
        for text in picture.iter(f"{SVG}text"):
            assert -1 <= float(text.get("y") or 0) <= height, (name, "".join(text.itertext()))


def test_titles_of_axes_marks_and_legend_are_written(all_figures):
    for name, figure in all_figures.items():
        said = words(drawn(figure))
        for axis in ("xaxis", "yaxis"):
            title = figure.layout[axis].title.text
            assert not title or figure.layout[axis].visible is False or title in said, (name, title)
        if figure.layout.showlegend:
            assert all(t.name in said for t in figure.data if t.name and t.showlegend is not False), name


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)), min_size=1, max_size=8))
@example([(1.0, 0.01), (1.0, 8.0)])
def test_bars_are_as_long_as_their_spans(pieces):
    spans, now_s = [], 0.0
    for gap_s, time_s in pieces:
        spans.append(Span(0, "compute", "mm", "forward", now_s + gap_s, now_s + gap_s + time_s))
        now_s = spans[-1].end_s
    figure = without_subtitle(figure_timeline(Timeline.of(spans, 1)))
    blue = [box for box in drawn(figure).iter(f"{SVG}rect") if "rgb(0, 114, 178)" in (box.get("style") or "")]
    bars = sorted(  # from left to right: those too short to see are drawn after the others
        (float(box.get("x") or 0), float(box.get("width") or 0)) for box in blue if float(box.get("height") or 0) > 14
    )
    lengths = [length for _, length in bars]
    pixels_per_s = sum(lengths) / sum(time_s for _, time_s in pieces)
    for length, (_, time_s) in zip(lengths, pieces, strict=True):
        assert length == pytest.approx(max(time_s * pixels_per_s, 0.6), abs=1.2)


def test_a_logarithmic_axis_puts_equal_factors_at_equal_distances():
    figure = figure_lines([1, 10, 100], {"a": [1.0, 10.0, 100.0]}, "size", "time", "B", "s", log_x=True, log_y=True)
    (line,) = drawn(figure).iter(f"{SVG}polyline")
    (a, b), (c, d), (e, f) = ([float(v) for v in point.split(",")] for point in (line.get("points") or "").split())
    assert c - a == pytest.approx(e - c, abs=0.2) and b - d == pytest.approx(d - f, abs=0.2) and b > d


@settings(max_examples=20)
@given(rates=st.integers(3, 200), losses=st.integers(3, 200))
@example(rates=100, losses=90)
def test_panels_above_one_another_share_an_axis_that_holds_the_values_of_both(rates, losses):
    figure = figure_schedules({"WSD": [1.0] * rates}, {"WSD": [(step, 3.0) for step in range(losses)]})
    lines = [(line.get("points") or "").split() for line in drawn(figure).iter(f"{SVG}polyline")]
    ends = {len(line): float(line[-1].split(",")[0]) for line in lines}  # steps -> pixel of the last one
    assert max(ends.values()) <= WIDTH - 30
    if rates != losses:
        assert (ends[rates] > ends[losses]) == (rates > losses)


@settings(max_examples=20)
@given(st.integers(1, 6))
def test_the_squares_of_a_matrix_lie_side_by_side_and_fill_the_axes(n):
    every = Transfer("world", "all_to_all", tuple(range(n)), "direct", n, (1.0,) * n, 0, 1, route=lambda: _everyone(n))
    squares = [box for box in drawn(figure_traffic_matrix(Traffic((every,)))).iter(f"{SVG}rect")]
    squares = [
        tuple(float(box.get(key) or 0) for key in ("x", "y", "width", "height"))
        for box in squares
        if box.get("class") == "lablib-heat"
    ]
    assert len(squares) == n * n
    for place, size in ((0, 2), (1, 3)):
        starts = sorted({square[place] for square in squares})
        assert len(starts) == n
        for square in squares:
            end = square[place] + square[size]
            assert (
                square[size] > 0
                and min(abs(end - next_) for next_ in [*starts[1:], starts[-1] + squares[-1][size]]) < 0.2
            )


@settings(max_examples=20)
@given(st.lists(st.text("abcdefgh", min_size=1, max_size=30), min_size=2, max_size=12, unique=True))
def test_the_words_of_a_legend_stand_side_by_side_and_inside(names):
    figure = figure_lines([1, 2], {name: [1.0, 2.0] for name in names}, "size", "time", "B", "s")
    texts = [text for text in drawn(figure).iter(f"{SVG}text") if "".join(text.itertext()) in names]
    places = {"".join(t.itertext()): (float(t.get("y") or 0), float(t.get("x") or 0)) for t in texts}
    assert set(places) == set(names)
    ordered = sorted((y, x, x + CHARACTER * len(name)) for name, (y, x) in places.items())
    assert all(end <= WIDTH for _, _, end in ordered)
    for (row, _, end), (next_row, start, _) in zip(ordered, ordered[1:], strict=False):
        assert row < next_row or end + 26 <= start  # room for the next one's line


def _everyone(n: int) -> dict[tuple[int, int], float]:
    return {(a, b): 1.0 for a in range(n) for b in range(n)}


def test_a_picture_that_is_too_large_is_left_out(monkeypatch, all_figures):
    # By its module: the package has a function of the same name.
    monkeypatch.setattr(sys.modules["lablib.figures.show"], "MAX_SVG_BYTES", 1000)
    assert static_svg(all_figures["timeline"]) == ""


# ---- how they reach the reader ----


def test_every_figure_shown_is_one_image_with_its_sentence_as_name(all_figures):
    for name, figure in all_figures.items():
        page = picture_bundle(figure, plotlyjs=False)["text/html"]
        (label,) = re.findall(r'<div class="lablib-figure" role="img" aria-label="([^"]*)">', page)
        assert unescape(label) == describe(figure), name
        assert page.index("<svg") < page.index("Plotly.newPlot"), name


def test_show_names_the_picture_that_jupyterlab_draws(all_figures, monkeypatch):
    outputs: list[Any] = []
    monkeypatch.setattr("IPython.display.display", lambda value, raw=False: outputs.append(value))
    show(all_figures["timeline"])
    said = outputs[1].data
    assert 'setAttribute("role", "img")' in said and 'setAttribute("aria-label"' in said
    assert said.startswith(caption_html(all_figures["timeline"])) and THEME_CSS in said


def test_texts_can_be_read_in_both_themes():
    for ink in (INK, FAINT_INK):
        assert contrast(ink, "#FFFFFF") >= 4.5 and contrast(TEXTS[ink], PAGE) >= 4.5
    assert AREAS["#FFFFFF"] == PAGE


def test_the_sheet_acts_on_a_dark_page_alone():
    rules = [rule for rule in THEME_CSS.splitlines() if rule]
    assert rules and all(rule.startswith('[data-jp-theme-light="false"] ') for rule in rules)
