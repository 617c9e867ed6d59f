"""A plan that is tried out: as its replay where it runs to its end, else as far as it comes, with the circle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.pipeline import Costs, Plan, replay, validate
from lablib.pipeline.schedules import make
from lablib.pipeline.simulation import MAX_MOMENTS, read_plan, simulate

CIRCLE = "rank 0: F0 B0 F1 B1\nrank 1: F0 F1 B0 B1"


def test_a_plan_that_runs_is_its_replay():
    plan, costs = make("zb-h1", 3, 5), Costs(send_s=0.25)
    found = simulate(plan, costs)
    assert found.circle == () and found.replay.makespan_s == replay(plan, costs).makespan_s
    assert found.critical_path[-1].end_s == found.replay.makespan_s and found.ranks_over == ()


def test_a_deadlock_is_played_as_far_as_it_comes():
    found = simulate(read_plan(CIRCLE))
    assert [[str(action) for action in row] for row in found.replay.plan] == [["0F0"], ["1F0"]]
    assert [(wait.rank, wait.step, wait.on_rank) for wait in found.circle] == [(0, "0B0", 1), (1, "1F1", 0)]
    assert found.replay.makespan_s == 2 and found.critical_path == () and found.plan.num_actions == 8


@given(st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_any_order_on_every_rank_runs_or_names_a_circle(p, m, random):
    rows = []
    for rank in range(p):
        rest = [[f"{rank}F{j}", f"{rank}B{j}"] for j in range(m)]
        row = []
        while any(rest):
            row.append(random.choice([each for each in rest if each]).pop(0))
        rows.append(" ".join(row))
    plan = Plan.parse("drawn", rows)
    found = simulate(plan)
    assert bool(found.circle) == (5 in validate(plan).rules)
    done = {str(action) for row in found.replay.plan for action in row}
    if found.circle:
        assert all(wait.step not in done for wait in found.circle) and found.replay.plan.num_actions < plan.num_actions
        ends = [wait.on_rank for wait in found.circle]
        assert ends == [*[wait.rank for wait in found.circle][1:], found.circle[0].rank]
    else:
        assert found.replay.makespan_s == replay(plan).makespan_s


@given(st.sampled_from(["gpipe", "1f1b", "zb-h1"]), st.integers(1, 4), st.integers(1, 6), st.data())
@settings(max_examples=40, deadline=None)
def test_at_a_moment_each_rank_does_what_its_timeline_says(name, p, m, data):
    found = simulate(make(name, p, m), Costs(send_s=0.5))
    time_s = data.draw(st.sampled_from(found.moments_s.tolist())) + data.draw(st.sampled_from([0.0, 0.25]))
    for rank, action in enumerate(found.at(time_s)):
        running = [span.name for span in found.replay.timeline.select(rank) if span.start_s <= time_s < span.end_s]
        assert running == ([] if action is None else [str(action)])


def test_moments_are_where_something_begins_or_ends_and_few():
    assert simulate(make("1f1b", 2, 2)).moments_s.tolist() == [0, 1, 2, 4, 5, 6, 7, 9]
    many = simulate(make("1f1b", 4, 512)).moments_s
    assert len(many) == MAX_MOMENTS and many[0] == 0 and (np.diff(many) > 0).all()


def test_ranks_over_the_limit_are_named():
    assert simulate(make("1f1b", 4, 8), None, 2.5).ranks_over == (0, 1)
    assert simulate(make("1f1b", 4, 8), None, 4).ranks_over == ()
    assert simulate(make("zb-v", 4, 8), None, 3.5).ranks_over == (0, 1, 2, 3)
    assert simulate(make("1f1b", 4, 8), None, (4, 3, 2, 1)).ranks_over == ()
    assert simulate(make("1f1b", 4, 8), None, [4, 2, 3, 0.5]).ranks_over == (1, 3)
    assert simulate(make("1f1b", 4, 8)).ranks_over == ()


@pytest.mark.parametrize(
    ("text", "rows", "rank_of"),
    [
        ("F0 B0\nF0 B0", ["0F0 0B0", "1F0 1B0"], (0, 1)),
        ("rank 0: 0F0, 0B0\n\nrank 1:  1F0 1B0\n", ["0F0 0B0", "1F0 1B0"], (0, 1)),
        ("0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0", ["0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0"], (0, 1, 1, 0)),
    ],
)
def test_a_plan_is_read_as_it_is_typed(text, rows, rank_of):
    plan = read_plan(text)
    assert [" ".join(map(str, row)) for row in plan] == rows and plan.rank_of == rank_of
    assert simulate(plan).circle == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a line of actions for each rank"),
        ("F0 X0", "1F0 or 12W3"),
        ("F0 B0\nF0", "1B0 is missing"),
        ("F0 F0 B0\nF0 B0", "0F0 is done 2 times"),
        ("B0 F0\nF0 B0", "comes before"),
        ("F0 1F0 B0 1B0\n1F0 1B0", "piece 1 is on rank 0"),
        ("F0 W0", "0I0 is missing"),
    ],
)
def test_a_plan_that_cannot_be_is_one_error(text, words):
    with pytest.raises(ValueError, match=words):
        simulate(read_plan(text))


def test_there_is_a_limit_for_each_rank():
    with pytest.raises(ValueError, match=r"one for each of the 3 ranks: got 2 numbers; try \[4, 4, 4\]"):
        simulate(make("1f1b", 3, 4), None, [3, 2])
