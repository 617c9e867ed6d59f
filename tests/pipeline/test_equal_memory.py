"""At equal memory: each schedule at its best, by replay and by formula; and where DualPipe-V's formula comes from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.pipeline import Costs, equal_memory, pairs_bubble_s, pairs_of, peak_in_flight, replay_pairs, schedules
from lablib.pipeline.closed_form import in_flight
from lablib.pipeline.schedules import SCHEDULES, make


def by_name(*args, **options):
    return {each.schedule: each for each in equal_memory(*args, **options)}


def test_with_the_memory_of_1f1b_each_schedule_has_the_bubble_of_its_paper():
    """p = 8, m = 32, M = p: by the formulas (p-1) / (m+p-1), (p-1) / (3m+p-1), and a half of it in a V."""
    found = by_name(8, 32, 8)
    assert found["1f1b"].bubble_fraction == pytest.approx(7 / 39)
    assert found["zb-h1"].bubble_fraction == pytest.approx(7 / 103)
    assert found["zb-v"].bubble_fraction == pytest.approx(3.5 / (96 + 3.5))
    # GPipe has to run the step in four parts; ZB-H2 too, as it would hold 15: then it is worse than 1F1B.
    assert (found["gpipe"].num_flushes, found["gpipe"].bubble_fraction) == (4, pytest.approx(7 / 15))
    assert found["zb-h2"].num_flushes == 4 and found["zb-h2"].bubble_fraction > found["1f1b"].bubble_fraction
    assert "dualpipe-v" not in found  # it holds p + 1/2, and does not run with fewer than 2 p micro-batches
    assert by_name(8, 32, 8.5)["dualpipe-v"].in_flight == 8.5


def test_half_the_memory_is_enough_for_v_half_and_a_third_for_v_min():
    assert by_name(8, 32, 5)["v-half"].num_flushes == by_name(8, 32, 4)["v-min"].num_flushes == 1
    assert by_name(8, 32, 4)["1f1b"].num_flushes == 8
    assert equal_memory(8, 32, 0.01) == ()


@given(p=st.integers(1, 5), rounds=st.integers(2, 4), memory=st.floats(0.5, 12), name=st.sampled_from(list(SCHEDULES)))
def test_what_is_afforded_fits_and_a_shorter_way_does_not(p, rounds, memory, name):
    m = 2 * p * rounds
    for each in equal_memory(p, m, memory, [name], max_chunks=2):
        assert each.num_flushes * each.num_microbatches == m
        held = max(peak_in_flight(make(name, p, each.num_microbatches, each.num_chunks))) / each.num_chunks
        assert held == each.in_flight <= memory
        fewer = [n for n in range(1, each.num_flushes) if m % n == 0]
        for n in fewer:
            try:
                plan = make(name, p, m // n, each.num_chunks)
            except ValueError:
                continue
            assert max(peak_in_flight(plan)) / each.num_chunks > memory
        if each.closed_form is not None and each.num_microbatches >= 2 * p:
            assert each.bubble_fraction == pytest.approx(each.closed_form, abs=1e-12)


def test_pieces_are_tried_up_to_the_most():
    """p = 8, m = 32: with v pieces 7 (1 + 1 / v) + 1 are held, and 21 / v of 96 + 21 / v seconds are idle."""
    for most, memory, v in ((4, 10, 4), (3, 10.5, 3), (4, 9.7, 1), (6, 10, 6), (2, 11.5, 2), (1, 32, 1)):
        found = by_name(8, 32, memory, ["interleaved"], max_chunks=most)["interleaved"]
        assert (found.num_chunks, found.num_flushes) == (v, 1)
        assert found.bubble_fraction == pytest.approx(21 / v / (96 + 21 / v))


def test_more_memory_is_never_worse():
    bubbles = [by_name(4, 16, memory) for memory in (2, 4, 8, 16)]
    for less, more in zip(bubbles, bubbles[1:], strict=False):
        assert all(more[name].bubble_fraction <= less[name].bubble_fraction for name in less)


def test_plans_that_are_too_large_to_replay_are_refused():
    with pytest.raises(ValueError, match="must be 100,000 or less: got 100"):
        equal_memory(100, 10_000, 4)


# ---- pairs

times = st.floats(0.5, 2)


@given(p=st.integers(1, 6), more=st.integers(0, 5), input_s=times, forward=st.floats(0.2, 1), weight=st.floats(0.2, 1))
def test_pairs_that_hide_nothing_idle_what_the_authors_say_on_every_rank(p, more, input_s, forward, weight):
    """(p - 1) (FB + B - 3 W) with FB = F + B; and (p - 1) (F + I - W) of it would be there without pairs."""
    f, w = forward * input_s, weight * input_s
    idle = replay_pairs(schedules.dualpipe_v(p, 2 * p + more), Costs(f, None, input_s, w), f + input_s + w)
    assert idle == pytest.approx([pairs_bubble_s(p, f, input_s, w, f + input_s + w)] * p)
    assert idle == pytest.approx([(p - 1) * ((f + input_s - w) + (input_s + w + f - f - w))] * p)


def test_pairs_that_hide_communication_idle_so_on_the_last_rank():
    """A pair of 80%: what the first ranks do outside of pairs takes longer, and they idle less."""
    idle = replay_pairs(schedules.dualpipe_v(4, 16), Costs(), 0.8 * 3)
    assert idle[-1] == pytest.approx(pairs_bubble_s(4, 1, 1, 1, 0.8 * 3)) and list(idle) == sorted(idle)


@pytest.mark.parametrize("p", [1, 2, 5])
def test_a_rank_of_dualpipe_v_holds_two_pieces_for_each_rank_and_one_more(p):
    plan = schedules.dualpipe_v(p, 4 * p)
    assert max(peak_in_flight(plan)) == 2 * p + 1 == 2 * in_flight("dualpipe-v", p, 4 * p)
    held = 0
    for item in pairs_of(plan)[p - 1]:  # as one: what a pair adds it gives back
        held += sum({"F": 1, "B": -1, "W": -1, "I": 0}[action.kind] for action in item)
        assert held <= 2 * p


def test_another_plan_has_no_pairs_to_run():
    with pytest.raises(ValueError, match="'gpipe' has no pairs: give a plan of dualpipe_v"):
        replay_pairs(schedules.gpipe(2, 4), Costs(), 3.0)
