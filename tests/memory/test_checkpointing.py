"""Plans of checkpoints: gradients to the bit, peaks and recomputed FLOPs of the closed form, randomness repeated."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lablib import launch
from lablib.memory.checkpointing import (
    Segment,
    checkpoint_every,
    checkpoint_first,
    checkpoint_modules,
    checkpoint_operators,
    checkpoint_sqrt,
    keep_all,
    peak_bytes,
    recomputed,
    run,
)
from lablib.models import GPT, GPTConfig
from lablib.models.gpt import Attention, Block

PLANS = {
    "none": keep_all,
    "full": checkpoint_every,
    "every 2": lambda n: checkpoint_every(n, 2),
    "every 3": lambda n: checkpoint_every(n, 3),
    "sqrt": checkpoint_sqrt,
    "first half": lambda n: checkpoint_first(n, n // 2),
}
CONFIG = GPTConfig(1, 16, 2, vocab_size=32, max_seq_len=8)


def blocks(count: int, dropout: float = 0.0) -> list[nn.Module]:
    torch.manual_seed(0)
    made = [Block(CONFIG, torch.device("cpu"), torch.float64) for _ in range(count)]
    return [nn.Sequential(block, nn.Dropout(dropout)) if dropout else block for block in made]


def gradients(layers: list[nn.Module], run_chain) -> list[torch.Tensor]:
    torch.manual_seed(1)
    x = torch.randn(2, 8, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)
    loss = (run_chain(x) ** 2).sum()
    return list(torch.autograd.grad(loss, [x, *(p for layer in layers for p in layer.parameters())]))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_gradients_are_those_without_a_plan_to_the_bit(plan, dropout):
    layers = blocks(7, dropout)
    want = gradients(layers, nn.Sequential(*layers))
    got = gradients(layers, lambda x: run(plan(7), layers, x))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@given(num_layers=st.integers(1, 40), k=st.integers(1, 50))
def test_plans_cover_every_layer_once(num_layers, k):
    first = checkpoint_first(num_layers, k % (num_layers + 1))
    for plan in (checkpoint_every(num_layers, k), checkpoint_sqrt(num_layers), first):
        assert [i for segment in plan for i in range(segment.start, segment.stop)] == list(range(num_layers))


@given(num_layers=st.integers(1, 60), layer=st.integers(1, 100), input_share=st.floats(0.01, 1))
def test_sqrt_is_the_best_of_all_equal_lengths(num_layers, layer, input_share):
    sizes = [float(layer)] * num_layers, [layer * input_share] * num_layers

    def bound(k: int) -> float:
        return -(-num_layers // k) * sizes[1][0] + k * layer

    chosen = checkpoint_sqrt(num_layers, sizes[0][0], sizes[1][0])[0].stop
    assert bound(chosen) <= min(map(bound, range(1, num_layers + 1))) * (1 + 1e-9)


class Keeps(nn.Module):
    """x -> tanh(2 x): keeps its result alone, which is the input of the next layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (2 * x).tanh()


@settings(max_examples=15)
@given(num_layers=st.integers(1, 9), k=st.integers(1, 9), numel=st.sampled_from([256, 1000]))
def test_the_peak_on_the_ledger_is_the_closed_form(num_layers, k, numel):
    """Each layer keeps its result, b bytes, and a checkpoint is b: exact but for what is at work."""
    b = 4.0 * numel

    def peak(plan) -> float:
        def program():
            x = torch.randn(numel, requires_grad=True)
            run(plan, [Keeps() for _ in range(num_layers)], x).sum().backward()

        return launch(program, ranks=1).memory.peak_bytes(0)

    at_work = 2 * b + 8  # the gradient that comes and the one that is made; the loss
    form = peak_bytes(checkpoint_every(num_layers, k), [b] * num_layers, [b] * num_layers)
    # One more b: the input of the last segment is kept until its layers are there again.
    assert form <= peak(checkpoint_every(num_layers, k)) <= form + b + at_work


def flops_of(step) -> int:
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def test_flops_are_the_ladder_of_the_policies():
    """In units of one forward: none 3, the first half 3.5, all 4; by operator nothing but what is no product."""
    layers = blocks(4)
    x = torch.randn(2, 8, 16, dtype=torch.float64, requires_grad=True)
    forward = flops_of(lambda: nn.Sequential(*layers)(x.detach()))

    def step(plan):
        return lambda: run(plan, layers, x).sum().backward()

    forward_backward = flops_of(step(keep_all(4)))
    assert forward_backward == 3 * forward
    for plan in (checkpoint_first(4, 2), checkpoint_every(4), checkpoint_every(4, 3)):
        # torch stops when all that backward needs is there again: a segment's last product is not made again.
        again = flops_of(step(plan)) - forward_backward
        assert again <= recomputed(plan, [forward / 4] * 4)
        assert again >= recomputed(plan, [forward / 4] * 4) - sum(s.is_checkpointed for s in plan) * forward / 4 / 2


def test_selective_by_operator_computes_no_product_again():
    layer = blocks(1)[0]
    x = torch.randn(2, 8, 16, dtype=torch.float64, requires_grad=True)
    plain = flops_of(lambda: layer(x).sum().backward())
    assert flops_of(lambda: checkpoint_operators(layer, x).sum().backward()) == plain
    assert flops_of(lambda: run(checkpoint_every(1), [layer], x).sum().backward()) > plain
    want = gradients([layer], layer)
    got = gradients([layer], lambda x: checkpoint_operators(layer, x))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_selective_by_module_recomputes_those_modules():
    def gradients_of(model: nn.Module) -> list[torch.Tensor]:
        tokens = torch.arange(16).reshape(2, 8)
        return list(torch.autograd.grad(model(tokens).square().sum(), list(model.parameters())))

    want = gradients_of(GPT(CONFIG, dtype=torch.float64))
    model = checkpoint_modules(GPT(CONFIG, dtype=torch.float64), Attention)
    assert all(torch.equal(a, b) for a, b in zip(gradients_of(model), want, strict=True))
    with pytest.raises(ValueError, match="has no submodule that is LSTM"):
        checkpoint_modules(GPT(CONFIG), nn.LSTM)


def test_bad_plans_are_refused():
    with pytest.raises(ValueError, match="at least 1 layer: got k=0"):
        checkpoint_every(4, 0)
    with pytest.raises(ValueError, match="0 to 4, the layers: got 5"):
        checkpoint_first(4, 5)
    for plan in ((Segment(0, 2, True),), (Segment(1, 3, True),), (Segment(0, 2, True), Segment(1, 3, False))):
        with pytest.raises(ValueError, match="covers layers 0 to 2"):
            run(plan, blocks(3), torch.ones(1, 8, 16, dtype=torch.float64))
