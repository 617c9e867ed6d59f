"""Search of all plans for a model on a cluster: the best one, the trade of time for memory, and the rejected ones.

    found = search("gpt3-175b", "dgx-a100", batch=1536, nodes=64)
    found.best           the fastest that fits
    found.pareto         plans that no other plan beats in both time and memory
    found.rejected       the others, with the rule that they break or the memory that they lack

A plan is a point of a grid: tensor, pipeline, context, expert ranks (data takes the rest of the GPUs), micro-batch,
ZeRO stage, recomputation, schedule and pieces. search_grid.py makes the grid as arrays, with default values, and
predict_many.py predicts it whole, in some microseconds per plan.
"""

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from lablib.cost.arrays import is_array, np
from lablib.errors import unknown_name
from lablib.hardware.catalogue import find_cluster
from lablib.hardware.cluster import Cluster
from lablib.models.sizes import GPTConfig
from lablib.models.transformer import Transformer
from lablib.pipeline.closed_form import WITH_CLOSED_FORM
from lablib.plan.arguments import find_model
from lablib.plan.gradient_compression import find_compression
from lablib.plan.parallel import SHARDING
from lablib.plan.predict_many import Progress, predict_many
from lablib.plan.recompute import recompute_policy
from lablib.plan.search_grid import MICRO_BATCHES, RECOMPUTE, grid_of, splits_of
from lablib.plan.search_result import SearchResult
from lablib.plan.stack import find_stack
from lablib.signature import MAX_WHOLE, shown, whole_number

_MAX_GPUS = 10_000_000

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
    """Predict every plan for a step of `batch` sequences.

    Arguments:
        model, cluster: as in `predict`.
        batch: sequences per step, on all ranks together.
        nodes, gpus: their number; one of the two.
        seq_len: tokens of a sequence; the model's longest by default.
        tensor to schedule: the values to try, one or several (`tensor=8`, `pipeline=range(4, 17)`); None: see
            search_grid.py.
        progress: called with the number of plans done and of all.
        others: as in `predict_many`, one value for all plans: precision, optimizer, stack, compression, derating, ...

    Raises ValueError: unknown names, numbers below 1, values that no plan can have together.
    """
    model, cluster = find_model(model), find_cluster(cluster)
    total = _gpus(cluster, nodes, gpus)
    seq_len = model.max_seq_len if seq_len is None else seq_len
    for name, value in (("batch", batch), ("seq_len", seq_len)):
        whole_number(name, value)
    given = {"tensor": tensor, "pipeline": pipeline, "context": context, "expert": expert}
    given |= {"expert_tensor": expert_tensor, "data": data}
    given = {name: _values(name, each) for name, each in given.items()}
    if not given["expert_tensor"]:
        # 0: as many as tensor. Whole experts need different tokens on every tensor rank.
        given["expert_tensor"] = (0, 1) if model.experts and others.get("sequence_parallel") is not False else (0,)
    splits = splits_of(model, cluster, total, seq_len, given)
    stages = _values("zero_stage", zero_stage, minimum=0)
    if wrong := set(stages) - set(SHARDING):
        raise ValueError(f"zero_stage is 0, 1, 2 or 3: got {min(wrong)}")
    stages = stages or possible_stages(others)
    grid = grid_of(
        *(model, splits, _schedules(schedule), _values("chunks", chunks)),
        *(_values("micro_batch", micro_batch) or MICRO_BATCHES, stages),
        tuple(dict.fromkeys(recompute_policy(name).name for name in _several(recompute) or RECOMPUTE)),
    )
    plans = predict_many(model, cluster, batch=batch, seq_len=seq_len, **grid, **others, progress=progress)
    fits = np.flatnonzero(plans.fits)
    order = fits[np.lexsort((plans.peak_memory_bytes[fits], plans.step_time_s[fits]))]
    return SearchResult(plans, order)


def possible_stages(others: Mapping[str, Any]) -> tuple[int, ...]:
    """The ZeRO stages that fit choices made for all plans; empty: all stages do."""
    if not find_compression(others.get("compression", "none")).is_none:
        return (0, 1, 2)  # compression does not apply to ZeRO-3
    stack = others.get("stack")
    has_wide_shards = stack is not None and find_stack(stack).has_wide_shards
    has_kept = others.get("reshard_after_forward", True) is False
    return (3,) if others.get("zero_plus_plus") or has_kept or has_wide_shards else ()


def _schedules(given: Names) -> tuple[str, ...]:
    names = _several(given)
    for name in names:
        if not isinstance(name, str) or name not in WITH_CLOSED_FORM:
            raise unknown_name("schedule", name, WITH_CLOSED_FORM)
    return tuple(dict.fromkeys(names or ("1f1b", *WITH_CLOSED_FORM)))


def _several(given: Any) -> tuple[Any, ...]:
    """One or several given values as a tuple, empty for None. An array without dimensions is one."""
    if given is None:
        return ()
    if is_array(given) and not given.ndim:
        return (given.item(),)
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else (given,)


def _values(name: str, given: Whole, minimum: int = 1) -> tuple[int, ...]:
    """The values to try, each once; empty for None."""
    if given is None:
        return ()
    values = _several(given)
    for value in values or (None,):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not minimum <= value <= MAX_WHOLE:
            raise ValueError(f"{name} must be whole numbers, {minimum} or more: got {shown(value)}; try [1, 2, 4]")
    return tuple(dict.fromkeys(int(value) for value in values))


def _gpus(cluster: Cluster, nodes: int | None, gpus: int | None) -> int:
    if (nodes is None) == (gpus is None):
        raise ValueError(
            f"give nodes or gpus, one of the two: got nodes={shown(nodes)} and gpus={shown(gpus)}; try nodes=8"
        )
    name, given, each = ("gpus", gpus, 1) if nodes is None else ("nodes", nodes, cluster.devices_per_node)
    total = whole_number(name, given, maximum=inf) * each
    if total > _MAX_GPUS:
        raise ValueError(f"a search takes {_MAX_GPUS:,} GPUs or fewer: got {shown(total)}; try fewer")
    return total
