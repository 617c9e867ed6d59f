"""Static pictures: every figure as plain SVG with the figure's words, and figures that follow a theme."""

# plotly makes its properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
import re
import sys
from xml.etree import ElementTree

import plotly.graph_objects as go
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lablib.figures import describe, figure_lines, figure_timeline, figure_traffic_matrix
from lablib.figures.show import MAX_SVG_BYTES, static_svg, without_subtitle
from lablib.figures.style import FAINT_INK, INK
from lablib.figures.svg.axes import CHARACTER
from lablib.figures.svg.canvas import WIDTH
from lablib.figures.svg.picture import figure_svg
from lablib.figures.svg.traces import markers_svg
from lablib.figures.theme import AREAS, PAGE, TEXTS, THEME_CSS
from lablib.labs.lab04 import figure_rates, figure_schedules
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


@pytest.mark.parametrize(("shape", "corner"), [("hv", (1, 0)), ("vh", (0, 1))])
def test_a_step_has_its_corner_where_plotly_has_it(shape, corner):
    """Across first, at the level of the point before ("hv"), or up first, to the level of the next one ("vh")."""
    figure = figure_lines([0.0, 1.0], {"a": [0.0, 1.0]}, "size", "time").update_traces(line_shape=shape)
    (line,) = drawn(figure).iter(f"{SVG}polyline")
    first, middle, last = ([float(v) for v in point.split(",")] for point in (line.get("points") or "").split())
    assert middle == [(first, last)[corner[0]][0], (first, last)[corner[1]][1]]


def test_lines_end_where_their_axes_end_and_points_beyond_are_left_out():
    figure = figure_lines([0.0, 1.0, 2.0], {"a": [0.0, 1.0, 5.0]}, "size", "time")
    assert "clip-path" not in figure_svg(figure)
    figure.add_hline(y=1.0, line_color="#070707").add_hline(y=3.0, line_color="#080808")
    picture = drawn(figure.update_yaxes(range=[0, 2]))
    assert "rgb(7, 7, 7)" in figure_svg(figure) and "rgb(8, 8, 8)" not in figure_svg(figure)
    (line,), (area,) = picture.iter(f"{SVG}polyline"), picture.iter(f"{SVG}clipPath")
    assert line.get("clip-path") == f"url(#{area.get('id')})"
    top = float(area[0].get("y") or 0)
    assert top > min(float(point.split(",")[1]) for point in (line.get("points") or "").split())
    markers = [path.get("d") or "" for path in picture.iter(f"{SVG}path") if "a3.5,3.5" in (path.get("d") or "")]
    assert markers[0].count("M") == 2  # of the three points


def test_bars_of_a_spread_go_from_the_least_to_the_greatest_value():
    figure = figure_rates({"sp": {32: {0.25: [2.0, 4.0, 9.0], 0.5: [3.0]}}}, "width", "")
    line, bar = drawn(figure).iter(f"{SVG}polyline")
    (a, least), (b, most) = ([float(v) for v in point.split(",")] for point in (bar.get("points") or "").split())
    mean = float((line.get("points") or "").split()[0].split(",")[1])
    assert a == b and (least - mean) / (mean - most) == pytest.approx((5 - 2) / (9 - 5), abs=0.02)
    assert "2^-2 2^-1" in words(drawn(figure))  # a power is not read as a difference


@pytest.mark.parametrize(
    ("symbol", "fill", "stroke"),
    [
        ("circle", "rgb(1, 2, 3)", None),
        ("circle-open", "none", "rgb(1, 2, 3)"),
        ("line-ns", "none", "rgb(4, 5, 6)"),
        ("line-ew-open", "none", "rgb(1, 2, 3)"),
        ("triangle-right", "rgb(1, 2, 3)", None),
    ],
)
def test_a_symbol_has_its_size_and_is_filled_unless_it_is_open_or_a_line(symbol, fill, stroke):
    line = {"color": "#040506", "width": 2} if symbol.startswith("line") else {}
    marker = {"symbol": symbol, "size": 16, "color": "#010203", "line": line}
    (path,) = (ElementTree.fromstring(part) for part in markers_svg(marker, [(5.0, 6.0)]))
    numbers = [float(number) for number in re.findall(r"-?[0-9.]+", path.get("d") or "")]
    assert max(numbers) == 16 if symbol.startswith("circle") else max(numbers) <= 6 + 10
    assert f"fill: {fill}" in (path.get("style") or "") and ("stroke" in (path.get("style") or "")) == bool(stroke)
    assert stroke is None or f"stroke: {stroke}" in (path.get("style") or "")


@settings(max_examples=20)
@given(rates=st.integers(3, 200), losses=st.integers(3, 200))
@example(rates=100, losses=90)
def test_panels_above_one_another_share_an_axis_that_holds_the_values_of_both(rates, losses):
    figure = figure_schedules({"WSD": [1.0] * rates}, {"WSD": [(step, 3.0) for step in range(losses)]}, "")
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
@given(st.lists(st.text("abcdefgh", min_size=1, max_size=30), min_size=2, max_size=24, unique=True))
def test_the_words_of_a_legend_stand_side_by_side_and_inside(names):
    figure = figure_lines([1, 2], {name: [1.0, 2.0] for name in names}, "size", "time", "B", "s")
    picture = drawn(figure)
    texts = [text for text in picture.iter(f"{SVG}text") if "".join(text.itertext()) in names]
    places = {"".join(t.itertext()): (float(t.get("y") or 0), float(t.get("x") or 0)) for t in texts}
    assert set(places) == set(names)
    ordered = sorted((y, x, x + CHARACTER * len(name)) for name, (y, x) in places.items())
    assert all(end <= WIDTH and row < float((picture.get("viewBox") or "").split()[3]) for row, _, end in ordered)
    for (row, _, end), (next_row, start, _) in zip(ordered, ordered[1:], strict=False):
        assert row < next_row or end + 26 <= start  # room for the next one's line


def _everyone(n: int) -> dict[tuple[int, int], float]:
    return {(a, b): 1.0 for a in range(n) for b in range(n)}


def test_a_picture_that_is_too_large_is_left_out(monkeypatch, all_figures):
    # By its module: the package has a function of the same name.
    monkeypatch.setattr(sys.modules["lablib.figures.show"], "MAX_SVG_BYTES", 1000)
    assert static_svg(all_figures["timeline"]) == ""


# ---- how they reach the reader ----


def test_texts_can_be_read_in_both_themes():
    for ink in (INK, FAINT_INK):
        assert contrast(ink, "#FFFFFF") >= 4.5 and contrast(TEXTS[ink], PAGE) >= 4.5
    assert AREAS["#FFFFFF"] == PAGE


def test_the_sheet_acts_on_a_dark_page_alone():
    rules = [rule for rule in THEME_CSS.splitlines() if rule]
    assert rules and all(rule.startswith('[data-jp-theme-light="false"] ') for rule in rules)
