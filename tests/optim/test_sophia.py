"""Sophia-G: the paper's update, written out; and the estimate of curvature, against the exact one."""

import pytest
import torch

from lablib.optim.sophia import SophiaG, sampled_label_loss
from tests.optim.drawn import assert_near, drawn, gradients, parameters, run

SHAPES = [(7, 5), (5,), ()]


def naive(w, grads, estimates, k, lr, betas, gamma, eps, weight_decay):
    m, h = 0 * w, 0 * w
    for t, g in enumerate(grads):
        m = betas[0] * m + (1 - betas[0]) * g
        if t % k == 0:
            h = betas[1] * h + (1 - betas[1]) * estimates[t]
        w = w - lr * weight_decay * w
        w = w - lr * torch.clamp(m / torch.maximum(gamma * h, torch.tensor(eps)), -1, 1)
    return w


def test_it_is_the_papers_update():
    settings = {"lr": 0.03, "betas": (0.8, 0.6), "gamma": 0.4, "eps": 1e-6, "weight_decay": 0.7}
    ours, steps, sampled = parameters(SHAPES), gradients(SHAPES, 31), gradients(SHAPES, 31, seed=50)
    optimizer = SophiaG(ours, **settings)
    for t, grads in enumerate(steps):
        if t % 3 == 0:
            for param, grad in zip(ours, sampled[t], strict=True):
                param.grad = grad.clone()
            optimizer.update_curvature(num_tokens=12)
        run(optimizer, [grads])
    for i, w in enumerate(parameters(SHAPES)):
        squares = [12 * g[i] ** 2 for g in sampled]
        assert_near([ours[i]], [naive(w.detach(), [g[i] for g in steps], squares, 3, **settings)])


def test_without_an_estimate_it_steps_by_the_sign():
    (w,) = parameters([(5,)])
    before, g = w.detach().clone(), drawn(5, seed=1)
    run(SophiaG([w], lr=0.1, weight_decay=0.0), [[g]])
    assert_near([before - w], [0.1 * g.sign()])


def test_sampled_labels_give_the_diagonal_of_the_gauss_newton_matrix():
    """Of a softmax regression, whose Gauss-Newton matrix is its Hessian: J^T (diag p - p p^T) J, a mean over tokens."""
    tokens, width, classes, rounds = 5, 2, 3, 1000
    x = drawn(tokens, width, seed=1)
    w = torch.nn.Parameter(drawn(classes, width, seed=2))
    generator = torch.Generator().manual_seed(0)
    optimizer = SophiaG([w], betas=(0.9, 0.0))
    total, squared = torch.zeros_like(w), torch.zeros_like(w)
    for _ in range(rounds):
        optimizer.zero_grad()
        sampled_label_loss((x @ w.T)[None], generator).backward()
        optimizer.update_curvature(tokens)
        h = optimizer.state[w]["hessian"]
        total, squared = total + h, squared + h**2
    mean = total / rounds
    p = (x @ w.T).softmax(-1).detach()
    want = torch.einsum("tc,td->cd", p * (1 - p), x**2) / tokens
    deviation = (squared / rounds - mean**2).sqrt() / rounds**0.5
    assert torch.all((mean - want).abs() < 4 * deviation)


def test_it_estimates_for_parameters_with_a_gradient():
    u, w = parameters([(3,), (3,)])
    optimizer = SophiaG([u, w])
    u.grad = torch.ones_like(u)
    optimizer.update_curvature(4)
    assert_near([optimizer.state[u]["hessian"]], [torch.full((3,), 0.04, dtype=torch.float64)])
    assert w not in optimizer.state


def test_gradients_of_an_estimate_are_checked_as_those_of_a_step():
    """A NaN in h would stay there for good."""
    u, w = parameters([(3,), (3,)])
    optimizer = SophiaG([("u", u), ("w", w)], check_finite=True)
    u.grad, w.grad = torch.ones_like(u), torch.tensor([0.0, float("nan"), 1.0], dtype=torch.float64)
    with pytest.raises(
        ValueError, match="gradients must be finite: the gradient of w has 1 NaN and 0 infinite numbers of 3"
    ):
        optimizer.update_curvature(4)
    assert not optimizer.state
    w.grad = None
    w.grad = torch.zeros(3, dtype=torch.float64).to_sparse()
    with pytest.raises(RuntimeError, match="SophiaG does not support sparse gradients: w has one"):
        optimizer.update_curvature(4)
