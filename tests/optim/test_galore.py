"""GaLore: the paper's update, written out; what a projection loses, by singular values."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.optim.adamw import AdamW
from lablib.optim.galore import GaLore
from lablib.optim.projection import lost_share, project, project_back, strongest_directions
from tests.optim.drawn import assert_near, drawn, gradients, parameters, run

SETTINGS = {"lr": 0.03, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.7}


def naive(w, grads, rank, gap, scale, lr, betas, eps, weight_decay):
    """For m <= n; taller ones are given transposed."""
    (b1, b2), P = betas, torch.zeros(0)
    M = V = torch.zeros(rank, w.shape[1], dtype=w.dtype)
    for t, G in enumerate(grads):
        if t % gap == 0:
            P = torch.linalg.svd(G, full_matrices=False)[0][:, :rank]
        R = P.T @ G
        M, V = b1 * M + (1 - b1) * R, b2 * V + (1 - b2) * R**2
        N = M / (1 - b1 ** (t + 1)) / ((V / (1 - b2 ** (t + 1))).sqrt() + eps)
        w = w - lr * weight_decay * w - lr * scale * P @ N
    return w


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (5, 5)])
def test_it_is_the_papers_update(shape):
    (w,), steps = parameters([shape]), gradients([shape], 11)
    run(GaLore([w], **SETTINGS, rank=2, update_proj_gap=4, scale=0.6), steps)
    if shape[0] <= shape[1]:
        want = naive(parameters([shape])[0].detach(), [g for (g,) in steps], 2, 4, 0.6, **SETTINGS)
        assert_near([w], [want])
        return
    # Directions of a transposed matrix come with signs of their own: gaps longer than the run leave none to mix.
    (w,) = parameters([shape])
    run(GaLore([w], **SETTINGS, rank=2, update_proj_gap=99, scale=0.6), steps)
    want = naive(parameters([shape])[0].detach().T, [g.T for (g,) in steps], 2, 99, 0.6, **SETTINGS)
    assert_near([w], [want.T])


def test_new_directions_come_every_gap_steps_on_either_side():
    for shape in ((4, 6), (6, 4)):
        (w,), steps = parameters([shape]), gradients([shape], 7)
        optimizer, kept = GaLore([w], rank=2, update_proj_gap=3), []
        for step in steps:
            run(optimizer, [step])
            kept.append(optimizer.state[w]["projection"].clone())
        for t in range(7):
            assert_near([kept[t]], [strongest_directions(steps[t // 3 * 3][0], 2)])


@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
def test_at_full_rank_the_step_lies_in_the_gradients_axes(shape):
    """The first step at full rank: P sign(P^T G), orthogonal axes, lr in each."""
    (w,), (g,) = parameters([shape]), gradients([shape], 1)[0]
    before = w.detach().clone()
    run(GaLore([w], lr=0.1, eps=0.0, rank=4, scale=1.0), [[g]])
    axes = strongest_directions(g, 4)
    assert_near([before - w.detach()], [0.1 * project_back(project(g, axes).sign(), axes, g.shape)])


def test_vectors_and_groups_without_rank_are_adamws():
    shapes = [(5,), (4, 6), (4, 6)]
    ours, theirs, steps = parameters(shapes), parameters(shapes), gradients(shapes, 5)
    groups = [{"params": ours[:1] + ours[2:], "rank": 2}, {"params": ours[1:2], "rank": None}]
    optimizer = GaLore(groups, lr=0.1)
    run(optimizer, [[g[0], g[2], g[1]] for g in steps])
    run(AdamW(theirs, lr=0.1, weight_decay=0.0), steps)
    assert_near(ours[:2], theirs[:2])
    assert optimizer.state_bytes() == 8 * (2 * 5 + 2 * 24 + (2 * 2 * 6 + 2 * 4))


@given(rows=st.integers(1, 8), columns=st.integers(1, 8), rank=st.integers(1, 8), seed=st.integers(0, 99))
def test_what_is_lost_are_the_other_singular_values(rows, columns, rank, seed):
    grad, rank = drawn(rows, columns, seed=seed), min(rank, rows, columns)
    axes = strongest_directions(grad, rank)
    torch.testing.assert_close(axes.T @ axes, torch.eye(rank, dtype=torch.float64))
    squares = torch.linalg.svdvals(grad) ** 2
    assert lost_share(grad, axes) == pytest.approx(float(squares[rank:].sum() / squares.sum()), abs=1e-9)
    back = project_back(project(grad, axes), axes, grad.shape)
    assert lost_share(grad, axes) == pytest.approx(float((grad - back).norm() ** 2 / grad.norm() ** 2), abs=1e-9)
    older = strongest_directions(drawn(rows, columns, seed=seed + 1000), rank)
    assert lost_share(grad, older) >= lost_share(grad, axes) - 1e-9


def test_nothing_is_lost_of_zeros():
    zeros = torch.zeros(3, 4)
    assert lost_share(zeros, strongest_directions(zeros, 2)) == 0.0


def test_bad_input():
    with pytest.raises(
        ValueError, match=r"rank must be at most .* got 5 for one of shape \(4, 6\); try 1, or rank=None"
    ):
        GaLore(parameters([(8, 8), (4, 6)]), rank=5)
    with pytest.raises(ValueError, match=r"got 8 for one of shape \(9, 7\)"):
        GaLore([{"params": parameters([(8, 8)]), "rank": 8}, {"params": parameters([(9, 7)]), "rank": 8}])
    GaLore(parameters([(4, 6)]), rank=4)
