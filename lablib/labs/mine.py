"""The learner's functions in place of the library's, in labs after those in which they were written.

    lab run 14 --mine, or LAB_MINE=1 lab open 14         then `from lablib.labs import lab14` puts them there

    lab  exercise          in place of                                                   in labs
    02   LossScaler        precision.loss_scaling.LossScaler: its unscale_ and update                17 18
    04   clip_shards       batches.clipping.clip_grad_norm_, of the trainer                             18
    08   ring_all_reduce   parallel.data.naive.average_gradients, its sums               09
    09   plan_buckets      parallel.data.bucketed.plan_buckets                           10 11          18
    09   average_gradients parallel.data.naive.average_gradients                                     17
    13   one_f_one_b       pipeline.schedules.SCHEDULES, its "1f1b"                            14 16    18
    13   split_layers      pipeline.balance.balanced_cut                                       14 16    18
    14   groups            parallel.mesh.mesh.Mesh.group_of, along one axis                 15    16    18

The functions come from work/mine (course/mine.py). Each is checked first; one that does not pass today is left out with
a message. A function of the library is replaced under each name that a module of lablib has for it, in this process:
simulated ranks are its threads. Ranks of gloo and NCCL are other processes, and run the library's.
Simplified: a call that the exercise does not cover (two axes, several dtypes, gradients cut over ranks, a group) stays
the library's, and so does a loss scale with another rule than doubling and halving. Lab 18 also takes the parts of
capstone/small_run.py, in any case.
"""

import sys
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import wraps
from importlib import import_module
from itertools import accumulate, pairwise
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from lablib.course.answers import own_answers
from lablib.parallel.data.bucketed import BUCKET_BYTES
from lablib.parallel.data.naive import parameters_with_gradients
from lablib.pipeline.plan import Action, Plan


class StandIn(NamedTuple):
    """An exercise, the name in the library that it stands for, and the labs that use that name."""

    lab: str
    exercise: str
    module: str
    name: str
    labs: str
    adapt: Callable[[Callable[..., Any], Any], Any]  # (learner's, library's) -> learner's with the library's arguments


def put_in_place(lab: str) -> str:
    """Replace the functions that this lab calls; returns lines that name the learner's and the library's."""
    rows = [row for row in stand_ins() if lab in row.labs.split()]
    found, notes = own_answers({row.exercise: (row.lab, row.exercise) for row in rows})
    for row in rows:
        if row.exercise in found:
            _replace(row, found[row.exercise])
    own = ", ".join(dict.fromkeys(f"{row.exercise} (lab {row.lab})" for row in rows if row.exercise in found))
    return "\n".join([f"Your code on simulated ranks: {own}" if own else "Your code: none, the library's runs", *notes])


def _replace(row: StandIn, own: Callable[..., Any]) -> None:
    """Set each name in lablib that refers to the library's function."""
    home, _, name = row.name.rpartition(".")
    module = import_module(f"lablib.{row.module}")
    owner = getattr(module, home) if home else module
    library = getattr(owner, name)
    adapted = row.adapt(own, library)
    adapted = wraps(library)(adapted) if callable(library) else adapted
    setattr(owner, name, adapted)
    for each in [module for key, module in sys.modules.items() if key.split(".")[0] == "lablib"]:
        for key in [key for key, value in vars(each).items() if value is library]:
            setattr(each, key, adapted)


def stand_ins() -> list[StandIn]:
    """The table of this file's head."""
    return [
        StandIn("02", "LossScaler", "precision.loss_scaling", "LossScaler.unscale_", "17 18", _unscale_),
        StandIn("02", "LossScaler", "precision.loss_scaling", "LossScaler.update", "17 18", _update),
        StandIn("04", "clip_shards", "batches.clipping", "clip_grad_norm_", "18", _clip_grad_norm_),
        StandIn("08", "ring_all_reduce", "parallel.data.naive", "average_gradients", "09", _average_gradients),
        StandIn("09", "plan_buckets", "parallel.data.bucketed", "plan_buckets", "10 11 18", _plan_buckets),
        StandIn("09", "average_gradients", "parallel.data.naive", "average_gradients", "17", _average_in_one_group),
        StandIn("13", "one_f_one_b", "pipeline.schedules", "SCHEDULES", "14 16 18", _schedules),
        StandIn("13", "split_layers", "pipeline.balance", "balanced_cut", "14 16 18", _balanced_cut),
        StandIn("14", "groups", "parallel.mesh.mesh", "Mesh.group_of", "15 16 18", _group_of),
    ]


