"""Chunked and fused losses: the naive one's value and gradients, torch's too, and a peak that falls with the chunks."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import launch
from lablib.memory.linear_cross_entropy import (
    chunked_linear_cross_entropy,
    fused_linear_cross_entropy,
    linear_cross_entropy,
)

IN_CHUNKS = [chunked_linear_cross_entropy, fused_linear_cross_entropy]


def example(tokens: int, width: int, vocab: int, seed: int = 0, dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    w = torch.randn(vocab, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    return x, w, torch.randint(vocab, (tokens,), generator=generator)


@pytest.mark.parametrize("loss_of", IN_CHUNKS)
@settings(max_examples=40)
@given(
    tokens=st.integers(1, 40),
    width=st.integers(1, 9),
    vocab=st.integers(1, 50),
    num_chunks=st.integers(1, 50),
    factor=st.sampled_from([1.0, -0.3, 1024.0]),
)
def test_same_loss_and_gradients_in_float64(loss_of, tokens, width, vocab, num_chunks, factor):
    x, w, targets = example(tokens, width, vocab)
    want = linear_cross_entropy(x, w, targets)
    got = loss_of(x, w, targets, num_chunks)
    torch.testing.assert_close(got, want)
    expected = torch.autograd.grad(factor * want, (x, w))
    for gradient, reference in zip(torch.autograd.grad(factor * got, (x, w)), expected, strict=True):
        torch.testing.assert_close(gradient, reference)


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="torch has it from 2.13 on")
@pytest.mark.parametrize("loss_of", [linear_cross_entropy, *IN_CHUNKS])
def test_equals_torchs_own(loss_of):
    x, w, targets = example(33, 16, 70)
    want = F.linear_cross_entropy(x, w, targets)
    got = loss_of(x, w, targets)
    torch.testing.assert_close(got, want)
    expected = torch.autograd.grad(want, (x, w))
    for gradient, reference in zip(torch.autograd.grad(got, (x, w)), expected, strict=True):
        torch.testing.assert_close(gradient, reference)


@pytest.mark.parametrize("loss_of", IN_CHUNKS)
def test_half_precision_is_as_near_to_float64_as_the_naive_one(loss_of):
    x, w, targets = example(64, 32, 100, dtype=torch.bfloat16)
    exact = linear_cross_entropy(x.double(), w.double(), targets)
    assert loss_of(x, w, targets).dtype == torch.float32
    reference = torch.autograd.grad(exact, (x, w))
    naive = torch.autograd.grad(linear_cross_entropy(x, w, targets), (x, w))
    for got, near, want in zip(torch.autograd.grad(loss_of(x, w, targets), (x, w)), naive, reference, strict=True):
        off, allowed = (got.double() - want.double()).norm(), (near.double() - want.double()).norm()
        # Autograd adds the chunks' gradients of w up in bfloat16; the fused loss adds them in float32.
        assert float(off) <= (1.1 if loss_of is fused_linear_cross_entropy else 1.5) * float(allowed) + 1e-6


def test_only_what_is_asked_for_is_made():
    x, w, targets = example(10, 4, 20)
    loss = fused_linear_cross_entropy(x.detach(), w, targets)
    (gradient,) = torch.autograd.grad(loss, w)
    torch.testing.assert_close(gradient, torch.autograd.grad(linear_cross_entropy(x.detach(), w, targets), w)[0])
    assert not fused_linear_cross_entropy(x.detach(), w.detach(), targets).requires_grad


TOKENS, WIDTH, VOCAB = 512, 16, 4096


def peak_bytes(loss_of, *chunks: int) -> float:
    """Of one loss and its backward, beyond x, w, targets and their gradients, on the memory tracker."""

    def program():
        x, w, targets = example(TOKENS, WIDTH, VOCAB, dtype=torch.float32)
        loss_of(x, w, targets, *chunks).backward()

    held = 4 * 2 * (TOKENS + VOCAB) * WIDTH + 8 * TOKENS
    return launch(program, ranks=1).memory.peak_bytes(0) - held


def test_the_peak_falls_as_one_over_the_chunks():
    """Scores of a chunk, twice, in float32: 8 T V / chunks, and what does not depend on chunks."""
    scores = 8 * TOKENS * VOCAB
    small = 4 * (TOKENS + VOCAB) * WIDTH * 2  # copies of gradients on the way
    naive = peak_bytes(linear_cross_entropy)
    assert scores <= naive <= 1.6 * scores
    for loss_of in IN_CHUNKS:
        for num_chunks in (2, 4, 8, 16):
            # a further T V / chunks at most: the temporaries of softmax's gradient
            assert scores / num_chunks <= peak_bytes(loss_of, num_chunks) <= 1.6 * scores / num_chunks + small


@pytest.mark.parametrize("loss_of", IN_CHUNKS)
def test_bad_input(loss_of):
    x, w, targets = example(4, 2, 3)
    with pytest.raises(ValueError, match="num_chunks must be at least 1: got 0"):
        loss_of(x, w, targets, 0)
    with pytest.raises(ValueError, match="a mean over no tokens is undefined"):
        loss_of(x[:0], w, targets[:0])
