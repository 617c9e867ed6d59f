"""All plans for a model on a cluster: the best, the trade between time and memory, and why the others are not possible.

    found = search("gpt3-175b", "dgx-a100", batch=1536, nodes=64)
    found.best           the fastest that fits
    found.pareto         plans than which none is both faster and smaller
    found.rejected       the others: what does not divide, and by how much what does not fit

A plan is a point of a grid: tensor, pipeline, context, expert ranks (data is what is left of the GPUs), micro-batch,
ZeRO stage, recomputation, schedule and pieces. The grid is made as arrays, and predict_many.py predicts it whole.

Values that are tried where none are given:

    tensor        divisors of the number of GPUs, up to a node's          micro_batch   1, 2, 4, 8, 16
    pipeline      divisors of the number of GPUs, up to the layers        zero_stage    0, 1, 2, 3
    context       the same, while 1,024 tokens are left on a rank         recompute     none, selective, full
    expert        divisors of the number of experts                       schedule      every one
    chunks        of schedules with pieces: up to 12, all of whole layers and as many of them

What is the same plan under another name is tried once: one stage under one schedule, ZeRO where there are ranks to
share with. ZeRO-2 goes with one stage, unless it is asked for: a pipeline sums gradients over its micro-batches before
anybody could split them. Time: as predict_many, some microseconds a plan.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lablib.errors import unknown_name
from lablib.hardware.catalogue import find_cluster
from lablib.hardware.cluster import Cluster
from lablib.models.gpt import GPTConfig
from lablib.models.published import find_transformer
from lablib.models.transformer import Transformer
from lablib.pipeline.closed_form import SCHEDULES, V_SHAPED
from lablib.plan.parallel import SHARDING
from lablib.plan.predict_many import Column, Predictions, Progress, predict_many
from lablib.plan.prediction import Prediction
from lablib.plan.rules import CHUNKED, RULES
from lablib.units import in_words

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

MEMORY = "memory"  # the reason of plans that are possible, and do not fit
_LEAST_TOKENS = 1024
_MOST_CHUNKS = 12
_SPLIT = ("tensor", "pipeline", "context", "expert", "data", "chunks", "micro_batch")

Whole = int | Iterable[int] | None
Names = str | Iterable[str] | None


class Rejection(NamedTuple):
    """A plan that is not possible: its number, the rule's name or "memory", and the sentence for it."""

    plan: int
    kind: str
    reason: str


