"""A step of the large run: predicted by the planner, and simulated on shapes with the trainer itself.

    planned = plan_step(config, "dgx-h100", 64)           closed form: software that is usual on such GPUs
    measured = simulate_step(config, "dgx-h100", 64)      the program of lablib/train, operator by operator

The planner counts 5 ms per step and the launches of a real host, and fused kernels; in the simulated program the host
runs ahead, and kernels are eager under autocast. So on 8 H100s with 4 layers the planner says 1.6 to 2.5 times the
simulated step at width 512, and 0.8 to 1.0 times at width 2,048: dense or with experts. Its stages have equal numbers
of layers, where the trainer's have equal FLOPs: next to a large head its pipeline takes up to 1.3 times as long.

The simulation runs one rank of each pipeline stage, and its ring of context ranks, as messages need both ends; the
others are taken to do the same at the same time. A replica with m micro-batches on p stages, m > 3 p, is simulated with
2 p and with 3 p of them; time and peak of memory are extended on the line through both, since every further micro-batch
takes as long as the one before. With context ranks and one stage, 8 to 32 layers are simulated where the last ones
repeat (repeated_layers.py). Time and peak are those of the second step: the first allocates the optimizer's state, and
before it every rank draws the whole model, which a real run of this size would not do.

Cost: seconds of this machine, in proportion to layers x micro-batches x ranks simulated; minutes with context ranks and
several stages.
Source: lablib/plan (the closed form); lablib/sim (the simulator).
Simplified: of tensor ranks the first runs, which has one buffer of the optimizer where the others have two, and some 10
kernels fewer per step: about 20 us; all batches have the same tokens, and no loading time; experts get even shares of
the tokens; float16 is simulated as bfloat16, which has the same bytes and rates, as a loss scaler reads values.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import torch
import torch.distributed as dist

from lablib.capstone.brief import as_transformer
from lablib.capstone.lock import checked_lock, now
from lablib.capstone.repeated_layers import SimulatedStep, StepCost, extended
from lablib.capstone.report import LargeRun, Report
from lablib.data import Batch
from lablib.launch import launch
from lablib.parallel.mesh.mesh import Mesh
from lablib.phases import phase
from lablib.plan import Parallel, Prediction, predict
from lablib.process.replaced import replaced
from lablib.signature import Count, checked
from lablib.train.build import build
from lablib.train.config import TrainConfig
from lablib.train.steps import MeshStep

_SETUP = "capstone setup"  # a phase that the timeline leaves out
_MOST_LAYERS = 1000  # each is simulated
_ORDER = ("data", "pipeline", "expert", "context", "tensor")  # far apart to neighbours, as lablib/train/build.py


@checked
def plan_step(config: TrainConfig, cluster: str, gpus: Count) -> Prediction:
    """The planner's prediction of a step. ValueError: axes that do not fit, or choices that it does not have."""
    config = config.on(gpus)
    if (kind := config.precision.parameters) != "float32":
        raise ValueError(f'the planner has parameters in float32: got {kind}; give precision.parameters="float32"')
    axes, model = config.parallel, as_transformer(config.model)
    assert axes.data is not None and config.data.micro_batch is not None
    stage = max(1, axes.zero_stage) if axes.is_mesh else axes.zero_stage  # a mesh shards the optimizer's state
    sizes = {axis: getattr(axes, axis) for axis in ("tensor", "pipeline", "context", "expert")}
    sequence_parallel = axes.sequence_parallel if axes.tensor > 1 else None
    others = {"chunks": axes.num_chunks, "zero_stage": stage, "sequence_parallel": sequence_parallel}
    split = Parallel(data=axes.data * axes.expert, **sizes, **others)
    data, how = config.data, dict[str, Any](precision=config.precision.products, optimizer=config.optimizer.name)
    how |= {"recompute": config.memory.recompute, "schedule": axes.schedule}
    how |= {"micro_batch": data.micro_batch, "seq_len": data.seq_len}
    # An order with experts and context ranks is none of the planner's.
    how["order"] = [axis for axis in _ORDER if axis != "expert" or axes.context == 1]
    return predict(model, cluster, split, data.batch_size, **how)


