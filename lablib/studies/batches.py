"""Small training runs on real text about batch size, schedules and parametrization, and their records.

A GPT of two layers on bytes of Python's standard library, sequences of 64. A run takes seconds; since seeds differ, one
run shows little, so many are kept as data. A reader can repeat one or two of them. Techniques are in lablib/batches:

    recorded_steps         steps until a loss is reached, by batch size                         noise_scale.py
    recorded_noise         signal and noise of gradients during training                        noise_scale.py
    recorded_large_batch   loss after the same tokens, AdamW and LAMB by batch size and rate    large_batch.py
    recorded_schedules     held-out loss during training, by schedule and rate                  schedules.py
    recorded_coordinates   change of activations, by parametrization and width                  mup.py
    recorded_rates         loss by parametrization, width and rate                              mup.py

Every list of losses or steps has one number per seed. Conclusions and their limits: benchmarks/batches/README.md.

Cost: a step of 16 sequences at width 64 about 25 ms of one core.
Shapes: B sequences of a batch, T tokens of one.
Source: `benchmarks/batch_evidence.py` and `benchmarks/large_batch_evidence.py` make the records.
Simplified: a hundred thousand parameters and a few minutes: tendencies, with the given error bars.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import torch

from lablib.batches.noise_scale import GradientNoise
from lablib.batches.schedules import constant, cosine, linear, warmup_stable_decay
from lablib.data import Batch, batches, load_corpus, train_val_split
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.signature import Count, OneOf, checked
from lablib.text.files import parse_json, read_text

SEQ_LEN = 64
NARROW = GPTConfig(2, 32, 2, vocab_size=256, max_seq_len=SEQ_LEN)  # the base of muP
MODEL = GPTConfig(2, 64, 2, vocab_size=256, max_seq_len=SEQ_LEN)
RECORDS = (Path(__file__).with_name("batch_runs.json"), Path(__file__).with_name("large_batch_runs.json"))

# Name -> factor of (step, num_steps). A twentieth of the steps is warmup; of WSD's, the last fifth is decay.
SCHEDULES: Mapping[str, Callable[[int, int], float]] = MappingProxyType(
    {
        "constant": lambda step, num_steps: constant(step, num_steps // 20),
        "cosine": lambda step, num_steps: cosine(step, num_steps, num_steps // 20),
        "linear": lambda step, num_steps: linear(step, num_steps, num_steps // 20),
        "WSD": lambda step, num_steps: warmup_stable_decay(step, num_steps, num_steps // 20, num_steps // 5),
    }
)

PARAMETRIZATIONS = ("standard", "mup")


@checked
def train(
    model: GPT, optimizer: torch.optim.Optimizer, factor: Callable[[int], float], batch_size: int, seed: int = 0
) -> Iterator[float]:
    """Train on the corpus, without end: the loss of each step in nats per byte, after the step."""
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for inputs_BT, targets_BT in batches(train_val_split(load_corpus())[0], batch_size, SEQ_LEN, seed):
        optimizer.zero_grad()
        loss = next_token_loss(model(inputs_BT), targets_BT)
        loss.backward()
        optimizer.step()
        schedule.step()
        yield loss.item()


@checked
def held_out(num_sequences: int = 64) -> Batch:
    """Text that no run trains on; always the same."""
    return next(batches(train_val_split(load_corpus())[1], num_sequences, SEQ_LEN, seed=1))


@torch.no_grad()
@checked
def loss_of(model: GPT, batch: Batch) -> float:
    return next_token_loss(model(batch.inputs), batch.targets).item()


@checked
def schedule_run(
    schedule: Annotated[str, OneOf(SCHEDULES)],
    rate: float,
    num_steps: Count = 400,
    every: Count = 20,
    batch_size: Count = 16,
    seed: int = 0,
) -> Iterator[tuple[int, float]]:
    """A run of the narrow model with Adam: (step, held-out loss) after every `every` steps and after the last.

    `rate`: the peak rate.
    """
    model, text = GPT(NARROW, seed=seed), held_out()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.95))
    run = train(model, optimizer, lambda step: SCHEDULES[schedule](step, num_steps), batch_size, seed)
    for step, _ in zip(range(1, num_steps + 1), run, strict=False):
        if step % every == 0 or step == num_steps:
            yield step, loss_of(model, text)


def recorded_steps() -> dict[int, list[float]]:
    """Batch size in sequences -> steps until the held-out loss is 2.5 nats, at the best rate of that size."""
    by_rate: dict[int, dict[float, list[float]]] = {}
    for row in _rows("steps"):
        if row["steps"] is not None:
            by_rate.setdefault(row["batch_size"], {}).setdefault(row["rate"], []).append(row["steps"])
    # Only the best rate was run with all seeds.
    return {size: max(by_rate[size].values(), key=len) for size in sorted(by_rate)}


def recorded_noise() -> list[tuple[int, float, GradientNoise]]:
    """(step, loss, signal and noise in sequences) during one run."""
    [row] = _rows("noise")
    return [(step, loss, GradientNoise(signal, noise)) for step, loss, signal, noise in row["step_loss_signal_noise"]]


def recorded_large_batch() -> dict[str, dict[int, dict[float, list[float]]]]:
    """Optimizer -> batch size -> rate -> held-out losses after the same 8,192 sequences."""
    return _nested("large_batch", ("optimizer", "batch_size", "rate"), "loss")


def recorded_schedules() -> dict[str, dict[float, list[list[tuple[int, float]]]]]:
    """Schedule -> peak rate -> runs, each a list of (step, held-out loss)."""
    return {
        schedule: {rate: [[(step, loss) for step, loss in run] for run in runs] for rate, runs in rates.items()}
        for schedule, rates in _nested("schedule", ("schedule", "rate"), "step_loss").items()
    }


def recorded_coordinates() -> dict[str, dict[int, list[dict[str, float]]]]:
    """Parametrization ("standard", "mup") -> width -> results of `coordinate_check`."""
    found = _nested("coordinates", ("parametrization", "width"), "changes")
    return {name: found[name] for name in PARAMETRIZATIONS}


def recorded_rates() -> dict[str, dict[int, dict[float, list[float]]]]:
    """Parametrization -> width -> rate at the base width -> mean losses of the last 20 of 120 steps."""
    found = _nested("width", ("parametrization", "width", "rate"), "loss")
    return {name: found[name] for name in PARAMETRIZATIONS}


def _nested(part: str, keys: tuple[str, ...], value: str) -> dict[Any, Any]:
    """Rows of a part as nested dictionaries, by `keys`, sorted; innermost a list, one value per seed.

    A loss that was not finite has no number in the file, and becomes infinity.
    """
    found: dict[Any, Any] = {}
    for row in sorted(_rows(part), key=lambda row: [row[key] for key in (*keys, "seed")]):
        inner = found
        for key in keys[:-1]:
            inner = inner.setdefault(row[key], {})
        inner.setdefault(row[keys[-1]], []).append(math.inf if row[value] is None else row[value])
    return found


def _rows(part: str) -> list[dict[str, Any]]:
    return [row for path in RECORDS for row in _records(path) if row["part"] == part]


def _records(path: Path) -> list[dict[str, Any]]:
    saved = parse_json(read_text(path))
    if not isinstance(saved, dict) or "rows" not in saved:
        raise ValueError(f"{path} must hold rows, as benchmarks/batch_evidence.py writes them.")
    return saved["rows"]
