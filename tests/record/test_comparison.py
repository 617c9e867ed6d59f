"""How busy a machine was, what can be read all the same, and comparisons that were recorded."""

# pandas makes its properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib import Reconciliation
from lablib.course import recorded_comparison
from lablib.course.errors import CourseError
from lablib.process.host_load import HostLoad, busiest, host_load
from lablib.record.comparison import RecordedReconciliation
from tests.test_reconcile import MEASURED, PREDICTED, compute, run_of, talk

QUIET, BUSY = HostLoad(0.1, 2), HostLoad(1.5, 2)


def test_the_load_is_that_of_all_cores():
    load = host_load(0.05)
    assert 0 <= load.busy_cores <= load.cores


def test_a_share_of_all_cores_is_told_in_cores(monkeypatch):
    monkeypatch.setattr("psutil.cpu_count", lambda: 8)
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: 37.5)
    assert host_load(0.05) == HostLoad(3.0, 8)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, 1e9])
def test_a_time_to_watch_is_a_short_one(seconds: float):
    with pytest.raises(ValueError, match="seconds must be"):
        host_load(seconds)


def test_a_tenth_of_the_cores_is_where_quiet_ends():
    assert QUIET.is_quiet and not BUSY.is_quiet and not HostLoad(0.2, 2).is_quiet
    assert busiest([QUIET, BUSY]) is BUSY and busiest([]) is None


def test_on_a_quiet_machine_errors_beyond_the_noise_are_the_predictions():
    comparison = Reconciliation.of(PREDICTED, [MEASURED] * 3, loads=[QUIET, QUIET])
    assert comparison.is_quiet
    assert "the machine was quiet" in comparison.reading().lower() and "0.1 of 2 cores" in comparison.reading()


def test_a_load_before_or_after_makes_a_machine_busy_and_what_can_be_read_is_said():
    comparison = Reconciliation.of(PREDICTED, [MEASURED] * 3, loads=[QUIET, BUSY])
    assert not comparison.is_quiet
    assert "1.5 of 2 cores" in comparison.reading()
    assert "the same on both sides (all_reduce 1)" in comparison.reading()
    assert "on both, forward is the longest work" in comparison.reading()


SLOW = run_of(*(compute(rank, 0, 30) for rank in (0, 1)), backend="gloo")


def noisy(*loads: HostLoad) -> Reconciliation:
    """Three runs of two ranks, of which one takes much longer."""
    return Reconciliation.of(PREDICTED, [MEASURED, MEASURED, SLOW], loads=loads)


@pytest.mark.parametrize(
    ("loads", "why"),
    [
        ([], "other programs were not measured"),
        ([QUIET], "Few other programs ran, but the runs differ by themselves"),
        ([HostLoad(0.05, 1)], "Few other programs ran, but 2 ranks share 1 core and take turns"),
    ],
)
def test_runs_that_differ_are_noisy_and_no_other_program_is_blamed(loads: list[HostLoad], why: str):
    comparison = noisy(*loads)
    assert not comparison.is_quiet
    assert why in comparison.reading() and "busy:" not in comparison.reading()
    assert "smaller than a row's noise say nothing" in comparison.reading()
    assert "the same on both sides (all_reduce 1)" in comparison.reading()


def test_runs_that_differ_beside_other_programs_are_a_busy_machines():
    assert "The machine was busy" in noisy(QUIET, BUSY).reading()


@given(st.floats(0, 8), st.integers(1, 8), st.booleans())
def test_a_machine_is_quiet_busy_or_noisy_and_one_of_them_is_said(busy_cores: float, cores: int, differ: bool):
    load = HostLoad(busy_cores, cores)
    comparison = Reconciliation.of(PREDICTED, [MEASURED, MEASURED, SLOW if differ else MEASURED], loads=[load])
    words = [load.is_quiet and not differ, not load.is_quiet, load.is_quiet and differ]
    said = comparison.reading()
    found = ["machine was quiet" in said, "machine was busy" in said, "Few other programs ran" in said]
    assert found == words and comparison.is_quiet == words[0]


def test_calls_that_differ_are_no_matter_of_load():
    twice = run_of(*(talk(rank, start, start + 1, call=start) for rank in (0, 1) for start in (0, 5)), backend="gloo")
    assert "Calls differ" in Reconciliation.of(PREDICTED, [twice], loads=[BUSY]).reading()


def test_one_run_says_nothing_of_noise():
    assert "nan" not in Reconciliation.of(PREDICTED, [MEASURED]).reading()


def test_what_was_recorded_is_what_was_seen(tmp_path):
    comparison = Reconciliation.of(PREDICTED, [MEASURED] * 2, loads=[BUSY])
    comparison.save(tmp_path / "recorded.json")
    recorded = RecordedReconciliation.load(tmp_path / "recorded.json")
    assert recorded == comparison.record()
    here, there = comparison.table(), recorded.table()
    assert list(here["name"]) == list(there["name"])
    assert there["measured_s"].tolist() == pytest.approx(here["measured_s"].tolist(), rel=1e-3, nan_ok=True)
    assert "1.5 of 2 cores" in recorded.about["load"] and "2 ranks on gloo" in recorded.sentence()
    side_by_side = comparison.beside(recorded)
    assert list(side_by_side.columns)[0] == "error_pct here" and side_by_side.shape == (len(here), 4)
    equal = side_by_side["error_pct here"] - side_by_side["error_pct recorded"]
    assert equal.abs().fillna(0).max() < 0.1


def test_a_file_that_holds_something_else_is_one_sentence(tmp_path):
    (tmp_path / "recorded.json").write_text('{"rows": []}')
    with pytest.raises(ValueError, match="must be what save"):
        RecordedReconciliation.load(tmp_path / "recorded.json")
    with pytest.raises(CourseError, match="unknown lab"):
        recorded_comparison("77")


def test_calls_of_several_sizes_are_added_up_and_their_rows_are_told_apart():
    sizes = run_of(
        *(talk(rank, start, start + 1, size_bytes=size) for rank in (0, 1) for start, size in ((0, 8e3), (5, 2e6)))
    )
    comparison = Reconciliation.of(sizes, [sizes] * 2, loads=[BUSY])
    assert "(all_reduce 2)" in comparison.reading()
    assert {"all_reduce of 8 kB", "all_reduce of 2 MB"} <= set(comparison.beside(comparison.record()).index)


def test_one_run_is_read_with_the_load_alone():
    reading = Reconciliation.of(PREDICTED, [MEASURED], loads=[QUIET]).reading()
    assert reading.startswith("Other programs kept 0.1 of 2 cores busy. The machine was quiet")


def test_a_longest_work_is_told_only_of_several_on_which_both_sides_agree():
    def on_one_rank(**seconds: float):
        ends = [sum(list(seconds.values())[: i + 1]) for i in range(len(seconds))]
        return run_of(
            *(compute(0, end - s, end, k) for (k, s), end in zip(seconds.items(), ends, strict=True)), ranks=1
        )

    one, longer, shorter = (
        on_one_rank(forward=1),
        on_one_rank(forward=1, backward=2),
        on_one_rank(forward=2, backward=1),
    )
    for predicted, measured, is_told in ((one, one, False), (longer, shorter, False), (longer, longer, True)):
        reading = Reconciliation.of(predicted, [measured], loads=[BUSY]).reading()
        assert ("On both, backward is the longest work" in reading) is is_told
        assert ("longest work" in reading) is is_told
