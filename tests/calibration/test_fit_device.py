"""The fit finds the figures that made the measurements: times of the cost model itself, plus noise."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.calibration.cases import BenchmarkCase, predicted_s, priced_ops
from lablib.calibration.fit_device import Timing, fit_device
from lablib.calibration.grid import device_cases
from lablib.hardware import DEVICES, Device

BASE = replace(DEVICES["laptop-core"], num_cores=1)
DTYPES = ("float32", "float64", "bfloat16")
CASES = device_cases(DTYPES, on_gpu=False, quick=False)


def measured_on(device: Device, noise: float = 0.0, seed: int = 0, overhead_ratio: float = 1.0) -> list[Timing]:
    """What a machine with these figures would measure; programs have `overhead_ratio` times the overhead of loops."""
    random, slow = Random(seed), replace(device, kernel_overhead_s=device.kernel_overhead_s * overhead_ratio)
    timings = []
    for case in CASES:
        seconds = predicted_s(priced_ops(case), slow if case.part == "program" else device)
        timings.append(Timing(case, seconds * random.lognormvariate(0, noise)))
    return timings


def a_device(**figures) -> Device:
    known = {
        "peak_flops_per_s": {"float32": 45e9, "float64": 25e9, "bfloat16": 110e9},
        "kernel_overhead_s": 3e-6,
        "memory_bandwidth_bytes_per_s": 10e9,
        "cache_bytes": 20e6,
        "cache_bandwidth_bytes_per_s": 40e9,
    }
    return replace(BASE, **(known | figures))


@settings(max_examples=3, deadline=None)
@given(
    peak=st.floats(2e10, 5e11),
    ratio=st.floats(0.3, 3),
    overhead_s=st.floats(2e-6, 5e-6),
    bandwidth=st.floats(5e9, 3e10),
    faster=st.floats(2, 6),
)
def test_known_figures_come_back_from_noisy_times(peak, ratio, overhead_s, bandwidth, faster):
    known = a_device(
        peak_flops_per_s={"float32": peak, "float64": peak / 2, "bfloat16": peak * ratio},
        kernel_overhead_s=overhead_s,
        memory_bandwidth_bytes_per_s=bandwidth,
        cache_bandwidth_bytes_per_s=faster * bandwidth,
    )
    found = fit_device(measured_on(known, noise=0.03, overhead_ratio=10.0), BASE).device
    assert found.kernel_overhead_s == pytest.approx(10 * overhead_s, rel=0.15)
    assert found.memory_bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=0.15)
    assert found.cache_bandwidth_bytes_per_s == pytest.approx(faster * bandwidth, rel=0.2)
    for dtype, true_peak in known.peak_flops_per_s.items():
        assert found.peak_flops_per_s[dtype] == pytest.approx(true_peak, rel=0.2)
    assert found.matmul_efficiency == found.memory_efficiency == 1.0


def test_without_noise_every_part_is_explained():
    fit = fit_device(measured_on(a_device()), BASE)
    assert {residual.part for residual in fit.residuals} == {
        *("dispatch", "program", "memory", "elementwise"),
        *(f"matmul_{dtype}" for dtype in DTYPES),
    }
    # A cache is known to lie between two measured sizes, so a size between may fall on the wrong side.
    assert all(residual.median < 0.02 for residual in fit.residuals)


def test_the_cache_is_found_between_the_measured_sizes_around_it():
    found = fit_device(measured_on(a_device()), BASE).device
    sizes = [3 * 4 * 2**k for k in range(13, 24, 2)] + [2 * 4 * 2**k for k in range(13, 24, 2)]
    below, above = max(s for s in sizes if s <= 20e6), min(s for s in sizes if s > 20e6)
    assert below < found.cache_bytes < above


def test_a_machine_without_a_cache_gets_none():
    found = fit_device(measured_on(a_device(cache_bytes=0.0), noise=0.05), BASE).device
    assert found.cache_bytes == 0.0
    assert found.memory_bandwidth_bytes_per_s == pytest.approx(10e9, rel=0.1)


def test_the_overhead_of_programs_is_told_from_that_of_loops():
    found = fit_device(measured_on(a_device(), overhead_ratio=4.0), BASE).device
    assert found.kernel_overhead_s == pytest.approx(4 * 3e-6, rel=0.05)
    assert found.memory_bandwidth_bytes_per_s == pytest.approx(10e9, rel=0.05)


def test_functions_that_take_longer_than_their_bytes_are_found_and_no_others():
    element_s = {"gelu tanh": 2e-9, "_softmax": 1e-9, "_scaled_dot_product_flash_attention_for_cpu": 4e-9}
    element_s |= {"exp": 1e-12}  # hidden behind the bytes
    found = fit_device(measured_on(a_device(element_s=element_s)), BASE).device.element_s
    assert set(found) == set(element_s) - {"exp"}
    for name, seconds in found.items():
        assert seconds == pytest.approx(element_s[name], rel=0.01), name


def test_the_copies_between_cold_operations_are_not_counted_as_overhead():
    cold = [case for case in CASES if case.part == "program"]
    assert {case.kind for case in cold} == {"cold layer", "cold model"}
    timings = measured_on(a_device(memory_bandwidth_bytes_per_s=4e9, cache_bytes=0.0), overhead_ratio=10.0)
    assert fit_device(timings, BASE).device.kernel_overhead_s == pytest.approx(10 * 3e-6, rel=0.01)


def test_a_few_disturbed_measurements_do_not_move_the_figures():
    timings = measured_on(a_device())
    disturbed = [replace(t, time_s=20 * t.time_s) if i % 6 == 5 else t for i, t in enumerate(timings)]
    found = fit_device(disturbed, BASE).device
    assert found.peak_flops_per_s["float32"] == pytest.approx(45e9, rel=0.15)
    assert found.memory_bandwidth_bytes_per_s == pytest.approx(10e9, rel=0.15)


@pytest.mark.parametrize("time_s", [0.0, -1e-6, float("nan"), float("inf")])
def test_times_that_no_clock_gives_are_refused(time_s):
    timings = [*measured_on(a_device()), Timing(BenchmarkCase("memory", "copy", (64,)), time_s)]
    with pytest.raises(ValueError, match="must be positive seconds: got .* for copy 64 float32"):
        fit_device(timings, BASE)


@pytest.mark.parametrize("part", ["dispatch", "program", "memory", "matmul"])
def test_too_few_measurements_of_a_part_are_refused(part):
    timings = [timing for timing in measured_on(a_device()) if timing.case.part != part]
    with pytest.raises(ValueError, match=f"or more {part} cases: got 0"):
        fit_device(timings, BASE)


def test_memory_operations_that_take_no_longer_than_their_start_are_refused():
    timings = [
        replace(timing, time_s=3e-6) if timing.case.part == "memory" else timing for timing in measured_on(a_device())
    ]
    with pytest.raises(ValueError, match="measure larger sizes"):
        fit_device(timings, BASE)
