"""Scaling rules do what they promise: the same walk through the same examples, with torch's own optimizers."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.batches.large_batch import linear_rate, square_root_rate

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
    k = 9
    gradients = torch.randn(3600, 4000, generator=torch.Generator().manual_seed(0), dtype=F64)

    def spread(lr: float, batch_size: int) -> float:
        """Of the walk with 1 - beta and 1 / eps^2 in proportion to the batch, to average over the same examples."""
        betas, eps = (1 - batch_size * 0.02, 1 - batch_size * 0.01), 1e-8 / batch_size**0.5
        adam = partial(torch.optim.Adam, lr=lr, betas=betas, eps=eps)
        return walk(adam, gradients, batch_size).std().item()

    alone = spread(1e-3, 1)
    assert spread(square_root_rate(1e-3, 1, k), k) == pytest.approx(alone, rel=0.05)
    assert spread(linear_rate(1e-3, 1, k), k) == pytest.approx(3 * alone, rel=0.05)


@given(a=st.integers(1, 999), b=st.integers(1, 999), c=st.integers(1, 999), rate=st.floats(1e-6, 1.0))
def test_two_scalings_are_one(a, b, c, rate):
    for rule in (linear_rate, square_root_rate):
        assert rule(rule(rate, a, b), b, c) == pytest.approx(rule(rate, a, c))
        assert rule(rate, a, a) == rate
    assert linear_rate(rate, a, b) == pytest.approx(rate * b / a)
