"""LAMB: the paper's update, written out; its step is a share of each layer."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.optim.lamb import LAMB, trust_ratios
from tests.optim.drawn import assert_near, drawn, gradients, parameters, run

SHAPES = [(7, 5), (5,), (3, 2, 4), ()]


def naive(w, grads, lr, betas, eps, weight_decay):
    m, v = 0 * w, 0 * w
    for t, g in enumerate(grads, 1):
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        r = (m / (1 - betas[0] ** t)) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
        u = r + weight_decay * w
        w = w - lr * (w**2).sum().sqrt() / (u**2).sum().sqrt() * u
    return w


def test_it_is_the_papers_update():
    settings = {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.7}
    ours, steps = parameters(SHAPES), gradients(SHAPES, 30)
    run(LAMB(ours, **settings), steps)
    assert_near(ours, [naive(w.detach(), [g[i] for g in steps], **settings) for i, w in enumerate(parameters(SHAPES))])


@given(scale=st.sampled_from([1e-6, 1.0, 1e5]), gradient=st.sampled_from([1e-3, 1.0, 1e3]), lr=st.floats(1e-4, 0.5))
def test_every_step_is_the_share_lr_of_a_layer(scale, gradient, lr):
    (w,) = parameters([(4, 3)])
    w.data *= scale
    before = w.detach().clone()
    run(LAMB([w], lr=lr), [[gradient * drawn(4, 3, seed=2)]])
    assert math.isclose(float((w.detach() - before).norm() / before.norm()), lr, rel_tol=1e-9)


def test_a_ratio_with_zero_is_1():
    one, none = torch.ones(2), torch.zeros(2)
    assert [float(r) for r in trust_ratios([one, none, 3 * one], [none, one, one])] == [1, 1, 3]
