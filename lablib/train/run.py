"""A run from a configuration: the program of `lab train`, the same under `launch`, torchrun and `lab sim`.

    lab train train.toml optimizer.lr=1e-3 --ranks 4 --backend gloo
    torchrun --nproc-per-node 4 examples/train.py train.toml optimizer.lr=1e-3
    lab sim --ranks 4 --cluster dgx-h100 examples/train.py train.toml optimizer.lr=1e-3

Source: torchrun's environment variables (torch 2.13, "torchrun (Elastic Launch)").
Simplified: rank 0 prints; the sections checkpoint and monitor.folder need an `attach` function.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist

from lablib.configs.reading import read_json
from lablib.data import CORPORA
from lablib.signature import Count, OneOf, check_type, checked
from lablib.train.build import build
from lablib.train.config import TrainConfig
from lablib.train.deepspeed import deepspeed_tables
from lablib.train.read_config import parse_config, read_tables, with_overrides
from lablib.train.trainer import Metrics, Trainer


@checked
def load(
    path: str | Path, overrides: Sequence[str] = (), ranks: Count = 1, deepspeed: str | Path | None = None
) -> tuple[TrainConfig, list[str]]:
    """The configuration of a run on `ranks`, and sentences on fields of a DeepSpeed file without effect.

    `path`: TOML or YAML, or a DeepSpeed JSON alone. ValueError: as `read_config` and `read_deepspeed_training`.
    """
    is_json = str(path).endswith(".json")
    tables = with_overrides({} if is_json else read_tables(path), overrides)
    deepspeed, sentences = path if is_json else deepspeed, list[str]()
    if deepspeed is not None:
        reading = deepspeed_tables(read_json(deepspeed), tables, ranks, str(deepspeed))
        tables, sentences = with_overrides(reading.record, overrides), reading.sentences("Without effect")
    config = parse_config(tables, str(path))
    check_type("data.corpus", config.data.corpus, Annotated[str, OneOf(CORPORA)])
    monitor = config.monitor
    unused: dict[str, Any] = {"checkpoint.folder": config.checkpoint.folder, "monitor.folder": monitor.folder}
    unused["monitor.breakdown"] = monitor.breakdown
    sentences += [f"Without effect: {name}: `lab train` only prints." for name, value in unused.items() if value]
    return config.on(ranks), sentences


def run(config: TrainConfig, attach: Iterable[Callable[[Trainer], Any]] = ()) -> list[Metrics]:
    """Train on the ranks that run until `config.num_steps`; rank 0 prints every `monitor.every` steps.

    `attach`: functions that get the trainer before the first step: to load a state, or to add to its `on_step`. Returns
    the numbers of all steps. Communicates; all ranks call it.
    """
    found: list[Metrics] = []
    is_first = not dist.is_initialized() or dist.get_rank() == 0

    def report(metrics: Metrics) -> None:
        found.append(metrics)
        step = metrics["step"]
        if is_first and (step == 1 or step % config.monitor.every == 0 or step == config.num_steps):
            print(line_of(metrics), flush=True)

    trainer = build(config, on_step=[report])
    for function in attach:
        function(trainer)
    trainer.train(max(0, config.num_steps - trainer.num_steps))
    return found


def line_of(metrics: Metrics) -> str:
    """The numbers of a step in a line."""
    forms = {"loss": "{:.4f}", "grad_norm": "{:.3f}", "lr": "{:.2e}", "tokens": "{:,}", "loss_scale": "{:g}"}
    parts = [f"{name} {form.format(metrics[name])}" for name, form in forms.items() if metrics[name] is not None]
    return f"step {metrics['step']:>5}  " + "  ".join(parts) + "  skipped" * metrics["skipped"]


def main(arguments: Sequence[str]) -> None:
    """The script under torchrun: a file and overrides. Joins the ranks of the environment."""
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        torch.set_default_device("cuda")
    dist.init_process_group("nccl" if has_gpu else "gloo")
    try:
        config, sentences = load(arguments[0], arguments[1:], dist.get_world_size())
        if dist.get_rank() == 0:
            print("".join(f"{sentence}\n" for sentence in sentences), end="")
        run(config)
    finally:
        dist.destroy_process_group()
