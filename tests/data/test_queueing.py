"""A loader and a device are a queue: its closed forms in numbers, and against the event simulation."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.data.loading.loader import Jitter, Loader, draw_times
from lablib.data.loading.loader_timeline import run_loop
from lablib.data.loading.queueing import idle_share_constant, idle_share_exponential, open_orders

TIMES = st.floats(0.05, 20.0)
EVERY = st.floats(0, exclude_min=True, allow_infinity=False)


def test_one_worker_as_fast_as_the_device_leaves_one_part_of_its_buffer_idle():
    # M/M/1/K with r = 1: all K + 1 states alike, K = P + 1.
    for prefetch in (1, 2, 8):
        assert idle_share_exponential(2.0, 2.0, 1, prefetch) == pytest.approx(1 / (prefetch + 2))


def test_the_blocking_of_a_loss_system_is_erlangs():
    # Erlang's B formula for 2 servers and load 1 erlang is 1/5; here with room: M/M/2/3, p = 1, 1, 1/2, 1/4 over 11/4.
    assert open_orders(1.0, 1.0, 2, 1) == pytest.approx([4 / 11, 4 / 11, 2 / 11, 1 / 11])


@given(load_s=TIMES, step_s=TIMES, prefetch=st.integers(1, 20))
def test_one_worker_is_m_m_1_k(load_s, step_s, prefetch):
    r, k = step_s / load_s, prefetch + 1
    expected = 1 / (k + 1) if r == 1 else (1 - r) / (1 - r ** (k + 1))
    if abs(r - 1) > 1e-4 or r == 1:
        assert idle_share_exponential(load_s, step_s, 1, prefetch) == pytest.approx(expected, rel=1e-6)


@given(load_s=TIMES, step_s=TIMES, workers=st.integers(1, 8), prefetch=st.integers(1, 8))
def test_flow_in_is_flow_out_and_the_share_is_within_its_bounds(load_s, step_s, workers, prefetch):
    shares = open_orders(load_s, step_s, workers, prefetch)
    assert math.fsum(shares) == pytest.approx(1) and len(shares) == workers * prefetch + 2
    loaded = sum(share * min(number, workers) for number, share in enumerate(shares)) / load_s  # batches a second
    assert loaded == pytest.approx((1 - shares[-1]) / step_s, rel=1e-9)
    assert shares[-1] >= idle_share_constant(load_s, step_s, workers) - 1e-9
    assert idle_share_exponential(load_s, step_s, workers, prefetch + 1) <= shares[-1] + 1e-12


@pytest.mark.parametrize("workers, prefetch, load_s", [(1, 1, 1.0), (1, 4, 0.8), (3, 2, 3.0), (4, 1, 2.0)])
def test_the_event_simulation_agrees_with_the_closed_form(workers, prefetch, load_s):
    num, batches = 20_000, 20
    loads, steps = (draw_times(mean, num, Jitter.EXPONENTIAL, seed=seed) for mean, seed in ((load_s, 1), (1.0, 2)))
    run = run_loop(Loader(workers, prefetch, keeps_order=False), loads, steps)
    # The bound is four standard errors of the mean of batches of 1,000 steps, long enough to be nearly independent.
    size = num // batches
    ends = [0.0, *(run.batches[(part + 1) * size - 1].step_end_s for part in range(batches))]
    shares = [
        1 - sum(steps[part * size : (part + 1) * size]) / (ends[part + 1] - ends[part]) for part in range(batches)
    ]
    mean = sum(shares) / batches
    error = (sum((share - mean) ** 2 for share in shares) / (batches - 1) / batches) ** 0.5
    assert error < 0.01
    assert mean == pytest.approx(idle_share_exponential(load_s, 1.0, workers, prefetch), abs=4 * error)


def test_workers_that_keep_turns_wait_more_than_the_closed_form():
    num = 10_000
    loads, steps = (draw_times(mean, num, Jitter.EXPONENTIAL, seed=seed) for mean, seed in ((4.0, 1), (1.0, 2)))
    kept, shared = (run_loop(Loader(4, 2, keeps_order=keeps), loads, steps).idle_share for keeps in (True, False))
    assert kept > shared + 0.03


@settings(max_examples=25)
@given(load_s=TIMES, step_s=TIMES, workers=st.integers(1, 4), prefetch=st.integers(1, 4))
def test_constant_times_wait_for_the_slower_of_both(load_s, step_s, workers, prefetch):
    num = 300
    run = run_loop(Loader(workers, prefetch), [load_s] * num, [step_s] * num)
    assert run.idle_share_from(num // 2) == pytest.approx(
        idle_share_constant(load_s, step_s, workers), abs=2 * workers / num
    )


@given(load_s=EVERY, step_s=EVERY, workers=st.integers(1, 3), prefetch=st.integers(1, 3))
def test_any_times_that_a_float_can_hold_have_a_share(load_s, step_s, workers, prefetch):
    shares = open_orders(load_s, step_s, workers, prefetch)
    assert math.fsum(shares) == pytest.approx(1) and all(0 <= share <= 1 for share in shares)
