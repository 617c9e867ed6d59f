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
    expert_tensor 1, and as many as tensor
    chunks        of schedules with pieces: up to 12, all of whole layers and as many of them

What is the same plan under another name is tried once: one stage under one schedule, ZeRO where there are ranks to
share with. ZeRO-2 goes with one stage, unless it is asked for: a pipeline sums gradients over its micro-batches before
anybody could split them. Time: as predict_many, some microseconds a plan.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isqrt
from typing import Any

import numpy as np

from lablib.errors import unknown_name
from lablib.hardware.catalogue import find_cluster
from lablib.hardware.cluster import Cluster
from lablib.models.gpt import GPTConfig
from lablib.models.published import find_transformer
from lablib.models.transformer import Transformer
from lablib.pipeline.closed_form import SCHEDULES, V_SHAPED
from lablib.plan.parallel import SHARDING
from lablib.plan.predict_many import Progress, predict_many
from lablib.plan.predictions import Column
from lablib.plan.rules import CHUNKED
from lablib.plan.search_result import SearchResult

_LEAST_TOKENS = 1024
_MOST_CHUNKS = 12
_MOST_GPUS = 10_000_000

Whole = int | Iterable[int] | None
Names = str | Iterable[str] | None


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
    expert_tensor: Whole = None,
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

    Arguments:
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
    given = {"tensor": tensor, "pipeline": pipeline, "context": context, "expert": expert}
    given |= {"expert_tensor": expert_tensor, "data": data}
    given = {name: _values(name, each) for name, each in given.items()}
    if not given["expert_tensor"]:
        # 0: as many as tensor. Whole experts need tokens of their own on every tensor rank.
        given["expert_tensor"] = (0, 1) if model.experts and others.get("sequence_parallel") is not False else (0,)
    splits = _splits(model, cluster, total, seq_len, given)
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
    """Tensor, pipeline, context and expert ranks whose rest is a number of data ranks.

    An `expert_tensor` of 0 stands for as many as `tensor`.
    """
    divisors = _divisors(total)
    experts = model.experts.num_experts if model.experts else 1
    values = {
        "tensor": [n for n in divisors if n <= cluster.devices_per_node],
        "pipeline": [n for n in divisors if n <= model.num_layers],
        "context": [n for n in divisors if n <= max(1, seq_len // _LEAST_TOKENS)],
        "expert": [n for n in range(1, experts + 1) if experts % n == 0],
        "expert_tensor": [],
    }
    values = {name: given[name] or each for name, each in values.items()}
    tensor, pipeline, context, expert, expert_tensor = (
        each.ravel() for each in np.meshgrid(*(np.array(each, np.int64) for each in values.values()), indexing="ij")
    )
    inner = tensor * pipeline * context
    # Of a 0 and a 1 that are the same, the 0 will do.
    keep = (total % inner == 0) & ~((tensor == 1) & (expert_tensor == 1) & (0 in given["expert_tensor"]))
    if given["data"]:
        keep &= np.isin(total // inner, given["data"])
    if not keep.any():
        asked = ", ".join(f"{name} {_few(each)}" for name, each in given.items() if each and 0 not in each)
        raise ValueError(
            f"tensor * pipeline * context * data must be the number of GPUs: got {asked} and {total} GPUs; "
            f"try divisors of {total}"
        )
    split = {"tensor": tensor, "pipeline": pipeline, "context": context, "expert": expert, "data": total // inner}
    split["expert_tensor"] = np.where(expert_tensor == 0, tensor, expert_tensor)
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
    ranks, experts = splits["data"] * splits["context"], splits["expert"] * splits["expert_tensor"]
    alone = ((ranks == 1) & (splits["tensor"] * ranks == experts))[split]  # nobody has the same, experts neither
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
    return () if given is None else tuple(dict.fromkeys(_several(given)))


def _several(given: Any) -> tuple[Any, ...]:
    """The values to try where one or several are given. An array without dimensions is one."""
    if isinstance(given, np.ndarray) and not given.ndim:
        return (given.item(),)
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else (given,)


def _values(name: str, given: Whole, least: int = 1) -> tuple[int, ...]:
    """The values to try, each once; none where nothing was given."""
    if given is None:
        return ()
    values = _several(given)
    for value in values or (None,):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise ValueError(f"{name} must be whole numbers, {least} or more: got {value!r}")
    return tuple(dict.fromkeys(int(value) for value in values))


def _one(name: str, given: Any) -> int:
    if given is None or isinstance(given, Iterable):
        raise ValueError(f"{name} must be a whole number, 1 or more: got {given!r}")
    return _values(name, given)[0]


def _gpus(cluster: Cluster, nodes: int | None, gpus: int | None) -> int:
    if (nodes is None) == (gpus is None):
        raise ValueError(f"give nodes or gpus, one of the two: got nodes={nodes} and gpus={gpus}; try nodes=8")
    total = _one("gpus", gpus) if nodes is None else _one("nodes", nodes) * cluster.devices_per_node
    if total > _MOST_GPUS:
        raise ValueError(f"a search is of {_MOST_GPUS:,} GPUs or fewer: got {total:,}; try fewer")
    return total


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _few(values: Iterable[int]) -> str:
    distinct = sorted({int(value) for value in values})
    shown = ", ".join(map(str, distinct[:6]))
    return shown + (", ..." if len(distinct) > 6 else "")
