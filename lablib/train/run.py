"""A run from a configuration: the program of `lab train`, the same under `launch`, torchrun and `lab sim`.

    lab train train.toml optimizer.lr=1e-3 --ranks 4 --backend gloo
    torchrun --nproc-per-node 4 examples/train.py train.toml optimizer.lr=1e-3
    lab sim --ranks 4 --cluster dgx-h100 examples/train.py train.toml optimizer.lr=1e-3

Source: torchrun's environment variables (torch 2.13, "torchrun (Elastic Launch)").
Simplified: rank 0 prints and records; a resumed run repeats the lines of the steps since its checkpoint.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist

from lablib.configs.reading import read_json
from lablib.data import CORPORA
from lablib.signature import Count, OneOf, check_type, checked
from lablib.text.files import check_writable
from lablib.train.alert_files import read_rules
from lablib.train.alerts import TRAINING_RULES
from lablib.train.build import build
from lablib.train.checkpoint import Checkpoints
from lablib.train.checkpoint_state import PerRank, shared_objects, split
from lablib.train.config import TrainConfig
from lablib.train.deepspeed import deepspeed_tables
from lablib.train.metric_writers import JsonLines
from lablib.train.monitor import Monitor
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
    if config.monitor.breakdown:
        sentences.append("Without effect: monitor.breakdown: the timeline of a run has the phases.")
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

    with ExitStack() as stack:
        trainer = build(config, on_step=[report])
        if config.checkpoint.folder:
            keep = config.checkpoint
            checkpoints = Checkpoints(keep.folder, keep.keep, asynchronous=keep.asynchronous)
            save_and_resume(trainer, stack.enter_context(checkpoints), config)
        watch = config.monitor
        if (watch.folder or watch.rules) and is_first:
            rules = read_rules(watch.rules) if watch.rules else TRAINING_RULES
            writers = [JsonLines(Path(watch.folder) / "metrics.jsonl")] if watch.folder else []
            monitor = Monitor(rules, writers)
            trainer.on_step.append(partial(record, stack.enter_context(monitor)))
        for function in attach:
            function(trainer)
        trainer.train(max(0, config.num_steps - trainer.num_steps))
    return found


def save_and_resume(trainer: Trainer, checkpoints: Checkpoints, config: TrainConfig) -> None:
    """Resume from the newest checkpoint, if there is one; save every `checkpoint.every` steps and at the end.

    In addition to the newest, the checkpoint with the lowest training loss in its step is kept.
    A run may go on with other axes, another ZeRO stage and another number of ranks: to rounding, and with the same ones
    to the bit. Communicates.

    ValueError: a checkpoint of other settings; or there are checkpoints, and `resume` is false. OSError: the folder
    cannot be written.
    """
    check_writable(checkpoints.folder / "checkpoint")  # now, and not after the steps before the first save
    num_ranks = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if num_ranks > 1 else 0
    prefix = f"rank{rank}."

    def state() -> dict[str, Any]:
        flat = trainer.state_dict()
        own = {key.removeprefix(prefix): value for key, value in flat.items() if key.startswith(prefix)}
        shared = {key: value for key, value in flat.items() if not key.startswith(prefix)}
        settings = {name: asdict(getattr(config, name)) for name in ("model", "data", "optimizer", "precision")}
        return {"trainer": shared, "own": PerRank(own), "settings": settings}

    def save(metrics: Metrics) -> None:
        if metrics["step"] % config.checkpoint.every == 0 or metrics["step"] == config.num_steps:
            checkpoints.save(metrics["step"], state(), metrics["loss"])

    if config.checkpoint.resume and (path := checkpoints.newest()) is not None:
        found = state()
        _require_same_settings(shared_objects(path), split(found)[1]["shared"])
        step = checkpoints.load(path, found)
        own = found["own"].value or {}
        trainer.load_state_dict(found["trainer"] | {f"{prefix}{key}": value for key, value in own.items()})
        if rank == 0:
            rest = "" if step < config.num_steps else f": no step is left of num_steps={config.num_steps}"
            print(f"resumed after step {step}{rest}", flush=True)
    trainer.on_step.append(save)


def _require_same_settings(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise ValueError for a setting that a resumed run cannot change, or that its checkpoint would set back."""
    kept = ["data.corpus", "data.val_fraction", "precision.parameters"]
    kept += [f"optimizer.{name}" for name in ("name", "betas", "eps", "weight_decay", "momentum", "fused")]
    if "float16" in (saved.get("settings.precision.products"), own["settings.precision.products"]):  # its loss scale
        kept.append("precision.products")
    beginnings = ["settings.model.", *(f"settings.{name}" for name in kept)]
    for name, now in own.items():
        if name.startswith(tuple(beginnings)) and (was := saved.get(name, now)) != now:
            raise ValueError(
                f"a run resumes with the settings of its checkpoint: got {name.removeprefix('settings.')}={now}, and "
                f"it was {was}; set it back, or give another checkpoint.folder"
            )


def record(monitor: Monitor, metrics: Metrics) -> None:
    """Record the numbers of a step under the names of `TRAINING_RULES`, and print changes of alerts."""
    names = {"grad_norm": "gradient_norm", "tokens_per_s": "throughput"}
    numbers = {names.get(key, key): float(value) for key, value in metrics.items() if value is not None}
    for event in monitor.record(numbers, step=metrics["step"]):
        print(event, flush=True)


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
