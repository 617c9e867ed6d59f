"""`lab bench`: speed, memory and scaling of a training configuration, held against limits.

    lab bench train.toml --ranks 4 --backend gloo --min-tokens-per-s 1000 --max-step-s 2 --min-scaling 0.8
    lab bench train.toml --ranks 64 --cluster dgx-h100 --max-memory 24GB --json result.json

    tokens_per_s    tokens of a step / median seconds of a step, after the warm-up
    step_s          the median; on the simulator its virtual seconds, equal in every run
    memory_bytes    the highest peak of all ranks; not measured on gloo
    scaling         tokens_per_s / (replicas * tokens_per_s of one replica), with the same batch per replica

A replica has all ranks of the tensor, pipeline and context axes. Nothing is saved, recorded or judged. Exit code 1: a
limit is broken.
Simplified: the ranks of the scaling's one replica have the machine to themselves.
"""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import median
from typing import Any

from lablib.course.errors import CourseError
from lablib.text.files import check_writable, write_text
from lablib.text.units import format_quantity
from lablib.train.config import CheckpointConfig, HealthConfig, MonitorConfig, TrainConfig

Result = dict[str, Any]
_UNITS: Mapping[str, float] = {"": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def bench_command(options: argparse.Namespace) -> int:
    """Measure, print, and compare. CourseError: an invalid request; CourseFailure: the run failed."""
    from lablib.cli.train import check_early, errors_in_a_sentence

    check_early(options)
    from lablib.train.run import load

    memory = None if options.max_memory is None else _size_bytes(options.max_memory)
    if memory is not None and options.backend == "gloo":
        raise CourseError("--max-memory needs a measured memory: gloo has none; try --backend sim, or nccl on GPUs")
    for option in ("--min-tokens-per-s", "--max-step-s", "--min-scaling"):
        limit = getattr(options, option[2:].replace("-", "_"))
        if limit is not None and not 0 < limit < inf:  # every comparison with NaN is false: it would break no limit
            raise CourseError(f"{option} must be a finite number above 0: got {limit:g}; try 1")
    for option, least, number in (("--steps", 1, options.steps), ("--warm-up", 0, options.warm_up)):
        if number < least:
            raise CourseError(f"{option} must be {least} or more: got {number}; try 10")
    if options.json:
        try:
            check_writable(options.json)
        except OSError as error:
            raise CourseError(str(error)) from error

    def measured(ranks: int, overrides: Sequence[str] = ()) -> tuple[Result, int, int]:
        """The result on some ranks, the number of replicas, and the batch."""
        with errors_in_a_sentence():
            config, _ = load(options.file, [*options.passed_on, *overrides], ranks)
            replicas = (config.parallel.data or 1) * config.parallel.expert
            return _measured(config, ranks, options), replicas, config.data.batch_size

    result, replicas, batch = measured(options.ranks)
    if options.min_scaling is not None or options.scaling:
        alone = [f"data.batch_size={batch // replicas}", "parallel.data=1", "parallel.expert=1"]
        one, _, _ = measured(options.ranks // replicas, alone)
        result["scaling"] = result["tokens_per_s"] / (replicas * one["tokens_per_s"])
    limits = {
        "tokens_per_s": ("at least", options.min_tokens_per_s),
        "step_s": ("at most", options.max_step_s),
        "memory_bytes": ("at most", memory),
        "scaling": ("at least", options.min_scaling),
    }
    result["limits"] = {name: limit for name, (_, limit) in limits.items() if limit is not None}
    result["broken"] = [
        name
        for name, limit in result["limits"].items()
        if (result[name] < limit if limits[name][0] == "at least" else result[name] > limit)
    ]
    for name, (kind, limit) in limits.items():
        if result.get(name) is not None:
            held = "" if limit is None else f"   {kind} {_text(name, limit)}{'   BROKEN' * (name in result['broken'])}"
            print(f"{name:<13} {_text(name, result[name])}{held}")
    if options.json:
        write_text(options.json, json.dumps(result, indent=2) + "\n")
    return 1 if result["broken"] else 0


def _measured(config: TrainConfig, ranks: int, options: argparse.Namespace) -> Result:
    from lablib.launch import launch
    from lablib.train.run import run

    schedule_steps = config.optimizer.schedule_steps or config.num_steps
    config = replace(
        config,
        optimizer=replace(config.optimizer, schedule_steps=schedule_steps),
        checkpoint=CheckpointConfig(),
        monitor=MonitorConfig(),
        health=HealthConfig(hang_s=config.health.hang_s),
    )

    def launched(steps: int) -> Any:
        where = {"ranks": ranks, "backend": options.backend, "cluster": options.cluster}
        return launch(run, replace(config, num_steps=steps), **where, timeout_s=options.timeout)

    result = launched(options.warm_up + options.steps)
    numbers = result.values[0]
    if options.backend == "sim":
        before_s = launched(options.warm_up).timeline.makespan_s if options.warm_up else 0.0
        step_s = (result.timeline.makespan_s - before_s) / options.steps
    else:
        step_s = median(each["step_s"] for each in numbers[options.warm_up :])
    memory = result.memory.peak_bytes() if result.memory.is_known else None
    about = {"ranks": ranks, "backend": options.backend, "steps": options.steps, "warm_up": options.warm_up}
    about |= {"cluster": options.cluster} if options.backend == "sim" else {}
    return {**about, "tokens_per_s": numbers[-1]["tokens"] / step_s, "step_s": step_s, "memory_bytes": memory}


def _size_bytes(text: str) -> float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise CourseError(f"--max-memory must be a number of bytes with a unit: got {text}; try 24GB")
    return float(found[1]) * _UNITS[found[2]]


def _text(name: str, value: float) -> str:
    if name == "memory_bytes":
        return format_quantity(value, "B")
    return format_quantity(value, "s") if name == "step_s" else f"{value:,.4g}" if value < 100 else f"{value:,.0f}"
