"""The bubble simulator: its controls say a plan and its costs; a moment steps; what cannot be is said."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.pipeline import Costs, replay
from lablib.pipeline.schedules import SCHEDULES, make
from lablib.widgets import bubble_simulator
from lablib.widgets.bubble_simulator import DEADLOCK_EXAMPLE, OWN, Simulator, numbers
from lablib.widgets.explorer import Explorer

DEFAULTS = {
    "schedule": "1f1b",
    "stages": 4,
    "microbatches": 8,
    "chunks": 1,
    "forward": "1",
    "for_input": "1",
    "for_weights": "1",
    "send_percent": 0,
    "overlap": True,
    "limit": "",
    "own": "",
    "moment": 0,
}


@pytest.fixture
def simulator() -> Explorer:
    shown = bubble_simulator(stages=3, microbatches=4)
    assert isinstance(shown, Explorer)
    return shown


@given(st.sampled_from(list(SCHEDULES)), st.integers(1, 5), st.integers(1, 9), st.sampled_from([0, 20]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_controls_are_the_arguments_of_a_replay(schedule, stages, microbatches, send_percent, overlap):
    said = {"schedule": schedule, "stages": stages, "microbatches": microbatches, "forward": "2", "for_weights": "0.5"}
    said |= {"send_percent": send_percent, "overlap": overlap}
    chunks = SCHEDULES[schedule].num_chunks
    try:
        plan = make(schedule, stages, microbatches, chunks)
    except ValueError as error:
        with pytest.raises(ValueError) as found:
            Simulator()(**(DEFAULTS | said))
        assert str(found.value) == str(error)
        return
    costs = Costs(forward_s=2, input_s=1, weight_s=0.5, send_s=send_percent / 100, overlap=overlap)
    found = Simulator()(**(DEFAULTS | said)).simulation
    assert found.plan == plan and found.replay.makespan_s == replay(plan, costs).makespan_s


def test_a_step_shows_the_next_moment_and_does_not_simulate_again(simulator):
    first = simulator._value.simulation
    moments_s = first.moments_s
    slider = simulator.controls["moment"]
    assert slider.slider.max == slider.play.max == len(moments_s)
    for number in (1, 2, len(moments_s)):
        slider.slider.value = number
        assert simulator.figure.layout.shapes[1].x0 == moments_s[number - 1]
        assert simulator._value.simulation is first
    slider.slider.value = 0
    assert not simulator.figure.layout.shapes and "At " not in simulator.caption.text


def test_a_shorter_plan_has_fewer_moments(simulator):
    simulator.controls["moment"].slider.value = simulator.controls["moment"].slider.max
    simulator.controls["microbatches"].value = 1
    simulation = simulator._value.simulation
    assert simulator.controls["moment"].slider.max == len(simulation.moments_s) == simulator.controls["moment"].value
    assert simulator.figure.layout.shapes[1].x0 == simulation.replay.makespan_s


def test_a_plan_of_ones_own_is_drawn_even_if_it_deadlocks(simulator):
    simulator.controls["schedule"].value = OWN
    assert "your plan takes" in simulator.caption.text
    simulator.controls["own"].value = DEADLOCK_EXAMPLE
    assert "deadlocks after 2 of 8 actions" in simulator.caption.text and not simulator.message.text
    simulator.controls["own"].value = "F0 B0\nF0"
    assert "1B0 is missing" in simulator.message.text and "deadlocks" in simulator.caption.text


@pytest.mark.parametrize(
    ("text", "words"), [("", "got ''"), ("a", "got 'a'"), ("1 2", "got 2 numbers; try 1 1 2"), ("1 2 x", "got '1 2 x'")]
)
def test_seconds_are_one_number_or_one_for_each_piece(text, words):
    assert numbers("F", "2", 3, "pieces") == 2 and numbers("F", "1, 2 3", 3, "pieces") == [1, 2, 3]
    with pytest.raises(ValueError, match="F takes one number, or one for each of the 3 pieces") as found:
        numbers("F", text, 3, "pieces")
    assert words in str(found.value)


def test_a_limit_is_one_for_all_ranks_or_one_for_each(simulator):
    simulator.controls["limit"].value = "2"
    assert "At most 2 micro-batches may be held: rank 0 holds more." in simulator.caption.text
    simulator.controls["limit"].value = "3, 2 1"
    assert "At most 3, 2, 1 micro-batches may be held: no rank holds more." in simulator.caption.text
    simulator.controls["limit"].value = "3 2 0.5"
    assert "rank 2 holds more" in simulator.caption.text
    for text, words in (("3 2", "the limit takes one number, or one for each of the 3 ranks: got 2"), ("0", "above 0")):
        simulator.controls["limit"].value = text
        assert words in simulator.message.text
    simulator.controls["limit"].value = " "
    assert "At most" not in simulator.caption.text and not simulator.message.text


def test_seconds_below_zero_are_said(simulator):
    simulator.controls["forward"].value = "-1"
    assert "forward_s must be a finite number, 0 or more" in simulator.message.text