@checked
def simulate_step(config: TrainConfig, cluster: str, gpus: Count) -> StepCost:
    """Simulate steps of the trainer on shapes; deterministic. ValueError as `TrainConfig.on`; LaunchError."""
    if (count := config.model.num_layers) > _MOST_LAYERS:
        rule = f"model.num_layers must be at most {_MOST_LAYERS:,} for a simulation"
        raise ValueError(f"{rule}: got {count}; make the layers wider")
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
    axes, count, where = config.parallel, _num_batches(config), (cluster, gpus)
    if axes.context > 1 and axes.pipeline == axes.num_chunks == 1 and axes.zero_stage < 2:
        for layers in (8, 16, 32):
            if layers < config.model.num_layers and (cost := _of_few_layers(config, layers, *where)) is not None:
                return cost
    few, more = 2 * axes.pipeline, 3 * axes.pipeline
    if count <= more:
        return _step(config, *where).cost
    less, run = (_step(_with_batches(config, number), *where).cost for number in (few, more))
    further = (count - more) / (more - few)
    grown = max(0.0, run.memory_bytes - less.memory_bytes)
    step_s = run.step_s + further * (run.step_s - less.step_s)
    terms = {name: time_s + further * (time_s - less.terms[name]) for name, time_s in run.terms.items()}
    return StepCost(step_s, run.memory_bytes + further * grown, terms)


def _of_few_layers(config: TrainConfig, layers: int, cluster: str, gpus: int) -> StepCost | None:
    count, few = _num_batches(config), min(2, _num_batches(config))
    shallow = replace(_with_batches(config, few), model=replace(config.model, num_layers=layers))
    short = _step(shallow, cluster, gpus)
    rests = [_step(one, cluster, gpus, is_empty=True) for one in (shallow, config)]
    return extended(short, rests, (layers, config.model.num_layers), (few, count))


def _num_batches(config: TrainConfig) -> int:
    axes, data = config.parallel, config.data
    assert axes.data is not None and data.micro_batch is not None
    return data.batch_size // (axes.data * axes.expert * data.micro_batch)


def _with_batches(config: TrainConfig, number: int) -> TrainConfig:
    size = config.data.batch_size // _num_batches(config) * number
    return replace(config, data=replace(config.data, batch_size=size))


def _step(config: TrainConfig, cluster: str, gpus: int, is_empty: bool = False) -> SimulatedStep:
    """A simulated step; `is_empty`: of one rank, without micro-batches."""
    axes = config.parallel
    sizes: dict[str, Any] = {axis: getattr(axes, axis) for axis in _ORDER}
    mesh, others = Mesh(**sizes), product(range(axes.pipeline), range(axes.context))
    ranks = [mesh.rank(data=0, pipeline=stage, expert=0, context=part, tensor=0) for stage, part in others]
    where: dict[str, Any] = {"ranks": gpus, "cluster": cluster, "fidelity": "shapes"}
    simulate = ranks[:1] if is_empty else ranks
    run = launch(_two_steps, config, is_empty, **where, simulate=simulate if gpus > 1 else None)
    return SimulatedStep(run.timeline.without(_SETUP), run.memory)


def _two_steps(config: TrainConfig, is_empty: bool) -> None:
    replicas = 1 if config.parallel.is_mesh else dist.get_world_size()
    shape = (config.data.batch_size // replicas, config.data.seq_len)
    with phase(_SETUP):
        trainer = build(config, loader=_Zeros(*shape))
        # On a mesh the memory after a step does not depend on its micro-batches.
        with _empty(trainer.step):
            trainer.train_step()
        dist.barrier()
    with _empty(trainer.step) if is_empty else nullcontext():
        trainer.train_step()


@contextmanager
def _empty(of: Any) -> Iterator[None]:
    """Steps of a mesh at stage 1 without micro-batches: all gradients are zero. Other steps stay as they are."""

    def step(*_: Any, on_gradients: Callable[[int], Any]) -> list[torch.Tensor]:
        for number in of.combined.pipeline.pieces:
            on_gradients(number)
        return []

    can_be_empty = isinstance(of, MeshStep) and of.combined.how.zero_stage == 1
    with replaced((of.combined.pipeline, "step", step)) if can_be_empty else nullcontext():
        yield


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
