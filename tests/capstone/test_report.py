"""Reports are written and read without loss; errors name the field."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lablib.capstone import Report, is_locked, locked, now, parse_report, read_report, report_toml, write_report
from lablib.capstone.report import write_runs
from lablib.text.files import parse_toml


def read_back(report: Report, folder: Path) -> Report:
    return replace(parse_report(parse_toml(report_toml(report)), report.where, folder))


def test_a_report_is_read_as_it_was_written(report: Report, brief_file: Path):
    named = replace(report, brief_name="tiny.toml")
    assert read_back(named, brief_file.parent) == named


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40), error=st.floats(-5, 5))
def test_any_text_survives_the_file(report: Report, brief_file: Path, text: str, error: float):
    row = replace(report.reconciled["step_s"], error=error, explanation=text)
    named = replace(report, brief_name="tiny.toml", title=text, conclusion=text, reconciled={"step_s": row})
    assert read_back(named, brief_file.parent) == named


def test_runs_are_written_below_the_learners_own_lines(report: Report, brief_file: Path):
    path = brief_file.parent / "report.toml"
    write_report(replace(report, brief_name="tiny.toml", small_run=None, large_run=None, reconciled={}), path)
    path.write_text("# a comment of mine\n" + path.read_text())
    named = replace(report, brief_name="tiny.toml")
    for _ in range(2):  # a second time replaces them
        write_runs(named, path)
        assert path.read_text().startswith("# a comment of mine\n")
        assert path.read_text().count("[small_run]") == 1
        assert replace(read_report(path), where="") == replace(named, where="")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"titel": "x"}, "unknown field 'titel': did you mean 'title'"),
        ({"title": 3}, "title must be text: got 3"),
        ({"small_ranks": 0}, "small_ranks must be a whole number, 1 or more: got 0"),
        ({"large": {"model": {"num_heads": 0}}}, "large: model.num_heads must be a whole number, 1 or more: got 0"),
        ({"reasons": {"colour": "x"}}, "unknown field 'reasons.colour'"),
        ({"predicted": {"step_s": -1.0}}, "predicted.step_s must be a number, 1e-12 to 1e\\+24, or None: got -1.0"),
        ({"lock": {"at": "now"}}, "lock must have sha256: missing"),
        ({"reconciled": {"speed": {"error": 0.1}}}, "unknown field 'reconciled.speed'"),
        ({"alternatives": [3]}, "alternatives must be"),
        ({"brief": "nothing"}, "unknown brief 'nothing'"),
    ],
)
def test_a_wrong_field_is_one_error(change: dict, message: str):
    with pytest.raises(ValueError, match=message):
        parse_report({"title": "t", "author": "a", "brief": "one-billion"} | change)


def test_a_lock_holds_until_a_choice_or_a_prediction_changes(report: Report):
    assert is_locked(report)
    assert is_locked(replace(report, conclusion="another", author="Eve"))
    assert not is_locked(replace(report, large=replace(report.large, num_steps=999)))
    assert not is_locked(replace(report, predicted=replace(report.predicted, step_s=1.0)))
    assert not is_locked(replace(report, brief=replace(report.brief, gpu_hours=99.0)))


def test_a_lock_needs_all_predictions_and_removes_earlier_runs(report: Report):
    again = locked(report, now())
    assert again.small_run is None and again.large_run is None
    assert set(again.reconciled) == set(report.reconciled)  # explanations are the learner's
    with pytest.raises(ValueError, match="missing loss; write predicted.loss"):
        locked(replace(report, predicted=replace(report.predicted, loss=None)), now())
