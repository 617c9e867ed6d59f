"""The figures of the validation: every row is a point, where its numbers say."""

# plotly makes its properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
import math
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from lablib.figures import table, validation_svg
from lablib.figures.plans.validation import figure_validation
from lablib.validation import ScoreReport, published_rows, score

SVG = "{http://www.w3.org/2000/svg}"


class Predicted(NamedTuple):
    step_time_s: float
    peak_memory_bytes: float = 1e9
    reserved_bytes: float = 1e9
    device_bytes: float = 1e9
    fits: bool = True


@pytest.fixture(scope="module")
def report() -> ScoreReport:
    """A tenth too slow on every second row, exact on the others."""
    rows = [row for row in published_rows() if "iteration_s" in row.measured][::4]
    factors = iter([1.0, 1.1] * len(rows))
    seconds = {row.id: row.measured["iteration_s"] * next(factors) for row in rows}
    ids = iter(seconds)
    return score(rows, lambda **_: Predicted(seconds[next(ids)]))


def test_a_report_without_rows_can_be_drawn():
    assert ElementTree.fromstring(validation_svg(ScoreReport(()))).tag == f"{SVG}svg"


def test_both_panels_and_the_table_have_every_row(report):
    figure, ids = figure_validation(report), [one.row.id for one in report.timed]
    assert sorted(table(figure)["run"]) == sorted(ids)
    for axis in ("x", "x2"):
        hovers = [hover for trace in figure.data if trace.xaxis == axis for hover in trace.hovertext or ()]
        assert sorted(hovers) == sorted(f"<b>{one.row.id}</b><br>{one.error:+.1f}%" for one in report.timed)


def test_a_point_is_the_published_and_the_predicted_time_and_between_the_ends_of_the_axes(report):
    figure = figure_validation(report)
    shown = [trace for trace in figure.data if trace.xaxis == "x" and trace.name]
    pairs = sorted(pair for trace in shown for pair in zip(trace.x, trace.y, strict=True))
    assert pairs == sorted((one.measured.step_time_s, one.step_time_s) for one in report.timed)
    low, high = figure.layout.xaxis.range
    seconds = [math.log10(time_s) for pair in pairs for time_s in pair]
    assert figure.layout.yaxis.range == (low, high)
    assert low <= min(seconds) < low + 0.5 and high - 0.5 < max(seconds) <= high


def test_the_same_report_gives_the_same_picture_without_a_script_and_without_anything_from_elsewhere(report):
    text = validation_svg(report)
    assert text == validation_svg(report) and len(text) < 300_000
    assert "<script" not in text and text.count("http") == 1  # the name space


def test_no_text_leaves_the_picture_in_a_wide_font():
    """0.6 em is the mean width of a letter in DejaVu Sans, the widest font of the list in use."""
    rows = [row for row in published_rows() if "iteration_s" in row.measured]
    refusing = iter([ValueError("no such plan")] * 12)

    def predict(**_: object) -> Predicted:
        if error := next(refusing, None):
            raise error
        return Predicted(1.0)  # errors beyond the edge, too

    picture = ElementTree.fromstring(validation_svg(score(rows, predict)))
    width = float(picture.attrib["viewBox"].split()[2])
    texts = [text for text in picture.iter(f"{SVG}text") if "transform" not in text.attrib]
    spans = [(text, span.text or "") for text in texts for span in text.iter(f"{SVG}tspan")]
    words = {span for _, span in spans}
    assert any("12 refused rows" in each for each in words) and "\N{GREATER-THAN OR EQUAL TO} +40%" in words
    for text, words in spans:
        size = float(text.attrib["style"].split("font-size: ")[1].split("px")[0])
        length = 0.6 * size * len(words)
        left = float(text.attrib["x"]) - {"start": 0, "middle": length / 2, "end": length}[text.attrib["text-anchor"]]
        assert 0 <= left and left + length <= width, words