@dataclass(frozen=True, repr=False)
class Rejected:
    """The plans that are not possible or do not fit. A reason is put into words when it is asked for."""

    plans: Predictions
    which: np.ndarray

    def __len__(self) -> int:
        return len(self.which)

    def __getitem__(self, k: int) -> Rejection:
        if not -len(self) <= k < len(self):
            raise IndexError(f"{len(self)} plans were rejected: got {k}")
        i = int(self.which[k])
        return Rejection(i, self._kinds[self.plans.obstacle[i]], self.plans.reason(i) or _too_much(self.plans, i))

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many were rejected for each reason, the most frequent first."""
        numbers, counts = np.unique(self.plans.obstacle[self.which], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return {self._kinds[int(numbers[k])]: int(counts[k]) for k in order}

    def examples(self) -> dict[str, Rejection]:
        """One rejection of each kind: of those that do not fit, the one that misses by least."""
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
        return f"Rejected({len(self)} plans: {self.counts})"


@dataclass(frozen=True, repr=False)
class SearchResult:
    """What a search found.

    Attributes:
        plans: all plans that were tried.
        order: numbers of those that fit, the fastest first (of equally fast ones, the smallest).
    """

    plans: Predictions
    order: np.ndarray

    @property
    def best(self) -> Prediction:
        """The fastest plan that fits. Raises ValueError, with by how much the nearest misses, where none does."""
        if not len(self.order):
            raise ValueError(self.sentence())
        return self.plans[int(self.order[0])]

    def top(self, n: int = 10) -> list[Prediction]:
        """The fastest plans that fit; of several as fast and as large, the first."""
        pairs = np.stack([self.plans.step_time_s[self.order], self.plans.peak_memory_bytes[self.order]])
        is_new = np.ones(len(self.order), bool)
        is_new[1:] = (np.abs(np.diff(pairs)) > 1e-9 * pairs[:, 1:]).any(axis=0)
        return [self.plans[int(i)] for i in self.order[is_new][:n]]

    @cached_property
    def pareto(self) -> tuple[Prediction, ...]:
        """Of the plans that fit, those than which no other is both as fast and as small; the fastest first."""
        peak = self.plans.peak_memory_bytes[self.order]
        is_smallest_so_far = peak < np.minimum.accumulate(np.concatenate(([np.inf], peak)))[:-1]
        return tuple(self.plans[int(i)] for i in self.order[is_smallest_so_far])

    @cached_property
    def rejected(self) -> Rejected:
        return Rejected(self.plans, np.flatnonzero(~self.plans.fits))

    @cached_property
    def nearest(self) -> Prediction | None:
        """The plan that is possible and least beyond the memory; None where one fits, or none is possible."""
        if len(self.order) or not self.plans.is_possible.any():
            return None
        return self.plans[int(np.nanargmin(self.plans.over_bytes))]

    def figure(self) -> "go.Figure":
        """Every plan that is possible in time and memory, what fits and what does not, and the front."""
        from lablib.figures.plans import figure_predictions

        return figure_predictions(self.plans)

    def table(self, n: int = 10) -> "pd.DataFrame":
        """The fastest plans, a row each."""
        import pandas as pd

        return pd.DataFrame([row_of(prediction) for prediction in self.top(n)])

    def sentence(self) -> str:
        """What was found, in one sentence."""
        tried = f"{len(self.plans):,} plans tried, {int(self.plans.is_possible.sum()):,} possible"
        if len(self.order):
            return f"{tried}, {len(self.order):,} fit; the best: {self.best.sentence()}"
        if self.nearest is None:
            example = next(iter(self.rejected.examples().values()))
            return f"{tried}: {example.reason}."
        i = int(np.nanargmin(self.plans.over_bytes))
        return f"{tried}, none fits; the nearest ({self.nearest.parallel}) {_too_much(self.plans, i)}."

    def __repr__(self) -> str:
        return f"SearchResult({self.sentence()})"

    def _repr_html_(self) -> str:
        return f"<p>{self.sentence()}</p>{self.table().to_html(float_format='{:.4g}'.format)}"


def search(
    model: str | Transformer | GPTConfig,
    cluster: str | Cluster,
    batch: int,
    *,
    nodes: int | None = None,
    gpus: int | None = None,
    seq_len: int | None = None,
    tensor: Whole = None,
    pipeline: Whole = None,
    context: Whole = None,
    expert: Whole = None,
    data: Whole = None,
    chunks: Whole = None,
    micro_batch: Whole = None,
    zero_stage: Whole = None,
    recompute: Names = None,
    schedule: Names = None,
    progress: Progress | None = None,
    **others: Any,
) -> SearchResult:
    """Every plan for a step of `batch` sequences, predicted.

    Args:
        model, cluster: as in `predict`.
        batch: sequences of a step, on all ranks together.
        nodes, gpus: how many; one of the two.
        seq_len: tokens of a sequence; the model's longest by default.
        tensor to schedule: the values to try, one or several (`tensor=8`, `pipeline=range(4, 17)`); None: see the head
            of this file.
        progress: called with the number of plans done and of all.
        others: as in `predict_many`, one value for all plans: precision, optimizer, stack, compression, losses, ...

    Raises:
        ValueError: names nobody knows, numbers below 1, values that no plan can have together.
    """
    model, cluster = find_transformer(model), find_cluster(cluster)
    total = _gpus(cluster, nodes, gpus)
    seq_len = model.max_seq_len if seq_len is None else seq_len
    for name, value in (("batch", batch), ("seq_len", seq_len)):
        _one(name, value)
    given = {"tensor": tensor, "pipeline": pipeline, "context": context, "expert": expert, "data": data}
    splits = _splits(model, cluster, total, seq_len, {name: _values(name, each) for name, each in given.items()})
    stages = _values("zero_stage", zero_stage, least=0)
    if wrong := set(stages) - set(SHARDING):
        raise ValueError(f"zero_stage is 0, 1, 2 or 3: got {min(wrong)}")
    grid = _grid(
        *(model, splits, _schedules(schedule), _values("chunks", chunks)),
        *(_values("micro_batch", micro_batch) or (1, 2, 4, 8, 16), stages),
        _names(recompute) or ("none", "selective", "full"),
    )
    plans = predict_many(model, cluster, batch=batch, seq_len=seq_len, **grid, **others, progress=progress)
    fits = np.flatnonzero(plans.fits)
    order = fits[np.lexsort((plans.peak_memory_bytes[fits], plans.step_time_s[fits]))]
    return SearchResult(plans, order)


# ---- the grid ----


def _splits(
    model: Transformer, cluster: Cluster, total: int, seq_len: int, given: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Tensor, pipeline, context and expert ranks whose rest is a number of data ranks."""
    divisors = [n for n in range(1, total + 1) if total % n == 0]
    experts = model.experts.num_experts if model.experts else 1
    values = {
        "tensor": [n for n in divisors if n <= cluster.devices_per_node],
        "pipeline": [n for n in divisors if n <= model.num_layers],
        "context": [n for n in divisors if n <= max(1, seq_len // _LEAST_TOKENS)],
        "expert": [n for n in range(1, experts + 1) if experts % n == 0],
    }
    values = {name: given[name] or each for name, each in values.items()}
    tensor, pipeline, context, expert = (
        each.ravel() for each in np.meshgrid(*(np.array(each, np.int64) for each in values.values()), indexing="ij")
    )
    inner = tensor * pipeline * context
    keep = total % inner == 0
    if given["data"]:
        keep &= np.isin(total // inner, given["data"])
    if not keep.any():
        asked = ", ".join(f"{name} {_few(each)}" for name, each in given.items() if each)
        raise ValueError(
            f"tensor * pipeline * context * data must be the number of GPUs: got {asked} and {total} GPUs; "
            f"try divisors of {total}"
        )
    split = {"tensor": tensor, "pipeline": pipeline, "context": context, "expert": expert, "data": total // inner}
    return {name: each[keep] for name, each in split.items()}


def _grid(
    model: Transformer,
    splits: Mapping[str, np.ndarray],
    schedules: Sequence[str],
    chunks: Sequence[int],
    micro_batches: Sequence[int],
    stages: Sequence[int],
    recompute: Sequence[str],
) -> dict[str, Any]:
    """Every split with every schedule and its pieces, micro-batch, ZeRO stage and recomputation, as columns."""
    pairs = _pairs(model, schedules, chunks)
    asked, stages = bool(stages), stages or SHARDING
    sizes = (len(splits["data"]), len(pairs), len(micro_batches), len(stages), len(recompute))
    split, pair, micro, stage, again = (each.ravel() for each in np.indices(sizes, np.int32))
    names = tuple(dict.fromkeys(name for name, _ in pairs))
    pieces = np.array([count for _, count in pairs])[pair]
    pipeline = splits["pipeline"][split]
    # One stage: one schedule will do. Pieces are whole layers, unless they were asked for.
    is_first = (pair == next((k for k, (_, n) in enumerate(pairs) if n == 1), 0)) & (not chunks or 1 in chunks)
    is_whole = (pieces == 1) | bool(chunks) | (model.num_layers % (pipeline * pieces) == 0)
    keep = np.where(pipeline == 1, is_first, is_whole)
    alone = (splits["data"] * splits["context"])[split] == 1
    keep &= ~alone | (stage == int(np.argmin(stages)))
    keep &= (pipeline == 1) | (np.array(stages)[stage] != 2) | asked
    split, pair, micro, stage, again = (each[keep] for each in (split, pair, micro, stage, again))
    if not len(split):
        raise ValueError(
            f"no plan has pipeline {_few(splits['pipeline'])}, schedule {', '.join(schedules)} and chunks "
            f"{_few(chunks) if chunks else 'of whole layers'} together; leave one of them out"
        )
    return {
        **{name: each[split] for name, each in splits.items()},
        # With one stage the pieces of a V lie one after the other, as one.
        "chunks": np.where(splits["pipeline"][split] == 1, 1, np.array([count for _, count in pairs])[pair]),
        "schedule": Column(names, np.array([names.index(name) for name, _ in pairs])[pair]),
        "micro_batch": np.array(micro_batches)[micro],
        "zero_stage": Column(tuple(stages), stage),
        "recompute": Column(tuple(recompute), again),
    }


def _pairs(model: Transformer, schedules: Sequence[str], chunks: Sequence[int]) -> list[tuple[str, int]]:
    """Schedules with the pieces on a stage that each may have. One piece on each is 1F1B, whatever the name."""
    many = [n for n in chunks or range(2, min(_MOST_CHUNKS, model.num_layers) + 1) if n > 1]
    counts = {name: [2] if name in V_SHAPED else many if name in CHUNKED else [1] for name in schedules}
    pairs = [(name, n) for name, each in counts.items() for n in each if not chunks or n in chunks]
    if not pairs:
        raise ValueError(f"no schedule of {', '.join(schedules)} has chunks {_few(chunks)}; try interleaved")
    return pairs


def _schedules(given: Names) -> tuple[str, ...]:
    names = _names(given) or ("1f1b", *(name for name in SCHEDULES if name != "1f1b"))
    for name in names:
        if name not in SCHEDULES:
            raise unknown_name("schedule", name, SCHEDULES)
    return names


def _names(given: Names) -> tuple[str, ...]:
    return () if given is None else (given,) if isinstance(given, str) else tuple(dict.fromkeys(given))


def _values(name: str, given: Whole, least: int = 1) -> tuple[int, ...]:
    """The values to try, each once; none where nothing was given."""
    if given is None:
        return ()
    values = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    for value in values or (None,):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise ValueError(f"{name} must be whole numbers, {least} or more: got {value!r}")
    return tuple(dict.fromkeys(int(value) for value in values))


def _one(name: str, given: Any) -> int:
    if isinstance(given, Iterable):
        raise ValueError(f"{name} must be a whole number, 1 or more: got {given!r}")
    return _values(name, given)[0]


def _gpus(cluster: Cluster, nodes: int | None, gpus: int | None) -> int:
    if (nodes is None) == (gpus is None):
        raise ValueError(f"give nodes or gpus, one of the two: got nodes={nodes} and gpus={gpus}; try nodes=8")
    if nodes is None:
        return _one("gpus", gpus)
    return _one("nodes", nodes) * cluster.devices_per_node


# ---- words ----


def row_of(prediction: Prediction) -> dict[str, Any]:
    """One plan as a row of a table."""
    p = prediction.parallel
    axes = {name: getattr(p, name) for name in ("data", "tensor", "pipeline", "context", "expert", "chunks")}
    return {
        **axes,
        "schedule": prediction.schedule,
        "micro_batch": prediction.micro_batch,
        "zero_stage": p.zero_stage,
        "recompute": prediction.recompute,
        "step_time_s": prediction.step_time_s,
        "tokens_per_s": prediction.tokens_per_s,
        "mfu": prediction.mfu,
        "bubble_fraction": prediction.bubble_fraction,
        "peak_memory_bytes": prediction.peak_memory_bytes,
        "bound_by": bound_by(prediction),
    }


def bound_by(prediction: Prediction, n: int = 2) -> str:
    """The parts that a step spends most of its time in."""
    parts = sorted(prediction.parts.items(), key=lambda part: -part[1])[:n]
    return ", ".join(f"{name} {seconds / prediction.step_time_s:.0%}" for name, seconds in parts)


def _too_much(plans: Predictions, i: int) -> str:
    needs, has = plans.peak_memory_bytes[i], plans.memory_limit_bytes
    return f"needs {in_words(needs, 'B')} of {in_words(has, 'B')} a GPU: {in_words(needs - has, 'B')} too much"


def _few(values: Iterable[int]) -> str:
    distinct = sorted({int(value) for value in values})
    shown = ", ".join(map(str, distinct[:6]))
    return shown + (", ..." if len(distinct) > 6 else "")
