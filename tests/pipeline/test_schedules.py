"""Every schedule keeps every rule at every size; its order, peak and bubble are those of its paper."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.pipeline import Costs, Kind, Plan, peak_in_flight, replay, schedules, validate
from lablib.pipeline.schedules import SCHEDULES, make, v_blocks
from lablib.pipeline.schedules.v_half import block as v_half_block
from lablib.pipeline.schedules.v_min import block as v_min_block
from tests.pipeline.drawn_plans import any_plan

V_SHAPED = ("zb-v", "dualpipe-v", "v-half", "v-min")
SPLIT = ("zb-h1", "zb-h2", "zb-v", "v-half", "v-min")  # every backward is I and W
STAGES, MICROBATCHES, CHUNKS = st.integers(1, 9), st.integers(1, 24), st.integers(1, 4)


def row(plan: Plan, rank: int) -> str:
    return " ".join(map(str, plan.actions[rank]))


def idle_steps(plan: Plan) -> float:
    """What the step takes more than a rank's work, in steps of one F = I = W of one piece."""
    return replay(plan, Costs()).makespan_s - 3 * plan.num_microbatches * plan.num_chunks


@pytest.mark.parametrize("name", SCHEDULES)
@settings(max_examples=40, deadline=None)
@given(STAGES, MICROBATCHES, CHUNKS)
def test_every_schedule_keeps_every_rule(name, p, m, v):
    plan = any_plan(name, p, m, v)
    assert validate(plan).findings == ()
    assert plan.name == name and plan.num_stages == p == len(plan.actions)


@pytest.mark.parametrize("name", SCHEDULES)
@settings(max_examples=20, deadline=None)
@given(STAGES, MICROBATCHES, CHUNKS)
def test_each_rank_does_its_share_and_nothing_else(name, p, m, v):
    plan = any_plan(name, p, m, v)
    share = plan.num_microbatches * plan.num_chunks
    for actions in plan:
        count = {kind: sum(action.kind is kind for action in actions) for kind in Kind}
        assert count[Kind.F] == share == count[Kind.B] + count[Kind.I] and count[Kind.I] == count[Kind.W]
        if name != "dualpipe-v":
            assert count[Kind.B] == (0 if name in SPLIT else share)


@pytest.mark.parametrize("name", V_SHAPED)
def test_a_v_puts_the_first_and_the_last_piece_on_rank_0(name):
    assert make(name, 3, 6).rank_of == (0, 1, 2, 2, 1, 0)


@pytest.mark.parametrize("name", ["interleaved", "breadth-first"])
def test_chunks_are_dealt_around_the_ranks(name):
    assert make(name, 2, 4, 3).rank_of == (0, 1, 0, 1, 0, 1)


# ---- orders (those that torch has too: test_torch_schedules.py)


def test_zb_h2_is_the_order_of_the_paper():
    # Qi et al., 2023, figure 3: 4 devices, 8 micro-batches; the first and the last device.
    h2 = schedules.zb_h2(4, 8)
    assert row(h2, 0).startswith("0F0 0F1 0F2 0F3 0F4 0F5 0F6 0I0 0W0 0F7 0I1 0W1 0I2 0W2 0I3")
    assert row(h2, 3).startswith("3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3F4 3I4 3F5 3I5 3F6 3I6 3W0 3F7 3I7 3W1")
    assert row(h2, 3).endswith("3W1 3W2 3W3 3W4 3W5 3W6 3W7")


def test_one_rank_needs_no_schedule():
    assert row(schedules.one_f_one_b(1, 2), 0) == "0F0 0B0 0F1 0B1"
    assert row(schedules.zb_h2(1, 2), 0) == "0F0 0I0 0W0 0F1 0I1 0W1"
    assert row(schedules.zb_v(1, 2), 0) == "0F0 1F0 1I0 1W0 0F1 0I0 0W0 1F1 1I1 1W1 0I1 0W1"


def test_with_one_chunk_the_interleaved_schedules_are_the_plain_ones():
    assert schedules.interleaved_1f1b(4, 6, 1).actions == schedules.one_f_one_b(4, 6).actions
    assert [set(actions) for actions in schedules.breadth_first(4, 6, 1)] == [set(a) for a in schedules.gpipe(4, 6)]


# ---- peaks: activations of one micro-batch at one piece, each rank


@given(STAGES, MICROBATCHES)
def test_peaks_of_one_piece_a_rank_are_those_of_the_papers(p, m):
    ranks = range(p)
    assert peak_in_flight(schedules.gpipe(p, m)) == tuple(m for _ in ranks)
    assert peak_in_flight(schedules.one_f_one_b(p, m)) == tuple(min(p - i, m) for i in ranks)
    assert peak_in_flight(schedules.zb_h1(p, m)) == tuple(min(p, m) for _ in ranks)
    assert peak_in_flight(schedules.zb_h2(p, m)) == tuple(min(2 * p - 1, m) for _ in ranks)


@given(STAGES, st.integers(1, 5), st.integers(2, 5))
def test_peaks_of_several_pieces_a_rank_are_those_of_the_papers(p, rounds, v):
    m = p * rounds
    # Korthikanti et al., 2022, section 4.2.3: p v + p - 1 on the first rank, in pieces.
    warm_up = [min((v - 1) * p + 2 * (p - 1 - i) + 1, m * v) for i in range(p)]
    assert peak_in_flight(schedules.interleaved_1f1b(p, m, v)) == tuple(warm_up)
    assert peak_in_flight(schedules.breadth_first(p, m, v)) == (m * v,) * p


