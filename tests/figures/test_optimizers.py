"""Pictures of optimizers: axes fit the numbers, and sentences say what the numbers say."""

from __future__ import annotations

from typing import Any

import pytest

from lablib.figures import (
    describe,
    figure_loss_and_bytes,
    figure_loss_curves,
    figure_projection,
    figure_sign_of_noise,
)
from lablib.studies.optimizers import recorded_results


@pytest.mark.parametrize(("adamw", "kind"), [(8.0, None), (300.0, "log")])
def test_bytes_that_differ_little_stand_on_a_plain_axis(examples, adamw, kind):
    figure: Any = figure_loss_and_bytes(examples.some_results(), {"adamw": adamw, "lion": 4.0}, "what a step needs")
    assert (figure.layout.xaxis.type, figure.layout.title.text) == (kind, "Final loss against what a step needs")
    assert figure.layout.xaxis.title.text == "what a step needs for each parameter (B)"
    assert f"adamw has the least loss, 2.200 nats, with {adamw:.2f}" in describe(figure)


def test_the_sentence_of_signs_says_how_steep_they_begin():
    figure = figure_sign_of_noise([0.01, 0.1, 1.0], {"Lion": [0.07, 0.6, 1.0]}, {"Adam": [0.01, 0.1, 0.7]})
    assert describe(figure) == (
        "Lion: at least half of a full step from a signal of 0.1 of the noise on; "
        "at the two weakest its step is 7.0 and 6.0 times the signal."
    )


def test_a_small_loss_is_not_called_none():
    figure = figure_projection([1, 2, 4], {"its own": [0.0012] * 3, "random": [0.88] * 3})
    assert "its own 0.1%; random 88.0%" in describe(figure)


def test_more_lines_than_can_be_told_apart_are_refused_and_none_is_left_out():
    results = recorded_results()
    assert len(results) == 11
    with pytest.raises(ValueError, match="at most 8 lines can be told apart: got 11 results; choose some"):
        figure_loss_curves(results)
    eight: Any = figure_loss_curves(dict(list(results.items())[:8]))
    assert len({(line.line.color, line.line.dash) for line in eight.data}) == len(eight.data) == 8
