"""LAMB against AdamW as the batch grows, on real text: the same tokens in fewer and larger steps.

    python benchmarks/large_batch_evidence.py [--out lablib/batches/large_batch_runs.json]

Every run reads SEQUENCES sequences once, whatever its batch: warmup over the first tenth of its steps, then a straight
line to zero. Both optimizers have the same search at each batch size: from the best rate of the size before, by factors
of two, until both neighbours of the best are worse (seed 0). At that rate, and at those that linear and square-root
scaling make of the best rate of the smallest batch, three seeds. A batch grows by factors of four, so the scaled rates
are powers of two as well.

Every run is a row of the JSON file, written when it is done; rows that are there are not run again. One thread.
"""

import argparse
import math
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
from batch_evidence import Results

from lablib.batches.large_batch import linear_rate, square_root_rate
from lablib.batches.schedules import linear
from lablib.batches.small_runs import MODEL, RECORDS, held_out, loss_of, train
from lablib.models import GPT
from lablib.optim.adamw import AdamW
from lablib.optim.lamb import LAMB

SEQUENCES, BATCH_SIZES, SEEDS = 8192, (8, 32, 128, 512), (0, 1, 2)
# The papers' epsilons; the rest is the same for both.
OPTIMIZERS = {"adamw": (AdamW, 1e-8, 2.0**-9), "lamb": (LAMB, 1e-6, 2.0**-7)}  # class, eps, first rate of the search


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


def best_rate(results: Results, optimizer: str, batch_size: int, start: float) -> float:
    """By factors of two from `start` on, until both neighbours of the best are worse."""
    best = start
    for factor in (2, 0.5):
        while measure(results, optimizer, batch_size, best * factor, 0) < measure(
            results, optimizer, batch_size, best, 0
        ):
            best *= factor
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RECORDS[1])
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(args.out)
    start = {optimizer: first for optimizer, (_, _, first) in OPTIMIZERS.items()}
    best: dict[tuple[str, int], float] = {}
    for batch_size, optimizer in product(BATCH_SIZES, OPTIMIZERS):
        start[optimizer] = best[optimizer, batch_size] = best_rate(results, optimizer, batch_size, start[optimizer])
    for batch_size, optimizer in product(BATCH_SIZES, OPTIMIZERS):
        small = best[optimizer, BATCH_SIZES[0]]
        rates = {"tuned": best[optimizer, batch_size]}
        rates |= {rule.__name__: rule(small, BATCH_SIZES[0], batch_size) for rule in (square_root_rate, linear_rate)}
        for name, rate in rates.items():
            losses = [measure(results, optimizer, batch_size, rate, seed) for seed in SEEDS]
            print(f"{optimizer:5s} batch {batch_size:3d}  {name:16s} {rate:.2e}  {losses}", flush=True)


if __name__ == "__main__":
    main()
