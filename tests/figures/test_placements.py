"""The figure of orders of a mesh's axes."""

# plotly makes its properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

from dataclasses import dataclass

import pytest

from lablib.figures import describe, figure_placements, table
from lablib.parallel import Mesh


@dataclass(frozen=True)
class Made:
    mesh: Mesh
    step_time_s: float
    exposed_s: dict[str, float]
    sent_bytes: dict[str, dict[str, float]]


def made(step_time_s: float, rail: float = 0.0, **sizes: int) -> Made:
    sent = {"tensor": {"node": 3e9, "rail": rail, "across": 0.0}, "data": {"node": 0.0, "rail": 1e9, "across": 0.0}}
    return Made(Mesh(**sizes), step_time_s, {"tensor": 0.5, "data": 0.25}, sent)


def test_bars_are_the_step_and_the_bytes_by_level():
    figure = figure_placements([made(2.0, data=2, tensor=4), made(4.0, 2e9, tensor=4, data=2)])
    rest, waits, near, rail = figure.data  # nothing goes across rails: no bar, no word in the legend
    assert list(rest.x) == [1.25, 3.25] and list(waits.x) == [0.75, 0.75]
    assert list(near.x) == [3.0, 3.0] and list(rail.x) == [1.0, 3.0]
    assert list(near.y) == ["data 2, tensor 4", "tensor 4, data 2"]
    assert "2.00 times as long" in describe(figure)
    assert "1 GB to other nodes in the one, 3 GB in the other" in describe(figure)
    rows = table(figure)
    assert list(rows["step (s)"]) == [2.0, 4.0] and list(rows["waits for data (s)"]) == [0.25, 0.25]
    assert list(rows["sent to the same place of another node (B)"]) == [1e9, 3e9]


def test_of_many_orders_the_fastest_and_the_slowest_are_drawn_and_the_table_has_all():
    figure = figure_placements([made(1.0 + i, data=i + 2) for i in range(120)])
    assert len(figure.data[0].y) == 24 and figure.data[0].y[-1] == "data 121"
    assert len(table(figure)) == 120 and "Of 120 orders 24 are drawn" in describe(figure)


def test_one_order_is_one_sentence():
    assert describe(figure_placements([made(2.0, data=2)])) == "data 2: a step takes 2 s."


def test_no_placement_is_refused():
    with pytest.raises(ValueError, match="there must be a placement to draw: got none"):
        figure_placements([])
