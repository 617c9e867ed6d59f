"""Every optimizer on the same small GPT and text: the same search of rate and decay, then fresh seeds at its best.

    python benchmarks/optimizer_evidence.py [--part train|speed|memory] [--seeds 3] [--out
    lablib/studies/optimizers.jsonl]

    train    search on seed 0; the best and its better neighbour on seed 10 too; then seeds 1, 2, ... at the one
             with the lower mean (a best that was chosen by its seed would look better than it is). Seeds give weights
             and batches, the same for every optimizer.
    speed    processor seconds of a step, whole and the optimizer's part, taking turns with AdamW in one process
    memory   bytes of state, and the peak of a step beyond weights, gradients and state, as counted by the simulator

AdamW's grid has the most trials. Every run is a line of the file, added when it is done; what is there is not run
again. A line holds versions, date and a hash of the settings; lines of other settings are left alone, and not read.
"""

import argparse
import datetime
import hashlib
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import torch

from lablib import launch
from lablib.data import batches, load_corpus, train_val_split
from lablib.studies.optimizer_experiment import (
    BATCH_SIZE,
    FINAL,
    MODEL,
    NUM_STEPS,
    SEQ_LEN,
    WARMUP,
    held_out,
    run,
    start,
)
from lablib.studies.optimizer_search import FACTOR, best_of_means, search
from lablib.studies.optimizer_trial import held_out_loss, kinds
from lablib.studies.optimizers import OptimizerResult, recorded_results, table

# The least rate of the grid, how many rates by factors of two, and the decays: lr times decay of about the same sizes.
GRIDS: dict[str, tuple[float, int, tuple[float, float]]] = {
    "adamw": (2e-3, 5, (0.0, 0.1)),
    "muon": (2e-3, 3, (0.0, 0.1)),
    "adafactor": (2e-2, 3, (0.0, 0.1)),
    "lion": (2.5e-4, 3, (0.0, 1.0)),
    "sophia": (5e-4, 3, (0.0, 1.0)),
    "lamb": (2e-2, 3, (0.0, 0.1)),
    "adam8bit": (2e-3, 3, (0.0, 0.1)),
    "soap": (1e-3, 3, (0.0, 0.1)),
    "galore": (4e-3, 3, (0.0, 0.1)),
    "adam_bf16": (2e-3, 3, (0.0, 0.1)),
    "q_galore": (4e-3, 3, (0.0, 0.1)),
}
FURTHER_SEEDS = (10,)  # on which the best and its better neighbour are tried again
MOST_TRIALS = 10  # of all but AdamW, whose grid has as many to begin with
Row = dict[str, Any]


def settings(**_: Any) -> Row:
    """All that a result depends on, but for the versions."""
    return {
        "model": asdict(MODEL),
        "corpus": load_corpus().sha256,
        "batch": [BATCH_SIZE, SEQ_LEN, NUM_STEPS],
        "schedule": ["cosine", WARMUP, FINAL],
        "grids": [FACTOR, GRIDS],
        "optimizers": {name: [kind.options, kind.for_embeddings] for name, kind in kinds(MODEL.d_model).items()},
    }


def settings_hash() -> str:
    return hashlib.sha256(json.dumps(settings(), sort_keys=True).encode()).hexdigest()[:12]


