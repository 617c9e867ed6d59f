"""Plans of checkpoints: gradients to the bit, peaks and recomputed FLOPs of the closed form, randomness repeated."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy
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
SEED = st.integers(0, 2**16)
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


@settings(max_examples=25)
@given(num_layers=st.integers(1, 8), kinds=st.lists(st.tuples(st.integers(1, 8), st.booleans()), min_size=1), seed=SEED)
@example(num_layers=8, kinds=[(2, True)], seed=0)
def test_the_peak_of_any_plan_on_the_tracker_is_the_closed_form(num_layers, kinds, seed):
    """Segments of any lengths, kept or checkpointed, and layers that keep one or two results."""
    plan, start = [], 0
    for length, is_checkpointed in kinds * num_layers:
        if start < num_layers:
            stop = min(start + length, num_layers)
            plan.append(Segment(start, stop, is_checkpointed))
            start = stop
    counts = [1 + (seed >> i) % 2 for i in range(num_layers)]
    b = 4.0 * 500

    def program():
        x = torch.randn(500, requires_grad=True)
        run(tuple(plan), [nn.Sequential(*[Keeps() for _ in range(count)]) for count in counts], x).sum().backward()

    peak = launch(program, ranks=1).memory.peak_bytes(0)
    form = peak_bytes(tuple(plan), [b * count for count in counts], [b] * num_layers)
    assert form <= peak <= form + 3 * b + 8


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


@pytest.mark.parametrize("num_kept", [4, 3, 2, 1, 0])
def test_backward_takes_8_to_12_products_by_policy(num_kept):
    """Four products: 4 units forward, 8 backward, and one more for each whose result is not kept."""
    unit = 2 * 8 * 16 * 16

    def step() -> None:
        weights = [torch.randn(16, 16, requires_grad=True) for _ in range(4)]
        kept = {w.untyped_storage()._cdata for w in weights[:num_kept]}

        def policy(context, op, *args, **kwargs) -> CheckpointPolicy:
            is_kept = op is torch.ops.aten.mm.default and args[1].untyped_storage()._cdata in kept
            return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

        def layer(x: torch.Tensor) -> torch.Tensor:
            for w in weights:
                x = (x @ w).tanh()  # tanh keeps its result, so the last product is needed too
            return x

        x = torch.randn(8, 16, requires_grad=True)
        checkpoint_operators(layer, x, policy).sum().backward()

    assert flops_of(step) == (4 + 12 - num_kept) * unit
    spans = [span for span in launch(step, ranks=1).timeline if span.name == "aten.mm"]
    in_backward = [span for span in spans if span.phase != "forward"]
    assert sum(span.flops for span in in_backward) == (12 - num_kept) * unit
    assert sum(span.flops for span in spans if span.is_recompute) == (4 - num_kept) * unit


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_dropout_repeats_in_every_kind_of_recomputation(probability):
    def gradients_of(run_it) -> torch.Tensor:
        torch.manual_seed(3)
        x = torch.ones(1000, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(run_it(x).sum(), x)
        return gradient

    dropout = nn.Dropout(probability)
    module = checkpoint_modules(nn.Sequential(nn.Identity(), nn.Dropout(probability)), nn.Dropout)
    want = gradients_of(lambda x: dropout(x.exp()))
    assert 0 < int((want == 0).sum()) < 1000
    assert torch.equal(gradients_of(lambda x: checkpoint_operators(lambda x: dropout(x.exp()), x)), want)
    assert torch.equal(gradients_of(lambda x: run(checkpoint_every(1), [lambda x: dropout(x.exp())], x)), want)
    assert torch.equal(gradients_of(lambda x: module(x.exp())), want)


def test_a_side_effect_is_done_twice():
    """Recomputation repeats numbers that torch draws; what the program counts, or a batch norm tracks, moves again."""
    calls = []
    norm = nn.BatchNorm1d(3, momentum=None)  # the mean over all batches seen

    def layer(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(calls))
        return norm(x).tanh()

    run(checkpoint_every(1), [layer], torch.randn(4, 3, requires_grad=True)).sum().backward()
    assert calls == [0, 1]
    assert norm.num_batches_tracked is not None and int(norm.num_batches_tracked) == 2


def test_bad_plans_are_refused():
    with pytest.raises(ValueError, match="0 to 4, the layers: got 5"):
        checkpoint_first(4, 5)
    for plan in ((Segment(0, 2, True),), (Segment(1, 3, True),), (Segment(0, 2, True), Segment(1, 3, False))):
        with pytest.raises(ValueError, match="covers layers 0 to 2"):
            run(plan, blocks(3), torch.ones(1, 8, 16, dtype=torch.float64))