def _unscale_(own: Callable[..., Any], library: Any) -> Any:
    def unscale_(self: Any, optimizer: torch.optim.Optimizer) -> bool:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        is_plain = all(type(each) is torch.Tensor and each.dtype == torch.float32 for each in gradients)
        if self._group or self._overflows or not (is_plain and dist.is_initialized()):
            return library(self, optimizer)
        with torch.no_grad():
            skip = bool(own(self.loss_scale, self.rule.interval).unscale(gradients))
        self._overflows[optimizer] = skip
        return skip

    return unscale_


def _update(own: Callable[..., Any], library: Any) -> Any:
    def update(self: Any) -> None:
        rule, before, skip = self.rule, self.state, any(self._overflows.values())
        library(self)
        if (rule.growth, rule.backoff, rule.hysteresis) == (2, 0.5, 1):
            scaler = own(before.scale, rule.interval)
            scaler.good_steps = before.good_steps
            scaler.update(skip)
            scale = min(max(scaler.scale, rule.minimum), rule.maximum)
            self.state = replace(self.state, scale=scale, good_steps=scaler.good_steps)

    return update


def _clip_grad_norm_(own: Callable[..., Any], library: Any) -> Any:
    def clip_grad_norm_(params: Any, max_norm: float, **options: Any) -> Any:
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        gradients = [param.grad for param in params if param.grad is not None]
        is_plain = gradients and not options and all(type(each) is torch.Tensor for each in gradients)
        if not (is_plain and isfinite(max_norm) and dist.is_initialized()):
            return library(params, max_norm, **options)
        with torch.no_grad():
            return own([], gradients, max_norm)

    return clip_grad_norm_


def _average_gradients(own: Callable[..., Any], library: Any) -> Any:
    def average_gradients(module: torch.nn.Module, group: dist.ProcessGroup | None = None) -> None:
        for grad in [param.grad for param in parameters_with_gradients(module) if param.grad is not None]:
            own(grad.div_(dist.get_world_size(group)), group)

    return average_gradients


def _average_in_one_group(own: Callable[..., Any], library: Any) -> Any:
    def average_gradients(module: torch.nn.Module, group: dist.ProcessGroup | None = None) -> None:
        own(module) if group is None else library(module, group)

    return average_gradients


def _plan_buckets(own: Callable[..., Any], library: Any) -> Any:
    def plan_buckets(
        params: Sequence[torch.Tensor], bucket_bytes: int = BUCKET_BYTES, apart: Container[torch.Tensor] = ()
    ) -> list[list[int]]:
        if len({(param.dtype, param.device, param in apart) for param in params}) > 1:
            return library(params, bucket_bytes, apart)
        return own([param.nbytes for param in params], bucket_bytes)

    return plan_buckets


def _schedules(own: Callable[..., Any], library: Any) -> Any:
    def one_f_one_b(num_stages: int, num_microbatches: int) -> Plan:
        rows = [own(rank, num_stages, num_microbatches) for rank in range(num_stages)]
        actions = tuple(tuple(Action.parse(f"{rank}{text}") for text in row) for rank, row in enumerate(rows))
        return replace(library["1f1b"].plan(num_stages, num_microbatches), actions=actions)

    return MappingProxyType({**library, "1f1b": replace(library["1f1b"], plan=one_f_one_b)})


def _balanced_cut(own: Callable[..., Any], _: Any) -> Any:
    return lambda costs, pieces: tuple(range(*pair) for pair in pairwise([0, *accumulate(own(list(costs), pieces))]))


def _group_of(own: Callable[..., Any], library: Any) -> Any:
    def group_of(self: Any, rank: int, *axes: str) -> tuple[int, ...]:
        if len(axes) != 1 or axes[0] not in self.sizes or rank not in range(self.num_ranks):
            return library(self, rank, *axes)
        return next(tuple(group) for group in own(dict(self.sizes), axes[0]) if rank in group)

    return group_of
