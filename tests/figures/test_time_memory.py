"""Memory against time: the quickest small way by name, points outside at the edge with their number."""

from typing import NamedTuple

import pytest

from lablib.figures import describe, figure_time_memory, table


class Way(NamedTuple):
    name: str
    memory_bytes: float
    time_s: float


PLAIN, SLOW, QUICK = Way("keep all", 100.0, 1.0), Way("slow", 10.0, 5.0), Way("quick", 20.0, 1.5)


def test_the_quickest_small_way_is_named_and_points_outside_are_marked():
    figure = figure_time_memory({"A": [PLAIN, SLOW, QUICK], "B": [PLAIN, SLOW, Way("quick", 60.0, 1.2)]})
    said = describe(figure)
    assert "on A quick (20% of the bytes, +50% time)" in said and "on B slow (10% of the bytes, +400% time)" in said
    traces = figure.to_dict()["data"]
    slow, quick = ([trace for trace in traces if trace["name"] == name] for name in ("slow", "quick"))
    assert [(trace["x"], trace["y"], trace["text"]) for trace in slow] == [([2.0], [10.0], ["5.0 x"])] * 2
    assert [(trace["x"], trace["y"]) for trace in quick] == [([1.5], [20.0]), ([1.2], [60.0])]
    assert list(table(figure)["memory (%)"]) == [100, 10, 20, 100, 10, 60]


def test_bad_input():
    with pytest.raises(ValueError, match="same ways: B has"):
        figure_time_memory({"A": [PLAIN, SLOW], "B": [PLAIN]})
    for nothing in ({}, {"A": []}):
        with pytest.raises(ValueError, match="must be a device and a way"):
            figure_time_memory(nothing)
