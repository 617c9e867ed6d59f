"""What a batch size and a width do to a small GPT on real text: steps against tokens, noise scale, rates against width.

    python benchmarks/batch_evidence.py [--part PART] [--out lablib/studies/batch_runs.json]

    steps   at each batch size, Adam's steps until the loss of held-out text is TARGET, with the best rate
            (found by factors of two; three seeds at that rate), and the law of steps fitted to them
    noise   the gradient noise scale on the way there, unbiased, from gradients of single sequences
    width   the loss after 120 steps at several widths and rates, in the standard parametrization and in muP
    coordinates     muP's coordinate check: how far activations are from their start after 4 steps, by width
    schedule        held-out loss on the way of 400 steps, by schedule and peak rate

Every run is a row of the JSON file, written when it is done; rows that are there are not run again. One thread.
"""

import argparse
import datetime
import json
import math
import platform
import sys
import time
from itertools import count, product
from pathlib import Path
from typing import Any

import torch

from lablib.batches.mup import apply_mup_, at_width, coordinate_check, mup_groups
from lablib.batches.noise_scale import average_noise, estimate_from_parts, fit_steps_law
from lablib.batches.schedules import constant
from lablib.data import batches, load_corpus, train_val_split
from lablib.models import GPT, next_token_loss
from lablib.studies.batches import MODEL, NARROW, RECORDS, SCHEDULES, SEQ_LEN, held_out, loss_of, schedule_run, train

TARGET, WARMUP = 2.5, 10
BATCH_SIZES = (2, 4, 8, 16, 32, 64, 128)
SEEDS, WIDTH_STEPS, WIDTH_BATCH, WIDTH_GROWTHS, COORDINATE_GROWTHS = (0, 1, 2), 120, 16, (1, 2, 4, 8), (1, 2, 4, 8, 16)
SCHEDULE_RATES = (2.0**-7, 2.0**-8, 2.0**-6)
PARTS = ("steps", "noise", "width", "coordinates", "schedule")
WIDTH_RATES = tuple(2.0**-k for k in range(11, 3, -1))


