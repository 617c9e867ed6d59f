"""A run from a configuration: the program of `lab train`, the same under `launch`, torchrun and `lab sim`.

    lab train train.toml optimizer.lr=1e-3 --ranks 4 --backend gloo
    torchrun --nproc-per-node 4 examples/train.py train.toml optimizer.lr=1e-3
    lab sim --ranks 4 --cluster dgx-h100 examples/train.py train.toml optimizer.lr=1e-3

A run that goes wrong ends by itself: bad steps and replicas that differ by the policies of [health] (guards.py), a
hang on real ranks after `health.hang_s` (hang.py). A roll back loads the newest checkpoint of before the bad steps, and
saves it again at once as the newest, with the place in the data where the run goes on.

Simplified: rank 0 prints and records; a resumed run repeats the lines of the steps since its checkpoint.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch.distributed as dist

from lablib.configs.reading import read_json
from lablib.data import CORPORA
from lablib.process.garbage import SynchronizedCollection
from lablib.signature import Count, OneOf, check_type, checked
from lablib.text.files import check_writable
from lablib.train.alert_files import read_rules
from lablib.train.alerts import TRAINING_RULES
from lablib.train.breakdown import TimedPhases
from lablib.train.build import build, fitted
from lablib.train.checkpoint import Checkpoints
from lablib.train.checkpoint_state import PerRank, shared_objects, split
from lablib.train.communication import CommunicationMeter, simulated_rank
from lablib.train.config import TrainConfig
from lablib.train.deepspeed import deepspeed_tables
from lablib.train.hang import HangWatch
from lablib.train.health import Action, RunStopped
from lablib.train.manifest import Manifest, saved_in
from lablib.train.metric_writers import JsonLines
from lablib.train.monitor import Monitor, line_of, record
from lablib.train.read_config import parse_config, read_tables, with_overrides
from lablib.train.trainer import Metrics, Trainer
from lablib.train.without_effect import without_effect


@checked
def load(
    path: str | Path, overrides: Sequence[str] = (), ranks: Count = 1, deepspeed: str | Path | None = None
) -> tuple[TrainConfig, list[str]]:
    """The configuration of a run on `ranks`, and sentences on fields without effect, of DeepSpeed's too.

    `path`: TOML or YAML, or a DeepSpeed JSON alone. ValueError: as `read_config` and `read_deepspeed_training`.
    """
    is_json = str(path).endswith(".json")
    tables = with_overrides({} if is_json else read_tables(path), overrides)
    deepspeed, sentences = path if is_json else deepspeed, list[str]()
    given = [f"{name}.{key}" for name, table in tables.items() if isinstance(table, Mapping) for key in table]
    if deepspeed is not None:
        values = read_json(deepspeed)
        reading = deepspeed_tables(values, tables, ranks, str(deepspeed))
        zero = values.get("zero_optimization")
        given += ["parallel.bucket_bytes"] * (isinstance(zero, Mapping) and "reduce_bucket_size" in zero)
        tables, sentences = with_overrides(reading.record, overrides), reading.sentences("Without effect")
    config = parse_config(tables, str(path))
    check_type("data.corpus", config.data.corpus, Annotated[str, OneOf(CORPORA)])
    config = fitted(config, ranks)
    return config, [*sentences, *(f"Without effect: {one}." for one in without_effect(config, dict.fromkeys(given)))]


def run(config: TrainConfig, attach: Iterable[Callable[[Trainer], Any]] = (), log: str | None = None) -> list[Metrics]:
    """Train on the ranks that run until `config.num_steps`; rank 0 prints every `monitor.every` steps.

    `attach`: functions that get the trainer before the first step: to load a state, or to add to its `on_step`. `log`:
    a file for the lines of rank 0, instead of stdout. Returns the numbers of all steps. Communicates; all ranks call
    it. RunStopped: a policy of [health] ended it, or its end is of no use: a loss of NaN, or a critical alert.
    """
    found: list[Metrics] = []
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    with ExitStack() as stack:
        say = print
        if log and is_first:
            say = partial(print, file=stack.enter_context(open(log, "a", encoding="utf-8")))
        say = partial(say, flush=True) if is_first else lambda _: None
        watch = stack.enter_context(HangWatch(config.health.hang_s))
        trainer = build(config)
        phases = TimedPhases(trainer.step) if config.monitor.breakdown else None
        trainer.phase = phases or trainer.phase
        if config.monitor.communication:
            meter = stack.enter_context(CommunicationMeter(trainer.step, trainer.phase))
            trainer.phase = meter
            trainer.on_step.append(meter.add_to)

        def report(metrics: Metrics) -> None:
            found.append(metrics)
            step = metrics["step"]
            if is_due := step == 1 or step % config.monitor.every == 0 or step == config.num_steps or metrics["reason"]:
                say(line_of(metrics))
            if phases and is_due:
                seconds = "  ".join(f"{name} {time_s:.4g}" for name, time_s in phases.take().items())
                say(f"  seconds per step: {seconds}")

        collection = stack.enter_context(SynchronizedCollection(config.memory.gc_every_steps))
        trainer.on_step += [watch.step_ended, report, collection.step_ended]
        checkpoints = monitor = None
        if config.checkpoint.folder:
            keep = config.checkpoint
            checkpoints = Checkpoints(keep.folder, keep.keep, asynchronous=keep.asynchronous)
            save_and_resume(trainer, stack.enter_context(checkpoints), config, say)
        if (config.monitor.folder or config.monitor.rules) and is_first:
            rules = read_rules(config.monitor.rules) if config.monitor.rules else TRAINING_RULES
            folder = config.monitor.folder
            writers = [JsonLines(Path(folder) / "metrics.jsonl")] if folder else []
            rank = simulated_rank() if config.monitor.communication else None
            clock = time.time if rank is None else lambda: rank.clock_s  # durations of alerts in virtual time as well
            monitor = stack.enter_context(Monitor(rules, writers, clock=clock))
            trainer.on_step.append(partial(record, monitor, say=say))
        for function in attach:
            function(trainer)
        try:
            trainer.train(max(0, config.num_steps - trainer.num_steps))
        except RunStopped as error:  # on all ranks
            if checkpoints:
                checkpoints.wait()
            raise RunStopped(f"{error}; {_newest(config)}") from None
        firing = monitor.firing if monitor else []
        for event in firing:
            rule = event.rule
            say(f"an alert still fires at the end: {rule.name}, {rule.metric} {rule.when} {rule.threshold:g}")
    if since := _broken_since(found):
        raise RunStopped(
            f"the loss must be finite at the end of a run: got {found[-1]['loss']} since step {since}; try "
            f"health.policy=stop or roll_back; {_newest(config)}"
        )
    if critical := [event.rule.name for event in firing if event.rule.severity == "critical"]:
        raise RunStopped(f"no critical alert may fire at the end of a run: got {', '.join(critical)}; see its line")
    return found


def save_and_resume(
    trainer: Trainer, checkpoints: Checkpoints, config: TrainConfig, say: Callable[[str], None] = print
) -> None:
    """Resume from the newest checkpoint, if there is one; save every `checkpoint.every` steps and at the end.

    In addition to the newest, the checkpoint with the lowest training loss in its step is kept.
    A run may go on with other axes, another ZeRO stage and another number of ranks: to rounding, and with the same ones
    to the bit.
    A bad step is not saved but by the last; a save that was due follows after the next good one. Gives the trainer its
    `roll_back`, for which the state before the first step is saved, too. Communicates.

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

    is_due = False

    def save(metrics: Metrics) -> None:
        nonlocal is_due
        is_last = metrics["step"] == config.num_steps
        is_due = is_due or is_last or metrics["step"] % config.checkpoint.every == 0
        if is_due and (metrics["action"] is Action.GO_ON or (is_last and metrics["action"] is Action.SKIP)):
            checkpoints.save(metrics["step"], state(), metrics["loss"])
            is_due = False

    def load(path: Path) -> int:
        found = state()
        step = checkpoints.load(path, found)
        own = found["own"].value or {}
        trainer.load_state_dict(found["trainer"] | {f"{prefix}{key}": value for key, value in own.items()})
        return step

    def roll_back(last_good_step: int) -> None:
        path, at = checkpoints.newest(last_good_step), trainer.num_steps
        if path is None:
            rule = f"a roll back needs a checkpoint of at most step {last_good_step}"
            raise RunStopped(f"{rule}: none is left; raise checkpoint.keep")
        place, guard = trainer.loader.state_dict(), trainer.guard.state_dict() if trainer.guard else {}
        step, metric = load(path), Manifest.read(path).metric
        if trainer.guard:
            trainer.guard.load_state_dict(guard)  # it counts the roll backs
        if config.health.skip_batches:
            trainer.loader.load_state_dict(place)
        checkpoints.save(step, state(), metric)  # the newest now: a resumed run goes on here
        skipped = f"the batches of steps {step + 1} to {at} are skipped"
        say(f"rolled back from step {at} to step {step}; {skipped if config.health.skip_batches else 'same batches'}")

    if config.checkpoint.resume and (path := checkpoints.newest()) is not None:
        _require_same_settings(shared_objects(path), split(state())[1]["shared"])
        step = load(path)
        rest = "" if step < config.num_steps else f": no step is left of num_steps={config.num_steps}"
        say(f"resumed after step {step}{rest}")
    elif config.health.rolls_back:
        checkpoints.save(0, state())
    if config.health.rolls_back:
        trainer.roll_back = roll_back
    trainer.on_step.append(save)


