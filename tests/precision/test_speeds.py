"""Speed claims: products as the simulator's clock has them, limits by the peaks, losses counted by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib import launch
from lablib.hardware import CLUSTERS, DEVICES
from lablib.precision.equal_loss import SpeedClaim, speed_claim, steps_to_loss
from lablib.precision.formats import BF16, E4M3, FP16, FP32, TF32
from lablib.precision.product_speed import product_speeds, product_time_s

V100, A100, H100 = (DEVICES[name] for name in ("V100-32GB-SXM2", "A100-40GB-SXM", "H100-80GB-SXM"))


def multiply(size: int, dtype: torch.dtype) -> None:
    a = torch.empty(size, size, dtype=dtype)
    for _ in range(5):
        torch.mm(a, a)


@pytest.mark.parametrize("size", [64, 512, 1000, 4096])
@pytest.mark.parametrize("format", [FP32, FP16, BF16], ids=str)
def test_a_product_takes_what_the_simulators_clock_says(size, format):
    run = launch(multiply, size, format.dtype, ranks=1, cluster="dgx-a100", fidelity="shapes")
    device = CLUSTERS["dgx-a100"].device
    ends_s = [span.end_s for span in run.timeline.select(0) if span.name == "aten.mm"]
    assert (ends_s[-1] - ends_s[0]) / 4 == pytest.approx(product_time_s(device, format, size), rel=1e-9)


@pytest.mark.parametrize(("device", "format", "baseline"), [(V100, FP16, FP32), (A100, BF16, TF32), (H100, E4M3, BF16)])
def test_speedup_grows_from_nearly_none_to_at_most_the_peaks_ratio(device, format, baseline):
    speeds = product_speeds(device, format, [32, 512, 2048, 16384], baseline)
    factors = [speed.speedup for speed in speeds]
    assert factors == sorted(factors) and 1 <= factors[0] < 2 < 1.9 * factors[-1]
    peaks = device.peak_flops_per_s
    names = {FP16: "float16", FP32: "float32", BF16: "bfloat16", TF32: "tfloat32", E4M3: "float8"}
    assert factors[-1] <= peaks[names[format]] / peaks[names[baseline]] * 1.0001
    assert [speed.size for speed in speeds] == [32, 512, 2048, 16384]
    assert {(speed.device, speed.format) for speed in speeds} == {(device.name, format.name)}
    assert speeds[0].time_s == product_time_s(device, format, 32)


@pytest.mark.parametrize(("device", "format"), [(V100, BF16), (V100, TF32), (A100, E4M3)])
def test_a_format_that_the_device_lacks_is_refused_with_those_it_has(device, format):
    with pytest.raises(ValueError, match=f"{device.name} does not multiply {format}: choose one of .*fp16"):
        product_speeds(device, format, [128])


def test_steps_to_a_loss_by_hand():
    losses = [9.0, 5.0, 1.0, 3.0, 1.0]
    assert steps_to_loss(losses, 3.0, window=1) == 3
    assert steps_to_loss(losses, 3.0, window=2) == 3  # (5 + 1) / 2
    assert steps_to_loss(losses, 2.0, window=2) == 4
    assert steps_to_loss(losses, 0.5, window=2) is None and steps_to_loss([], 1.0) is None
    assert steps_to_loss([float("nan"), 1.0], 3.0, window=2) is None


@given(st.floats(1e-3, 10), st.floats(1e-3, 10), st.integers(2, 20), st.integers(2, 20))
def test_both_claims_are_ratios_of_seconds(mine_s, theirs_s, mine, theirs):
    """Runs whose loss falls to 1 after so many steps."""
    claim = speed_claim([2.0] * (mine - 1) + [1.0], mine_s, [2.0] * (theirs - 1) + [1.0], theirs_s, 1.5, window=1)
    assert claim.throughput == pytest.approx((1 / mine_s) / (1 / theirs_s))
    assert claim.to_equal_loss == pytest.approx((theirs * theirs_s) / (mine * mine_s))


def test_a_run_that_never_gets_there_gains_nothing():
    assert speed_claim([2.0] * 5, 1.0, [1.0] * 5, 3.0, 1.5, window=1) == SpeedClaim(3.0, 0.0)
    with pytest.raises(ValueError, match="the reference must reach the target"):
        speed_claim([1.0], 1.0, [2.0], 1.0, 1.5, window=1)
