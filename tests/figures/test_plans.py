"""Many plans: every plan is at its time and memory, and no plan beats the front."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.figures import describe, figure_plans, figure_predictions, table
from lablib.figures.plans.plans import MAX_POINTS, pareto_front
from lablib.plan import Parallel, Prediction
from lablib.plan.predictions import Predictions
from tests.figures.examples import some_prediction

# Two on the front (a, b), one that b beats in both (c), one beyond the limit and faster than all (d).
TIMES, SIZES, NAMES = [10.0, 20.0, 21.0, 9.0], [60e9, 30e9, 40e9, 120e9], ["a", "b", "c", "d"]


def plans(**options):
    return figure_plans(TIMES, SIZES, 80e9, NAMES, **options)


def points(figure) -> dict[str, list[tuple[float, float]]]:
    return {t.name: list(zip(t.x, t.y, strict=True)) for t in figure.data if getattr(t, "mode", None) == "markers"}


def test_each_plan_stands_at_its_memory_and_time():
    figure = plans()
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == (
        "memory of the fullest GPU (GB)",
        "step time (s)",
    )
    assert points(figure) == {
        "does not fit": [(120, 9)],
        "fits": [(60, 10), (30, 20), (40, 21)],
        "Pareto front": [(60, 10), (30, 20)],
    }


def test_the_front_is_a_staircase_between_its_plans():
    (line,) = [t for t in plans().data if getattr(t, "mode", None) == "lines"]
    # From the fastest straight up to the time of the next, then left to its memory.
    assert list(zip(line.x, line.y, strict=True)) == [(60, 10), (60, 20), (30, 20)]


def test_the_limit_is_a_line_and_what_is_beyond_is_grey():
    figure = plans()
    assert [(s.x0, s.x1) for s in figure.layout.shapes if s.type == "line"] == [(80, 80)]
    (beyond,) = [t for t in figure.data if t.name == "does not fit"]
    assert beyond.marker.symbol == "x-thin" and "<b>d</b>" in beyond.hovertext[0] and "120 GB" in beyond.hovertext[0]


def test_the_sentence_names_the_fastest_that_fits_and_the_table_begins_with_the_front():
    figure = plans()
    assert describe(figure) == (
        "3 of 4 plans fit into the 80 GB of a GPU; the fastest (a) takes 10 s and 60 GB, the smallest of the 2 of the "
        "front 20 s and 30 GB."
    )
    rows = table(figure)
    assert list(rows["plan"]) == ["a", "b", "c", "d"] and list(rows["on the front"]) == [True, True, False, False]
    assert list(rows["fits"]) == [True, True, True, False]


def test_where_nothing_fits_the_smallest_is_named():
    figure = figure_plans(TIMES, SIZES, 20e9, NAMES)
    assert describe(figure).startswith(
        "0 of 4 plans fit into the 20 GB of a GPU; the smallest (b) needs 30 GB and takes 20 s."
    )
    assert "Pareto front" not in points(figure)


def test_wide_ranges_are_logarithmic_and_end_near_what_matters():
    figure = figure_plans([1.0, 2.0, 900.0], [1e9, 50e9, 5e12], 80e9, ["a", "b", "c"])
    assert figure.layout.xaxis.type == "log"
    assert 10 ** figure.layout.xaxis.range[1] < 5e12 and "80 GB" in figure.layout.annotations[0].text
    assert figure.layout.annotations[0].x == pytest.approx(math.log10(80e9))
    assert describe(figure).endswith("Beyond the edges: 1; zoom out to see them.")
    assert {"10 GB", "100 GB"} <= set(figure.layout.xaxis.ticktext)


def test_a_plan_that_takes_nothing_stands_on_a_linear_axis():
    figure = figure_plans([1.0, 1000.0], [0.0, 50e9], 80e9, ["free", "b"])
    assert figure.layout.xaxis.type != "log" and figure.layout.xaxis.range[0] == 0


def test_of_many_plans_some_are_drawn_and_the_front_whole():
    number = 3 * MAX_POINTS
    times = [1 + 1e-4 * i for i in range(number)]
    sizes = [3e9, 4e9, 2e9, 1e9, *[5e9] * (number - 4)]
    figure = figure_plans(times, sizes, 80e9, [f"plan {i}" for i in range(number)])
    drawn = points(figure)["fits"]
    assert MAX_POINTS <= len(drawn) <= MAX_POINTS + 3 and len(points(figure)["Pareto front"]) == 3
    assert f"{len(drawn):,} of them are drawn." in describe(figure)


def test_no_plan_and_lengths_that_differ():
    assert describe(figure_plans([], [], 80e9, [])) == "There is no plan to draw."
    with pytest.raises(ValueError, match="names must have one value for each of the 4 plans: got 1"):
        figure_plans(TIMES, SIZES, 80e9, ["a"])


def test_names_may_be_made_for_what_is_drawn_and_impossible_plans_are_counted():
    asked = []

    def name(i: int) -> str:
        asked.append(i)
        return f"plan {i}"

    figure = figure_plans([10.0, math.nan, 20.0], [60e9, math.nan, 30e9], 80e9, name)
    assert points(figure)["fits"] == [(60, 10), (30, 20)] and list(table(figure)["plan"]) == ["plan 0", "plan 2"]
    assert set(asked) == {0, 2} and describe(figure).endswith("1 more are impossible.")


def test_predictions_are_called_by_their_choices():
    class Two(Predictions):
        def __init__(self) -> None:
            seconds, sizes = np.array([10.0, np.nan]), np.array([60e9, np.nan])
            vars(self).update(step_time_s=seconds, peak_memory_bytes=sizes, memory_limit_bytes=80e9)

        def arguments(self, i: int) -> dict[str, Any]:
            return {"parallel": Parallel(data=2, tensor=4), "micro_batch": 8, "recompute": "full"}

        def __getitem__(self, i: int) -> Prediction:
            return some_prediction()

    figure = figure_predictions(Two())
    assert list(table(figure)["plan"]) == ["data 2, tensor 4, micro-batch 8, recompute full"]
    assert list(points(figure)) == ["fits", "Pareto front"]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.booleans()), max_size=30))
def test_the_front_is_what_no_fitting_plan_beats(rows):
    times, sizes, fits = ([row[i] for row in rows] for i in range(3))
    front = pareto_front(times, sizes, fits)
    kept = {(times[i], sizes[i]) for i in front}
    assert len(kept) == len(front) and all(fits[i] for i in front)

    def is_beaten(time: int, size: int) -> bool:
        return any(f and t <= time and b <= size and (t, b) != (time, size) for t, b, f in rows)

    assert kept == {(t, b) for t, b, f in rows if f and not is_beaten(t, b)}
