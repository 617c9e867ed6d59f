"""The figure of matrices and their cuts."""

from typing import Any

import torch

from lablib.figures import describe, table
from lablib.labs.lab12 import figure_matrices


def test_lines_stand_where_a_matrix_is_cut_and_ranks_are_named():
    matrices = {"X": torch.ones(2, 7), "W": torch.tensor([[1.0], [-2.0]]), "Y": torch.zeros(1, 1)}
    figure: Any = figure_matrices(matrices, {"X": (1, 3), "W": (0, 2)}, "", "as told")
    assert [(shape.x0, shape.y0) for shape in figure.layout.shapes] == [(2.5, 0), (5.5, 0), (0, 0.5)]
    assert list(figure.layout.xaxis.ticktext) == ["0", "1", "2"]
    assert figure.layout.xaxis.title.text == "column (rank)" and figure.layout.yaxis.title.text == "row (number)"
    assert list(figure.layout.xaxis.tickvals) == [1.0, 4.0, 6.0]  # 3, 3 and 1 columns
    assert figure.data[1].z.tolist() == [[1.0], [2.0]] and figure.data[0].zmax == 2.0
    assert describe(figure) == "as told"
    assert list(table(figure)["cut"]) == ["columns on 3 ranks", "rows on 2 ranks", "whole"]


def test_ranks_without_a_part_are_left_out():
    figure: Any = figure_matrices({"W": torch.ones(1, 2)}, {"W": (1, 5)}, "", "")
    assert list(figure.layout.xaxis.ticktext) == ["0", "1"]
