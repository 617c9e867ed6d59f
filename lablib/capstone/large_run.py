"""A step of the large run: predicted by the planner, and simulated on shapes with the trainer itself.

    planned = plan_step(config, "dgx-h100", 64)           closed form: software that is usual on such GPUs
    measured = simulate_step(config, "dgx-h100", 64)      the program of lablib/train, operator by operator

The simulation runs one rank of each pipeline stage, and its ring of context ranks, as messages need both ends; the
others are taken to do the same at the same time. A replica with m micro-batches on p stages, m > 3 p, is simulated with
2 p and with 3 p of them; time and peak of memory are extended on the line through both, since every further micro-batch
takes as long as the one before. Time and peak are those of the second step: the first allocates the optimizer's state,
and before it every rank draws the whole model, which a real run of this size would not do.

Cost: seconds of this machine, minutes with context ranks, in proportion to layers x micro-batches x ranks simulated.
Source: lablib/plan (the closed form); lablib/sim (the simulator).
Simplified: all batches have the same tokens, and no loading time; float16 is simulated as bfloat16, which has the same
bytes and rates, as a loss scaler reads values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lablib.capstone.brief import as_transformer
from lablib.capstone.lock import checked_lock, now
from lablib.capstone.report import LargeRun, Report
from lablib.data import Batch
from lablib.launch import launch
from lablib.parallel.mesh.mesh import Mesh
from lablib.phases import phase
from lablib.plan import Parallel, Prediction, predict
from lablib.record.step_terms import timeline_step
from lablib.signature import Count, checked
from lablib.train.build import build
from lablib.train.config import TrainConfig

_SETUP = "capstone setup"  # a phase that the timeline leaves out
_MOST_LAYERS = 1000  # each is simulated


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step, the peak of the fullest rank, and the seconds by kind of work (record/step_terms.py)."""

    step_s: float
    memory_bytes: float
    terms: Mapping[str, float] = field(default_factory=dict)


@checked
def plan_step(config: TrainConfig, cluster: str, gpus: Count) -> Prediction:
    """The planner's prediction of a step. ValueError: axes that do not fit, or choices that it does not have."""
    config = config.on(gpus)
    axes, model = config.parallel, as_transformer(config.model)
    assert axes.data is not None and config.data.micro_batch is not None
    stage = axes.zero_stage if axes.model_ranks == 1 else 1  # a mesh shards the optimizer's state
    split = Parallel(
        data=axes.data * axes.expert,
        tensor=axes.tensor,
        pipeline=axes.pipeline,
        context=axes.context,
        expert=axes.expert,
        chunks=axes.num_chunks,
        zero_stage=stage,
        sequence_parallel=axes.sequence_parallel if axes.tensor > 1 else None,
        expert_tensor=1 if axes.expert > 1 else None,
    )
    return predict(
        model,
        cluster,
        split,
        config.data.batch_size,
        micro_batch=config.data.micro_batch,
        seq_len=config.data.seq_len,
        precision=config.precision.products,
        recompute=config.memory.recompute,
        schedule=axes.schedule,
        optimizer=config.optimizer.name,
    )


@checked
def simulate_step(config: TrainConfig, cluster: str, gpus: Count) -> StepCost:
    """Simulate steps of the trainer on shapes; deterministic. ValueError as `TrainConfig.on`; LaunchError."""
    if (count := config.model.num_layers) > _MOST_LAYERS:
        raise ValueError(
            f"model.num_layers must be at most {_MOST_LAYERS:,} for a simulation: got {count}; make the layers wider"
        )
    if config.precision.products == "float16":
        config = replace(config, precision=replace(config.precision, products="bfloat16"))
    return _simulated(config.on(gpus), cluster, gpus)


@checked
def simulate_large(report: Report) -> LargeRun:
    """The large run of a report with locked predictions. ValueError: they are not; as `simulate_step`."""
    lock, at = checked_lock(report), now()
    cost = simulate_step(report.large, report.brief.cluster, report.brief.gpus)
    return LargeRun(at, lock.sha256, cost.step_s, cost.memory_bytes)


@lru_cache(maxsize=64)
def _simulated(config: TrainConfig, cluster: str, gpus: int) -> StepCost:
    axes, data = config.parallel, config.data
    assert axes.data is not None and data.micro_batch is not None
    per_micro = axes.data * axes.expert * data.micro_batch  # sequences of one micro-batch of all replicas
    count, few, more = data.batch_size // per_micro, 2 * axes.pipeline, 3 * axes.pipeline
    if count <= more:
        return _run(config, cluster, gpus)
    runs = [
        _run(replace(config, data=replace(data, batch_size=number * per_micro)), cluster, gpus)
        for number in (few, more)
    ]
    further = (count - more) / (more - few)
    grown = max(0.0, runs[1].memory_bytes - runs[0].memory_bytes)
    step_s = runs[1].step_s + further * (runs[1].step_s - runs[0].step_s)
    slopes = {name: time_s - runs[0].terms[name] for name, time_s in runs[1].terms.items()}
    terms = {name: time_s + further * slopes[name] for name, time_s in runs[1].terms.items()}
    return StepCost(step_s, runs[1].memory_bytes + further * grown, terms)


def _run(config: TrainConfig, cluster: str, gpus: int) -> StepCost:
    axes = config.parallel
    sizes: dict[str, Any] = {axis: getattr(axes, axis) for axis in ("data", "pipeline", "context", "tensor")}
    sizes["data"] *= axes.expert
    mesh, others = Mesh(**sizes), product(range(axes.pipeline), range(axes.context))
    ranks = [mesh.rank(data=0, pipeline=stage, context=part, tensor=0) for stage, part in others]
    where: dict[str, Any] = {"ranks": gpus, "cluster": cluster, "fidelity": "shapes"}
    run = launch(_two_steps, config, **where, simulate=ranks if gpus > 1 else None)
    step = run.timeline.without(_SETUP)
    began_s = step.origin_s - run.timeline.origin_s
    peaks = [0.0]
    for rank in ranks:
        times_s, held = run.memory.curve(rank)
        peaks += np.sum(list(held.values()), axis=0)[times_s >= began_s].tolist()
    return StepCost(step.makespan_s, float(max(peaks)), timeline_step(step).terms)


def _two_steps(config: TrainConfig) -> None:
    replicas = 1 if config.parallel.model_ranks > 1 else dist.get_world_size()
    shape = (config.data.batch_size // replicas, config.data.seq_len)
    with phase(_SETUP):
        trainer = build(config, loader=_Zeros(*shape))
        trainer.train_step()
        dist.barrier()
    trainer.train_step()


class _Zeros:
    """Batches of one token; on shapes their values do not matter."""

    def __init__(self, num_sequences: int, seq_len: int):
        self.shape = (num_sequences, seq_len)

    def __next__(self) -> Batch:
        tokens = torch.zeros(self.shape, dtype=torch.long)
        return Batch(tokens, tokens)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass
