"""AdamW: torch's, and the formula."""

import pytest
import torch

from lablib.optim.adamw import AdamW, adam_directions, new_moments
from tests.optim.drawn import assert_near, drawn, gradients, parameters, run

SHAPES = [(7, 5), (5,), (3, 2, 4), ()]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_100_steps_equal_torchs(dtype, tolerance):
    settings = {"lr": 0.02, "betas": (0.8, 0.97), "eps": 1e-5, "weight_decay": 0.3}
    ours, theirs = parameters(SHAPES, dtype), parameters(SHAPES, dtype)
    steps = gradients(SHAPES, 100, dtype)
    run(AdamW(ours, **settings), steps)
    run(torch.optim.AdamW(theirs, foreach=True, **settings), steps)
    assert_near(ours, theirs, tolerance)


def test_directions_are_those_of_a_step_of_1():
    (w,), steps = parameters([(3, 4)]), gradients([(3, 4)], 3)
    state = new_moments(w)
    for (g,) in steps:
        before = w.detach().clone()
        (direction,) = adam_directions([g], [state], (0.9, 0.99), 1e-3)
        w.data -= direction
    run(
        optimizer := AdamW([u := parameters([(3, 4)])[0]], lr=1.0, betas=(0.9, 0.99), eps=1e-3, weight_decay=0.0), steps
    )
    assert_near([w, before], [u, before])
    assert_near(
        [state["exp_avg"], state["exp_avg_sq"]], [optimizer.state[u]["exp_avg"], optimizer.state[u]["exp_avg_sq"]]
    )


def test_bias_corrections_are_each_parameters_own():
    """One that gets its first gradient later takes the first step's correction then."""
    u, w = parameters([(5,), (5,)])
    g = drawn(5, seed=3)
    optimizer = AdamW([u, w], lr=0.1, weight_decay=0.0)
    run(optimizer, [[g, None], [g, None], [g, g]])
    alone = parameters([(5,), (5,)])[1]
    run(AdamW([alone], lr=0.1, weight_decay=0.0), [[g]])
    assert_near([w], [alone])
    assert optimizer.state[u]["step"] == 3 and optimizer.state[w]["step"] == 1
