"""The figure of a layer on more and more ranks."""

from typing import Any

import pytest

from lablib.figures import figure_tensor_times
from lablib.figures.describe import describe, table


def test_bars_stand_on_each_other_and_the_node_has_an_end():
    figure: Any = figure_tensor_times([1, 8, 16], [8e-3, 1e-3, 5e-4], [0.0, 1e-3, 1.5e-3], 8)
    compute, exposed, ideal = figure.data
    assert list(compute.y) == [8.0, 1.0, 0.5] and list(exposed.y) == [0.0, 1.0, 1.5]
    assert list(ideal.y) == [8.0, 1.0, 0.5]
    assert [shape.x0 for shape in figure.layout.shapes] == [1.5]
    assert "16 ranks 2 ms, 75% of it exposed" in describe(figure) and "A node has 8 ranks." in describe(figure)
    assert list(table(figure)["speedup"]) == [1.0, 4.0, 4.0]


@pytest.mark.parametrize("ranks_per_node", [0, 2, 64])
def test_no_line_is_drawn_where_no_node_ends_between_bars(ranks_per_node: int):
    figure: Any = figure_tensor_times([4, 8], [1.0, 0.5], [0.1, 0.2], ranks_per_node)
    assert not figure.layout.shapes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], []), "one time of each kind for each number of ranks, one or more: got 0, 0 and 0"),
        (([1, 2], [1.0], [1.0, 2.0]), "got 2, 1 and 2"),
        (([2, 1], [1.0, 1.0], [1.0, 2.0]), "ranks must ascend from 1 or more"),
    ],
)
def test_times_that_do_not_fit_the_ranks_are_refused(arguments, message: str):
    with pytest.raises(ValueError, match=message):
        figure_tensor_times(*arguments)
