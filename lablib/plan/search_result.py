"""Result of a search: the fastest plans, the trade of time for memory, and the rejected plans with their reasons."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from lablib.cost.arrays import Array, np
from lablib.plan.prediction import Prediction
from lablib.plan.predictions import Predictions
from lablib.plan.rules import RULES
from lablib.record.draw import draw
from lablib.text.markup import paragraph, table_html
from lablib.text.units import format_quantity, plural

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

MEMORY = "memory"  # the reason for possible plans that do not fit


class Rejection(NamedTuple):
    """A rejected plan: its number, the rule's name or "memory", and the message."""

    plan: int
    kind: str
    reason: str


@dataclass(frozen=True, repr=False)
class Rejected:
    """The plans that are not possible or do not fit. Messages are made on demand."""

    plans: Predictions
    which: Array

    def __len__(self) -> int:
        return len(self.which)

    def __getitem__(self, k: int) -> Rejection:
        if not -len(self) <= k < len(self):
            raise IndexError(f"{len(self)} plans were rejected: got {k}")
        i = int(self.which[k])
        return Rejection(i, self._kinds[self.plans.obstacle[i]], self.plans.reason(i) or _too_much(self.plans, i))

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of rejections for each reason, the most frequent first."""
        numbers, counts = np.unique(self.plans.obstacle[self.which], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return {self._kinds[int(numbers[k])]: int(counts[k]) for k in order}

    def examples(self) -> dict[str, Rejection]:
        """One rejection per reason; for memory, the one that needs least."""
        found = {}
        for kind in self.counts:
            number = self._kinds.index(kind) if kind != MEMORY else -1
            of_kind = np.flatnonzero(self.plans.obstacle[self.which] == number)
            nearest = np.argmin(self.plans.over_bytes[self.which[of_kind]]) if kind == MEMORY else 0
            found[kind] = self[int(of_kind[nearest])]
        return found

    @property
    def _kinds(self) -> tuple[str, ...]:
        return (*(rule.name for rule in RULES), MEMORY)  # obstacle -1 is the last

    def __repr__(self) -> str:
        return f"Rejected({plural(len(self), 'plans')}: {self.counts})"


@dataclass(frozen=True, repr=False)
class SearchResult:
    """Result of a search."""

    plans: Predictions  # all plans that were tried
    order: Array  # numbers of those that fit, the fastest first (of equally fast ones, the smallest)

    @property
    def best(self) -> Prediction:
        """The fastest plan that fits. If none does: a ValueError with the bytes that the nearest lacks."""
        if not len(self.order):
            raise ValueError(self.sentence())
        return self.plans[int(self.order[0])]

    def top(self, n: int = 10) -> list[Prediction]:
        """The fastest plans that fit; of several with the same time and memory, the first."""
        pairs = np.stack([self.plans.step_time_s[self.order], self.plans.peak_memory_bytes[self.order]])
        is_new = np.ones(len(self.order), bool)
        is_new[1:] = (np.abs(np.diff(pairs)) > 1e-9 * pairs[:, 1:]).any(axis=0)
        return [self.plans[int(i)] for i in self.order[is_new][:n]]

    @cached_property
    def pareto(self) -> tuple[Prediction, ...]:
        """The plans that fit and that no other is both as fast and as small as; the fastest first."""
        peak = self.plans.peak_memory_bytes[self.order]
        is_smallest_so_far = peak < np.minimum.accumulate(np.concatenate(([np.inf], peak)))[:-1]
        return tuple(self.plans[int(i)] for i in self.order[is_smallest_so_far])

    @cached_property
    def rejected(self) -> Rejected:
        """The plans that are not possible, or do not fit."""
        return Rejected(self.plans, np.flatnonzero(~self.plans.fits))

    @cached_property
    def nearest(self) -> Prediction | None:
        """The possible plan that is least beyond the memory; None if a plan fits, or no plan is possible."""
        if len(self.order) or not self.plans.is_possible.any():
            return None
        return self.plans[int(np.nanargmin(self.plans.over_bytes))]

    def figure(self) -> "go.Figure":
        """Every possible plan in time and memory, whether it fits, and the Pareto front."""
        return draw("figure_predictions", self.plans)

    def table(self, n: int = 10) -> "pd.DataFrame":
        """The fastest plans, one row each."""
        import pandas as pd

        return pd.DataFrame([row_of(prediction) for prediction in self.top(n)])

    def sentence(self) -> str:
        """The result in one sentence."""
        tried = f"{plural(len(self.plans), 'plans')} tried, {int(self.plans.is_possible.sum()):,} possible"
        if len(self.order):
            return f"{tried}, {len(self.order):,} fit; the best: {self.best.sentence()}"
        if self.nearest is None:
            example = next(iter(self.rejected.examples().values()))
            return f"{tried}: {example.reason}."
        i = int(np.nanargmin(self.plans.over_bytes))
        nearest = f"the nearest ({self.nearest.parallel}) {_too_much(self.plans, i)}"
        return f"{tried}, none fits; {nearest}. Software: {self.nearest.software}."

    def __repr__(self) -> str:
        return f"SearchResult({self.sentence()})"

    def _repr_html_(self) -> str:
        said = [self.sentence(), *([self.best.evidence_sentence()] if len(self.order) else [])]
        return "".join(map(paragraph, said)) + table_html(self.table(), float_format="{:.4g}".format)


def row_of(prediction: Prediction) -> dict[str, Any]:
    """One plan as a row of a table."""
    p = prediction.parallel
    axes = {name: getattr(p, name) for name in ("data", "tensor", "pipeline", "context", "expert")}
    return {
        **axes,
        "expert_tensor": p.expert_tensor_ranks,
        "chunks": p.chunks,
        "schedule": prediction.schedule,
        "software": str(prediction.software),
        "micro_batch": prediction.micro_batch,
        "zero_stage": p.zero_stage,
        "recompute": prediction.recompute,
        "step_time_s": prediction.step_time_s,
        "tokens_per_s": prediction.tokens_per_s,
        "mfu": prediction.mfu,
        "bubble_fraction": prediction.bubble_fraction,
        "peak_memory_bytes": prediction.peak_memory_bytes,
        "is_tight": prediction.is_tight,
        "bound_by": bound_by(prediction),
    }


def bound_by(prediction: Prediction, n: int = 2) -> str:
    """The parts that take most of a step."""
    parts = sorted(prediction.parts.items(), key=lambda part: -part[1])[:n]
    return ", ".join(f"{name} {seconds / prediction.step_time_s:.0%}" for name, seconds in parts)


def _too_much(plans: Predictions, i: int) -> str:
    needs, has = plans.peak_memory_bytes[i], plans.memory_limit_bytes
    return (
        f"needs {format_quantity(needs, 'B')} of {format_quantity(has, 'B')} a GPU: "
        f"{format_quantity(needs - has, 'B')} too much"
    )
