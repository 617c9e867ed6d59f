"""Pictures of what sending less costs: what the sentences say, what is left out, and nothing at all."""

from __future__ import annotations

from typing import Any

import pytest

from lablib.figures import describe, figure_loss_against_bytes, figure_loss_over_h


def test_the_sentence_names_every_method_from_most_bytes_to_fewest(examples):
    figure = figure_loss_against_bytes(examples.some_compressed_runs())
    assert describe(figure) == (
        "Bytes of a step and final loss. none: 400 kB, 2.200 nats; DiLoCo 4: 100 kB, 2.250 nats; "
        "DiLoCo 16: 25 kB, 2.350 nats; top-k: 10 kB, 2.350 nats."
    )


def test_the_upper_end_of_the_axis_can_be_given_and_marks_differ(examples):
    figure: Any = figure_loss_against_bytes(examples.some_compressed_runs(), most_loss=2.4)
    assert figure.layout.yaxis.range[1] == 2.4 and figure.layout.yaxis.range[0] < 2.1
    runs = examples.some_compressed_runs()
    many: Any = figure_loss_against_bytes({f"{name} {i}": runs[name] for name in runs for i in range(6)})
    assert len({(one.marker.symbol, one.marker.color) for one in many.data}) == 24


def test_lines_over_h_hold_the_methods_that_have_one(examples):
    figure: Any = figure_loss_over_h(examples.some_compressed_runs())
    assert [(line.name, list(line.x), list(line.y)) for line in figure.data] == [
        ("DiLoCo", [4, 16], [pytest.approx(2.25), pytest.approx(2.35)])
    ]
    assert describe(figure) == "Final loss: DiLoCo from 2.250 nats at H = 4 to 2.350 at 16."


@pytest.mark.parametrize("draw", [figure_loss_against_bytes, figure_loss_over_h])
def test_without_runs_there_is_nothing_to_draw(draw):
    assert describe(draw({})) == "There is nothing to draw yet."
