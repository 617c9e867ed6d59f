"""docs/validation.md, its picture and the README say what the planner does now: `make validation` writes them anew."""

from pathlib import Path
from statistics import fmean

import pytest

from lablib.figures import validation_svg
from lablib.plan import predict
from lablib.validation.conditions import software_name, with_default_software
from lablib.validation.cross_validate import read_held_out
from lablib.validation.page import Results, markdown, with_section
from lablib.validation.rows import published_others
from lablib.validation.score import ScoreReport, score

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REMEDY = "the page is not what the planner gives: run `make validation`"


@pytest.fixture(scope="module")
def report(published) -> ScoreReport:
    return score(published, predict)


@pytest.fixture(scope="module")
def held_out():
    return read_held_out((DOCS / "validation_held_out.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def without_software():
    return read_held_out((DOCS / "validation_held_out_software.json").read_text("utf-8"))[0]


@pytest.fixture(scope="module")
def results(report, published, mixtures, held_out, without_software) -> Results:
    default = score(with_default_software(published), predict)
    separate = (score(mixtures, predict), score(published_others(), predict))
    return Results(report, held_out[0], without_software, *separate, default)


def test_the_page_is_what_the_planner_gives(results):
    page = markdown(results, "validation.svg")
    assert (DOCS / "validation.md").read_text("utf-8") == page, REMEDY


def test_the_picture_is_what_the_planner_gives(report):
    assert (DOCS / "validation.svg").read_text("utf-8") == validation_svg(report), REMEDY
    assert (DOCS / "validation.svg").stat().st_size < 300_000


def test_the_readme_shows_the_picture_and_the_error(results):
    readme = (ROOT / "README.md").read_text("utf-8")
    section = with_section(readme, results, "docs/validation.svg", "docs/validation.md")
    assert readme == section and "(docs/validation.svg)" in readme, REMEDY


def test_what_was_held_out_is_still_about_this_planner(report, held_out, without_software):
    errors: dict[str, list[float]] = {}
    for one in report.timed:
        for name in (one.row.family, software_name(one.row)):
            errors.setdefault(name, []).append(abs(one.error))
    assert [one.source for one in held_out[0]] == list(report.families())
    assert {one.source for one in without_software} == {one.software.name for one in report.timed}
    for one in (*held_out[0], *without_software):
        # A change that moves a source by more than two points asks for new fits.
        remedy = f"{one.source} has moved: run `make validation ARGS=--cross-validate`, many minutes"
        assert one.as_is == pytest.approx(fmean(errors[one.source]), abs=2.0), remedy


def test_every_published_row_is_scored(report):
    assert not report.skipped and len(report.timed) == 296 and len(report.weighed) == 33


@pytest.mark.parametrize("path", ["README.md", "docs/validation.md"])
def test_the_error_on_other_rows_stands_beside_that_of_fitted_rows(path):
    text = (ROOT / path).read_text("utf-8")
    fitted = text.index("published runs of 8 sources the predicted step time is off by")
    others = text.index("published runs of other programs and accelerators")
    assert 0 < others - fitted < 400
