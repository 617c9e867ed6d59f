"""Predictions of many plans: a column for each quantity, and each plan in full on demand."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from lablib.cost.arrays import Array, is_array, np
from lablib.plan.arguments import setup_of
from lablib.plan.parallel import Parallel
from lablib.plan.predict import predict
from lablib.plan.prediction import Prediction
from lablib.plan.rules import RULES
from lablib.plan.setup import Setup
from lablib.signature import WrongType, shown
from lablib.text.units import plural

NUMBERS = (
    *("data", "tensor", "pipeline", "context", "expert", "expert_tensor", "chunks", "replicas"),
    *("micro_batch", "batch", "seq_len"),
)
# Choices: the fields of `Parallel`, and the others.
SPLIT = ("zero_stage", "sequence_parallel", "reshard_after_forward")
OUTSIDE = ("precision", "recompute", "schedule", "optimizer", "stack", "compression")


class PlanColumn(NamedTuple):
    """A choice of each of many plans: the distinct values, and the index of each plan's value."""

    values: tuple[Any, ...]
    codes: Array

    @staticmethod
    def of(given: Any) -> "PlanColumn":
        """From a column, an array or list of values, or one value for all."""
        if isinstance(given, PlanColumn):
            return given
        if is_array(given) and not given.ndim:
            given = given.item()
        if not isinstance(given, (np.ndarray, list)):
            if not isinstance(given, Hashable):
                raise WrongType(f"a choice of all plans is a name, a number or a record: got {shown(given)}")
            return PlanColumn((given,), np.zeros(1, np.intp))
        seen: dict[Any, int] = {}
        items = given.tolist() if isinstance(given, np.ndarray) else given
        try:
            codes = np.array([seen.setdefault(item, len(seen)) for item in items], np.intp)
        except TypeError:
            raise WrongType(f"a choice of each plan is a name or a number: got {shown(given)}; try one value") from None
        return PlanColumn(tuple(seen), codes)

    def __getitem__(self, i: Any) -> Any:
        return self.values[self.codes[i]]


def setup_of_choices(fixed: Mapping[str, Any], values: Mapping[str, Any]) -> Setup:
    """The setup of plans with the same choices, with one rank for now. Raises ValueError for invalid choices."""
    split = {name: values[name] for name in SPLIT}
    if split["sequence_parallel"] is None:
        split["sequence_parallel"] = True  # on where tensor > 1; elsewhere it divides by 1
    others = dict(fixed)
    parallel = Parallel(**split, zero_plus_plus=others.pop("zero_plus_plus"))
    return setup_of(parallel=parallel, **others, **{name: values[name] for name in OUTSIDE})


@dataclass(frozen=True, repr=False)
class Predictions:
    """Predicted time and memory of many plans. Arrays have one entry per plan; NaN if a plan is impossible."""

    numbers: Mapping[str, Array]  # name -> array: the split, micro_batch, batch, seq_len
    choices: Mapping[str, PlanColumn]  # name -> `PlanColumn`
    fixed: Mapping[str, Any]  # arguments that all plans share
    step_time_s: Array  # seconds of one step
    tokens_per_s: Array  # on all GPUs
    mfu: Array  # mfu, hfu: shares of the peak
    hfu: Array
    peak_memory_bytes: Array  # of the fullest stage
    bubble_fraction: Array  # share of the pipeline's time in which the busiest stage waits
    exposed_s: Mapping[str, Array]  # axis -> seconds per step of communication that nothing hides
    obstacle: Array  # number of the first rule of rules.py that a plan breaks; -1: it is possible
    memory_limit_bytes: float  # memory of one GPU without the driver

    def __len__(self) -> int:
        return len(self.step_time_s)

    @property
    def is_possible(self) -> Array:
        """Whether a plan breaks no rule; it may still not fit."""
        return self.obstacle < 0

    @property
    def fits(self) -> Array:
        """Whether the fullest stage is within the GPU's memory; False if a plan is impossible."""
        return self.over_bytes <= 0

    @property
    def over_bytes(self) -> Array:
        """Bytes of the fullest stage beyond the GPU's memory; below 0 if it fits."""
        return self.peak_memory_bytes - self.memory_limit_bytes

    @property
    def num_gpus(self) -> Array:
        """GPUs of each plan."""
        n = self.numbers
        return n["data"] * n["tensor"] * n["pipeline"] * n["context"]

    def arguments(self, i: int) -> dict[str, Any]:
        """The keyword arguments of `predict` for plan `i`. Raises ValueError where `Parallel` refuses it."""
        given: dict[str, Any] = {name: int(column[i]) for name, column in self.numbers.items()}
        given |= {name: column[i] for name, column in self.choices.items()}
        outside = {name: given.pop(name) for name in tuple(given) if name in (*NUMBERS[8:], *OUTSIDE)}
        if given["expert_tensor"] == given["tensor"]:
            given["expert_tensor"] = None
        parallel = Parallel(**given, zero_plus_plus=self.fixed["zero_plus_plus"])
        others = {name: value for name, value in self.fixed.items() if name != "zero_plus_plus"}
        return {**others, "parallel": parallel, **outside}

    def __getitem__(self, i: int) -> Prediction:
        """The full prediction of one plan. Raises ValueError, with the reason, if it is impossible."""
        if not -len(self) <= i < len(self):
            raise IndexError(f"there are {len(self)} plans: got {i}")
        return predict(**self.arguments(i))

    def __iter__(self) -> Iterator[Prediction]:
        return (self[i] for i in range(len(self)))

    def reason(self, i: int) -> str:
        """Why plan `i` is impossible, with the remedy; empty if it is possible."""
        if self.obstacle[i] < 0:
            return ""
        setup = setup_of_choices(self.fixed, {name: column[i] for name, column in self.choices.items()})
        setup = replace(setup, **{name: int(column[i]) for name, column in self.numbers.items()})
        return RULES[self.obstacle[i]].sentence(setup)

    def __repr__(self) -> str:
        possible, fits = int(self.is_possible.sum()), int(self.fits.sum())
        return f"Predictions({plural(len(self), 'plans')}: {possible} possible, {fits} fit)"