@given(st.integers(1, 16), st.integers(0, 20))
def test_peaks_of_v_shaped_schedules_are_those_of_the_papers(p, more):
    m = 2 * p + more
    # In micro-batches, that is in two pieces: p, p + 1/2, (p + 2) // 2, (p + 4) // 3.
    assert set(peak_in_flight(schedules.zb_v(p, m))) == {2 * p}
    assert set(peak_in_flight(schedules.dualpipe_v(p, m))) == {2 * p + 1}
    assert max(peak_in_flight(schedules.v_half(p, m))) == 2 * ((p + 2) // 2)
    assert max(peak_in_flight(schedules.v_min(p, m))) == 2 * ((p + 4) // 3)


# ---- bubbles, in steps of F = I = W of one piece


@settings(max_examples=40, deadline=None)
@given(STAGES, st.integers(0, 20))
def test_bubbles_are_those_of_the_papers(p, more):
    m = 2 * p + more
    assert idle_steps(schedules.one_f_one_b(p, m)) == 3 * (p - 1)
    assert idle_steps(schedules.zb_h1(p, m)) == p - 1
    # Half of 1F1B's, which is 6 (p - 1) in steps of half a rank's layers; a step less where p is odd.
    assert idle_steps(schedules.v_half(p, m)) == (3 * (p - 1) - (p % 2) if p > 1 else 0)
    for plan in (schedules.zb_h2(p, m), schedules.zb_v(p, m)):
        found = replay(plan, Costs())
        for start_s, end_s in zip(found.start_s, found.end_s, strict=True):
            assert end_s[-1] - start_s[0] == 3 * m * plan.num_chunks  # none between a rank's first action and its last


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 16), st.integers(0, 20))
def test_v_half_needs_only_half_as_many_micro_batches_as_ranks(p, more):
    assert idle_steps(schedules.v_half(p, p // 2 + 1 + more)) <= 3 * (p - 1)


@pytest.mark.parametrize("p", range(2, 13))
def test_v_min_has_about_two_thirds_of_the_bubble_of_1f1b(p):
    assert 3 * (p - 1) <= idle_steps(schedules.v_min(p, 4 * p)) <= 4.5 * (p - 1)


@pytest.mark.parametrize("costs", [(3, 2, 2), (2, 3, 2), (3, 4, 3), (2, 2, 1)])
@pytest.mark.parametrize("p", [2, 3, 4, 7])
def test_v_half_waits_no_longer_with_more_micro_batches_if_times_are_not_too_unequal(p, costs):
    forward_s, input_s, weight_s = costs
    assert weight_s + 2 * input_s >= 2 * forward_s and weight_s + 2 * forward_s >= 2 * input_s
    few, many = (
        replay(schedules.v_half(p, m), Costs(forward_s=forward_s, input_s=input_s, weight_s=weight_s)).makespan_s
        - 2 * m * sum(costs)
        for m in (4 * p, 12 * p)
    )
    assert few == many


@pytest.mark.parametrize("block", [v_half_block, v_min_block])
@pytest.mark.parametrize("p", range(1, 20))
def test_no_two_passes_of_a_building_block_collide(block, p):
    made = block(p)
    for rank in range(p):
        steps = [each.step(rank) for each in (made.F0, made.F1, made.I1, made.I0)]
        assert steps == sorted(steps) and len({step % v_blocks.PERIOD for step in steps}) == 4
        if rank:  # down after the rank above, up before it
            above = [each.step(rank - 1) for each in (made.F0, made.F1, made.I1, made.I0)]
            assert steps[0] > above[0] and steps[1] < above[1] and steps[2] > above[2] and steps[3] < above[3]


# ---- by name, and what is refused


def test_a_schedule_is_made_by_its_name():
    assert make("1f1b", 4, 8) == schedules.one_f_one_b(4, 8)
    assert make("interleaved", 4, 8, 2) == schedules.interleaved_1f1b(4, 8, 2)
    assert make("zb-v", 4, 8) == make("zb-v", 4, 8, 2) == schedules.zb_v(4, 8)


def test_the_table_says_how_many_pieces_a_rank_has():
    for name, schedule in SCHEDULES.items():
        plan = any_plan(name, 2, 4, 3)
        assert plan.num_chunks == (3 if schedule.takes_chunks else schedule.num_chunks)


def test_an_unknown_schedule_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="unknown schedule 'zb-h3': did you mean 'zb-h"):
        make("zb-h3", 4, 8)


@pytest.mark.parametrize(("name", "remedy"), [("1f1b", "num_chunks=1, or interleaved"), ("zb-v", "num_chunks=2")])
def test_chunks_are_refused_where_there_are_none(name, remedy):
    with pytest.raises(ValueError, match=f"got num_chunks=3; try {remedy}"):
        make(name, 4, 8, 3)


def test_interleaved_needs_whole_rounds_of_micro_batches():
    with pytest.raises(ValueError, match="multiple of num_stages: got 6 and 4; try 8"):
        schedules.interleaved_1f1b(4, 6, 2)


def test_dualpipe_v_needs_a_micro_batch_for_each_piece():
    with pytest.raises(ValueError, match="at least 2 num_stages, one for each piece: got 7 and 4; try 8"):
        schedules.dualpipe_v(4, 7)
