"""What many micro-batches take, from few of them, is what the whole replay finds."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.pipeline import Costs, Plan, replay
from lablib.pipeline.schedules import SCHEDULES, interleaved_1f1b, make, one_f_one_b, zb_h1
from lablib.pipeline.steady_state import steady_state

# GPipe and breadth-first let a rank run ahead without bound; V-Min's drain is not the same for every m.
REPEATING = tuple(name for name in SCHEDULES if name not in ("gpipe", "breadth-first", "v-min"))


@st.composite
def questions(draw, schedule: str, seconds: st.SearchStrategy[float]):
    """(plan of m, m, costs): every piece with times of its own."""
    p = draw(st.integers(1, 5))
    v = draw(st.integers(2, 3)) if SCHEDULES[schedule].takes_chunks else SCHEDULES[schedule].num_chunks
    m = draw(st.integers(2, 25)) * p + (0 if schedule == "interleaved" else draw(st.integers(0, p - 1)))
    times = [draw(st.lists(seconds, min_size=p * v, max_size=p * v)) for _ in range(3)]
    send_s, overlap = draw(st.just(0.0) | seconds), draw(st.booleans())
    costs = Costs(forward_s=times[0], input_s=times[1], weight_s=times[2], send_s=send_s, overlap=overlap)
    return lambda count: make(schedule, p, count, v), m, costs


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(deadline=None, max_examples=40)
@given(st.data())
def test_whole_seconds_are_exactly_those_of_the_whole_replay(schedule, data):
    plan_of, m, costs = data.draw(questions(schedule, st.integers(1, 9).map(float)))
    whole, found = replay(plan_of(m), costs), steady_state(plan_of, m, costs)
    assert found.makespan_s == whole.makespan_s
    assert found.bubble_fraction == pytest.approx(whole.bubble_fraction, abs=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_times_are_those_of_the_whole_replay_to_a_billionth(schedule, data):
    plan_of, m, costs = data.draw(questions(schedule, st.floats(0.5, 1.5)))
    whole, found = replay(plan_of(m), costs), steady_state(plan_of, m, costs)
    assert found.makespan_s == pytest.approx(whole.makespan_s, rel=1e-9)
    assert found.bubble_fraction == pytest.approx(whole.bubble_fraction, abs=1e-9)


@pytest.mark.parametrize("schedule", REPEATING)
def test_a_million_micro_batches_take_no_more_replaying_than_a_thousand(schedule):
    p, v = 4, 2 if SCHEDULES[schedule].takes_chunks else SCHEDULES[schedule].num_chunks
    made = []

    def plan_of(count: int) -> Plan:
        made.append(count)
        return make(schedule, p, count, v)

    costs = Costs(send_s=0.1)
    found = steady_state(plan_of, 1_000_000, costs)
    assert 1 <= found.period <= p and max(made) <= 40 * p
    # What the rest takes is what a plan of moderate size takes, and so many periods more.
    whole = replay(make(schedule, p, 200 * p, v), costs).makespan_s
    rounds = (1_000_000 - 200 * p) // found.period
    assert found.makespan_s == pytest.approx(whole + rounds * found.period_s, rel=1e-9)


def test_the_period_is_the_busiest_ranks_or_a_round_trips():
    slow_last = Costs(forward_s=[1, 1, 2], backward_s=[2, 2, 4])
    found = steady_state(partial(one_f_one_b, 3), 999, slow_last)
    assert found.period_s / found.period == 6
    # Equal ranks wait for messages: p micro-batches in 3 p + 2 (p - 1) c.
    found = steady_state(partial(one_f_one_b, 4), 1000, Costs(send_s=0.5))
    assert found.period == 4 and found.period_s == 12 + 3
    assert steady_state(partial(one_f_one_b, 4), 1000, Costs(send_s=0.5, overlap=False)).period_s == 3 + 2 * 0.5


def test_a_rank_that_is_slower_by_a_little_is_not_overlooked():
    """The makespan grows by 3 a micro-batch for long, until the slightly slower first rank is what all wait for."""
    costs = Costs(forward_s=[1.001, 1, 1, 1], backward_s=[2.001, 2, 2, 2.0015])
    for m in (40, 400, 4000):
        expected = replay(one_f_one_b(4, m), costs).makespan_s
        assert steady_state(partial(one_f_one_b, 4), m, costs).makespan_s == pytest.approx(expected, rel=1e-9)


def test_gpipe_lets_a_fast_rank_run_ahead_and_is_replayed_in_full():
    found = steady_state(lambda m: make("gpipe", 3, m), 100, Costs(forward_s=[1, 2, 3]))
    assert found.period == 0 and found.num_replayed == 100
    assert found.makespan_s == 3 * (1 + 2 + 3) + 99 * 3 * 3


def test_numbers_that_the_schedule_refuses_are_passed_over():
    found = steady_state(lambda m: interleaved_1f1b(4, m, 3), 4000)
    assert found.period == 4 and found.makespan_s == 9 * 4000 + 9
    with pytest.raises(ValueError, match="interleaved"):
        steady_state(lambda m: interleaved_1f1b(4, m, 3), 4001)


def test_few_micro_batches_are_replayed_in_full():
    found = steady_state(partial(zb_h1, 4), 10)
    assert found.period == 0 and found.num_replayed == 10 and found.makespan_s == 30 + 3
