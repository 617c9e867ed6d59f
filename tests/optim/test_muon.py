"""Muon: torch's; and what Newton-Schulz does to singular values, against the decomposition."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.optim.muon import Muon
from lablib.optim.newton_schulz import newton_schulz, singular_values_after
from tests.optim.drawn import assert_near, drawn, gradients, parameters, run

SHAPES = [(7, 5), (5, 7), (4, 4), (1, 6)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lr": 0.02, "weight_decay": 0.3, "momentum": 0.6, "nesterov": False, "adjust_lr_fn": "match_rms_adamw"},
        {"lr": 0.1, "ns_coefficients": (2.0, -1.5, 0.5), "eps": 0.5, "ns_steps": 3},
    ],
)
def test_100_steps_equal_torchs(settings, dtype, tolerance):
    ours, theirs = parameters(SHAPES, dtype), parameters(SHAPES, dtype)
    steps = gradients(SHAPES, 100, dtype)
    run(Muon(ours, **settings), steps)
    run(torch.optim.Muon(theirs, **settings), steps)
    assert_near(ours, theirs, tolerance)


@settings(max_examples=30)
@given(rows=st.integers(1, 8), columns=st.integers(1, 8), num_steps=st.integers(0, 8), seed=st.integers(0, 99))
def test_only_singular_values_change(rows, columns, num_steps, seed):
    x = drawn(rows, columns, seed=seed)
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    want = u @ torch.diag(singular_values_after(s, num_steps)) @ vh
    torch.testing.assert_close(newton_schulz(x, num_steps, dtype=torch.float64), want, rtol=1e-8, atol=1e-8)


def test_the_classic_coefficients_lead_to_the_nearest_orthogonal_matrix():
    """15/8, -10/8, 3/8: the quintic whose fixed point 1 attracts (Newton-Schulz for the polar factor)."""
    x = drawn(5, 8)
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    got = newton_schulz(x, 30, (15 / 8, -10 / 8, 3 / 8), dtype=torch.float64)
    torch.testing.assert_close(got, u @ vh)


def test_values_from_a_hundredth_end_near_1():
    """Pairs (s, sqrt(1 - s^2)) have norm 1, so that s goes in as it is."""
    pairs = [(s, math.sqrt(1 - s**2)) for s in torch.logspace(-2, -0.01, 200).tolist()]
    ended = [float(singular_values_after(torch.tensor(pair))[0]) for pair in pairs]
    assert 0.65 < min(ended) and max(ended) < 1.25


def test_bad_input():
    with pytest.raises(ValueError, match=r"Muon takes matrices: got a parameter of shape \(5,\); give it to AdamW"):
        Muon(parameters([(2, 2), (5,)]))
