"""A search for the page: plan after plan in slices of time, with its progress, so that it can be ended at any moment.

The grid of lablib/plan/search_grid.py, in plain Python, for the schedule and the GPUs of the settings. Where
numpy is loaded, `search` predicts the same grid at once.
"""

import time
from collections.abc import Iterator
from itertools import product
from typing import Any

from lablib.cost.arrays import has_numpy
from lablib.hardware.catalogue import find_cluster
from lablib.pipeline.closed_form import V_SHAPED
from lablib.plan.arguments import find_model
from lablib.plan.parallel import SHARDING, Parallel
from lablib.plan.predict import predict
from lablib.plan.prediction import Prediction
from lablib.plan.rules import CHUNKED
from lablib.plan.search import search
from lablib.plan.search_grid import MICRO_BATCHES, RECOMPUTE
from lablib.plan.search_result import row_of
from lablib.site.settings import Settings, arguments

_TOP = 10
_MIN_TOKENS, _MAX_CHUNKS = 1024, 12  # as in search_grid.py


class Search:
    """A search that goes on for some seconds at a time.

    Arguments:
        settings: of the page; the split, the micro-batch and the recomputation are searched.
        at_once: whether arrays are used.

    Raises:
        ValueError: settings that are no plan.
    """

    def __init__(self, settings: Settings, at_once: bool | None = None):
        self._fixed = arguments(settings)
        self._at_once = has_numpy() if at_once is None else at_once
        self._grid = [] if self._at_once else list(grid(self._fixed))
        self._done = self._possible = 0
        self._fit: list[Prediction] = []

    def go_on(self, seconds: float) -> dict[str, Any]:
        """Predict for so many seconds: plans done, all, possible and fitting; rows of the fastest."""
        if self._at_once:
            return self._all()
        end = time.monotonic() + seconds
        while self._done < len(self._grid) and time.monotonic() < end:
            split, others = self._grid[self._done]
            self._done += 1
            try:
                found = predict(**{**self._fixed, **others, "parallel": Parallel(**split)})
            except ValueError:
                continue
            self._possible += 1
            if found.fits:
                self._fit.append(found)
        self._fit.sort(key=lambda each: (each.step_time_s, each.peak_memory_bytes))
        return self._answer(self._done, len(self._grid), self._possible, len(self._fit), _different(self._fit))

    def _all(self) -> dict[str, Any]:
        fixed, split = dict(self._fixed), self._fixed["parallel"]
        gpus, schedule = _gpus(split), fixed.pop("schedule")
        for name in ("parallel", "micro_batch", "recompute"):
            del fixed[name]
        found = search(fixed.pop("model"), fixed.pop("cluster"), gpus=gpus, schedule=_schedules(schedule), **fixed)
        plans = found.plans
        possible = int(plans.is_possible.sum())
        return self._answer(len(plans), len(plans), possible, len(found.order), found.top(_TOP))

    def _answer(self, done: int, total: int, possible: int, fit: int, top: list[Prediction]) -> dict[str, Any]:
        rows = [row_of(each) | {"parallel": str(each.parallel)} for each in top]
        return {"done": done, "total": total, "possible": possible, "fit": fit, "rows": rows}


def grid(fixed: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The plans of a search: the arguments of `Parallel`, and the others."""
    model, cluster = find_model(fixed["model"]), find_cluster(fixed["cluster"])
    total = _gpus(fixed["parallel"])
    divisors = [n for n in range(1, total + 1) if total % n == 0]
    num_experts = model.experts.num_experts if model.experts else 1
    longest = max(1, (fixed["seq_len"] or model.max_seq_len) // _MIN_TOKENS)
    splits = product(
        [n for n in divisors if n <= cluster.devices_per_node],
        [n for n in divisors if n <= model.num_layers],
        [n for n in divisors if n <= longest],
        [n for n in range(1, num_experts + 1) if num_experts % n == 0],
        (None, 1) if model.experts else (None,),
    )
    pairs = _pairs(_schedules(fixed["schedule"]), model.num_layers)
    for tensor, pipeline, context, expert, expert_tensor in splits:
        data, left = divmod(total, tensor * pipeline * context)
        if left or (tensor == 1 and expert_tensor == 1):
            continue
        split = {"data": data, "tensor": tensor, "pipeline": pipeline, "context": context, "expert": expert}
        ranks, shared = data * context, expert * (expert_tensor or tensor)
        is_alone = ranks == 1 and tensor * ranks == shared  # no rank shares a state, nor experts
        stages = [stage for stage in SHARDING if not (is_alone and stage) and not (pipeline > 1 and stage == 2)]
        fitting = [(name, n) for name, n in pairs if n == 1 or model.num_layers % (pipeline * n) == 0]
        one = [(pairs[0][0], 1)]
        points = product(one if pipeline == 1 else fitting, MICRO_BATCHES, stages, RECOMPUTE)
        for (schedule, chunks), micro_batch, stage, recompute in points:
            others = {"schedule": schedule, "micro_batch": micro_batch, "recompute": recompute}
            yield split | {"chunks": chunks, "zero_stage": stage, "expert_tensor": expert_tensor}, others


def _gpus(split: Parallel) -> int:
    return split.data * split.tensor * split.pipeline * split.context


def _schedules(chosen: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(("1f1b", chosen)))  # a single stage has 1F1B


def _pairs(schedules: tuple[str, ...], num_layers: int) -> list[tuple[str, int]]:
    """Schedules with the pieces per stage that each may have."""
    many = range(2, min(_MAX_CHUNKS, num_layers) + 1)
    return [(name, n) for name in schedules for n in ([2] if name in V_SHAPED else many if name in CHUNKED else [1])]


def _different(ordered: list[Prediction]) -> list[Prediction]:
    """The first plans; of several with the same time and memory, the first."""
    found: list[Prediction] = []
    for each in ordered:
        if len(found) == _TOP:
            break
        if (
            not found
            or _differs(each.step_time_s, found[-1].step_time_s)
            or _differs(each.peak_memory_bytes, found[-1].peak_memory_bytes)
        ):
            found.append(each)
    return found


def _differs(a: float, b: float) -> bool:
    return abs(a - b) > 1e-9 * a
