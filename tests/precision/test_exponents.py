"""Exponents, counted by Python's own frexp; what a format loses, by rounding every number to it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lablib.precision.exponents import ExponentCounts, GradientExponents, exponent_counts
from lablib.precision.formats import FORMATS, FP16
from lablib.precision.rounding import round_to

WITH_ZERO = [format for format in FORMATS.values() if format.has_zero]


@given(st.lists(st.floats(allow_subnormal=True), max_size=30))
def test_counts_are_pythons(numbers):
    counts = exponent_counts([torch.tensor(numbers, dtype=torch.float64)])
    expected: dict[int, int] = {}
    for x in numbers:
        if x and math.isfinite(x):
            exponent = math.frexp(x)[1] - 1
            assert 2.0**exponent <= abs(x) and abs(x) / 2 < 2.0**exponent
            expected[exponent] = expected.get(exponent, 0) + 1
    assert counts.by_exponent == expected
    assert counts.zeros == numbers.count(0.0)
    assert counts.not_finite == sum(not math.isfinite(x) for x in numbers)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype_is_counted_with_its_subnormals(dtype):
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * info.eps
    counts = exponent_counts([torch.tensor([smallest, -info.smallest_normal, 1.5, -2.0], dtype=dtype)])
    assert list(counts.by_exponent) == [math.frexp(smallest)[1] - 1, math.frexp(info.smallest_normal)[1] - 1, 0, 1]


def test_counts_add_up():
    parts = [torch.randn(50) * 10**k for k in (-3.0, 0.0, 3.0)]
    together = exponent_counts(parts)
    assert together == sum((exponent_counts([part]) for part in parts), ExponentCounts())
    assert together.num_nonzero == 150 and list(together.by_exponent) == sorted(together.by_exponent)


@pytest.mark.parametrize("power", [-7, 0, 24])
def test_counts_of_scaled_numbers_are_scaled_counts(power):
    x = torch.cat([torch.randn(50, dtype=torch.float64), torch.tensor([0.0, math.inf], dtype=torch.float64)])
    assert exponent_counts([x]).scaled(power) == exponent_counts([x * 2.0**power])


@pytest.mark.parametrize("format", WITH_ZERO, ids=str)
def test_shares_are_what_rounding_does(format):
    """Lost are those that round to zero, too large those above the largest number, subnormal those between."""
    generator = torch.Generator().manual_seed(0)
    span = (format.underflow_exponent - 4, format.max_exponent + 4)
    exponents = torch.randint(max(span[0], -1000), min(span[1], 1000), (4000,), generator=generator)
    # Mantissas stay off 1, which ties to zero, and off 2, which rounds up to the next power of two.
    mantissas = 1.01 + 0.4 * torch.rand(4000, generator=generator, dtype=torch.float64)
    x = torch.ldexp(mantissas, exponents)
    shares = exponent_counts([x]).shares(format)
    rounded = round_to(x, format, saturates=True)
    assert shares.lost == float((rounded == 0).double().mean())
    assert shares.too_large == float((x > format.largest).double().mean())
    is_subnormal = (rounded != 0) & (x < format.smallest_normal)
    assert shares.subnormal == float(is_subnormal.double().mean())
    assert shares.lost + shares.subnormal + shares.normal + shares.too_large == pytest.approx(1)


def test_nothing_counted_has_no_shares():
    shares = exponent_counts([torch.zeros(3)]).shares(FP16)
    assert (shares.lost, shares.subnormal, shares.normal, shares.too_large) == (0, 0, 0, 0)


def test_the_watch_counts_what_backward_leaves_and_what_it_works_on():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    watch = GradientExponents(model)
    outputs = [torch.randn(5, 4)]
    for layer in model:
        outputs.append(layer(outputs[-1]))
        outputs[-1].retain_grad()
    (outputs[-1] ** 2).mean().backward()
    assert watch.activations == exponent_counts([y.grad for y in outputs[1:] if y.grad is not None])
    assert watch.weights == exponent_counts([p.grad for p in model.parameters() if p.grad is not None])
    assert watch.activations.num_nonzero == 5 * 3 + 5 * 2 and watch.weights.num_nonzero == 4 * 3 + 3 + 3 * 2 + 2
    before = watch.weights
    watch.remove()
    model(torch.randn(5, 4)).sum().backward()
    assert watch.weights is before
