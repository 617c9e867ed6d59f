"""What each way to send less costs in loss: a small GPT on real text, data parallel on four simulated ranks.

    nice python benchmarks/compression_evidence.py [--methods NAME ...] [--out lablib/studies/compression.jsonl]

Every method gets the same search, RATES on seed 0 and one more where the best lies at the edge, and then SEEDS at its
best rate: the rate of the (inner) AdamW is
all that is tuned. Not tuned: ratios and ranks, DiLoCo's outer rate and momentum (the paper's), 1-bit Adam's warmup (a
fifth of the steps, as in the paper). Gradients are clipped to norm 1 once averaged; where nothing is averaged, each
rank's own. Error feedback is tried with SGD too (momentum 0.9, no clipping, SGD_RATES): it repairs what is linear in
the gradient, which Adam's step is not. A run that diverges has an infinite loss.

Every run is a line of the file, added when it is done; what is there is not run again. A line holds versions, date,
commit and a hash of the settings; lines of other settings are left alone, and not read.
"""

import argparse
import datetime
import hashlib
import json
import math
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lablib import RankError, launch
from lablib.batches.schedules import cosine
from lablib.compress import (
    DiLoCo,
    ErrorFeedback,
    Int4,
    Int8,
    LocalSGD,
    OneBit,
    OneBitAdam,
    PowerSGD,
    QuantizedAverage,
    RandomK,
    StaleAverage,
    StreamingDiLoCo,
    TopK,
    layer_fragments,
)
from lablib.data import batches, load_corpus, train_val_split
from lablib.models import GPT, next_token_loss
from lablib.optim.adamw import AdamW
from lablib.parallel import DataParallel, all_reduce_average
from lablib.studies.batches import NARROW, SEQ_LEN, held_out, loss_of
from lablib.studies.compression import RECORDED, recorded_runs, table

RANKS, BATCH_SIZE, NUM_STEPS, WARMUP, FINAL, LOOK_EVERY, NUM_HELD_OUT = 4, 8, 192, 38, 0.1, 64, 128
BETAS = (0.9, 0.95)
RATES = (2.0**-7, 2.0**-8, 2.0**-6)
SGD_RATES = (0.4, 0.2, 0.8)
MOST_RATES = 4
SEEDS = (1, 2, 3)
PERIODS = (1, 4, 16, 64)
Row = dict[str, Any]

# How gradients are averaged; made anew on every rank.
AVERAGES: dict[str, Callable[[], Any]] = {
    "none": lambda: all_reduce_average,
    "INT8": lambda: QuantizedAverage(Int8()),
    "INT4": lambda: QuantizedAverage(Int4()),
    "top-k, no feedback": lambda: TopK(0.01),
    "top-k": lambda: ErrorFeedback(TopK(0.01)),
    "random-k, no feedback": lambda: RandomK(0.01),
    "random-k": lambda: ErrorFeedback(RandomK(0.01, is_unbiased=False)),
    "PowerSGD 1": lambda: ErrorFeedback(PowerSGD(1)),
    "PowerSGD 4": lambda: ErrorFeedback(PowerSGD(4)),
    "one bit, no feedback": lambda: OneBit(has_server_feedback=False),
    "one bit": lambda: ErrorFeedback(OneBit()),
    **{f"stale {s}": partial(StaleAverage, s) for s in (1, 2, 4)},
}
# What is done after a step on the rank's own gradient.
SYNCHRONIZATIONS: dict[str, Callable[[GPT], Any]] = {
    **{f"local SGD {every}": partial(LocalSGD, every=every) for every in PERIODS},
    **{f"DiLoCo {every}": partial(DiLoCo, every=every) for every in PERIODS},
    "streaming DiLoCo 16": lambda model: StreamingDiLoCo(
        model, layer_fragments(model, list(model.blocks), 2), every=16, overlap=2
    ),
}
SGD = "SGD, "  # before the name of an average
WITH_SGD = [SGD + name for name in ("none", "top-k", "top-k, no feedback", "one bit", "one bit, no feedback")]
METHODS = (*AVERAGES, "1-bit Adam", *SYNCHRONIZATIONS, *WITH_SGD)


def settings() -> Row:
    """All that a result depends on, but for the versions."""
    return {
        "model": asdict(NARROW),
        "corpus": load_corpus().sha256,
        "steps": [RANKS, BATCH_SIZE, SEQ_LEN, NUM_STEPS, WARMUP, FINAL, NUM_HELD_OUT],
        "optimizer": ["AdamW", BETAS, "clip 1"],
        "rates": [RATES, MOST_RATES],
        "SGD": [0.9, "no clip", SGD_RATES],
    }


