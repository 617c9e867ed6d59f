"""Backward in two halves: after both, the gradients are autograd's, whatever a layer's weight and bias are."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lablib.pipeline.executor import WeightGradients

SHAPES = [(4,), (3, 4), (2, 3, 4)]
WEIGHTS, BIASES = ("leaf", "frozen", "computed"), ("none", "leaf", "frozen", "computed")


def leaves(weight: str, bias: str) -> tuple[Tensor, Tensor | None]:
    """What an optimizer would hold; a computed parameter is twice its leaf."""
    generator = torch.Generator().manual_seed(0)
    w, b = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((5, 4), (5,)))
    return w.requires_grad_(weight != "frozen"), None if bias == "none" else b.requires_grad_(bias != "frozen")


def layer(x: Tensor, w: Tensor, b: Tensor | None, weight: str, bias: str) -> Tensor:
    return F.linear(x, w * 2 if weight == "computed" else w, b * 2 if b is not None and bias == "computed" else b)


@pytest.mark.parametrize(("shape", "weight", "bias"), list(itertools.product(SHAPES, WEIGHTS, BIASES)))
def test_both_halves_give_autograds_gradients_and_weights_wait_where_they_can(shape, weight, bias):
    found = []
    for is_split in (False, True):
        x = torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
        w, b = leaves(weight, bias)
        later = WeightGradients()
        if is_split:
            with later.of_linear_layers():
                y = layer(x, w, b, weight, bias)
        else:
            y = layer(x, w, b, weight, bias)
        if y.requires_grad:
            y.square().sum().backward()
        if is_split:
            # A row of a batch, and a weight and bias that an optimizer holds: their product waits, all else is in I.
            waits = len(shape) >= 2 and weight == "leaf" and bias != "computed"
            assert len(later) == waits and (w.grad is None) == (waits or weight == "frozen")
            later.accumulate()
            assert len(later) == 0
        found.append([x.grad, w.grad, b.grad if b is not None else None])
    for whole, split in zip(*found, strict=True):
        assert (whole is None) == (split is None)
        if whole is not None:
            torch.testing.assert_close(split, whole, rtol=1e-12, atol=1e-12)


def test_without_gradients_nothing_waits():
    w, _ = leaves("leaf", "none")
    later = WeightGradients()
    with later.of_linear_layers(), torch.no_grad():
        y = F.linear(torch.ones(3, 4, dtype=torch.float64), w)
    assert len(later) == 0 and not y.requires_grad
