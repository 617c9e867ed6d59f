"""The formulas of pipeline schedules are what a replay of every action finds, exactly or within a stated bound."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.pipeline import Costs, replay
from lablib.pipeline.closed_form import V_SHAPED, WITH_CLOSED_FORM, StageTime, bubble_fraction, in_flight, makespan_s
from lablib.pipeline.schedules import make

PLAIN = ("gpipe", "1f1b", "interleaved", "breadth-first", "zb-h1")  # the others are made for F = I = W
SECONDS = st.integers(1, 20).map(lambda tenths: tenths / 10)
NONE = StageTime()


def sizes(schedule: str, least_rounds: int = 1, most_stages: int = 7) -> st.SearchStrategy[tuple[int, int, int]]:
    """(p, m, v), with m of at least `least_rounds` p; of all m where that is 0."""

    @st.composite
    def draw(draw) -> tuple[int, int, int]:
        p = draw(st.integers(1, most_stages))
        v = draw(st.integers(2, 4)) if schedule in ("interleaved", "breadth-first") else 2
        v = v if schedule in (*V_SHAPED, "interleaved", "breadth-first") else 1
        least = max(least_rounds, 2 if schedule == "dualpipe-v" else 0)
        m = draw(st.integers(max(least * p, 1), 5 * p))
        return p, -(-m // p) * p if schedule == "interleaved" else m, v

    return draw()


def costs_of(p: int, v: int, middle: StageTime, first: StageTime, last: StageTime, **more) -> Costs:
    """The same times piece by piece."""
    columns = []
    for whole, e0, e1 in zip(middle, first, last, strict=True):
        column = [whole / v] * (p * v)
        column[0] += e0
        column[-1] += e1
        columns.append(column)
    return Costs(forward_s=columns[0], input_s=columns[1], weight_s=columns[2], **more)


@pytest.mark.parametrize("schedule", PLAIN)
@settings(deadline=None, max_examples=40)
@given(st.data(), st.builds(StageTime, SECONDS, SECONDS, SECONDS))
def test_equal_stages_take_the_formula_exactly_whatever_f_and_b(schedule, data, middle):
    p, m, v = data.draw(sizes(schedule, 1 if schedule == "zb-h1" else 0))
    expected = replay(make(schedule, p, m, v), costs_of(p, v, middle, NONE, NONE)).makespan_s
    assert makespan_s(schedule, p, m, v, middle) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("schedule", WITH_CLOSED_FORM)
@settings(deadline=None, max_examples=40)
@given(st.data())
def test_bubbles_of_equal_actions_are_exact(schedule, data):
    p, m, v = data.draw(sizes(schedule, 2))
    found = replay(make(schedule, p, m, v), Costs(forward_s=1.0, input_s=1.0, weight_s=1.0))
    assert makespan_s(schedule, p, m, v, StageTime(v, v, v)) == pytest.approx(found.makespan_s, rel=1e-12)
    assert bubble_fraction(schedule, p, m, v) == pytest.approx(found.bubble_fraction, abs=1e-12)
    staggered = bubble_fraction(schedule, p, m, v, is_staggered=True)
    # The longest time from a rank's first action to its last: the next step follows without a barrier.
    longest_s = max(float(end[-1] - start[0]) for start, end in zip(found.start_s, found.end_s, strict=True))
    assert staggered == pytest.approx(1 - sum(found.busy_s) / (p * longest_s), abs=1e-12)


@pytest.mark.parametrize("schedule", WITH_CLOSED_FORM)
@settings(deadline=None, max_examples=40)
@given(st.data())
def test_the_activations_held_are_those_of_the_formula(schedule, data):
    p, m, v = data.draw(sizes(schedule, 2 if schedule in V_SHAPED else 0))
    found = tuple(in_flight(schedule, p, m, v, rank) for rank in range(p))
    assert found == pytest.approx(replay(make(schedule, p, m, v)).in_flight)


# The largest error of unequal stages, as a share, for m >= p (in a V and for zb-h2 m >= 2 p), I and W of 0.7 to 1.3 of
# F, extras of up to a stage in each, messages of up to a tenth of a piece's F + B. The mean errors are below 0.8%, and
# of the first four below 0.05%.
BOUNDS = {
    "gpipe": 1e-12,
    "1f1b": 0.01,
    "interleaved": 0.04,
    "breadth-first": 0.07,
    "zb-h1": 0.08,
    "zb-h2": 0.06,
    "zb-v": 0.05,
    "dualpipe-v": 0.05,
    "v-half": 0.10,
}


@st.composite
def questions(draw, schedule: str):
    """Sizes, a stage, its extras, messages."""
    p, m, v = draw(sizes(schedule, 2 if schedule in (*V_SHAPED, "zb-h2") else 1, most_stages=8))
    share = st.integers(0, 20).map(lambda twentieths: twentieths / 20)
    middle = StageTime(1.0, 0.7 + 0.6 * draw(share), 0.7 + 0.6 * draw(share))
    first, last = (StageTime(*[draw(share) * part for part in middle]) for _ in range(2))
    return p, m, v, middle, first, last, 0.1 * draw(share) * middle.total_s / v, draw(st.booleans())


@pytest.mark.parametrize("schedule", WITH_CLOSED_FORM)
@given(st.data())
def test_unequal_stages_and_messages_take_the_formula_within_the_bound(schedule, data):
    p, m, v, middle, first, last, send_s, overlap = question = data.draw(questions(schedule))
    costs = costs_of(p, v, middle, first, last, send_s=send_s, overlap=overlap)
    expected = replay(make(schedule, p, m, v), costs).makespan_s
    assert makespan_s(schedule, *question) == pytest.approx(expected, rel=BOUNDS[schedule])


def test_on_average_the_formulas_of_the_common_schedules_are_exact_to_a_thousandth():
    rng = np.random.default_rng(0)
    for schedule in ("1f1b", "interleaved"):
        errors = []
        for _ in range(100):
            p, v = int(rng.integers(2, 9)), int(rng.integers(2, 5)) if schedule == "interleaved" else 1
            m = p * int(rng.integers(1, 6))
            middle = StageTime(1.0, *rng.uniform(0.7, 1.3, 2))
            first, last = (StageTime(*(rng.uniform(0, 1, 3) * middle)) for _ in range(2))
            send_s, overlap = rng.uniform(0, 0.1) * middle.total_s / v, bool(rng.integers(2))
            costs = costs_of(p, v, middle, first, last, send_s=send_s, overlap=overlap)
            expected = replay(make(schedule, p, m, v), costs).makespan_s
            errors.append(abs(makespan_s(schedule, p, m, v, middle, first, last, send_s, overlap) / expected - 1))
        assert np.mean(errors) < 1e-3


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "breadth-first", "zb-h1"])
def test_a_rank_with_more_layers_than_the_mean_sets_the_pace(schedule):
    """Of 8 stages, one in the middle has a third more; the mean is that of all."""
    p, m, v = 8, 64, 2 if schedule in ("interleaved", "breadth-first") else 1
    times = [3.0] * (p * v)
    times[p // 2] += 1.0 if v == 1 else 2.0
    heavy, mean = times[p // 2] + (v - 1) * 3.0, sum(times) / p
    expected = replay(make(schedule, p, m, v), Costs(forward_s=times, input_s=times, weight_s=times)).makespan_s
    found = makespan_s(schedule, p, m, v, StageTime(mean, mean, mean), busiest=StageTime(heavy, heavy, heavy))
    assert found == pytest.approx(expected, rel=0.02)
    assert makespan_s(schedule, p, m, v, StageTime(mean, mean, mean)) < 0.9 * expected


@pytest.mark.parametrize("schedule", WITH_CLOSED_FORM)
@settings(deadline=None, max_examples=30)
@given(
    cases=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40), st.integers(0, 5)), min_size=1, max_size=6),
    middle=st.builds(StageTime, SECONDS, SECONDS, SECONDS),
    last=st.builds(StageTime, SECONDS, SECONDS, SECONDS),
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


@given(st.data())
def test_breadth_first_with_fewer_layers_at_both_ends_is_no_faster_than_a_replay(data):
    """The first and the last piece of the model lack a layer each, as beside an embedding and a head of a layer."""
    p, m, v = data.draw(sizes("breadth-first", 1).filter(lambda size: size[0] > 2))
    layers, head = data.draw(st.integers(2, 4)), data.draw(st.integers(0, 6)) / 2
    middle, lacking = StageTime(*[float(v * layers)] * 3), StageTime(-1.0, -1.0, -1.0)
    last = StageTime(head - 1, head - 1, head - 1)
    costs = costs_of(p, v, middle, lacking, last)
    expected = replay(make("breadth-first", p, m, v), costs).makespan_s
    found = makespan_s("breadth-first", p, m, v, middle, lacking, last, busiest=middle)
    assert expected * (1 - 1e-9) <= found <= expected * 1.15


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_one_piece_on_each_rank_is_gpipe_breadth_first_and_1f1b_interleaved(data):
    p, m, _, middle, first, last, send_s, overlap = data.draw(questions("gpipe"))
    for name, plain in (("breadth-first", "gpipe"), ("interleaved", "1f1b")):
        times_s = [makespan_s(each, p, m, 1, middle, first, last, send_s, overlap) for each in (name, plain)]
        assert times_s[0] == pytest.approx(times_s[1], rel=1e-12)
        assert [in_flight(name, p, m, 1, i) for i in range(p)] == [in_flight(plain, p, m, 1, i) for i in range(p)]


def test_one_rank_has_no_bubble_and_sends_nothing():
    for schedule in WITH_CLOSED_FORM:
        time_s = makespan_s(schedule, 1, 5, 2, StageTime(1, 1, 1), StageTime(1), StageTime(0, 1), 9.0)
        assert time_s == 5 * (3 + 1 + 1)
        assert bubble_fraction(schedule, 1, 5) == 0


def test_an_unknown_schedule_is_refused_with_the_nearest():
    for ask in (lambda: makespan_s("zb-h", 2, 4, 1, StageTime(1, 1, 1)), lambda: bubble_fraction("zb-h", 2, 4)):
        with pytest.raises(ValueError, match="unknown schedule 'zb-h': did you mean 'zb-h"):
            ask()
    with pytest.raises(ValueError, match="unknown schedule 'f1b1': did you mean '1f1b'"):
        in_flight("f1b1", 2, 4)


@given(st.data(), SECONDS, st.sampled_from([1.0, 1.5, 2.0]), st.sampled_from([0.0, 0.5, 1.0]))
def test_few_microbatches_leave_gaps_in_zb_v(data, forward_s, times_input, times_weight):
    p = data.draw(st.integers(2, 8))
    m = data.draw(st.integers(1, 2 * p - 1))
    middle = StageTime(forward_s, times_input * forward_s, times_weight * forward_s)
    expected = replay(make("zb-v", p, m, 2), costs_of(p, 2, middle, NONE, NONE)).makespan_s
    assert makespan_s("zb-v", p, m, 2, middle) == pytest.approx(expected, rel=0.06)
