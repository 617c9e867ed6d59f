"""Adafactor: torch's, and what rows and columns can tell."""

import pytest
import torch

from lablib.optim.adafactor import Adafactor
from tests.optim.drawn import assert_near, drawn, gradients, parameters, run

SHAPES = [(7, 5), (5,), (3, 2, 4), (1, 6), ()]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize(
    "settings",
    [{}, {"lr": 0.2, "beta2_decay": -0.5, "eps": (1e-6, 0.1), "d": 1.5, "weight_decay": 0.3}, {"eps": (0.1, 0.0)}],
)
def test_100_steps_equal_torchs(settings, dtype, tolerance):
    ours, theirs = parameters(SHAPES, dtype), parameters(SHAPES, dtype)
    steps = gradients(SHAPES, 100, dtype)
    run(Adafactor(ours, **settings), steps)
    run(torch.optim.Adafactor(theirs, foreach=False, **settings), steps)
    assert_near(ours, theirs, tolerance)


def test_a_product_of_row_and_column_is_known_exactly():
    """Then g / sqrt(v) is the sign of g, as Adam's first step; its rms is 1, so nothing is clipped."""
    g = drawn(6, 1, seed=1) * drawn(1, 4, seed=2)
    (w,) = parameters([(6, 4)])
    before = w.detach().clone()
    run(Adafactor([w], lr=0.01, eps=(1e-30, 1e-3)), [[g]])
    assert_near([w], [before - 0.01 * before.square().mean().sqrt() * g.sign()])


def test_a_matrix_keeps_rows_and_columns_and_a_vector_all():
    params = parameters([(7, 5), (5,), (3, 2, 4)])
    optimizer = Adafactor(params)
    run(optimizer, gradients([(7, 5), (5,), (3, 2, 4)], 1))
    assert optimizer.state_bytes() == 8 * ((7 + 5) + 5 + 3 * (2 + 4))


def test_each_dtype_has_an_epsilon_of_its_own():
    shapes = [(3, 3), (3, 3)]
    mixed = [parameters(shapes)[0], parameters(shapes, torch.bfloat16)[1]]
    steps = [[0 * g[0], 0 * g[1].bfloat16()] for g in gradients(shapes, 1)]
    steps[0][0][0, 0], steps[0][1][0, 0] = 1e-4, 1e-4
    run(Adafactor(mixed), steps)
    for i in range(2):
        alone = [[parameters(shapes)[0]], [parameters(shapes, torch.bfloat16)[1]]][i]
        run(Adafactor(alone), [[steps[0][i]]])
        assert torch.equal(alone[0], mixed[i])


def test_bad_settings():
    params = parameters([(2, 2)])
    Adafactor(params, beta2_decay=0.0)
