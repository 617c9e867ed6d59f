"""What a learner may pass by mistake is one sentence with the rule and what came, not an error from our insides."""

import math

import pytest
import torch

from lablib.batches.accumulation import summed_loss
from lablib.batches.mup import coordinate_check
from lablib.batches.noise_scale import estimate_from_parts, exact_noise, fit_steps_law
from lablib.batches.packed_attention import attend_by_length, document_mask
from lablib.models import GPTConfig
from tests.kernels.drawn import unchecked

TINY = GPTConfig(1, 8, 2, vocab_size=16, max_seq_len=8)


def check(tokens: torch.Tensor, **more):
    return unchecked(coordinate_check)(TINY, None, tokens, **more)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize(
    "call", [lambda bad: fit_steps_law([1.0, bad], [2.0, 1.0]), lambda bad: fit_steps_law([1.0, 2.0], [bad, 1.0])]
)
def test_numbers_that_are_none_or_negative(call, bad):
    with pytest.raises(ValueError, match=r"(must be|all positive and finite).*got"):
        call(bad)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: unchecked(exact_noise)(torch.ones(3)), r"got shape \(3,\)"),
        (lambda: unchecked(exact_noise)(torch.ones(0, 3)), r"got shape \(0, 3\)"),
        (
            lambda: unchecked(estimate_from_parts)(torch.ones(2, 3, dtype=torch.int64), 1),
            "torch.int64; try torch.stack",
        ),
        (
            lambda: unchecked(summed_loss)(torch.ones(4, 3), torch.zeros(4).long()),
            r"\[B, T, V\].*got \(4, 3\) and \(4,\)",
        ),
        (
            lambda: unchecked(summed_loss)(torch.ones(1, 4, 3), torch.zeros(1, 5).long()),
            r"got \(1, 4, 3\) and \(1, 5\)",
        ),
        (lambda: unchecked(document_mask)(torch.zeros(3).long()), r"got shape \(3,\); try blocks.documents"),
        (lambda: unchecked(attend_by_length)(torch.zeros(1, 0).long()), r"got shape \(1, 0\)"),
        (lambda: check(torch.zeros(4).long()), "rows of 2 to 9 tokens"),
        (lambda: check(torch.zeros(1, 10).long()), r"2 to 9 tokens: got \(1, 10\)"),
        (lambda: check(torch.zeros(1, 4)), "torch.float32"),
        (lambda: check(torch.full((1, 4), 16)), "from 0 to vocab_size - 1 = 15: got 16 to 16"),
    ],
)
def test_shapes_and_sizes_that_do_not_fit(call, message):
    with pytest.raises(ValueError, match=message):
        call()
