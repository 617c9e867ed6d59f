"""Where sums stall: by torch's own 16-bit additions, by the spacing of numbers, and right in the mean where random."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.precision.formats import BF16, E4M3, E5M2, FP16, FP32, TF32
from lablib.precision.rounding import round_to
from lablib.precision.running_sum import running_sum, stalls_at

FORMATS = [BF16, FP16, TF32, E5M2, E4M3]


@pytest.mark.parametrize("format", [BF16, FP16], ids=str)
def test_nearest_is_what_torch_adds(format):
    increments = torch.rand(300, generator=torch.Generator().manual_seed(0)).to(format.dtype)
    total, expected = torch.tensor(0.5, dtype=format.dtype), []
    for increment in increments:
        total = total + increment
        expected.append(total.item())
    assert running_sum(0.5, increments, format).tolist() == expected


@pytest.mark.parametrize(("format", "stall"), [(BF16, 256), (FP16, 2048), (FP32, 2**24)], ids=str)
def test_ones_are_counted_up_to_twice_the_mantissas_range(format, stall):
    """The classic: 256 + 1 = 256 in BF16, 2048 + 1 = 2048 in FP16, 2^24 + 1 = 2^24 in FP32."""
    assert stalls_at(1.0, format) == stall
    assert running_sum(stall - 3.0, torch.ones(9), format).tolist() == [stall - 2, stall - 1] + [stall] * 7


@given(st.sampled_from(FORMATS), st.floats(0.01, 1.0))
def test_a_sum_stalls_where_it_is_said_to_and_not_before(format, increment):
    stall = stalls_at(increment, format)
    once = torch.tensor([increment], dtype=torch.float64)
    assert running_sum(stall, once, format).item() == stall
    assert stall == format.smallest_normal or running_sum(stall / 2, once, format).item() > stall / 2


def test_stochastic_rounding_does_not_stall_and_is_right_in_the_mean():
    """From 256, d = 1: up by 2 with probability 1/2. After 200 steps 456, with a standard deviation of sqrt(200)."""
    ends = []
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        ends.append(running_sum(256.0, torch.ones(200), BF16, rounding="stochastic", generator=generator)[-1].item())
    assert len(set(ends)) > 5
    assert abs(sum(ends) / 20 - 456) < 4 * (200 / 20) ** 0.5


def test_master_weights_are_right_to_half_the_distance():
    copy = round_to(running_sum(256.0, torch.ones(200), FP32), BF16)
    exact = 256 + torch.arange(1.0, 201.0, dtype=torch.float64)
    assert float((copy - exact).abs().max()) <= 1  # numbers are 2 apart
    assert running_sum(256.0, torch.ones(0), BF16).tolist() == []
