"""SOAP: the paper's update, written out; and its indifference to the axes of a matrix."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.optim.adamw import AdamW
from lablib.optim.soap import SOAP
from tests.optim.drawn import assert_near, drawn, parameters, run

SETTINGS = {"lr": 0.03, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.7}


def gram_schmidt(a: torch.Tensor) -> torch.Tensor:
    """Orthonormal columns, one after the other. (Signs may be another QR's: the update does not depend on them.)"""
    columns = []
    for a_j in a.T:
        for q in columns:
            a_j = a_j - (q @ a_j) * q
        columns.append(a_j / a_j.norm())
    return torch.stack(columns, dim=1)


def naive(w, grads, f, lr, betas, eps, weight_decay, sides=(True, True)):
    (b1, b2), (m, n) = betas, w.shape
    L, R = torch.zeros(m, m, dtype=w.dtype), torch.zeros(n, n, dtype=w.dtype)
    QL, QR, M, V = torch.eye(m, dtype=w.dtype), torch.eye(n, dtype=w.dtype), 0 * w, 0 * w
    for t, G in enumerate(grads):
        if t > 0:
            M = b1 * M + (1 - b1) * G
            V = b2 * V + (1 - b2) * (QL.T @ G @ QR) ** 2
            N = (QL.T @ M @ QR) / (1 - b1**t) / ((V / (1 - b2**t)).sqrt() + eps)
            w = w - lr * weight_decay * w - lr * QL @ N @ QR.T
        L, R = b2 * L + (1 - b2) * G @ G.T, b2 * R + (1 - b2) * G.T @ G
        if t == 0:
            QL = torch.linalg.svd(L)[0] if sides[0] else QL
            QR = torch.linalg.svd(R)[0] if sides[1] else QR
        elif t % f == 0:
            QL = gram_schmidt(L @ QL) if sides[0] else QL
            QR = gram_schmidt(R @ QR) if sides[1] else QR
    return w


def full(shapes, num_steps):
    """Gradients of about one size, so that L and R have eigenvectors that float64 can tell apart."""
    return [[drawn(*shape, seed=100 * t + i) for i, shape in enumerate(shapes)] for t in range(num_steps)]


@pytest.mark.parametrize("f", [1, 3])
def test_it_is_the_papers_update(f):
    """Of square matrices: of others the first gradient leaves some eigenvectors open."""
    shapes = [(4, 4), (3, 3), (5,)]
    ours, steps = parameters(shapes), full(shapes, 14)
    run(SOAP(ours, **SETTINGS, precondition_frequency=f), steps)
    for i in range(2):
        assert_near([ours[i]], [naive(parameters(shapes)[i].detach(), [g[i] for g in steps], f, **SETTINGS)], 1e-7)
    vector = parameters(shapes)[2]
    run(AdamW([vector], **SETTINGS), [[g[2]] for g in steps])
    assert_near([ours[2]], [vector])


@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
def test_a_side_that_is_too_long_is_not_rotated(shape):
    (w,), steps = parameters([shape]), full([shape], 9)
    optimizer = SOAP([w], **SETTINGS, precondition_frequency=2, max_precond_dim=4)
    run(optimizer, steps)
    sides = (shape[0] == 3, shape[1] == 3)
    want = naive(parameters([shape])[0].detach(), [g[0] for g in steps], 2, **SETTINGS, sides=sides)
    assert_near([w], [want], 1e-8)
    assert optimizer.state_bytes() == 8 * (2 * 15 + 2 * 9)


def test_with_no_axes_to_find_it_is_adamw():
    (w,), (u,), steps = parameters([(3, 5)]), parameters([(3, 5)]), full([(3, 5)], 9)
    run(SOAP([w], **SETTINGS, max_precond_dim=2), steps)
    run(AdamW([u], **SETTINGS), steps)
    assert_near([w], [u])  # and no gradient is spent on axes


@given(seed=st.integers(0, 999))
def test_in_rotated_axes_it_makes_the_rotated_step(seed):
    """Adam's step depends on the axes of a matrix; SOAP's does not."""
    n, steps = 4, full([(4, 4)], 8)
    u, v = (torch.linalg.qr(drawn(n, n, seed=seed + k)).Q for k in range(2))
    ends = {}
    for make in (SOAP, AdamW):
        (w,) = parameters([(n, n)])
        rotated = torch.nn.Parameter(u @ w.detach() @ v.T)
        run(make([w], lr=0.1), steps)
        run(make([rotated], lr=0.1), [[u @ g @ v.T for g in grads] for grads in steps])
        ends[make] = float((u @ w.detach() @ v.T - rotated.detach()).abs().max())
    assert ends[SOAP] < 1e-6 < 1e-2 < ends[AdamW]
