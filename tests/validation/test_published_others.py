"""Published runs of other programs than the fitted ones and of other accelerators: valid rows, each with its source."""

import pytest

from lablib.validation.case import cases_of
from lablib.validation.row_software import year_of
from lablib.validation.rows import published_others


@pytest.fixture(scope="module")
def others():
    return [row for row in published_others() if row.is_scorable]


def test_each_row_names_its_source_how_it_was_read_and_its_year(others):
    assert len(others) >= 400 and len({row.source["title"] for row in others}) >= 40
    for row in others:
        assert not row.unused and row.source["url"].startswith("https://"), row.id
        assert row.texts["how_read"] and row.texts["notes"] and 2020 < (year_of(row) or 0) < 2027, row.id


def test_no_row_or_page_is_in_another_file(others, published, mixtures):
    fitted = [*published, *mixtures]
    assert len({row.id for row in (*others, *fitted)}) == len(others) + len(fitted)
    assert not {row.source["url"] for row in others} & {row.source["url"] for row in fitted}


def test_a_row_is_a_run_of_the_planner_or_refused_with_a_reason(others):
    for row in others:
        try:
            assert cases_of(row)
        except ValueError as reason:
            assert len(str(reason)) > 20, row.id
