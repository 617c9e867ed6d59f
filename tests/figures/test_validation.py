"""The figures of the validation: every row is a point, where its numbers say."""

import math
import re
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from lablib.figures import validation_svg
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


def test_the_picture_has_every_row_twice_and_each_inside(report):
    picture = ElementTree.fromstring(validation_svg(report))
    width, height = map(float, picture.attrib["viewBox"].split()[2:])
    tips = [element.text or "" for element in picture.iter(f"{SVG}title")]
    assert sorted(tips) == sorted([f"{one.row.id}: {one.error:+.1f}%" for one in report.timed] * 2)
    for circle in picture.iter(f"{SVG}circle"):
        assert 0 < float(circle.attrib["cx"]) < width and 0 < float(circle.attrib["cy"]) < height
    for polygon in picture.iter(f"{SVG}polygon"):
        corners = [tuple(map(float, corner.split(","))) for corner in polygon.attrib["points"].split()]
        assert all(0 < x < width and 0 < y < height for x, y in corners)


def test_the_axes_of_the_picture_end_within_half_a_decade_of_the_rows(report):
    seconds = [s for one in report.timed for s in (one.measured.step_time_s, one.step_time_s)]
    low, high = math.floor(2 * math.log10(min(seconds))) / 2, math.ceil(2 * math.log10(max(seconds))) / 2
    marks = re.findall(r">([0-9.e+-]+) s<", validation_svg(report))
    decades = {10.0**power for power in range(math.ceil(low), math.floor(high) + 1)}
    assert {float(mark) for mark in marks} == decades


def test_an_exact_prediction_stands_on_the_diagonal(report):
    picture = ElementTree.fromstring(validation_svg(report))
    exact = {one.row.id for one in report.timed if abs(one.error) < 1e-9}
    seen = 0
    for circle in picture.iter(f"{SVG}circle"):
        tip = circle.find(f"{SVG}title")
        x, y = float(circle.attrib["cx"]), float(circle.attrib["cy"])
        if tip is not None and (tip.text or "").split(":")[0] in exact and x < 460:
            seen += 1
            assert math.isclose(x - 74, 58 + 380 - y, abs_tol=0.11)
    assert seen > 5


def test_the_same_report_gives_the_same_picture(report):
    assert validation_svg(report) == validation_svg(report)
    assert len(validation_svg(report)) < 300_000


def test_the_picture_needs_no_script_and_nothing_from_elsewhere(report, tmp_path: Path):
    text = validation_svg(report)
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
    assert any("12 refused rows" in (text.text or "") for text in texts)
    assert any("on the edge" in (text.text or "") for text in texts)
    for text in texts:
        length = 0.6 * float(text.attrib["font-size"]) * len(text.text or "")
        left = float(text.attrib["x"]) - {"start": 0, "middle": length / 2, "end": length}[text.attrib["text-anchor"]]
        assert 0 <= left and left + length <= width, text.text
