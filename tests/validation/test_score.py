"""Errors are put together as the report says, and every row that is not scored is named."""

import json
from statistics import fmean, median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.figures import validation_svg
from lablib.text.units import plural
from lablib.validation.case import cases_of
from lablib.validation.page import Results, markdown, mixtures_sentence, sentence
from lablib.validation.rows import parse_rows
from lablib.validation.score import best, score, statistics
from lablib.validation.tables import time_lines
from tests.validation.conftest import Fixed


def test_errors_are_in_percent_of_what_was_measured(row, fixed):
    report = score([row(), row({"id": "mine-two", "measured.iteration_s": 5.5})], lambda **_: fixed(4.4))
    (family,) = report.to_json()["families"].items()
    assert family[0] == "mine"
    assert {name: family[1][name] for name in ("rows", "mape", "median", "bias", "max")} == pytest.approx(
        {"rows": 2, "mape": 15.0, "median": 15.0, "bias": -5.0, "max": 20.0}
    )
    assert report.to_json()["all"] == family[1]


def test_the_form_for_programs_has_exactly_the_promised_keys(published, fixed):
    answer = json.loads(json.dumps(score(published, lambda **_: fixed()).to_json()))
    assert list(answer) == ["families", "all", "memory", "skipped", "software"]
    assert answer["all"]["rows"] == sum(family["rows"] for family in answer["families"].values()) == 296
    keys = {"rows", "refused", "mape", "median", "bias", "max", "naive_mape"}
    assert all(set(family) == keys for family in [answer["all"], *answer["families"].values()])
    assert answer["memory"]["rows"] == 33 and answer["skipped"] == []


def test_the_naive_error_stands_beside_and_does_not_depend_on_the_predictor(row, fixed):
    naive = [score([row()], lambda s=s, **_: fixed(s)).all()["naive_mape"] for s in (1.0, 9.0)]
    assert naive[0] == naive[1] > 0


def test_memory_is_scored_where_it_was_measured(row, fixed):
    rows = [row({"measured.memory_gib_per_gpu": 25.0}), row({"id": "mine-two"})]
    memory = score(rows, lambda **_: fixed(4.4, 30 * 2**30)).memory()
    assert memory["rows"] == 1 and memory["mape"] == pytest.approx(20.0) and memory["bias"] == pytest.approx(20.0)
    assert memory["families"]["mine"]["mape"] == pytest.approx(20.0)


def test_a_row_with_memory_only_counts_for_memory_only(row, fixed):
    report = score([row({"measured": {"memory_gib_per_gpu": 25.0}})], lambda **_: fixed())
    assert report.all() == {"rows": 0} and report.memory()["rows"] == 1


def test_a_row_that_is_not_scored_is_named_with_line_and_reason(line, fixed):
    lines = [line(), line({"id": "mine-b", "parallel.dp": 4}), '{"id": "mine-c", "scorable": false}']
    skipped = score(parse_rows(lines), lambda **_: fixed()).to_json()["skipped"]
    assert [(one["id"], one["line"]) for one in skipped] == [("mine-b", 2), ("mine-c", 3)]
    assert "must be the number of GPUs" in skipped[0]["reason"] and "scorable" in skipped[1]["reason"]


def test_a_row_that_the_predictor_refuses_is_named_too(row):
    def refuses(**_):
        raise ValueError("32 layers do not divide")

    (skipped,) = score([row()], refuses).skipped
    assert skipped.reason == "the predictor refuses: 32 layers do not divide"