class Results:
    """Rows by what was run, in a file."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []

    def get(self, run, **key) -> dict[str, Any]:
        """The row of this key; `run(**key without part)` makes the rest of it if there is none."""
        for row in self.rows:
            if all(row.get(name) == value for name, value in key.items()):
                return row
        began = time.process_time()
        found = run(**{name: value for name, value in key.items() if name != "part"})
        row = key | found | {"cpu_s": round(time.process_time() - began, 1)}
        self.rows.append(row)
        print(row, flush=True)
        about = {
            "command": f"python benchmarks/{Path(sys.argv[0]).name}",
            "date": datetime.date.today().isoformat(),
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "machine": f"{platform.system()} {platform.machine()}, one thread",
            "corpus": load_corpus().name,
            "target_loss": TARGET,
            "seq_len": SEQ_LEN,
        }
        lines = ",\n  ".join(json.dumps(row) for row in self.rows)
        self.path.write_text(f'{{\n "about": {json.dumps(about)},\n "rows": [\n  {lines}\n ]\n}}\n')
        return row


def training(model: GPT, groups: Any, rate: float, batch_size: int, seed: int):
    """Train with Adam, warmup and then a constant rate; yields the loss of each step."""
    optimizer = torch.optim.Adam(groups, lr=rate, betas=(0.9, 0.95))
    return train(model, optimizer, lambda step: constant(step, WARMUP), batch_size, seed)


def steps_to_target(batch_size: int, rate: float, seed: int, most: int) -> dict[str, Any]:
    """Steps until the held-out loss is TARGET, looked at every 3% and interpolated; None beyond `most`."""
    model, val = GPT(MODEL, seed=seed), held_out()
    last_step, last_loss, next_look = 0, loss_of(model, val), 10.0
    run = training(model, model.parameters(), rate, batch_size, seed)
    for step, _ in zip(count(1), run, strict=False):
        if step > most:
            return {"steps": None}
        if step >= next_look:
            loss, next_look = loss_of(model, val), step * 1.03 + 1
            if loss <= TARGET:
                part = (last_loss - TARGET) / (last_loss - loss)
                return {"steps": round(last_step + part * (step - last_step), 1)}
            last_step, last_loss = step, loss
    raise AssertionError("training has no end")


def best_rate(results: Results, batch_size: int, start: float) -> float:
    """The rate with fewest steps: from `start` on by factors of two, until both neighbours of the best need more."""
    steps: dict[float, float] = {}

    def measure(rate: float) -> float:
        most = int(1.2 * min(steps.values(), default=8000 / batch_size + 400))  # no longer than it can be of use
        key = {"part": "steps", "batch_size": batch_size, "rate": rate, "seed": 0}
        steps[rate] = results.get(lambda **k: steps_to_target(**k, most=most), **key)["steps"] or math.inf
        return steps[rate]

    best = start
    measure(best)
    for factor in (2, 0.5):
        while measure(best * factor) < steps[best]:
            best *= factor
    return best


def part_steps(results: Results) -> None:
    best_rates: dict[int, float] = {}
    for batch_size in BATCH_SIZES:
        best_rates[batch_size] = best_rate(results, batch_size, best_rates.get(batch_size // 2, 1e-3))
    means = []
    for batch_size, rate in best_rates.items():
        keys = ({"part": "steps", "batch_size": batch_size, "rate": rate, "seed": seed} for seed in SEEDS)
        rows = [results.get(lambda **k: steps_to_target(**k, most=10000), **key) for key in keys]
        means.append(sum(row["steps"] for row in rows) / len(rows))
        tokens = means[-1] * batch_size * SEQ_LEN
        print(f"batch {batch_size:4d}  rate {rate:.0e}  steps {means[-1]:7.1f}  tokens {tokens:9.0f}")
    print(fit_steps_law([float(size) for size in best_rates], means))


def noise_on_the_way(batch_size: int, rate: float, seed: int) -> dict[str, Any]:
    """Noise scale, in sequences, at steps of one run."""
    model, val, found = GPT(MODEL, seed=seed), held_out(), []
    run = training(model, model.parameters(), rate, batch_size, seed)
    for step, _ in zip(range(1, 161), run, strict=False):
        if step not in (1, 5, 10, 20, 40, 80, 160):
            continue
        estimates = []
        parts = batches(train_val_split(load_corpus())[0], 64, SEQ_LEN, seed=99)
        for _, (inputs_BT, targets_BT) in zip(range(4), parts, strict=False):
            gradients = []
            for inputs_1T, targets_1T in zip(inputs_BT.split(1), targets_BT.split(1), strict=True):
                grads = torch.autograd.grad(next_token_loss(model(inputs_1T), targets_1T), list(model.parameters()))
                gradients.append(torch.cat([grad.flatten() for grad in grads]))
            estimates.append(estimate_from_parts(torch.stack(gradients), 1))
        noise = average_noise(estimates)
        found.append([step, round(loss_of(model, val), 4), noise.signal, noise.noise])
    return {"step_loss_signal_noise": found}


def loss_at_width(width: int, rate: float, parametrization: str, seed: int) -> dict[str, Any]:
    """Mean loss of the last 20 of 120 steps."""
    model = GPT(at_width(NARROW, width // NARROW.d_model), seed=seed)
    groups: Any = model.parameters()
    if parametrization == "mup":
        apply_mup_(model, NARROW)
        groups = mup_groups(model, NARROW, rate)
    run = training(model, groups, rate, WIDTH_BATCH, seed)
    losses = [loss for _, loss in zip(range(WIDTH_STEPS), run, strict=False)]
    return {"loss": round(sum(losses[-20:]) / 20, 4)}


def part_width(results: Results) -> None:
    for growth, parametrization in product(WIDTH_GROWTHS, ("standard", "mup")):
        width, means = NARROW.d_model * growth, {}
        for rate in WIDTH_RATES:
            key = {"part": "width", "width": width, "rate": rate, "parametrization": parametrization}
            means[rate] = sum(results.get(loss_at_width, **key, seed=seed)["loss"] for seed in SEEDS) / len(SEEDS)
        best = min(means, key=means.__getitem__)
        print(
            f"width {width:4d}  {parametrization:8s}  best rate 2^{math.log2(best):.0f}  {means[best]:.4f}", flush=True
        )


def changes(width: int, parametrization: str, seed: int) -> dict[str, Any]:
    """Of `coordinate_check`, on 8 sequences of the corpus."""
    tokens_BT = next(batches(train_val_split(load_corpus())[0], 8, SEQ_LEN, seed)).inputs
    base = NARROW if parametrization == "mup" else None
    return {"changes": coordinate_check(at_width(NARROW, width // NARROW.d_model), base, tokens_BT, seed=seed)}


def part_coordinates(results: Results) -> None:
    for growth, parametrization, seed in product(COORDINATE_GROWTHS, ("standard", "mup"), SEEDS):
        width = NARROW.d_model * growth
        results.get(changes, part="coordinates", width=width, parametrization=parametrization, seed=seed)


def losses_on_the_way(schedule: str, rate: float, seed: int) -> dict[str, Any]:
    return {"step_loss": [(step, round(loss, 4)) for step, loss in schedule_run(schedule, rate, seed=seed)]}


def part_schedule(results: Results) -> None:
    for rate, schedule in product(SCHEDULE_RATES, SCHEDULES):
        rows = [
            results.get(losses_on_the_way, part="schedule", schedule=schedule, rate=rate, seed=seed) for seed in SEEDS
        ]
        last = [row["step_loss"][-1][1] for row in rows]
        print(f"{schedule:8s}  rate 2^{math.log2(rate):.0f}  {sum(last) / len(last):.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, help="without: all")
    parser.add_argument("--out", type=Path, default=RECORDS[0])
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(args.out)
    if args.part in (None, "coordinates"):
        part_coordinates(results)
    if args.part in (None, "schedule"):
        part_schedule(results)
    if args.part in (None, "width"):
        part_width(results)
    if args.part in (None, "noise"):
        results.get(noise_on_the_way, part="noise", batch_size=32, rate=4e-3, seed=0)
    if args.part in (None, "steps"):
        part_steps(results)


if __name__ == "__main__":
    main()