class Results:
    """Rows by what was run, in a file of one JSON object a line."""

    def __init__(self, path: Path):
        self.path, self.hash = path, settings_hash()
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        self.rows: list[Row] = [row for row in map(json.loads, lines) if row["settings"] == self.hash]

    def get(self, make: Callable[..., Row], **key: Any) -> Row:
        """The row of this key; `make(**key without part)` makes the rest of it if there is none."""
        for row in self.rows:
            if all(row.get(name) == value for name, value in key.items()):
                return row
        began, cpu_began = time.time(), time.process_time()
        found = make(**{name: value for name, value in key.items() if name != "part"})
        row = key | found | {"cpu_s": round(time.process_time() - cpu_began, 1)}
        row |= {"settings": self.hash, "date": datetime.date.today().isoformat()}
        row |= {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        words = " ".join(f"{name} {value}" for name, value in key.items())
        print(f"{words}   {found.get('loss', '')}   {time.time() - began:.0f} s, run {len(self.rows)}", flush=True)
        return row


def one_run(optimizer: str, lr: float, weight_decay: float, seed: int) -> Row:
    """Held-out loss on the way, of 64 sequences, and at the end, of 256."""
    training, looks = run(optimizer, lr, weight_decay, seed)
    loss = held_out_loss(training.model, held_out(256)) if looks[-1].step == NUM_STEPS else float("inf")
    return {"loss": round(loss, 4), "curve": [[look.step, round(look.loss, 4)] for look in looks]}


def part_train(results: Results, optimizer: str, num_seeds: int) -> None:
    first, num_rates, decays = GRIDS[optimizer]

    def loss_of(lr: float, weight_decay: float) -> float:
        key = {"part": "search", "optimizer": optimizer, "lr": lr, "weight_decay": weight_decay, "seed": 0}
        return results.get(one_run, **key)["loss"]

    found = search(loss_of, first, num_rates, decays, max_trials=12 if optimizer == "adamw" else MOST_TRIALS)
    again = [found.best, found.runner_up]
    while again:  # until both neighbours of the best mean were tried
        for (lr, weight_decay), seed in product(again, (0, *FURTHER_SEEDS)):
            results.get(one_run, part="search", optimizer=optimizer, lr=lr, weight_decay=weight_decay, seed=seed)
        lr, weight_decay = best_of(results, optimizer)
        beside = [(rate, weight_decay) for rate in (lr / FACTOR, lr * FACTOR)]
        again = [one for one in beside if one not in losses_of_search(results, optimizer)]
    key = {"part": "final", "optimizer": optimizer, "lr": lr, "weight_decay": weight_decay}
    losses = [results.get(one_run, **key, seed=seed)["loss"] for seed in range(1, num_seeds + 1)]
    spread = statistics.stdev(losses) if len(losses) > 1 else 0.0
    print(f"== {optimizer:10} {statistics.mean(losses):.4f} +- {spread:.4f}  at {lr:g}, {weight_decay:g}", end="")
    print(f" after {len(losses_of_search(results, optimizer))} settings", flush=True)


def losses_of_search(results: Results, optimizer: str) -> dict[tuple[float, float], list[float]]:
    """(rate, decay) -> loss on each seed."""
    losses: dict[tuple[float, float], list[float]] = {}
    for row in results.rows:
        if (row["part"], row["optimizer"]) == ("search", optimizer):
            losses.setdefault((row["lr"], row["weight_decay"]), []).append(row["loss"])
    return losses


def best_of(results: Results, optimizer: str) -> tuple[float, float]:
    return best_of_means(losses_of_search(results, optimizer))


def step_seconds(optimizer: str, lr: float, weight_decay: float, turns: int = 10, steps: int = 10) -> Row:
    """Seconds of a step, of this optimizer's and of AdamW's runs in turns of `steps`; the mean holds rare work too."""
    runs = [start(optimizer, lr, weight_decay, 0), start("adamw", 2e-3, 0.1, 0)]
    text = batches(train_val_split(load_corpus())[0], BATCH_SIZE, SEQ_LEN, 0)
    whole, within = ([0.0, 0.0] for _ in range(2))
    for place, training in enumerate(runs):
        for one in training.optimizers:
            one.register_step_pre_hook(lambda *_, i=place: within.__setitem__(i, within[i] - time.process_time()))
            one.register_step_post_hook(lambda *_, i=place: within.__setitem__(i, within[i] + time.process_time()))
    for turn in range(turns + 1):
        if turn == 1:  # the first turn makes states
            whole[:], within[:] = [0.0, 0.0], [0.0, 0.0]
        for place, training in enumerate(runs):
            for _ in range(steps):
                batch = next(text)
                began = time.process_time()
                training.step(*batch)
                whole[place] += time.process_time() - began
    count = turns * steps
    ours, adamws = whole[0] / count, whole[1] / count
    return {
        "step_s": round(ours, 6),
        "adamw_step_s": round(adamws, 6),
        "step_ratio": round(ours / adamws, 4),
        "optimizer_s": round(within[0] / count, 6),
        "optimizer_ratio": round(within[0] / within[1], 4),
    }


def memory_of(optimizer: str) -> Row:
    """Bytes of state, and those that a step needs beyond weights, gradients and state, by the memory tracker."""

    def program() -> list[int]:
        training = start(optimizer, 1e-3, 0.0, 0)
        for phase in ("first", "second"):
            for param in training.model.parameters():
                param.grad = torch.randn_like(param)
            with torch.profiler.record_function(phase):
                for one in training.optimizers:
                    one.step()
            with torch.profiler.record_function(f"after {phase}"):
                torch.zeros(1)
        return [training.state_bytes(), sum(param.numel() for param in training.model.parameters())]

    launched = launch(program, ranks=1)
    (mark,) = [block for block in launched.memory.allocations if block.phase == "after second"]
    held = launched.memory.at(0, mark.start_s)
    at_rest = held["parameter"] + held["gradient"] + held["optimizer state"]
    peak = int(launched.memory.by_phase(0).loc["second", "peak_bytes"])
    state, numel = launched.values[0]
    assert state == held["optimizer state"], "the optimizer and the memory tracker count the same"
    return {"state_bytes": state, "temporary_bytes": peak - at_rest, "num_parameters": numel}


def markdown(results: dict[str, OptimizerResult]) -> str:
    """The table of the README: an optimizer a line, the least loss first."""
    heads = ["", "final loss, nats a byte (least to largest)", "less AdamW's, 95%", "says", "rate, decay", "settings"]
    heads += ["state, B/parameter", "a step needs, B/parameter", "step time, AdamW's = 1"]
    lines = ["| " + " | ".join(heads) + " |", "|---|---|---|---|---|--:|--:|--:|--:|"]
    for (name, row), result in zip(table(results).iterrows(), results.values(), strict=True):
        ends = f"{result.loss:.3f} ({min(result.losses.values()):.3f} to {max(result.losses.values()):.3f})"
        apart, says = f"{row.iloc[1]:+.3f} &plusmn; {row.iloc[2]:.3f}", row["verdict"]
        if name == "adamw":
            apart = says = ""
        cells = [
            name,
            ends,
            apart,
            says if says in ("noise", "") else f"**{says}**",
            f"{result.lr:g}, {result.weight_decay:g}",
        ]
        cells += [str(result.num_trials), f"{result.bytes_per_parameter:.2f}"]
        cells += [f"{result.temporary_bytes_per_parameter:.2f}", f"{result.step_ratio:.2f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("train", "speed", "memory"), help="one of the three; without: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--optimizers", nargs="+", default=list(GRIDS))
    default = Path(__file__).parents[1] / "lablib" / "studies" / "optimizers.jsonl"
    parser.add_argument("--out", type=Path, default=default)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(args.out)
    results.get(settings, part="settings", optimizer="all")
    for name in args.optimizers:
        if args.part in (None, "memory"):
            results.get(memory_of, part="memory", optimizer=name)
        if args.part in (None, "train"):
            part_train(results, name, args.seeds)
        if args.part in (None, "speed"):
            lr, weight_decay = best_of(results, name)
            results.get(step_seconds, part="speed", optimizer=name, lr=lr, weight_decay=weight_decay)
    print(markdown(recorded_results(args.out)))


if __name__ == "__main__":
    main()
