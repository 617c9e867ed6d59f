"""Figures about batches: what is drawn is what was given, and the sentence says it."""

# plotly makes its properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
from __future__ import annotations

import math

import pytest

from lablib.batches.noise_scale import StepsLaw
from lablib.batches.packing import best_fit, one_per_block
from lablib.figures import describe, figure_batch_splits, table
from lablib.labs.lab04 import (
    figure_coordinates,
    figure_packing,
    figure_rates,
    figure_schedules,
    figure_steps_law,
    minimum_at,
    possible_minima,
)

LENGTHS = [3, 5, 2, 7, 1, 4]
PACKINGS = {"alone": one_per_block(LENGTHS, 8), "best fit": best_fit(LENGTHS, 8)}
RATES = {"sp": {32: {0.25: [3.0, 3.2], 0.5: [2.0, 2.4]}, 64: {0.25: [1.0, 1.2], 0.5: [math.inf, 0.5]}}}


def test_a_spread_goes_from_the_least_to_the_most_about_the_mean():
    line = figure_rates({"": {8: {1: [2.0, 4.0, 9.0], 2: [5.0]}}}, "width", "").data[0]
    assert (list(line.x), list(line.y)) == ([1, 2], [5.0, 5.0])
    assert (list(line.error_y.array), list(line.error_y.arrayminus)) == ([4.0, 0.0], [3.0, 0.0])


def test_the_best_rate_is_one_at_which_no_run_diverged():
    figure = figure_rates(RATES, "width", "")
    rings = [trace for trace in figure.data if trace.marker.symbol == "circle-open"]
    assert [(ring.x[0], ring.y[0]) for ring in rings] == [(0.5, pytest.approx(2.2)), (0.25, pytest.approx(1.1))]
    assert "Best rate at width 32, 64: sp 2^-1, 2^-2." == describe(figure)
    assert list(table(figure)["diverged"]) == [0, 0, 0, 1]
    assert [text.replace("<sup>", "^") for text in figure.layout.xaxis.ticktext] == ["2^-2</sup>", "2^-1</sup>"]


def test_a_single_lucky_run_does_not_make_its_rate_the_best():
    figure = figure_rates({"sp": {32: {0.25: [2.0, 2.2], 0.5: [1.9]}}}, "width", "")
    assert "Best rate at width 32: sp 2^-2 or 2^-1." == describe(figure)
    [ring] = [trace for trace in figure.data if trace.marker.symbol == "circle-open"]
    assert (list(ring.x), list(ring.y)) == ([0.25, 0.5], [pytest.approx(2.1), 1.9])


def test_rates_may_be_best_whose_runs_reach_the_bar_of_the_least():
    rates = {1: [2.3, 2.9], 2: [2.0, 2.2], 4: [2.2, 2.4], 8: [2.1, math.inf], 16: [2.21]}
    assert (minimum_at(rates), possible_minima(rates)) == (2, [2, 4])
    assert possible_minima({1: [math.inf], 2: [math.inf]}) == []


def test_the_sentence_says_none_where_every_rate_diverged_and_there_is_no_ring():
    figure = figure_rates({"sp": {32: {0.5: [math.inf]}, 64: {0.5: [1.0]}}}, "width", "")
    assert describe(figure) == "Best rate at width 32, 64: sp none, 2^-1."
    assert sum(trace.marker.symbol == "circle-open" for trace in figure.data) == 1


def test_the_coordinate_check_says_how_much_each_activation_grows():
    runs = {"standard": {32: [{"logits": 1.0}, {"logits": 3.0}], 64: [{"logits": 8.0}]}}
    figure = figure_coordinates(runs)
    assert describe(figure) == "Change at width 64 over that at 32: standard: logits 4."
    assert list(figure.data[0].y) == [2.0, 8.0]


def test_measured_steps_stand_at_their_tokens_beside_the_law():
    law = StepsLaw(100.0, 8.0)
    figure = figure_steps_law({4: [290.0, 310.0], 16: [150.0]}, law, seq_len=10)
    curve, runs, means = figure.data
    assert (list(runs.x), list(runs.y)) == ([290.0, 310.0, 150.0], [11600.0, 12400.0, 24000.0])
    assert (list(means.x), list(means.y)) == ([300.0, 150.0], [12000.0, 24000.0])
    for steps, tokens in zip(curve.x, curve.y, strict=True):
        assert (steps / 100 - 1) * (tokens / (100 * 8 * 10) - 1) == pytest.approx(1)
    assert "at least 100 steps, twice that at the critical batch of 8 sequences" in describe(figure)


def test_schedules_and_their_runs_share_the_axis_of_steps():
    figure = figure_schedules({"a": [0.5, 1.0], "b": [1.0, 1.0]}, {"b": [(1, 3.0), (2, 2.5)]}, "")
    assert [(trace.name, list(trace.y)) for trace in figure.data] == [
        ("a", [0.5, 1.0]),
        ("b", [1.0, 1.0]),
        ("b", [3.0, 2.5]),
    ]
    assert describe(figure) == "Held-out loss at the end: b 2.500 nats (step 2)."


def test_bars_of_a_packing_are_its_documents_and_fill_every_block():
    figure = figure_packing(PACKINGS)
    for axis, packing in zip(("x", "x2"), PACKINGS.values(), strict=True):
        bars = [trace for trace in figure.data if trace.xaxis == axis]
        assert [sum(column) for column in zip(*(bar.y for bar in bars), strict=True)] == [8] * len(packing.blocks)
        assert sum(sum(bar.y) for bar in bars if bar.name != "padding") == sum(LENGTHS)
    assert (
        "6 documents of 22 tokens in blocks of 8: alone 6 blocks, 54.17% of them waste; best fit 3 blocks"
        in describe(figure)
    )
    assert list(table(figure)["in documents alone (pairs of tokens)"]) == [9 + 25 + 4 + 49 + 1 + 16] * 2
    assert list(table(figure)["attention over blocks (pairs of tokens)"]) == [6 * 64, 3 * 64]


def test_of_many_blocks_forty_are_drawn_and_the_sentence_says_so():
    figure = figure_packing({"alone": one_per_block([1] * 90, 2)})
    assert {len(bar.y) for bar in figure.data} == {40} and "40 blocks are drawn" in describe(figure)


def test_splits_of_a_batch_are_bars_of_memory_and_time(examples):
    few, many = (
        examples.some_prediction(micro_batch=m, num_microbatches=8 // m, step_time_s=t)
        for m, t in ((1, 10.0), (2, 9.0))
    )
    figure = figure_batch_splits([few, many], 1)
    times = figure.data[-1]
    assert (list(times.x), list(times.y)) == (["1 x 8", "<b>2 x 4</b>"], [10.0, 9.0])
    held = [sum(bar.y[0] for bar in figure.data[:-1] if bar.type == "bar")]
    assert held == [pytest.approx(60.0)]
    assert "Micro-batch 2 x 4 accumulations x 4 data ranks = 32 sequences, 32,000 tokens a step: 9 s" in describe(
        figure
    )


@pytest.mark.parametrize(("batches", "chosen", "message"), [([], 0, "at least one"), ([8], 1, "of 1 split: got 1")])
def test_splits_that_cannot_be_drawn_are_one_clear_error(examples, batches, chosen, message):
    with pytest.raises(ValueError, match=message):
        figure_batch_splits([examples.some_prediction(batch=batch) for batch in batches], chosen)
