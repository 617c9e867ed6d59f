"""Five published runs and a naive estimate of their steps."""

import pytest

from lablib.models.transformer_sizes import transformer_parameters
from lablib.studies import PublishedRuns, naive_step_s


def test_a_utilization_gives_the_step_by_six_n_t():
    runs = PublishedRuns()
    assert len(runs.runs) == 5 and "175B on 64 A100" in runs.runs
    for run in runs.runs.values():
        case = run.case
        flops = naive_step_s(run, 50) * case.parallel.num_ranks * case.cluster.device.peak(case.precision) / 2
        assert flops == pytest.approx(6 * transformer_parameters(case.model).total * case.batch * case.seq_len)
    assert list(runs.table().index) == list(runs.runs)


def test_a_guess_that_is_right_has_no_error():
    runs = PublishedRuns()
    right = [100 * naive_step_s(run, 100) / (run.measured.step_time_s or 1) for run in runs.runs.values()]
    assert runs.utilizations() == pytest.approx([*right, sum(right) / len(right)])
    table = runs.errors(*right, 50)
    assert table["yours"].iloc[-1] == "0%" and "(+0%)" in table["yours"].iloc[0].replace("-0%", "+0%")
    assert list(table["utilization"]) == [*(f"{percent:.0f}%" for percent in right), ""]
    with pytest.raises(ValueError, match="give 5 utilizations, and one for all: got 2 numbers"):
        runs.errors(50, 50)