def train(method: str, lr: float, seed: int) -> list[tuple[int, float]]:
    """One run, on every rank: held-out loss on the way, as rank 0 sees it."""
    rank, model, is_sgd = dist.get_rank(), GPT(NARROW, seed=seed), method.startswith(SGD)
    method = method.removeprefix(SGD)
    replica: nn.Module = DataParallel(model, reduce=AVERAGES[method]()) if method in AVERAGES else model
    after = SYNCHRONIZATIONS[method](model) if method in SYNCHRONIZATIONS else None
    optimizer: torch.optim.Optimizer = AdamW(model.parameters(), lr=lr, betas=BETAS, weight_decay=0.0)
    if method == "1-bit Adam":
        optimizer = OneBitAdam(model.parameters(), NUM_STEPS // 5, lr=lr, betas=BETAS)
    if is_sgd:
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine(step, NUM_STEPS, WARMUP, FINAL))
    looks, text = [], batches(train_val_split(load_corpus())[0], BATCH_SIZE, SEQ_LEN, seed)
    for step, (inputs_BT, targets_BT) in enumerate(islice(text, NUM_STEPS), 1):
        optimizer.zero_grad()
        part = slice(rank * BATCH_SIZE // RANKS, (rank + 1) * BATCH_SIZE // RANKS)
        next_token_loss(replica(inputs_BT[part]), targets_BT[part]).backward()
        if not is_sgd:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if after is not None:
            after.step()
        if rank == 0 and step % LOOK_EVERY == 0 and step < NUM_STEPS:
            looks.append((step, loss_of(model, held_out(64))))
    if isinstance(after, StreamingDiLoCo):
        after.finish()
    for reduce in getattr(replica, "reduces", []):
        if isinstance(getattr(reduce, "func", None), StaleAverage):
            reduce.func.finish()
    return [*looks, (NUM_STEPS, loss_of(model, held_out(NUM_HELD_OUT)))] if rank == 0 else []


def one_run(method: str, lr: float, seed: int) -> Row:
    try:
        run = launch(train, method, lr, seed, ranks=RANKS, trace=False)
    except RankError as error:
        if "finite" not in str(error.__cause__):
            raise
        return {"loss": math.inf, "curve": [], "sent_bytes": 0.0, "every": 1}  # it diverged
    sent = sum(sum(each.sent_bytes) for each in run.traffic.transfers if each.name != "broadcast")
    loss = run.values[0][-1][1]
    return {
        "loss": round(loss, 4) if math.isfinite(loss) else math.inf,
        "curve": [(step, round(loss, 4)) for step, loss in run.values[0]],
        "sent_bytes": sent / RANKS / NUM_STEPS,
        "every": int(method.split()[-1]) if method in SYNCHRONIZATIONS else 1,
    }


class Results:
    """Rows by what was run, in a file of one JSON object a line."""

    def __init__(self, path: Path):
        self.path = path
        self.hash = hashlib.sha256(json.dumps(settings(), sort_keys=True).encode()).hexdigest()[:12]
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        self.rows: list[Row] = [row for row in map(json.loads, lines) if row["settings"] == self.hash]

    def get(self, **key: Any) -> Row:
        """The row of this key; run, if there is none."""
        for row in self.rows:
            if all(row.get(name) == value for name, value in key.items()):
                return row
        began = time.process_time()
        row = key | one_run(**{name: value for name, value in key.items() if name != "part"})
        row |= {"cpu_s": round(time.process_time() - began, 1), "settings": self.hash}
        row |= {"date": datetime.date.today().isoformat(), "commit": commit()}
        row |= {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(*(f"{name} {value}" for name, value in key.items()), row["loss"], f"{row['cpu_s']} s", flush=True)
        return row


def commit() -> str:
    """The commit that the runs were made at, with a + where files differed from it; "" outside of a checkout."""
    here = Path(__file__).parent
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"], cwd=here, capture_output=True, text=True
    )
    return found.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--out", type=Path, default=RECORDED)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(args.out)
    for method in args.methods:
        rates = SGD_RATES if method.startswith(SGD) else RATES
        losses = {lr: results.get(part="search", method=method, lr=lr, seed=0)["loss"] for lr in rates}
        best = min(losses, key=losses.__getitem__)
        while best in (min(losses), max(losses)) and len(losses) < MOST_RATES:  # the best lies at the edge: go on
            further = best / 2 if best == min(losses) else best * 2
            losses[further] = results.get(part="search", method=method, lr=further, seed=0)["loss"]
            best = min(losses, key=losses.__getitem__)
        for seed in SEEDS:
            results.get(part="final", method=method, lr=best, seed=seed)
    print(table(recorded_runs(args.out)).to_string())


if __name__ == "__main__":
    main()
