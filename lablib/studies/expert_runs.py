"""Recorded router runs on real text: load of each expert, without balancing and with two kinds of it.

A GPT of two layers and width 64 with 8 experts of width 128 in each, 2 of them per token, on bytes of Python's standard
library: 16 sequences of 64 bytes per step, 400 steps of Adam, a tenth of them warmup, then a cosine to a tenth.

    nothing           the router learns from the text alone
    auxiliary loss    Switch's, with factor 0.01, over the tokens of the batch
    bias              loss-free: moved by 0.01 per step against the load
    dense             no mixture: one MLP of 256, with equal FLOPs per token

each dropless, and the mixtures with a capacity of 1.25 too. All gates are sigmoids, as the bias requires. A seed sets
weights and batches, the same for every method, so that two are compared seed by seed.

Cost: 8 to 13 seconds of one core per run.
Shapes: L layers, E experts.
Source: the methods: `parallel/experts/losses.py`; sigmoids and the bias: Wang et al., 2024, arXiv 2408.15664, section 3
(rate 0.001 for thousands of steps; these are 400). `benchmarks/expert_evidence.py` makes the records.
Simplified: one rank; 400 steps of a small model; nothing is tuned: tendencies over three seeds.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import torch

from lablib.batches.schedules import cosine
from lablib.data import Batch, batches, load_corpus, train_val_split
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.parallel.experts.layer import mixtures, with_experts
from lablib.parallel.experts.losses import balancing_loss, own_load, update_bias_
from lablib.parallel.experts.routing import sigmoid_gates
from lablib.signature import Count, OneOf, checked
from lablib.studies.batches import loss_of
from lablib.text.files import read_text

RECORDED = Path(__file__).with_name("expert_runs.jsonl")
SEQ_LEN, BATCH_SIZE, NUM_STEPS, LOOK_EVERY, RATE = 64, 16, 400, 50, 4e-3
NUM_EXPERTS, K, D_FF, CAPACITY = 8, 2, 128, 1.25
MODEL = GPTConfig(2, 64, 2, vocab_size=256, max_seq_len=SEQ_LEN, d_ff=K * D_FF)


@dataclass(frozen=True)
class Balancing:
    """Balancing of experts: factor of the auxiliary loss, rate of the bias, capacity; None: not used."""

    auxiliary: float = 0.0
    bias_rate: float = 0.0
    capacity_factor: float | None = None
    is_dense: bool = False


METHODS: Mapping[str, Balancing] = MappingProxyType(
    {
        "nothing": Balancing(),
        "auxiliary loss": Balancing(auxiliary=0.01),
        "bias": Balancing(bias_rate=0.01),
        "nothing, capacity": Balancing(capacity_factor=CAPACITY),
        "auxiliary loss, capacity": Balancing(auxiliary=0.01, capacity_factor=CAPACITY),
        "bias, capacity": Balancing(bias_rate=0.01, capacity_factor=CAPACITY),
        "dense": Balancing(is_dense=True),
    }
)


@dataclass(frozen=True)
class ExpertStep:
    """One step of a run."""

    step: int
    loss: float  # of the batch before the step, in nats per byte, without auxiliary losses
    counts: tuple[tuple[int, ...], ...]  # [L][E], choices of each expert; no layer for a dense model
    dropped: float  # share of all choices that were dropped
    held_out: float | None = None  # loss of held-out text after the step; None if it was not computed

    @property
    def imbalance(self) -> float:
        """The busiest expert over the mean, averaged over layers; 1 for a dense model."""
        each = [max(of_layer) * len(of_layer) / sum(of_layer) for of_layer in self.counts]
        return sum(each) / len(each) if each else 1.0


@dataclass(frozen=True)
class ExpertRun:
    """A recorded run, by windows of ten steps."""

    method: str
    seed: int
    steps: tuple[int, ...]  # the last of each window
    # [window][L][E], choices of each expert in the last step of the window
    counts: tuple[tuple[tuple[int, ...], ...], ...]
    imbalance: tuple[float, ...]  # the busiest expert over the mean, averaged over layers and the window's steps
    dropped: tuple[float, ...]  # share of the choices that were dropped, mean of the window's steps
    losses: tuple[float, ...]  # of batches, in nats per byte, mean of the window's steps
    held_out: tuple[tuple[int, float], ...]  # (step, loss of held-out text)

    @property
    def final_loss(self) -> float:
        """Loss of held-out text after the last step."""
        return self.held_out[-1][1]


@checked
def recorded_expert_runs(path: Path = RECORDED) -> dict[str, tuple[ExpertRun, ...]]:
    """Method -> its recorded runs, one per seed.

    Raises OSError, ValueError: no such file, or a file of another kind.
    """
    found: dict[str, list[ExpertRun]] = {name: [] for name in METHODS}
    try:
        for row in map(json.loads, read_text(path).splitlines()):
            parts = {key: _as_tuple(row[key]) for key in ExpertRun.__annotations__}
            found[row["method"]].append(ExpertRun(**parts))
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path} must hold runs as benchmarks/expert_evidence.py writes them.") from None
    return {name: tuple(sorted(runs, key=lambda run: run.seed)) for name, runs in found.items() if runs}


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


@checked
def expert_run(method: Annotated[str, OneOf(METHODS)], seed: int, num_steps: Count = NUM_STEPS) -> Iterator[ExpertStep]:
    """One run, or its beginning, step by step.

    Arguments:
        seed: of weights and batches.
        num_steps: of the 400; the schedule is still for all 400.
    """
    how, model = METHODS[method], GPT(MODEL, seed=seed)
    if not how.is_dense:
        model = with_experts(
            model,
            NUM_EXPERTS,
            K,
            d_ff=D_FF,
            seed=seed,
            gates=sigmoid_gates,
            capacity_factor=how.capacity_factor,
            has_bias=how.bias_rate > 0,
        )
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine(step, NUM_STEPS, NUM_STEPS // 10, 0.1))
    train, val = train_val_split(load_corpus())
    held_out = next(batches(val, 128, SEQ_LEN, seed=1))
    for step, batch in zip(range(1, num_steps + 1), batches(train, BATCH_SIZE, SEQ_LEN, seed), strict=False):
        loss = _step(model, batch, optimizer, how)
        schedule.step()
        routings = [mixture.routing for mixture in mixtures(model) if mixture.routing is not None]
        counts = tuple(routing.counts() for routing in routings)
        dropped = sum(mixture.num_dropped for mixture in mixtures(model)) / max(1, sum(map(sum, counts)))
        is_look = step % LOOK_EVERY == 0 or step == num_steps
        yield ExpertStep(step, loss, counts, dropped, loss_of(model, held_out) if is_look else None)


def _step(model: GPT, batch: Batch, optimizer: torch.optim.Optimizer, how: Balancing) -> float:
    loss = next_token_loss(model(batch.inputs), batch.targets)
    total = loss
    if how.auxiliary:
        for mixture in mixtures(model):
            assert mixture.routing is not None
            total = total + how.auxiliary * balancing_loss(mixture.routing)
    optimizer.zero_grad()
    total.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    for mixture in mixtures(model):
        if mixture.bias_E is not None and mixture.routing is not None:
            update_bias_(mixture.bias_E, own_load(mixture.routing), how.bias_rate)
    return loss.item()
