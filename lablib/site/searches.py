"""A search for the page: plans in slices of time, with its progress, so that it can be ended at any moment.

The grid of lablib/plan/search_grid.py as plain Python, one plan after the other: first with 1F1B and the schedule of
the settings, then with the other schedules that the planner prices. A slice predicts plan after plan, or blocks of
plans where numpy is loaded. The fastest plans are then predicted one by one: the same numbers either way, to the bit.

Of several plans with the same time and memory, to 9 digits, the first in the grid counts.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice, product
from typing import Any, NamedTuple

from lablib.cost.arrays import has_numpy
from lablib.hardware.catalogue import find_cluster
from lablib.models.transformer import Transformer
from lablib.pipeline.closed_form import V_SHAPED, WITH_CLOSED_FORM
from lablib.plan.arguments import find_model, setup_of
from lablib.plan.memory import peak_bytes
from lablib.plan.parallel import SHARDING, Parallel
from lablib.plan.predict import predict
from lablib.plan.predict_many import predict_many
from lablib.plan.rules import CHUNKED, RULES
from lablib.plan.search import possible_stages
from lablib.plan.search_grid import MICRO_BATCHES, RECOMPUTE
from lablib.plan.search_result import row_of
from lablib.plan.setup import Setup
from lablib.plan.step import step_of
from lablib.site.settings import ALL, Settings, arguments

_TOP = 10
_BLOCK = 4096
_NUMBERS = ("data", "tensor", "pipeline", "context", "expert", "chunks", "micro_batch")
_MIN_TOKENS, _MAX_CHUNKS = 1024, 12  # as in search_grid.py
Plan = dict[str, Any]  # the arguments of `Parallel`, and schedule, micro_batch and recompute
_Key = tuple[float, ...]


class Search:
    """A search that goes on for some seconds at a time.

    Arguments:
        settings: of the page; the split, micro-batch, recomputation and schedule are searched.
        at_once: whether plans are predicted in blocks, by numpy; None: where it is loaded.

    Raises:
        ValueError: settings that are no plan.
    """

    def __init__(self, settings: Settings, at_once: bool | None = None):
        self._fixed = arguments(settings)
        self._block = _BLOCK if (has_numpy() if at_once is None else at_once) else 1
        cells = list(_cells(self._fixed, settings["schedules"] == ALL))
        self._total = sum(cell.size for cell in cells)
        self._left = chain.from_iterable(cell.plans() for cell in cells)
        self._choices = {key: self._setup_of(*key) for key in _choices(cells)}
        machine = next(iter(self._choices.values())).machine
        self._limit_bytes = machine.device.memory_bytes - machine.derating.driver_bytes
        self._done = self._possible = self._fit = 0
        self._best: dict[_Key, Plan] = {}
        self._rows: dict[_Key, dict[str, Any]] = {}

    def _setup_of(self, schedule: str, zero_stage: int, recompute: str) -> Setup:
        """The setup of all plans with these choices, for one rank. Raises ValueError if they exclude each other."""
        others = {**self._fixed, "schedule": schedule, "recompute": recompute}
        return setup_of(**{**others, "parallel": Parallel(zero_stage=zero_stage, sequence_parallel=True)})

    def go_on(self, seconds: float) -> dict[str, Any]:
        """Predict for so many seconds: plans done, all, possible and fitting; rows of the fastest."""
        end = time.monotonic() + seconds
        while plans := list(islice(self._left, self._block)):
            self._done += len(plans)
            (self._predict if self._block == 1 else self._predict_many)(plans)
            if time.monotonic() >= end:
                break
        counts = {"done": self._done, "total": self._total, "possible": self._possible, "fit": self._fit}
        return counts | {"rows": [self._row(key) for key in sorted(self._best)]}

    def _predict(self, plans: list[Plan]) -> None:
        """As `predict_many`: only the time of a step, and the memory of the fullest stage."""
        for plan in plans:
            choices = self._choices[plan["schedule"], plan["zero_stage"], plan["recompute"]]
            expert_tensor = plan["expert_tensor"] or plan["tensor"]
            setup = replace(choices, **{name: plan[name] for name in _NUMBERS}, expert_tensor=expert_tensor)
            if any(rule.is_broken(setup) for rule in RULES):
                continue
            step = step_of(setup)
            peak = peak_bytes(setup, step)
            self._possible += 1
            if peak <= self._limit_bytes:
                self._fit += 1
                self._keep(plan, step.step_s, peak)

    def _predict_many(self, plans: list[Plan]) -> None:
        columns: dict[str, Any] = {name: [plan[name] for plan in plans] for name in plans[0]}
        columns["expert_tensor"] = [plan["expert_tensor"] or plan["tensor"] for plan in plans]
        fixed = {name: value for name, value in self._fixed.items() if name not in ("parallel", *columns)}
        found = predict_many(**fixed, **columns)
        self._possible += int(found.is_possible.sum())
        for i in found.fits.nonzero()[0]:
            self._fit += 1
            self._keep(plans[i], float(found.step_time_s[i]), float(found.peak_memory_bytes[i]))

    def _keep(self, plan: Plan, *numbers: float) -> None:
        """Keep a plan if it is one of the fastest; of equal ones the first."""
        key = tuple(float(f"{number:.8e}") for number in numbers)
        self._best.setdefault(key, plan)
        if len(self._best) > _TOP:
            del self._best[max(self._best)]

    def _row(self, key: _Key) -> dict[str, Any]:
        if key not in self._rows:
            split = dict(self._best[key])
            others = {name: split.pop(name) for name in ("schedule", "micro_batch", "recompute")}
            found = predict(**{**self._fixed, **others, "parallel": Parallel(**split)})
            self._rows[key] = row_of(found) | {"parallel": str(found.parallel)}
        return self._rows[key]


class _Cell(NamedTuple):
    """A split with one schedule: its plans differ in chunks, micro-batch, ZeRO stage and recomputation."""

    split: Plan
    schedule: str
    chunks: list[int]
    stages: list[int]

    @property
    def size(self) -> int:
        return len(self.chunks) * len(MICRO_BATCHES) * len(self.stages) * len(RECOMPUTE)

    def plans(self) -> Iterator[Plan]:
        for chunks, micro_batch, stage, recompute in product(self.chunks, MICRO_BATCHES, self.stages, RECOMPUTE):
            others = {"micro_batch": micro_batch, "zero_stage": stage, "recompute": recompute}
            yield {**self.split, "schedule": self.schedule, "chunks": chunks, **others}


def _choices(cells: list[_Cell]) -> dict[tuple[str, int, str], None]:
    """Schedule, ZeRO stage and recomputation of all plans, each once."""
    pairs = dict.fromkeys((cell.schedule, stage) for cell in cells for stage in cell.stages)
    return dict.fromkeys((*pair, recompute) for pair in pairs for recompute in RECOMPUTE)


def _cells(fixed: dict[str, Any], has_all: bool) -> Iterator[_Cell]:
    """The cells of a search, first those of 1F1B and of the chosen schedule. A single stage has 1F1B."""
    model = find_model(fixed["model"])
    given = possible_stages({"stack": fixed["stack"]})
    splits = list(_splits(model, fixed))
    for schedule in dict.fromkeys(("1f1b", fixed["schedule"], *(WITH_CLOSED_FORM if has_all else ()))):
        many = range(2, min(_MAX_CHUNKS, model.num_layers) + 1)
        counts = [2] if schedule in V_SHAPED else many if schedule in CHUNKED else [1]
        for split in splits:
            pipeline = split["pipeline"]
            if pipeline == 1 and schedule != "1f1b":
                continue
            ranks, shared = (
                split["data"] * split["context"],
                split["expert"] * (split["expert_tensor"] or split["tensor"]),
            )
            is_alone = ranks == 1 and split["tensor"] * ranks == shared  # no rank shares a state, nor experts
            stages = given or SHARDING
            stages = [stage for stage in stages if not (is_alone and stage > min(stages))]
            stages = [stage for stage in stages if given or pipeline == 1 or stage != 2]
            chunks = [n for n in counts if n == 1 or model.num_layers % (pipeline * n) == 0]
            yield _Cell(split, schedule, chunks, stages)


def _splits(model: Transformer, fixed: dict[str, Any]) -> Iterator[Plan]:
    """Every split of the GPUs of the settings."""
    given: Parallel = fixed["parallel"]
    total = given.data * given.tensor * given.pipeline * given.context
    divisors = [n for n in range(1, total + 1) if total % n == 0]
    num_experts = model.experts.num_experts if model.experts else 1
    longest = max(1, (fixed["seq_len"] or model.max_seq_len) // _MIN_TOKENS)
    axes = product(
        [n for n in divisors if n <= find_cluster(fixed["cluster"]).devices_per_node],
        [n for n in divisors if n <= model.num_layers],
        [n for n in divisors if n <= longest],
        [n for n in range(1, num_experts + 1) if num_experts % n == 0],
        (None, 1) if model.experts else (None,),
    )
    for tensor, pipeline, context, expert, expert_tensor in axes:
        data, left = divmod(total, tensor * pipeline * context)
        if not left and not (tensor == 1 and expert_tensor == 1):
            split = {"data": data, "tensor": tensor, "pipeline": pipeline, "context": context}
            yield split | {"expert": expert, "expert_tensor": expert_tensor}
