"""benchmarks/record_labs.py: what labs 06 and 07 show beside a learner's own measurement."""

from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.course import recorded_comparison
from lablib.course.places import find_labs
from lablib.process.host_load import HostLoad
from lablib.record.comparison import RecordedReconciliation
from tests.script_module import script_module

LABS = [lab for lab in find_labs(Path(__file__).parents[2] / "labs") if (lab.folder / "recorded.json").exists()]
benchmark = script_module("benchmarks/record_labs.py")
vars(benchmark)["host_load"] = lambda: HostLoad(0.0, 2)  # in no time


@given(taken=st.lists(st.floats(1e-6, 10), min_size=1, max_size=9), predicted_s=st.floats(1e-6, 10))
def test_the_middle_repeat_is_kept_with_its_error_and_noise(taken, predicted_s):
    calls = count()
    settings = [("one", predicted_s, lambda: taken[next(calls)]), ("other", predicted_s, lambda: predicted_s)]
    found = benchmark.recorded("Two settings", "nothing", 5, settings, len(taken))
    one, other = found.rows
    middle = sorted(taken)[len(taken) // 2] if len(taken) % 2 else sum(sorted(taken)[len(taken) // 2 - 1 :][:2]) / 2
    assert one["measured_s"] == pytest.approx(middle, rel=1e-3)
    assert one["error_pct"] == pytest.approx(100 * (predicted_s / middle - 1), rel=1e-3, abs=1e-9)
    assert one["noise_pct"] == pytest.approx(100 * max(max(taken) / middle - 1, 1 - min(taken) / middle), rel=1e-3)
    assert (other["error_pct"], other["noise_pct"]) == (0, 0)


@pytest.mark.parametrize("lab", ["06", "07"])
def test_what_was_recorded_is_what_the_command_records(lab, tmp_path):
    recorded = recorded_comparison(lab)
    _, backend, calls, settings = benchmark.LABS[lab]() if lab == "07" else ("", "torch on the CPU", 1, None)
    assert recorded.about["backend"] == backend and {row["measured_calls"] for row in recorded.rows} == {calls}
    if settings is not None:
        assert [row["name"] for row in recorded.rows] == [name for name, _, _ in settings]
        for row, (_, predicted_s, _) in zip(recorded.rows, settings, strict=True):
            assert row["predicted_s"] == pytest.approx(predicted_s, rel=1e-3)  # of this version of the simulated loop
    recorded.save(tmp_path / "recorded.json")
    assert RecordedReconciliation.load(tmp_path / "recorded.json") == recorded


@pytest.mark.parametrize("lab", [lab for lab in LABS if lab.number not in benchmark.LABS], ids=lambda lab: lab.name)
def test_the_command_finds_the_comparison_of_a_lab(lab):
    assert len(benchmark.COMPARES.findall(lab.master.read_text("utf-8"))) == 1
