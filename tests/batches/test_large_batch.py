"""Scaling rules do what they promise: the same walk through the same examples, with torch's own optimizers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.batches.large_batch import AdamSettings, linear_rate, noise_scale_rate, scale_adam, square_root_rate

F64 = torch.float64


def walk(optimizer_of, gradients_SP: torch.Tensor, batch_size: int) -> torch.Tensor:
    """Where the optimizer gets with gradients that do not depend on where it is, `batch_size` of them a step."""
    param = torch.nn.Parameter(torch.zeros(gradients_SP.shape[1], dtype=F64))
    optimizer = optimizer_of([param])
    for part in gradients_SP.split(batch_size):
        param.grad = part.mean(0)
        optimizer.step()
    return param.detach()


@given(k=st.integers(1, 6), from_batch=st.integers(1, 4), num_steps=st.integers(1, 4), rate=st.floats(0.01, 2.0))
def test_linear_scaling_of_sgd_is_the_same_walk_where_gradients_do_not_change(k, from_batch, num_steps, rate):
    gradients = torch.randn(num_steps * k * from_batch, 3, generator=torch.Generator().manual_seed(k), dtype=F64)
    to_batch = k * from_batch
    small = walk(lambda params: torch.optim.SGD(params, lr=rate), gradients, from_batch)
    scaled = linear_rate(rate, from_batch, to_batch)
    large = walk(lambda params: torch.optim.SGD(params, lr=scaled), gradients, to_batch)
    torch.testing.assert_close(large, small, rtol=1e-10, atol=1e-12)


def test_square_root_scaling_of_adam_is_a_walk_as_wide_where_noise_rules():
    """Pure noise on 4,000 parameters: the variance after as many examples is the same; linear scaling's is not."""
    k, settings = 9, AdamSettings(1e-3, (0.98, 0.99), 1e-8)
    gradients = torch.randn(3600, 4000, generator=torch.Generator().manual_seed(0), dtype=F64)

    def spread(settings: AdamSettings, batch_size: int) -> float:
        def adam(params):
            return torch.optim.Adam(params, lr=settings.lr, betas=settings.betas, eps=settings.eps)

        return walk(adam, gradients, batch_size).std().item()

    scaled = scale_adam(settings, 1, k)
    assert spread(scaled, k) == pytest.approx(spread(settings, 1), rel=0.05)
    linear = AdamSettings(linear_rate(settings.lr, 1, k), scaled.betas, scaled.eps)
    assert spread(linear, k) == pytest.approx(3 * spread(settings, 1), rel=0.05)


def test_adams_settings_by_hand():
    scaled = scale_adam(AdamSettings(1e-3, (0.9, 0.99), 1e-8), 64, 256)
    assert (scaled.lr, *scaled.betas, scaled.eps) == pytest.approx((2e-3, 0.6, 0.96, 5e-9))
    assert scaled.lr == square_root_rate(1e-3, 64, 256)


@given(a=st.integers(1, 999), b=st.integers(1, 999), c=st.integers(1, 999), rate=st.floats(1e-6, 1.0))
def test_two_scalings_are_one(a, b, c, rate):
    for rule in (linear_rate, square_root_rate):
        assert rule(rule(rate, a, b), b, c) == pytest.approx(rule(rate, a, c))
        assert rule(rate, a, a) == rate
    assert linear_rate(rate, a, b) == pytest.approx(rate * b / a)


@given(noise_scale=st.floats(1.0, 1e4), batch_size=st.integers(1, 10**6))
def test_the_rate_by_noise_scale_is_the_best_one_on_a_parabola(noise_scale, batch_size):
    # Loss |x|^2 / 2 with |G|^2 = 1, so tr(Sigma) = noise_scale: gain(rate) = rate - rate^2 / 2 (1 + noise_scale / B).
    rate = noise_scale_rate(1.0, noise_scale, batch_size)

    def gain(rate: float) -> float:
        return rate - rate**2 / 2 * (1 + noise_scale / batch_size)

    assert gain(rate) > max(gain(rate * 0.99), gain(rate * 1.01))


def test_the_rate_by_noise_scale_is_linear_below_and_level_above():
    assert noise_scale_rate(0.4, 1000.0, 2) == pytest.approx(
        linear_rate(noise_scale_rate(0.4, 1000.0, 1), 1, 2), rel=2e-3
    )
    assert noise_scale_rate(0.4, 1000.0, 1000) == pytest.approx(0.2)
    assert noise_scale_rate(0.4, 1000.0, 10**8) == pytest.approx(0.4, rel=1e-4)


def test_a_batch_that_is_too_large_is_one_clear_error():
    with pytest.raises(ValueError, match="betas must stay at least 0: got -0.0125 at batch 81; try .* at most 80"):
        scale_adam(AdamSettings(1e-3, (0.9, 0.99), 1e-8), 8, 81)
    assert min(scale_adam(AdamSettings(1e-3, (0.9, 0.99), 1e-8), 8, 80).betas) == pytest.approx(0.0, abs=1e-9)
