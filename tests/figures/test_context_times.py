"""The figure of shared attention against length."""

from typing import Any

import pytest

from lablib.figures import figure_context_times
from lablib.figures.describe import describe, table


def test_each_way_is_a_line_and_the_nearest_to_a_fair_share_is_named():
    figure: Any = figure_context_times([4096, 8192], {"ring": [0.2, 0.9], "ulysses": [0.5, 0.8]}, marked=8192)
    assert [(trace.name, list(trace.y)) for trace in figure.data] == [("ring", [0.2, 0.9]), ("ulysses", [0.5, 0.8])]
    assert [shape.x0 for shape in figure.layout.shapes][-1] == 8192 and figure.layout.shapes[0].y0 == 1.0
    assert "4,096 tokens ulysses, 50%; 8,192 tokens ring, 90%" in describe(figure)
    assert list(table(figure)["ring (of a fair share)"]) == [0.2, 0.9]


def test_without_a_mark_only_the_fair_share_is_drawn():
    figure: Any = figure_context_times([1024], {"ring": [0.2]})
    assert len(figure.layout.shapes) == 1


@pytest.mark.parametrize(
    ("lengths", "ways", "message"),
    [
        ([], {"ring": []}, "got 1 and 0"),
        ([8], {}, "got 0 and 1"),
        ([8, 16], {"ring": [0.5]}, "one value for each of the 2 positions: got 1"),
    ],
)
def test_lines_that_do_not_fit_the_lengths_are_refused(lengths: Any, ways: Any, message: str):
    with pytest.raises(ValueError, match=message):
        figure_context_times(lengths, ways)
