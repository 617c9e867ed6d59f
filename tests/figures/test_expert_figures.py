"""Figures of experts: their load, ranks by placement, and a mixture beside dense models."""

from typing import Any

import numpy as np
import pytest

from lablib.figures import figure_expert_load, figure_expert_times, figure_rank_loads
from lablib.figures.describe import describe, table
from lablib.figures.techniques.expert_load import MAX_SQUARES
from lablib.studies import OLMOE, AgainstDense, against_dense


@pytest.fixture(scope="module")
def compared() -> list[AgainstDense]:
    return against_dense(OLMOE, "dgx-h100", [1, 2], tensor=1, micro_batch=2, zero_stage=3)


def test_each_square_is_an_experts_load_over_the_mean_of_its_step():
    figure: Any = figure_expert_load([[1, 3], [10, 10], [0, 0]], steps=[0, 10, 30])
    np.testing.assert_allclose(figure.data[0].z, [[0.5, 1, 1], [1.5, 1, 1]])
    assert list(figure.layout.xaxis.ticktext) == ["0", "10", "30"]
    assert describe(figure).startswith("The busiest of 2 experts over the mean: 1.50 at step 0, 1.00 at step 30;")
    assert list(table(figure)["least (of the mean)"]) == [0.5, 1.0, 1.0]


def test_more_steps_than_can_be_drawn_are_means_of_blocks():
    """No token is lost: the means, weighted by the steps of a block, are those of all steps."""
    counts = np.random.default_rng(0).integers(0, 100, (1000, 64))
    figure: Any = figure_expert_load(counts.tolist())
    z = np.array(figure.data[0].z)
    assert z.size <= MAX_SQUARES and z.shape[0] == 64
    first = counts[:16].mean(axis=0)
    np.testing.assert_allclose(z[:, 0], first / first.mean())
    assert "means of 16 steps" in describe(figure)


def test_bars_of_a_rank_stand_side_by_side_under_one_mean():
    figure: Any = figure_rank_loads({"in order": [30.0, 10.0], "balanced": [20.0, 20.0]})
    assert [list(bar.y) for bar in figure.data] == [[30.0, 10.0], [20.0, 20.0]]
    assert figure.data[0].x[0] < 0 < figure.data[1].x[0] and figure.data[0].width == 0.4
    assert figure.layout.shapes[0].y0 == 20.0
    assert describe(figure) == "The busiest of 2 ranks over the mean: in order 1.50; balanced 1.00."
    assert list(table(figure)["in order (tokens)"]) == [30.0, 10.0]


def test_where_a_model_does_not_fit_its_line_has_no_point_but_a_cross(compared: list[AgainstDense]):
    figure: Any = figure_expert_times(compared)
    lines = {trace.name: trace for trace in figure.data}
    assert list(lines["mixture"].x) == ["2"] and list(lines["dense, as many FLOPs"].x) == ["1", "2"]
    assert list(lines["a model does not fit"].x) == ["1"] or list(lines["a model does not fit"].x) == ["1", "2"]
    assert "on 1 GPU does not fit, 129 GB a GPU at least; on 2 GPUs 0." in describe(figure)
    rates = list(table(figure)["mixture (tokens/s a GPU)"])
    assert np.isnan(rates[0]) and compared[1].mixture and rates[1] == compared[1].mixture.tokens_per_s_per_gpu


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (figure_expert_load, ([],), "there must be rows of equally many counts"),
        (figure_expert_load, ([[1, 2], [1]],), r"equally many counts: got lengths \[2, 1\]"),
        (figure_expert_load, ([[1, -2]],), "every count must be 0 or more, and finite"),
        (figure_expert_load, ([[1, 2], [1, 2]], [3, 3]), "steps must ascend, one for each of 2 rows"),
        (figure_expert_load, ([[1, 2]], [1, 2]), "steps must ascend, one for each of 1 rows of counts: got 2"),
        (figure_rank_loads, ({},), "there must be rows"),
        (figure_rank_loads, ({"a": [1, 2], "b": [1, 3]},), "all placements must be of the same tokens"),
        (figure_expert_times, ([],), "there must be numbers of GPUs, one or more, that ascend"),
    ],
)
def test_what_cannot_be_drawn_is_refused(function: Any, arguments: Any, message: str):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


def test_gpus_that_do_not_ascend_are_refused(compared: list[AgainstDense]):
    with pytest.raises(ValueError, match=r"that ascend: got \[2, 1\]"):
        figure_expert_times(compared[::-1])
