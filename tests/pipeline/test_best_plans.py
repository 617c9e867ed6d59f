"""The best that any order could do, by an exact search of small plans: what bounds and the plans of lab 13 claim."""

import runpy
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import pytest

from lablib.pipeline import equal_memory, replay, schedules, simulate
from lablib.pipeline.schedules import SCHEDULES, make

LAB = Path(__file__).parents[2] / "labs" / "masters" / "13_pipeline_parallel"
MicroBatch = tuple[int, int, int]  # F done on so many first stages, I on so many last ones, W on the stages of the bits


def best_makespan(p: int, m: int, limits: Sequence[int]) -> int:
    """The least seconds of any plan of p stages, one piece each, for F = I = W = 1: breadth first over all states.

    Micro-batches may overtake each other. Times are whole: a plan that begins something later than it can begins it at
    an end of something else.
    """
    states = {((0, 0, 0),) * m}
    goal = ((p, p, 2**p - 1),) * m
    seen, seconds = set(states), 0
    while goal not in states:
        states = {after for state in states for after in _after(state, p, limits)} - seen
        seen |= states
        seconds += 1
        assert states, "no plan fits"
    return seconds


def _after(state: tuple[MicroBatch, ...], p: int, limits: Sequence[int]) -> Iterator[tuple[MicroBatch, ...]]:
    """All states a second later: each stage does one thing that it can, or nothing."""
    for chosen in product(*([None, *_possible(state, stage, p, limits)] for stage in range(p))):
        now = list(state)
        for number, change in filter(None, chosen):
            now[number] = tuple(a + b for a, b in zip(now[number], change, strict=True))
        yield tuple(sorted(now))


def _possible(state: tuple[MicroBatch, ...], stage: int, p: int, limits: Sequence[int]) -> Iterator[tuple]:
    held = sum(f > stage and not w >> stage & 1 for f, _, w in state)
    for number, (f, i, w) in enumerate(state):
        if number and state[number - 1] == state[number]:
            continue  # the same for a micro-batch that is as far
        if f == stage and held < limits[stage]:
            yield number, (1, 0, 0)
        if f == p and i == p - 1 - stage:
            yield number, (0, 1, 0)
        if i >= p - stage and not w >> stage & 1:
            yield number, (0, 0, 1 << stage)


def test_exercise_4_asks_for_the_best_there_is_and_no_schedule_of_the_library_meets_it():
    checks = runpy.run_path(str(LAB / "checks.py"))
    limits, m, at_most_s = checks["LIMITS"], checks["MICROBATCHES"], checks["AT_MOST_S"]
    assert best_makespan(len(limits), m, limits) == at_most_s == 15
    for name in SCHEDULES:
        found = simulate(make(name, len(limits), 6 if name == "dualpipe-v" else m), max_in_flight=limits)
        assert found.ranks_over or found.replay.makespan_s > at_most_s, name


@pytest.mark.parametrize(("held", "seconds"), [((3, 2, 1), 16), ((3, 2, 2), 15), ((3, 3, 2), 15), ((3, 3, 3), 14)])
def test_each_micro_batch_more_on_the_last_stage_saves_a_second(held, seconds):
    """2 + 8 + (4 - held) + 3: the fill, four F and four I, the W's before F3, the way back and the last W."""
    assert best_makespan(3, 4, held) == seconds == 2 + 8 + (4 - held[-1]) + 3


def test_with_its_memory_zb_h1_is_the_best_and_without_limits_nothing_is_better():
    for p, m in ((2, 3), (3, 3), (3, 4)):
        zb_h1 = replay(schedules.zb_h1(p, m)).makespan_s
        assert best_makespan(p, m, [p] * p) == best_makespan(p, m, [m] * p) == zb_h1 == 3 * m + p - 1


@pytest.mark.parametrize(("p", "m", "held"), [(2, 4, 1), (2, 5, 2), (3, 4, 1), (3, 4, 2), (3, 3, 3)])
def test_a_stage_that_holds_few_idles_as_long_as_a_micro_batch_stays_there(p, m, held):
    """On stage 0 a micro-batch stays p (F + I) + W seconds or more, and `held` are there at once."""
    stays_s = 2 * p + 1
    assert best_makespan(p, m, [held] * p) >= m * stays_s / held


def test_v_half_idles_less_than_any_order_of_one_piece_a_stage_could():
    """8 stages, memory for 5: 5 micro-batches of 3 s of work in 17 s, as lab 13 says."""
    least = 1 - 5 * 3 / (8 * 2 + 1)
    found = {each.schedule: each for each in equal_memory(8, 32, 5)}
    assert found["v-half"].bubble_fraction < least == pytest.approx(0.1176, abs=1e-4)
    of_one_piece = [each for each in found.values() if each.num_chunks == 1]
    assert of_one_piece and min(each.bubble_fraction for each in of_one_piece) > least
