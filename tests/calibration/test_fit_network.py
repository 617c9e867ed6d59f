"""The fit finds the latency, bandwidth and overhead that made the measurements."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.calibration.fit_network import MessageTiming, fit_network, predicted_s
from lablib.hardware import Cluster, Link
from lablib.hardware.device import FREE

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send", "exchange")


def machine(alpha: float, bandwidth: float, overhead_s: float, library: str = "gloo") -> Cluster:
    link = Link("true", alpha, bandwidth)
    return Cluster("true", FREE, 64, link, link, collective_overhead_s=overhead_s, library=library)


def measured_on(cluster: Cluster, noise: float = 0.0, ranks: int = 4, seed: int = 0) -> list[MessageTiming]:
    random = Random(seed)
    blank = [MessageTiming(name, 128 * 16**k, ranks, 1.0) for name in NAMES for k in range(5)]
    return [replace(timing, time_s=predicted_s(timing, cluster) * random.lognormvariate(0, noise)) for timing in blank]


constants = st.tuples(st.floats(1e-6, 1e-3), st.floats(1e8, 1e11), st.floats(1e-6, 1e-3))


@settings(max_examples=25, deadline=None)
@given(constants, st.integers(2, 8), st.sampled_from(["gloo", ""]))
def test_known_figures_come_back_from_times_without_noise(known, ranks, library):
    alpha, bandwidth, overhead_s = known
    cluster = machine(alpha, bandwidth, overhead_s, library)
    fit = fit_network(measured_on(cluster, ranks=ranks), machine(1e-5, 1e9, 0.0, library))
    for timing in measured_on(cluster, ranks=ranks):
        assert predicted_s(timing, fit.cluster) == pytest.approx(timing.time_s, rel=0.02)
    if library:  # nothing to choose: the problem is linear and the figures themselves come back
        found = fit.cluster
        assert found.intra.latency_s == pytest.approx(alpha, rel=0.02, abs=1e-3 * overhead_s)
        assert found.intra.bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=0.02)
        assert found.collective_overhead_s == pytest.approx(overhead_s, rel=0.02, abs=1e-2 * alpha)


@settings(max_examples=10, deadline=None)
@given(st.floats(1e-5, 1e-3), st.floats(1e8, 1e10), st.integers(0, 100))
def test_with_noise_of_a_tenth_the_figures_come_back_within_a_fifth(alpha, bandwidth, seed):
    cluster = machine(alpha, bandwidth, alpha)
    fit = fit_network(measured_on(cluster, noise=0.1, seed=seed), cluster)
    assert fit.cluster.intra.latency_s == pytest.approx(alpha, rel=0.2)
    # A bandwidth shows only in its share of a message's time: where that is half, noise of a tenth is a fifth of it.
    smallest, *_, largest = [timing for timing in measured_on(cluster) if timing.name == "send"]
    share = 1 - smallest.time_s / largest.time_s
    assert fit.cluster.intra.bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=0.2 / share)
    assert max(residual.median for residual in fit.residuals) < 0.25


def test_a_residual_for_each_kind_of_communication():
    cluster = machine(1e-4, 1e9, 1e-4)
    fit = fit_network(measured_on(cluster), cluster)
    assert [residual.part for residual in fit.residuals] == list(NAMES)
    assert all(residual.worst < 1e-3 for residual in fit.residuals)


@pytest.mark.parametrize("time_s", [0.0, -1.0, float("nan"), float("inf")])
def test_times_that_no_clock_gives_are_refused(time_s):
    cluster = machine(1e-4, 1e9, 0.0)
    timings = [*measured_on(cluster), MessageTiming("send", 8, 4, time_s)]
    with pytest.raises(ValueError, match="must be positive seconds: got .* for send of 8 B"):
        fit_network(timings, cluster)


def test_too_few_measurements_are_refused():
    cluster = machine(1e-4, 1e9, 0.0)
    with pytest.raises(ValueError, match="needs 3 or more measured communications: got 2"):
        fit_network(measured_on(cluster)[:2], cluster)


def test_times_that_do_not_grow_with_size_are_refused():
    timings = [MessageTiming("send", size, 4, 1e-3) for size in (8, 800, 80_000, 8_000_000)]
    with pytest.raises(ValueError, match="must grow with size"):
        fit_network(timings, machine(1e-4, 1e9, 0.0))


def test_more_ranks_than_a_node_holds_are_refused():
    with pytest.raises(ValueError, match="among 2 to 64 ranks: got 65"):
        fit_network([MessageTiming("send", 8, 65, 1.0)] * 3, machine(1e-4, 1e9, 0.0))