def _require_same_settings(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise ValueError for a setting that a resumed run cannot change, or that its checkpoint would set back."""
    kept = ["model.", "data.corpus", "data.val_fraction", "precision.parameters"]
    kept += [f"optimizer.{name}" for name in ("name", "betas", "eps", "weight_decay", "momentum", "fused")]
    if "float16" in (saved.get("settings.precision.products"), own["settings.precision.products"]):  # its loss scale
        kept.append("precision.products")
    for name, now in own.items():
        if name.startswith(tuple(f"settings.{one}" for one in kept)) and (was := saved.get(name, now)) != now:
            raise ValueError(
                f"a run resumes with the settings of its checkpoint: got {name.removeprefix('settings.')}={now}, and "
                f"it was {was}; set it back, or give another checkpoint.folder"
            )


def _broken_since(found: Sequence[Metrics]) -> int | None:
    """The step from which on no loss was finite up to the end; None for a single one without update: a bad batch."""
    number = 0
    while number < len(found) and (loss := found[-1 - number]["loss"]) is not None and not math.isfinite(loss):
        number += 1
    if number == 0 or (number == 1 < len(found) and found[-1]["action"] is Action.SKIP):
        return None
    return found[-number]["step"]


def _newest(config: TrainConfig) -> str:
    if not config.checkpoint.folder:
        return "nothing is saved without checkpoint.folder"
    saved = [path.name for path, manifest in saved_in(Path(config.checkpoint.folder)).items() if manifest]
    return f"the newest checkpoint is {saved[0] if saved else 'none'} in {config.checkpoint.folder}"
