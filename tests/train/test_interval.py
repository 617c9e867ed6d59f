"""The best checkpoint interval: formulas against a numerical minimum, the expectation against simulated failures."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.train import LLAMA3_FAILURES, daly_interval_s, expected_overhead, simulated_overhead, young_interval_s

RATIOS = st.floats(1e-4, 1.9)  # a save over the mean time between failures
SECONDS = st.floats(1.0, 1e6)


def test_llama_3_failed_every_three_hours_and_one_gpu_would_every_six_years():
    assert LLAMA3_FAILURES.mean_time_s() / 3600 == pytest.approx(3.093, abs=5e-4)  # 54 * 24 / 419
    assert LLAMA3_FAILURES.mean_time_s(1) / (365.25 * 86_400) == pytest.approx(5.78, abs=0.01)
    assert LLAMA3_FAILURES.mean_time_s(131_072) == pytest.approx(LLAMA3_FAILURES.mean_time_s() / 8)


def test_young_for_a_save_of_one_minute():
    assert young_interval_s(60, 12_000) == 1200  # sqrt(2 * 60 * 12,000)


def best_interval_s(save_s: float, mean_time_s: float) -> float:
    """The interval with the least expected overhead: e^(-(tau + delta)/M) - 1 + tau/M grows, and is 0 below M."""
    low, high = 0.0, mean_time_s
    for _ in range(100):
        middle = (low + high) / 2
        is_short = math.expm1(-(middle + save_s) / mean_time_s) + middle / mean_time_s < 0
        low, high = (middle, high) if is_short else (low, middle)
    return high


@given(RATIOS, SECONDS)
def test_the_best_interval_is_the_minimum_of_the_expectation(ratio, mean_time_s):
    save_s = ratio * mean_time_s
    best_s = best_interval_s(save_s, mean_time_s)
    least = expected_overhead(best_s, save_s, mean_time_s)
    for factor in np.geomspace(0.1, 10, 41):
        assert least <= expected_overhead(best_s * factor, save_s, mean_time_s) * (1 + 1e-9)


@given(RATIOS, SECONDS)
def test_dalys_interval_costs_little_more_than_the_best_and_youngs_is_above_it(ratio, mean_time_s):
    save_s = ratio * mean_time_s
    best_s = best_interval_s(save_s, mean_time_s)
    least, young_s = expected_overhead(best_s, save_s, mean_time_s), young_interval_s(save_s, mean_time_s)
    assert expected_overhead(daly_interval_s(save_s, mean_time_s), save_s, mean_time_s) <= 1.02 * least
    assert young_s > best_s


@given(st.floats(1e-8, 1e-4))
def test_all_three_agree_if_failures_are_rare(ratio):
    best_s = best_interval_s(ratio, 1.0)
    assert young_interval_s(ratio, 1.0) == pytest.approx(best_s, rel=math.sqrt(ratio))
    assert daly_interval_s(ratio, 1.0) == pytest.approx(best_s, rel=ratio + 1e-6)


def test_a_save_longer_than_twice_the_time_between_failures_follows_the_work_of_that_time():
    assert daly_interval_s(200, 100) == 100


@pytest.mark.parametrize("interval_s", [300, 1000, 4000])
@pytest.mark.parametrize(("save_s", "restart_s"), [(60, 0), (60, 600), (0, 300)])
def test_simulated_failures_cost_as_much_as_expected(interval_s, save_s, restart_s):
    mean_time_s = LLAMA3_FAILURES.mean_time_s()
    expected = expected_overhead(interval_s, save_s, mean_time_s, restart_s)
    found = [
        simulated_overhead(interval_s, save_s, mean_time_s, restart_s, num_intervals=4000, seed=seed)
        for seed in range(12)
    ]
    assert np.mean(found) == pytest.approx(expected, abs=4 * float(np.std(found, ddof=1)) / math.sqrt(12))
    assert np.mean(found) == pytest.approx(expected, rel=0.05)


def test_at_llama_3s_rate_the_simulation_prefers_dalys_interval_to_a_half_and_a_double():
    save_s, mean_time_s = 60.0, LLAMA3_FAILURES.mean_time_s()
    daly_s = daly_interval_s(save_s, mean_time_s)
    half, best, double = (
        np.mean([simulated_overhead(factor * daly_s, save_s, mean_time_s, 300, num_intervals=int(4e4 / factor), seed=s)
                 for s in range(3)])
        for factor in (0.5, 1, 2)
    )  # fmt: skip
    assert best < half and best < double


def test_a_run_that_never_gets_through_an_interval_has_an_infinite_overhead():
    assert expected_overhead(1e6, 0, 1) == expected_overhead(1, 0, 1, 1e6) == float("inf")
