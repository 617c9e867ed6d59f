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


@settings(max_examples=25, deadline=None)
@given(
    loss_of=st.sampled_from([linear_cross_entropy, *IN_CHUNKS]),
    tokens=st.integers(64, 512),
    width=st.integers(1, 16),
    vocab=st.integers(256, 4096),
    num_chunks=st.integers(1, 16),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    has_backward=st.booleans(),
)
def test_the_peak_is_the_formulas(loss_of, tokens, width, vocab, num_chunks, dtype, has_backward):
    """Three tensors of scores in float32 or wider, two in the fused loss or without backward; and gradients."""
    chunks = () if loss_of is linear_cross_entropy else (num_chunks,)

    def program():
        x, w, targets = example(tokens, width, vocab, dtype=dtype)
        loss = loss_of(x, w, targets, *chunks)
        return loss.backward() if has_backward else loss

    run = launch(program, ranks=1, cluster="dgx-h100", fidelity="shapes")
    wide = max(4, dtype.itemsize)
    rows = -(-tokens // num_chunks) if chunks else tokens
    is_fused = loss_of is fused_linear_cross_entropy
    scores = (3 if has_backward and not is_fused else 2) * wide * rows * vocab
    held = (tokens + vocab) * width * dtype.itemsize + 8 * tokens
    # Gradients of x and w: the sum over chunks, one chunk's own, and in 16 bits the one that is handed over.
    gradients = (2 * wide + dtype.itemsize) * (tokens + vocab) * width
    assert scores <= run.memory.peak_bytes(0) - held <= 1.001 * scores + gradients + 64 * tokens + 4096


@pytest.mark.parametrize("loss_of", IN_CHUNKS)
def test_bad_input(loss_of):
    x, w, targets = example(4, 2, 3)
    with pytest.raises(ValueError, match="a mean over no tokens is undefined"):
        loss_of(x[:0], w, targets[:0])
