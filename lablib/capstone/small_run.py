"""The small run: trained for real, with parts of the learner's where there are some.

    run = train_small(report, "gloo", Parts(schedule=wsd, all_reduce=ring_all_reduce))

Parts have the signatures of the exercises in which learners write them:

    schedule             wsd(step, num_steps, num_warmup, num_decay)                    lab 04
    optimizer_step       adamw_step(w, g, state, lr, betas, eps, decay), in place       lab 05
    all_reduce           ring_all_reduce(tensor), a sum in place                        lab 08
    average_gradients    average_gradients(module), after backward                      lab 09

The trainer is lablib/train's with these parts instead of its own. gloo measures no memory: the number comes from the
same configuration on the simulator, where every allocation is counted.

Cost: the run's; on gloo a few seconds to start.
Simplified: `all_reduce` and `average_gradients` run after backward, without overlap; on data ranks without ZeRO only.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib.capstone.large_run import simulate_step
from lablib.capstone.lock import checked_lock, now
from lablib.capstone.quantities import median_step_s
from lablib.capstone.report import Report, SmallRun
from lablib.data import Batch
from lablib.launch import launch
from lablib.signature import checked
from lablib.train.build import build, make_loader, make_model, make_optimizer, make_scaler, make_schedule
from lablib.train.config import TrainConfig
from lablib.train.steps import ReplicaStep
from lablib.train.trainer import Metrics, Trainer

# For each part the lab and the exercise in which learners write it.
ANSWERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "schedule": ("04", "wsd"),
        "optimizer_step": ("05", "adamw_step"),
        "all_reduce": ("08", "ring_all_reduce"),
        "average_gradients": ("09", "average_gradients"),
    }
)


@dataclass(frozen=True)
class Parts:
    """Functions of the learner's; None: the library's."""

    schedule: Callable[[int, int, int, int], float] | None = None
    optimizer_step: Callable[..., Any] | None = None
    all_reduce: Callable[[Tensor], Any] | None = None
    average_gradients: Callable[[nn.Module], Any] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in fields(self) if getattr(self, one.name) is not None)


@checked
def train_small(report: Report, backend: str = "gloo", parts: Parts | None = None) -> SmallRun:
    """Train the report's small configuration on its ranks.

    ValueError: predictions that are not locked, parts that the configuration cannot take. LaunchError: the run failed.
    """
    lock, at = checked_lock(report), now()
    parts, config = parts or Parts(), report.small.on(report.small_ranks)
    check_parts(config, parts)
    found: list[Metrics] = launch(_train, config, parts, ranks=report.small_ranks, backend=backend).values[0]
    return SmallRun(
        at=at,
        sha256=lock.sha256,
        backend=backend,
        step_s=round(median_step_s([each["step_s"] for each in found]), 6),
        memory_bytes=simulate_step(report.small, "laptop", report.small_ranks).memory_bytes,
        losses=tuple(round(each["loss"], 5) for each in found),
        own_code=parts.names,
    )


@checked
def parts_that_fit(report: Report, own: Mapping[str, Callable[..., Any]]) -> tuple[Parts, list[str]]:
    """Parts that the small configuration can take, one of the two averages, and a note for each that is left out."""
    config, kept, notes = report.small.on(report.small_ranks), dict[str, Callable[..., Any]](), list[str]()
    for name in ANSWERS:
        if name in own:
            try:
                check_parts(config, Parts(**{**kept, name: own[name]}))
                kept[name] = own[name]
            except ValueError as error:
                notes.append(f"{ANSWERS[name][1]} of lab {ANSWERS[name][0]} is left out: {error}")
    return Parts(**kept), notes


def check_parts(config: TrainConfig, parts: Parts) -> None:
    """Raise ValueError for a part that the configuration cannot take."""
    axes = config.parallel
    for part, name, wanted, words in (
        (parts.optimizer_step, "name", "adamw", "an optimizer step of lab 05"),
        (parts.schedule, "schedule", "wsd", "a schedule of lab 04"),
    ):
        if part and (got := getattr(config.optimizer, name)) != wanted:
            rule = f"optimizer.{name} must be {wanted} for {words}"
            raise ValueError(f'{rule}: got {got}; try small.optimizer.{name}="{wanted}"')
    if parts.all_reduce and parts.average_gradients:
        raise ValueError("a run has one of all_reduce and average_gradients: got both; leave one out")
    plain = (axes.model_ranks, axes.expert, axes.zero_stage, config.memory.recompute) == (1, 1, 0, "none")
    if (parts.all_reduce or parts.average_gradients) and not plain:
        raise ValueError(
            "an all-reduce of yours needs plain data parallelism without recomputation: got "
            f"zero_stage {axes.zero_stage}, {axes.model_ranks} model ranks, recompute {config.memory.recompute}; "
            "leave the part out, or try small.parallel.zero_stage=0"
        )


def _train(config: TrainConfig, parts: Parts) -> list[Metrics]:
    found: list[Metrics] = []
    _trainer(config, parts, [found.append]).train(config.num_steps)
    return found


def _trainer(config: TrainConfig, parts: Parts, on_step: Iterable[Callable[[Metrics], Any]]) -> Trainer:
    rate = config.optimizer
    schedule, optimizer_fn = make_schedule(config), make_optimizer(rate)
    if parts.schedule:
        sizes = (rate.schedule_steps or config.num_steps, rate.num_warmup, rate.num_decay)
        schedule = partial(_factor, parts.schedule, *sizes)
    if parts.optimizer_step:
        optimizer_fn = partial(OwnOptimizer, step=parts.optimizer_step, rate=rate)
    average = parts.average_gradients or (partial(_averaged_by, parts.all_reduce) if parts.all_reduce else None)
    if average is None:
        return build(config, optimizer_fn=optimizer_fn, schedule=schedule, on_step=on_step)
    products = None if config.precision.products == "float32" else getattr(torch, config.precision.products)
    model = make_model(config)
    step = AveragedStep(model, optimizer_fn(list(model.parameters())), config.data.micro_batch, products, average)
    parts_of_run = {"schedule": schedule, "scaler": make_scaler(config.precision), "max_norm": rate.max_norm}
    return Trainer(step, make_loader(config), on_step=on_step, **parts_of_run)


def _factor(of: Callable[[int, int, int, int], float], *sizes_and_step: int) -> float:
    *sizes, step = sizes_and_step
    return of(step, *sizes)


class AveragedStep(ReplicaStep):
    """`ReplicaStep` of a plain model, with the gradients averaged by a function after backward."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        micro_batch: int | None,
        products: torch.dtype | None,
        average: Callable[[nn.Module], Any],
    ):
        module: Any = model
        module.no_sync = nullcontext  # there is nothing to hold back
        super().__init__(model, optimizer, micro_batch, products)
        self.average = average

    def backward(self, batch: Batch, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        found = super().backward(batch, scale)
        with torch.no_grad():
            self.average(self.model)
        return found


def _averaged_by(all_reduce: Callable[[Tensor], Any], module: nn.Module) -> None:
    for param in module.parameters():
        if param.grad is not None:
            param.grad.div_(dist.get_world_size())
            all_reduce(param.grad)


class OwnOptimizer(torch.optim.Optimizer):
    """An optimizer of torch's kind around one update of lab 05."""

    def __init__(self, params: Any, step: Callable[..., Any], rate: Any):
        super().__init__(params, {"lr": rate.lr})
        self.own_step, self.rate = step, rate

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state.update({"t": 0, "m": torch.zeros_like(param), "v": torch.zeros_like(param)})
                rule = (group["lr"], self.rate.betas, self.rate.eps, self.rate.weight_decay)
                self.own_step(param, param.grad, state, *rule)
