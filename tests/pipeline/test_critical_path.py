"""The critical path lasts the makespan; a second more on it is a second more in all, and nothing else is as sure."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lablib.pipeline import Costs, Plan, replay
from lablib.pipeline.critical_path import critical_path
from lablib.pipeline.schedules import SCHEDULES, make

SECONDS = st.integers(1, 9).map(lambda n: n / 4)  # whole quarters: sums are exact


@st.composite
def replays(draw):
    """Any schedule at any size, each piece with times of its own, messages free or not, blocking or not."""
    name, p, m = draw(st.sampled_from(list(SCHEDULES))), draw(st.integers(1, 5)), draw(st.integers(1, 7))
    chunks = draw(st.integers(1, 3)) if SCHEDULES[name].takes_chunks else SCHEDULES[name].num_chunks
    try:
        plan = make(name, p, m, chunks)
    except ValueError:  # sizes for which the schedule is not defined
        assume(False)
        raise
    each = st.lists(SECONDS, min_size=plan.num_pieces, max_size=plan.num_pieces)
    sends = st.lists(st.integers(0, 3).map(float), min_size=plan.num_pieces - 1, max_size=plan.num_pieces - 1)
    costs = Costs(draw(each), None, draw(each), draw(each), draw(sends), draw(st.booleans()))
    return replay(plan, costs)


def test_a_plan_without_actions_has_none():
    assert critical_path(replay(Plan("empty", 2, 0, ((), ()), (0, 1)))) == ()


@given(replays())
def test_it_lasts_the_makespan_without_a_hole(found):
    path = critical_path(found)
    assert path[0].start_s == 0 and path[-1].end_s == found.makespan_s
    for before, after in zip(path, path[1:], strict=False):
        assert before.end_s + after.lag_s == after.start_s and after.lag_s >= 0
    for each in path:
        assert found.plan.actions[each.rank][each.index] == each.action
        assert found.start_s[each.rank][each.index] == each.start_s
    assert sum(each.end_s - each.start_s + each.lag_s for each in path) == found.makespan_s


@given(replays(), st.data())
def test_a_piece_that_gets_slower_delays_the_step_by_as_often_as_it_is_on_the_path(found, data):
    costs = found.costs
    piece = data.draw(st.integers(0, found.plan.num_pieces - 1))
    forward_s = list(costs.forward_s)
    forward_s[piece] += 0.25
    slower = Costs(forward_s, None, costs.input_s, costs.weight_s, costs.send_s, costs.overlap)
    on_path = sum(str(each.action).startswith(f"{piece}F") for each in critical_path(found))
    assert replay(found.plan, slower).makespan_s >= found.makespan_s + 0.25 * on_path


@pytest.mark.parametrize("wrong", [None, "1f1b", make("1f1b", 2, 2)])
def test_only_a_replay_has_one(wrong):
    with pytest.raises(ValueError, match="Replay"):
        critical_path(wrong)
