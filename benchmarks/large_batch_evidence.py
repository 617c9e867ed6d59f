"""LAMB against AdamW as the batch grows, on real text: the same tokens in fewer and larger steps.

    python benchmarks/large_batch_evidence.py [--out lablib/studies/large_batch_runs.json]

Every run reads SEQUENCES sequences once, whatever its batch: warmup over the first tenth of its steps, then a straight
line to zero. Both optimizers have the same search at each batch size: six rates by factors of two, and more only where
the best is the first or the last of them (seed 0). At the best, and at the rates that linear and square-root scaling
make of the best rate of the smallest batch, three seeds. The batches are sixteen times apart, so the scaled rates are
powers of two as well.

Every run is a row of the JSON file, written when it is done; rows that are there are not run again. One thread.
"""

import argparse
import math
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from batch_evidence import Results

from lablib.batches.large_batch import linear_rate, square_root_rate
from lablib.batches.schedules import linear
from lablib.models import GPT
from lablib.optim.adamw import AdamW
from lablib.optim.base import BatchedOptimizer
from lablib.optim.lamb import LAMB
from lablib.studies.batches import MODEL, RECORDS, held_out, loss_of, train

SEQUENCES, BATCH_SIZES, SEEDS, GRID = 8192, (8, 128), (0, 1, 2), 6


class Tried(NamedTuple):
    kind: type[BatchedOptimizer]
    eps: float  # the paper's; betas and decay are the same for both
    first_rate: float  # of the grid


OPTIMIZERS = {"adamw": Tried(AdamW, 1e-8, 2.0**-10), "lamb": Tried(LAMB, 1e-6, 2.0**-8)}


def held_out_loss(optimizer: str, batch_size: int, rate: float, seed: int) -> dict[str, Any]:
    """Loss in nats a byte of 256 sequences nobody trained on, after the run; None where it is not finite."""
    kind, eps, _ = OPTIMIZERS[optimizer]
    model, num_steps = GPT(MODEL, seed=seed), SEQUENCES // batch_size
    optim = kind(model.parameters(), lr=rate, betas=(0.9, 0.95), eps=eps, weight_decay=0.01)
    run = train(model, optim, lambda step: linear(step, num_steps, num_steps // 10), batch_size, seed)
    for _ in islice(run, num_steps):
        pass
    loss = loss_of(model, held_out(256))
    return {"loss": round(loss, 4) if math.isfinite(loss) else None}


def measure(results: Results, optimizer: str, batch_size: int, rate: float, seed: int) -> float:
    key = {"part": "large_batch", "optimizer": optimizer, "batch_size": batch_size, "rate": rate, "seed": seed}
    loss = results.get(held_out_loss, **key)["loss"]
    return math.inf if loss is None else loss


def best_rate(results: Results, optimizer: str, batch_size: int) -> float:
    """The best of a grid by factors of two with seed 0, which grows for as long as the best stands at one of its ends.

    A whole grid, for loss against rate has more than one dip.
    """
    first = OPTIMIZERS[optimizer].first_rate
    rates = [first * 2.0**k for k in range(GRID)]
    while True:
        losses = {rate: measure(results, optimizer, batch_size, rate, 0) for rate in rates}
        best = min(losses, key=losses.__getitem__)
        if best not in (rates[0], rates[-1]):
            return best
        rates = [rates[0] / 2, *rates] if best == rates[0] else [*rates, rates[-1] * 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RECORDS[1])
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(args.out)
    best: dict[tuple[str, int], float] = {}
    for batch_size in reversed(BATCH_SIZES):
        for optimizer in OPTIMIZERS:
            best[optimizer, batch_size] = best_rate(results, optimizer, batch_size)
        for optimizer in OPTIMIZERS:
            show(results, optimizer, batch_size, "tuned", best[optimizer, batch_size])
    for rule, optimizer in product((square_root_rate, linear_rate), OPTIMIZERS):
        small, large = BATCH_SIZES
        show(results, optimizer, large, rule.__name__, rule(best[optimizer, small], small, large))


def show(results: Results, optimizer: str, batch_size: int, name: str, rate: float) -> None:
    """A rate with all seeds."""
    losses = [measure(results, optimizer, batch_size, rate, seed) for seed in SEEDS]
    print(f"{optimizer:5s} batch {batch_size:3d}  {name:16s} {rate:.2e}  {losses}", flush=True)


if __name__ == "__main__":
    main()
