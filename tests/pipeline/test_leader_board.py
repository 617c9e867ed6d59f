"""Plans of several authors on one machine: the fastest that counts stands first, and what does not count says why."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.pipeline import Costs, leader_board, replay, schedules

GOOD = """
rank 0: F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3
rank 1: F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
rank 2: F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
"""


@given(
    st.integers(1, 5),
    st.integers(1, 8),
    st.lists(st.sampled_from(["gpipe", "1f1b", "zb-h1", "zb-h2"]), min_size=1, unique=True),
    st.floats(0.5, 3),
    st.integers(1, 8),
)
def test_plans_that_count_stand_first_by_makespan(p, m, names, forward_s, limit):
    costs = Costs(forward_s=forward_s)
    plans = {name: schedules.make(name, p, m) for name in names}
    board = leader_board(plans, costs, max_in_flight=limit)
    done = {name: replay(plan, costs) for name, plan in plans.items()}
    counts = [name for name in names if max(done[name].in_flight) <= limit]
    assert set(board.index) == set(names)
    first = list(board.index[: len(counts)])
    assert set(first) == set(counts)
    assert [done[name].makespan_s for name in first] == sorted(done[name].makespan_s for name in counts)
    for name in names:
        assert board.loc[name, "makespan (s)"] == done[name].makespan_s
        assert bool(board.loc[name, "does not count"]) == (name not in counts)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (GOOD.replace("W3", "", 1), "W3|W 3|weight"),
        (GOOD.replace("F0 F1 F2 I0", "F0 I0 F1 F2").replace("F0 F1 I0", "F0 F1 F2 I0"), "disagree|waits|step"),
        ("rank 0: idle", "idle"),
        ("", "got none"),
        (schedules.one_f_one_b(3, 5), "5 micro-batches, not"),
        (schedules.one_f_one_b(2, 4), "2 stages"),
        (schedules.gpipe(3, 4), "rank 0 holds more than 3"),
    ],
)
def test_what_does_not_count_says_why_and_keeps_nobody_out(plan, said):
    board = leader_board({"1f1b": schedules.one_f_one_b(3, 4), "other": plan, "mine": GOOD}, max_in_flight=3)
    assert list(board.index[:2]) == ["mine", "1f1b"]
    assert list(board["does not count"][:2]) == ["", ""]

    assert re.search(said, board.loc["other", "does not count"])


def test_each_stage_may_have_a_limit_of_its_own():
    plans = {"1f1b": schedules.one_f_one_b(3, 4), "zb-h1": schedules.zb_h1(3, 4), "small": schedules.gpipe(2, 4)}
    board = leader_board(plans, max_in_flight=(3, 2, 2))
    assert board.loc["1f1b", "does not count"] == ""
    assert board.loc["zb-h1", "does not count"] == "rank 1 holds more than 2"
    assert board.loc["small", "does not count"].startswith("it is for 2 stages")


def test_a_first_plan_that_is_none_is_refused():
    with pytest.raises(ValueError, match="idle"):
        leader_board({"mine": "rank 0: idle"})
