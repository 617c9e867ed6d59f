"""Lion: the paper's update, written out; and what its sign does to noise."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.optim.lion import Lion, expected_sign
from tests.optim.drawn import assert_near, gradients, parameters, run

SHAPES = [(7, 5), (5,), ()]


def naive(w, grads, lr, betas, weight_decay):
    m = 0 * w
    for g in grads:
        c = betas[0] * m + (1 - betas[0]) * g
        w = (1 - lr * weight_decay) * w - lr * torch.sign(c)
        m = betas[1] * m + (1 - betas[1]) * g
    return w


def test_it_is_the_papers_update():
    settings = {"lr": 0.03, "betas": (0.8, 0.95), "weight_decay": 0.7}
    ours, steps = parameters(SHAPES), gradients(SHAPES, 30)
    run(Lion(ours, **settings), steps)
    assert_near(ours, [naive(w, [g[i] for g in steps], **settings) for i, w in enumerate(parameters(SHAPES))])


def test_a_zero_stays():
    w = parameters([(3,)])[0]
    before = w.detach().clone()
    run(Lion([w], lr=0.5), [[torch.tensor([1.0, 0.0, -2.0], dtype=torch.float64)]])
    assert_near([before - w], [torch.tensor([0.5, 0.0, -0.5], dtype=torch.float64)])


@given(beta1=st.floats(0.0, 0.95), beta2=st.floats(0.0, 0.99), ratio=st.floats(-3, 3))
def test_the_variance_of_what_is_signed(beta1, beta2, ratio):
    """The variance of a weighted sum is the sum of the squared weights: summed term by term."""
    weights = [1 - beta1] + [beta1 * (1 - beta2) * beta2**k for k in range(3000)]
    assert math.isclose(sum(weights), 1, rel_tol=1e-9)
    deviation = math.sqrt(sum(weight**2 for weight in weights))
    want = math.erf(ratio / deviation / math.sqrt(2))
    assert math.isclose(expected_sign(ratio, (beta1, beta2)), want, rel_tol=1e-6, abs_tol=1e-9)


@pytest.mark.parametrize("ratio", [0.0, 0.02, 0.2, 2.0])
def test_the_mean_step_of_many_runs(ratio):
    """20,000 numbers, each with noise of its own; their mean step after m has settled."""
    n, num_steps, generator = 20_000, 600, torch.Generator().manual_seed(0)
    w = torch.nn.Parameter(torch.zeros(n, dtype=torch.float64))
    optimizer = Lion([w], lr=1.0)
    for t in range(num_steps):
        w.grad = ratio + torch.randn(n, generator=generator, dtype=torch.float64)
        before = w.detach().clone()
        if t == num_steps - 1:
            optimizer.step()
            break
        optimizer.step()
    mean = float((before - w.detach()).mean())
    assert abs(mean - expected_sign(ratio)) < 5 / math.sqrt(n)