@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_every_summary_counts_a_refused_row_as_a_failure(data, published):
    rows = published[:: data.draw(st.integers(5, 40))]
    refused = set(data.draw(st.lists(st.sampled_from([row.id for row in rows]), min_size=1, unique=True)))
    answers = {row.id: (row.model["layers"], row.model["hidden"], row.hardware["gpus"]) for row in rows}
    shapes = {answers[name] for name in refused}

    def predict(model, parallel, **_):
        if (model.num_layers, model.d_model, parallel.num_ranks) in shapes:
            raise ValueError("no")
        return Fixed(1.0)

    report = score(rows, predict)
    count = sum(answer in shapes for answer in answers.values())
    assert len(report.skipped) == count == len(report.refused()) and len(report.timed) == len(rows) - count
    for figures in (report.families(), report.groups()):
        assert sum(each["rows"] for each in figures.values()) == len(rows)
        assert sum(each["refused"] for each in figures.values()) == count
    expected = fmean([*(abs(one.error) for one in report.timed), *[100.0] * count])
    assert report.all()["mape"] == pytest.approx(expected) and report.all()["max"] >= 100
    weighed = [row for row in rows if any(name.startswith("memory") for name in row.measured)]
    assert report.memory()["rows"] == len(weighed)
    assert f"({count} refused, counted as 100% off)" in sentence(report)
    assert f"({count} refused, counted as 100% off)" in mixtures_sentence(report)
    assert f"{len(rows)} ({count} refused)" in dict((line[0], line[1]) for line in time_lines(report))["all"]
    assert f"{plural(count, 'refused rows')} as -100%" in validation_svg(report)


def test_a_source_of_which_every_row_is_refused_is_in_the_summary(row):
    def refuses(**_):
        raise ValueError("no")

    report = score([row(), row({"id": "mine-two", "measured": {"memory_gib_per_gpu": 30.0}})], refuses)
    assert report.all() == {"rows": 1, "refused": 1, "mape": 100, "median": 100, "bias": -100, "max": 100}
    assert set(report.families()) == {"mine"} and report.memory()["refused"] == 1
    assert "On 1 published runs of 1 sources (1 refused" in markdown(Results(report), "a.svg")


def test_a_row_that_its_file_excludes_is_no_failure(line, fixed):
    report = score(parse_rows([line(), '{"id": "mine-c", "scorable": false}']), lambda **_: fixed())
    assert report.all()["rows"] == 1 and report.all()["refused"] == 0


def test_a_figure_in_another_unit_is_not_scored_and_named(line, fixed):
    rows = parse_rows([line(), line({"id": "mine-two", "measured.iteration_s": 4000.0})])
    report = score(rows, lambda **_: fixed())
    (skipped,) = report.skipped
    assert len(report.scored) == 1 and (skipped.line, skipped.id) == (2, "mine-two")
    assert skipped.reason.startswith("measured.iteration_s = 4000 means")


def test_of_what_is_open_the_fastest_that_fits_counts(row, fixed):
    cases = cases_of(row({"batch": {"global": 64}}))
    by_micro = {1: fixed(5.0, 20e9), 2: fixed(4.0, 40e9), 4: fixed(3.0, 79e9), 8: fixed(2.0, 81e9), 16: fixed(1, 200e9)}
    assert best(cases, lambda micro_batch, **_: by_micro[micro_batch])[0].micro_batch == 4
    too_big = {micro: fixed(one.step_time_s, one.peak_memory_bytes + 80e9) for micro, one in by_micro.items()}
    assert best(cases, lambda micro_batch, **_: too_big[micro_batch])[0].micro_batch == 1


def test_statistics_are_those_of_the_definition():
    errors = [3.0, -8.0, 1.0]
    figures = statistics(errors, [10.0, -20.0, 0.0])
    assert figures["mape"] == fmean([3, 8, 1]) and figures["median"] == median([3, 8, 1])
    assert (figures["bias"], figures["max"], figures["naive_mape"]) == (fmean(errors), 8.0, 10.0)


def test_families_with_several_kinds_of_rows_are_told_apart(published, fixed):
    groups = score(published, lambda **_: fixed()).groups()
    assert {"vtrain-multi", "vtrain-single", "megatron-sc21", "megatron-core", "mpt", "bloom", "titan"} <= set(groups)
    assert groups["vtrain-multi"]["rows"] == 42 and groups["vtrain-single"]["rows"] == 79
