"""How busy each expert is over a training run, without balancing, with an auxiliary loss, and with a bias.

    python benchmarks/expert_evidence.py [--seeds 3] [--out lablib/studies/expert_runs.jsonl]

Every method of `lablib.studies.expert_runs` with each seed: weights and batches are the seed's, the same for all. Each
run is a line of the file, added when it is done; what is there is not run again. A line holds versions, date and a hash
of the settings; a line of other settings is refused. At the end, the table of benchmarks/experts/README.md.
"""

import argparse
import datetime
import hashlib
import json
import math
import platform
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lablib.data import load_corpus
from lablib.studies import expert_runs
from lablib.studies.expert_runs import METHODS, RECORDED, ExpertRun, expert_run, recorded_expert_runs

WINDOW = 10  # steps
T_97 = (math.inf, 12.706, 4.303, 3.182, 2.776)  # Student's t at 97.5% for n - 1 degrees of freedom, n from 1


def settings_hash() -> str:
    """Of all that a run depends on, but for the versions."""
    numbers = {name: value for name, value in vars(expert_runs).items() if isinstance(value, int | float)}
    settings = {
        "numbers": numbers,
        "model": asdict(expert_runs.MODEL),
        "methods": {name: asdict(how) for name, how in METHODS.items()},
        "corpus": load_corpus().sha256,
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def one_run(method: str, seed: int) -> dict[str, Any]:
    steps = list(expert_run(method, seed))
    windows = [steps[i : i + WINDOW] for i in range(0, len(steps), WINDOW)]

    def means(name: str) -> list[float]:
        return [round(statistics.mean(getattr(step, name) for step in window), 4) for window in windows]

    return {
        "steps": [window[-1].step for window in windows],
        "counts": [window[-1].counts for window in windows],
        "imbalance": means("imbalance"),
        "dropped": means("dropped"),
        "losses": means("loss"),
        "held_out": [[step.step, round(step.held_out, 4)] for step in steps if step.held_out is not None],
    }


def make(path: Path, num_seeds: int) -> None:
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    rows, settings = [json.loads(line) for line in lines], settings_hash()
    if any(row["settings"] != settings for row in rows):
        raise SystemExit(f"{path} has runs of other settings than {settings}: move it away first.")
    done = {(row["method"], row["seed"]) for row in rows}
    for seed in range(num_seeds):
        for method in METHODS:
            if (method, seed) in done:
                continue
            began = time.process_time()
            row = {"method": method, "seed": seed} | one_run(method, seed)
            row |= {"cpu_s": round(time.process_time() - began, 1), "settings": settings}
            row |= {"date": datetime.date.today().isoformat(), "torch": torch.__version__}
            row |= {"python": platform.python_version(), "machine": platform.machine()}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
            print(f"{method}, seed {seed}: {row['held_out'][-1][1]}, {row['cpu_s']} s", flush=True)


def cells(method: str, runs: tuple[ExpertRun, ...], base: tuple[ExpertRun, ...]) -> list[str]:
    losses = [run.final_loss for run in runs]
    differences = [run.final_loss - other.final_loss for run, other in zip(runs, base, strict=True)]
    spread = statistics.stdev(differences) if len(differences) > 1 else math.inf
    half = T_97[min(len(runs), len(T_97)) - 1] * spread / math.sqrt(len(runs))
    last = [statistics.mean(run.imbalance[-5:]) for run in runs]
    worst = [max(run.imbalance) for run in runs]
    dropped = [statistics.mean(run.dropped) for run in runs]
    return [
        method,
        f"{statistics.mean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f})",
        "" if runs is base else f"{statistics.mean(differences):+.3f} &plusmn; {half:.3f}",
        f"{statistics.mean(worst):.2f}",
        f"{statistics.mean(last):.2f}",
        f"{statistics.mean(dropped):.1%}",
    ]


def table(path: Path) -> str:
    found = recorded_expert_runs(path)
    heads = ["method", "final loss, nats a byte (least to largest)", "minus nothing's, 95%", "imbalance, worst"]
    heads += ["last 50 steps", "dropped"]
    lines = ["| " + " | ".join(heads) + " |", "|---|---|---|--:|--:|--:|"]
    lines += ["| " + " | ".join(cells(name, runs, found["nothing"])) + " |" for name, runs in found.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RECORDED)
    args = parser.parse_args()
    torch.set_num_threads(1)
    make(args.out, args.seeds)
    print(table(args.out))


if __name__ == "__main__":
    main()
