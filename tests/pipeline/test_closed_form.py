"""The formulas of pipeline schedules are what a replay of every action finds, exactly or within a stated bound."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.pipeline.closed_form import SCHEDULES, StageTime, bubble_fraction, in_flight, makespan_s
from lablib.pipeline.costs import Costs
from lablib.pipeline.plan import Plan
from lablib.pipeline.replay import replay

SECONDS = st.integers(1, 20).map(lambda tenths: tenths / 10)
EXTRA = st.builds(StageTime, *[st.integers(0, 10).map(lambda tenths: tenths / 10)] * 3)


def gpipe(p: int, m: int) -> Plan:
    row = [f"F{j}" for j in range(m)] + [f"B{j}" for j in range(m)]
    return Plan.parse("gpipe", [" ".join(f"{rank}{action}" for action in row) for rank in range(p)])


def one_f_one_b(p: int, m: int) -> Plan:
    rows = []
    for rank in range(p):
        ahead = min(p - 1 - rank, m)
        row = [f"F{j}" for j in range(ahead)]
        row += [action for j in range(m - ahead) for action in (f"F{ahead + j}", f"B{j}")]
        row += [f"B{j}" for j in range(m - ahead, m)]
        rows.append(" ".join(f"{rank}{action}" for action in row))
    return Plan.parse("1f1b", rows)


PLANS = {"gpipe": gpipe, "1f1b": one_f_one_b}


def costs_of(pieces: int, num_chunks: int, middle: StageTime, first: StageTime, last: StageTime, **more) -> Costs:
    """The same times piece by piece."""
    columns = []
    for whole, e0, e1 in zip(middle, first, last, strict=True):
        column = [whole / num_chunks] * pieces
        column[0] += e0
        column[-1] += e1
        columns.append(column)
    return Costs(forward_s=columns[0], input_s=columns[1], weight_s=columns[2], **more)


@pytest.mark.parametrize("schedule", sorted(PLANS))
@settings(deadline=None, max_examples=60)
@given(data=st.data(), p=st.integers(1, 7), middle=st.builds(StageTime, SECONDS, SECONDS, SECONDS))
def test_equal_stages_take_the_formula_exactly(schedule, data, p, middle):
    m = data.draw(st.integers(1, 5 * p))
    plan = PLANS[schedule](p, m)
    expected = replay(plan, costs_of(p, 1, middle, StageTime(), StageTime())).makespan_s
    assert makespan_s(schedule, p, m, 1, middle) == pytest.approx(expected, rel=1e-12)


@settings(deadline=None, max_examples=100)
@given(
    p=st.integers(1, 7),
    more=st.integers(0, 20),
    middle=st.builds(StageTime, SECONDS, SECONDS, SECONDS),
    first=EXTRA,
    last=EXTRA,
    send_s=st.integers(0, 5).map(lambda tenths: tenths / 10),
    overlap=st.booleans(),
)
def test_gpipe_with_unequal_stages_and_messages_is_two_flow_shops(p, more, middle, first, last, send_s, overlap):
    plan = gpipe(p, p + more)
    expected = replay(plan, costs_of(p, 1, middle, first, last, send_s=send_s, overlap=overlap)).makespan_s
    found = makespan_s("gpipe", p, p + more, 1, middle, first, last, send_s, overlap)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("schedule", "num_chunks", "bubble"),
    [  # at p = 4, m = 12; as the papers state them
        ("gpipe", 1, 3 / 15),
        ("1f1b", 1, 3 / 15),
        ("interleaved", 3, 3 / (36 + 3)),
        ("breadth-first", 3, 3 / (36 + 3)),
        ("zb-h1", 1, 3 / (36 + 3)),
    ],
)
def test_bubbles_are_those_of_the_papers(schedule, num_chunks, bubble):
    assert bubble_fraction(schedule, 4, 12, num_chunks) == pytest.approx(bubble)
    equal = StageTime(1.0, 1.0, 1.0)
    assert 1 - 12 * 3 / makespan_s(schedule, 4, 12, num_chunks, equal) == pytest.approx(bubble)


@pytest.mark.parametrize("schedule", sorted(PLANS))
@settings(deadline=None, max_examples=30)
@given(p=st.integers(1, 7), m=st.integers(1, 20))
def test_the_activations_held_are_those_of_the_formula(schedule, p, m):
    found = tuple(in_flight(schedule, p, m, 1, rank) for rank in range(p))
    assert found == replay(PLANS[schedule](p, m)).in_flight


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(deadline=None, max_examples=30)
@given(
    cases=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40), st.integers(0, 5)), min_size=1, max_size=6),
    middle=st.builds(StageTime, SECONDS, SECONDS, SECONDS),
    last=EXTRA,
    overlap=st.booleans(),
)
def test_an_array_of_questions_has_the_answers_of_each(schedule, cases, middle, last, overlap):
    p, m, tenths = (np.array(column) for column in zip(*cases, strict=True))
    found = makespan_s(schedule, p, m, 2, middle, last, last, tenths / 10, overlap, busiest=middle)
    assert found.shape == p.shape
    for i, (p_i, m_i, tenths_i) in enumerate(cases):
        one = makespan_s(schedule, p_i, m_i, 2, middle, last, last, tenths_i / 10, overlap, busiest=middle)
        assert isinstance(one, float) and found[i] == pytest.approx(one, rel=1e-12)
    held = in_flight(schedule, p, m, 2)
    assert held.tolist() == [in_flight(schedule, p_i, m_i, 2) for p_i, m_i, _ in cases]


def test_one_rank_has_no_bubble_and_sends_nothing():
    for schedule in SCHEDULES:
        time_s = makespan_s(schedule, 1, 5, 2, StageTime(1, 1, 1), StageTime(1), StageTime(0, 1), 9.0)
        assert time_s == 5 * (3 + 1 + 1)
        assert bubble_fraction(schedule, 1, 5) == 0


def test_an_unknown_schedule_is_refused_with_the_nearest():
    for ask in (lambda: makespan_s("zb-h", 2, 4, 1, StageTime(1, 1, 1)), lambda: bubble_fraction("zb-h", 2, 4)):
        with pytest.raises(ValueError, match="unknown schedule 'zb-h': did you mean 'zb-h"):
            ask()
    with pytest.raises(ValueError, match="unknown schedule 'f1b1': did you mean '1f1b'"):
        in_flight("f1b1", 2, 4)
