"""When compression pays: the closed form against a step on the simulator, its break-even, and what is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib import find_cluster, launch
from lablib.compress import quantized_all_reduce
from lablib.hardware import Link
from lablib.plan.gradient_compression import COMPRESSIONS
from lablib.studies import break_even_bandwidth, compressed_step, speedup_curves, speedup_of_compression

methods = st.sampled_from(sorted(COMPRESSIONS))
options = st.fixed_dictionaries(
    {"ranks": st.integers(2, 512), "overlap": st.floats(0, 1), "overhead": st.sampled_from([0.0, 0.5, 1.0, 5.0])}
)


def test_by_hand():
    """10^9 gradients, INT8 in blocks of 256 on 2 ranks: a message of 1.015625 GB, sent once; 12.5 GB are moved."""
    step = compressed_step("int8", 1e9, 2.0, 1e9, ranks=2, overlap=0.25, overhead=2.0, memory_bytes_per_s=1e12)
    moved = 8e9 + 2 * 1.015625e9 + 1.5 * 1.015625e9
    assert (step.compute_s, step.wire_s, step.exposed_s) == (2.0, 1.015625, 0.515625)
    assert step.pack_s == pytest.approx(2 * moved / 1e12)
    before = compressed_step("none", 1e9, 2.0, 1e9, ranks=2, overlap=0.25)
    assert (before.pack_s, before.wire_s, before.exposed_s) == (0.0, 4.0, 3.5)
    assert before.step_s == 5.5


def test_the_wires_take_as_long_as_on_the_simulator():
    """A network without latency: seconds of both phases are bytes by bandwidth."""
    numel, ranks, bandwidth = 4 * 256 * 64, 4, 1e9
    cluster = find_cluster("dgx-a100").replace(intra=Link("wire", 0.0, bandwidth), devices_per_node=ranks)
    run = launch(lambda: quantized_all_reduce(torch.randn(numel)).wait(), ranks=ranks, cluster=cluster)
    seconds = sum(t.end_s - t.start_s for t in run.traffic.transfers)
    assert seconds == pytest.approx(compressed_step("int8", numel, 0.0, bandwidth, ranks=ranks).wire_s, rel=1e-9)


@given(methods, st.floats(0, 100), options)
def test_it_pays_below_the_break_even_bandwidth_and_not_above(method, compute_s, settings):
    even = break_even_bandwidth(method, 1e9, compute_s, **settings)
    if 1 < even < 1e30:
        assert speedup_of_compression(method, 1e9, compute_s, even, **settings) == pytest.approx(1, abs=1e-9)
    speeds = [speedup_of_compression(method, 1e9, compute_s, 10.0**e, **settings) for e in range(4, 16)]
    for exponent, speed in enumerate(speeds, 4):
        if 10.0**exponent < even * (1 - 1e-9):
            assert speed >= 1 - 1e-12
        elif 10.0**exponent > even * (1 + 1e-9):
            assert speed <= 1 + 1e-12


@given(methods, st.floats(1e3, 1e14), options)
def test_more_compute_never_makes_compression_pay_more(method, bandwidth, settings):
    """Where it pays, that is: a loss of packing shrinks beside compute, too."""
    speeds = [speedup_of_compression(method, 1e9, compute_s, bandwidth, **settings) for compute_s in (0.01, 0.1, 1, 10)]
    gains = [speed - 1 for speed in speeds]
    assert all(after <= max(before, 0) + 1e-9 for before, after in zip(gains, gains[1:], strict=False))


def test_curves_are_the_speedups():
    curves = speedup_curves("int4", 1e9, 0.1, [1, 8], [1e9, 1e10], overlap=0.5)
    assert curves == {
        f"batch {batch}": [speedup_of_compression("int4", 1e9, 0.1 * batch, rate, overlap=0.5) for rate in (1e9, 1e10)]
        for batch in (1, 8)
    }


@pytest.mark.parametrize(("wrong", "said"), [({"method": "int5"}, "int5")])
def test_bad_input_is_one_clear_error(wrong, said):
    given_ = {"method": "int8", "numel": 1e9, "compute_s": 1.0, "bandwidth_bytes_per_s": 1e9} | wrong
    with pytest.raises(ValueError, match=said):
        compressed_step(**given_)
