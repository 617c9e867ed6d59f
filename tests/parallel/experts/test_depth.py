"""Mixture of depths: a block by hand is the reference."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import launch
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.parallel import MixtureOfDepths, choose_tokens, with_depths
from tests.parallel.drawn import drawn


class Mixing(nn.Module):
    """Every token sees those before it, and adds itself: order matters."""

    def forward(self, x_BCD: Tensor) -> Tensor:
        return x_BCD + torch.tanh(x_BCD.cumsum(1))


@given(batch=st.integers(1, 3), length=st.integers(1, 7), share=st.floats(0.1, 1.0))
def test_output_and_gradients_are_those_of_the_block_on_the_best_tokens_by_hand(batch: int, length: int, share: float):
    capacity = max(1, round(share * length))
    x, router, weights = drawn(batch, length, 4).requires_grad_(), drawn(4, seed=1), drawn(batch, length, 4, seed=2)
    layer = MixtureOfDepths(Mixing(), capacity, router.clone())
    y = layer(x)
    found = torch.autograd.grad((y * weights).sum(), (x, layer.router))

    by_hand = router.clone().requires_grad_()
    rows = []
    for x_TD in x:
        r_T = x_TD @ by_hand
        chosen = r_T.topk(capacity).indices.sort().values
        picked = x_TD[chosen]
        added = r_T[chosen, None] * (Mixing()(picked[None])[0] - picked)
        rows.append(x_TD + torch.zeros_like(x_TD).index_add(0, chosen, added))
    expected = torch.stack(rows)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found, torch.autograd.grad((expected * weights).sum(), (x, by_hand)))


def test_tokens_that_are_not_chosen_pass_as_they_are_and_chosen_ones_keep_their_order():
    weights = torch.tensor([[3.0, 1.0, 3.0, 5.0], [0.0, 0.0, 0.0, 0.0]])
    assert choose_tokens(weights, 2).tokens_M.tolist() == [0, 3, 4, 5]  # of equal ones the first
    layer, x = MixtureOfDepths(Mixing(), 2, torch.ones(1)), torch.tensor([[[1.0], [4.0], [2.0], [3.0]]])
    assert torch.equal(layer(x)[0, [0, 2]], x[0, [0, 2]]) and not torch.equal(layer(x)[0, [1, 3]], x[0, [1, 3]])


def test_a_gpt_trains_and_under_shapes_the_blocks_flops_are_of_its_tokens():
    """24 C D^2 + 4 C^2 D for a block of C tokens, one of two; three times that with backward."""
    config = GPTConfig(2, 32, 2, vocab_size=32, max_seq_len=16)

    def program(capacity: int) -> list[bool]:
        model = with_depths(GPT(config), capacity)
        tokens = torch.zeros(3, 16, dtype=torch.long)
        next_token_loss(model(tokens), tokens).backward()
        return [param.grad is not None for param in model.parameters()]

    def flops(capacity: int) -> float:
        run = launch(program, capacity, ranks=1, fidelity="shapes")
        assert all(run.values[0])
        return sum(span.flops for span in run.timeline.spans)

    width, batch = 32, 3
    saved = 3 * batch * 24 * (16 - 4) * width**2
    attention = batch * 4 * (16**2 - 4**2) * width
    # Backward of fused attention computes the scores again: 5 products for 2.
    assert flops(16) - flops(4) == pytest.approx(saved + 3.5 * attention)


def test_what_cannot_be_is_refused():
    config = GPTConfig(2, 8, 2, vocab_size=8, max_seq_len=16)
    refused: list[tuple[Any, str]] = [
        (lambda: with_depths(GPT(config), 17), "capacity must be at most max_seq_len=16: got 17; try 2"),
        (lambda: with_depths(GPT(config), 4, every=3), "every must be at most the number of blocks: got 3 of 2"),
        (lambda: choose_tokens(torch.zeros(2, 3), 4), "at most the tokens of a sequence: got 4 of 3"),
        (lambda: with_depths(GPT(config), 8)(torch.zeros(1, 4).long()), "got 8 of 4; try capacity=4"),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()
