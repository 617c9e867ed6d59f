"""A plan is a record of actions, and reads and writes itself as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.pipeline import Action, Kind, Plan


@given(st.integers(0, 10**6), st.sampled_from(Kind), st.integers(0, 10**6))
def test_an_action_reads_what_it_wrote(stage, kind, microbatch):
    action = Action(stage, kind, microbatch)
    assert Action.parse(str(action)) == action


def test_an_action_is_written_as_in_the_field():
    assert str(Action(1, Kind.F, 0)) == "1F0"
    assert Action.parse(" 12W3 ") == Action(12, Kind.W, 3)


@pytest.mark.parametrize("text", ["", "F0", "1F", "1X0", "1F0x", "-1F0", "1f0"])
def test_other_text_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="such as 1F0"):
        Action.parse(text)


def test_a_plan_from_text_counts_its_ranks_pieces_and_micro_batches():
    plan = Plan.parse("mine", ["0F0 0F1 2F0 2F1", "1F0 1F1 3F0 3F1 3B0"])
    assert (plan.num_stages, plan.num_pieces, plan.num_chunks, plan.num_microbatches) == (2, 4, 2, 2)
    assert plan.rank_of == (0, 1, 0, 1)
    assert plan.num_actions == 9
    assert [len(actions) for actions in plan] == [4, 5]


def test_a_plan_prints_one_line_a_rank():
    plan = Plan.parse("mine", ["0F0 0B0", "1F0 1B0"])
    assert str(plan) == "stage 0  0F0 0B0\nstage 1  1F0 1B0"


def test_pieces_can_be_placed_by_hand():
    assert Plan.parse("a v", ["0F0 1F0"], rank_of=(0, 0)).rank_of == (0, 0)
