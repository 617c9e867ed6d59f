"""The executor: raw gradients of every plan equal those of one device, in float64, and repeat to the bit."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import RankError, launch
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.parallel import average_gradients
from lablib.pipeline import Costs, Plan, naive_communication, schedules, with_communication
from lablib.pipeline.executor import Pipeline, cut, cut_at, seed_of, token_weights
from lablib.pipeline.schedules import SCHEDULES, make
from tests.pipeline.drawn_plans import plans

CONFIG = GPTConfig(num_layers=4, d_model=8, num_heads=2, vocab_size=16, max_seq_len=6)
Found = dict[str, Tensor]


class Block(nn.Module):
    """A norm, two products and a residual, with dropout where it is asked for."""

    def __init__(self, width: int = 4, dropout: float = 0.0):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 6), nn.Linear(6, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.dropout(torch.tanh(self.up(self.norm(x)))))


def blocks(number: int, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(dropout=dropout) for _ in range(number))).double()


def mean_square(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).square().mean()


def rows(sizes: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
    """Micro-batches of so many rows, and their targets."""
    generator = torch.Generator().manual_seed(1)
    both = [torch.randn(2, size, 4, dtype=torch.float64, generator=generator) for size in sizes]
    return [x for x, _ in both], [y for _, y in both]


def tokens(num_microbatches: int, size: int = 2, seed: int = 1) -> tuple[list[Tensor], list[Tensor]]:
    drawn = torch.randint(0, 16, (num_microbatches, size, 7), generator=torch.Generator().manual_seed(seed))
    return list(drawn[..., :-1]), list(drawn[..., 1:])


def own_gradients(pipeline: Pipeline, model: nn.Module) -> Found:
    """The gradients of this rank's pieces, by the model's names; a parameter without one is zero."""
    names = {param: name for name, param in model.named_parameters()}
    return {names[p]: torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in pipeline.parameters()}


def gradients_of(model: nn.Module) -> Found:
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}


def one_device(model: nn.Module, loss_fn: Callable, inputs: Any, targets: Any, weights: Sequence[float]) -> Found:
    """The gradients of one model, micro-batch by micro-batch."""
    sum(w * loss_fn(model(x), y) for x, y, w in zip(inputs, targets, weights, strict=True)).backward()
    return gradients_of(model)


def assert_same(found: Sequence[Found], expected: Found, rtol: float = 1e-9) -> None:
    assert set().union(*found) == set(expected)
    for of_rank in found:
        for name, grad in of_rank.items():
            torch.testing.assert_close(grad, expected[name], rtol=rtol, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def any_plan(name: str, p: int, m: int, v: int = 1) -> Plan:
    """The schedule at the nearest size that it is defined for."""
    v = v if SCHEDULES[name].takes_chunks else 1
    m = -(-m // p) * p if name == "interleaved" and v > 1 else max(m, 2 * p) if name == "dualpipe-v" else m
    return make(name, p, m, v)


def gpt_step(plan: Any, recompute: bool = False, steps: int = 1) -> tuple[Found, list[float]]:
    plan_of = getattr(plan, "plan", plan)
    model = GPT(CONFIG, dtype=torch.float64)
    pipeline = Pipeline(plan, cut(model, plan_of.num_pieces), next_token_loss, recompute=recompute)
    losses: list[Tensor] = []
    for _ in range(steps):
        for param in pipeline.parameters():
            param.grad = None
        losses = pipeline.step(*tokens(plan_of.num_microbatches))
    return own_gradients(pipeline, model), [loss.item() for loss in losses]


def assert_gpt(run: Any, m: int) -> None:
    """All ranks together have the gradients of one device on the whole batch, and its loss."""
    model, (inputs, targets) = GPT(CONFIG, dtype=torch.float64), tokens(m)
    loss = next_token_loss(model(torch.cat(inputs)), torch.cat(targets))
    loss.backward()
    assert_same([found for found, _ in run.values], gradients_of(model))
    (losses,) = [each for _, each in run.values if each]
    assert sum(losses) / m == pytest.approx(loss.item(), rel=1e-12)


# ---- every schedule, and plans of nobody's


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(
    ("p", "m", "v"),
    [(3, 5, 2), pytest.param(1, 2, 2, marks=pytest.mark.thorough), pytest.param(2, 7, 3, marks=pytest.mark.thorough)],
)
def test_a_gpt_with_a_tied_head_has_the_gradients_of_one_device(name, p, m, v):
    plan = any_plan(name, p, m, v)
    assert_gpt(launch(gpt_step, plan, ranks=p, like="nccl"), plan.num_microbatches)


@settings(max_examples=30, deadline=None)
@given(plan=plans(), more=st.integers(0, 2), uneven=st.booleans(), recompute=st.booleans())
def test_any_valid_plan_has_the_gradients_of_one_device(plan, more, uneven, recompute):
    """Pieces anywhere, backwards split or not, micro-batches of unequal size; NCCL would not hang either."""
    inputs, targets = rows([1 + i * uneven for i in range(plan.num_microbatches)])
    weights = token_weights(targets)

    def program() -> Found:
        model = blocks(plan.num_pieces + more)
        pipeline = Pipeline(plan, cut(model, plan.num_pieces), mean_square, recompute=recompute)
        pipeline.step(inputs, targets, weights)
        return own_gradients(pipeline, model)

    run = launch(program, ranks=plan.num_stages, like="nccl")
    assert not run.notes
    expected = one_device(blocks(plan.num_pieces + more), mean_square, inputs, targets, weights)
    assert_same(run.values, expected)
