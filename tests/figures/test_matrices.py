"""The figure of matrices and their cuts."""

from typing import Any

import pytest
import torch

from lablib.figures import describe, table
from lablib.labs.lab12 import figure_matrices


def test_lines_stand_where_a_matrix_is_cut_and_ranks_are_named():
    figure: Any = figure_matrices({"X": torch.ones(2, 7), "W": [[1.0], [-2.0]]}, {"X": (1, 3), "W": (0, 2)})
    assert [(shape.x0, shape.y0) for shape in figure.layout.shapes] == [(2.5, 0), (5.5, 0), (0, 0.5)]
    assert list(figure.layout.xaxis.ticktext) == ["0", "1", "2"]
    assert figure.layout.xaxis.title.text == "column (rank)" and figure.layout.yaxis.title.text == "row (number)"
    assert list(figure.layout.xaxis.tickvals) == [1.0, 4.0, 6.0]  # 3, 3 and 1 columns
    assert figure.data[1].z.tolist() == [[1.0], [2.0]] and figure.data[0].zmax == 2.0
    assert describe(figure) == "X: columns on 3 ranks; W: rows on 2 ranks."
    assert list(table(figure)["cut"]) == ["columns on 3 ranks", "rows on 2 ranks"]


def test_a_matrix_without_a_cut_is_whole_and_ranks_without_a_part_are_left_out():
    figure: Any = figure_matrices({"X": [[0.0]], "W": [[1.0, 2.0]]}, {"W": (1, 5)}, summary="as told")
    assert list(figure.layout.xaxis2.ticktext) == ["0", "1"] and describe(figure) == "as told"
    assert list(table(figure)["cut"]) == ["whole", "columns on 5 ranks"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({},), "a matrix to draw: got none"),
        (({"X": [1.0]},), "1 to 64 rows and columns to be drawn: 'X' is"),
        (({"X": torch.ones(65, 1)},), "1 to 64 rows"),
        (({"X": [[1.0], [1.0, 2.0]]},), "rows of numbers, as many in each: 'X' is not"),
        (({"X": [[float("nan")]]},), "'X' has inf or NaN"),
        (({"X": [[1.0]]}, {"Y": (0, 2)}), "cuts must name a matrix"),
        (({"X": [[1.0]]}, {"X": (2, 2)}), "cuts must name a matrix"),
        (({"X": [[1.0]]}, {"X": (0, 0)}), "cuts must name a matrix"),
    ],
)
def test_what_is_no_matrix_or_no_cut_is_refused(arguments: Any, message: str):
    with pytest.raises(ValueError, match=message):
        figure_matrices(*arguments)
