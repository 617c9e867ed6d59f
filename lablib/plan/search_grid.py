"""The grid of plans of a search: every split, with every schedule, micro-batch, ZeRO stage and recomputation.

Default values:

    tensor        divisors of the number of GPUs, up to a node's          micro_batch   1, 2, 4, 8, 16
    pipeline      divisors of the number of GPUs, up to the layers        zero_stage    0, 1, 2, 3
    context       the same, while 1,024 tokens are left on a rank         recompute     none, selective, full
    expert        divisors of the number of experts                       schedule      every one
    expert_tensor as many as tensor; and 1, if tensor ranks have different tokens (sequence parallelism)
    chunks        of schedules with pieces: 2 to 12 on a stage, each of equally many whole layers

data takes the rest of the GPUs. Equivalent plans are tried once: one stage under one schedule, ZeRO if there are ranks
to share with, of its stages those that fit the choices for all plans. ZeRO-2 needs one stage, unless it is asked for: a
pipeline sums gradients over its micro-batches before they can be split.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isqrt
from typing import Any

from lablib.cost.arrays import Array, np
from lablib.hardware.cluster import Cluster
from lablib.models.transformer import Transformer
from lablib.pipeline.closed_form import V_SHAPED
from lablib.plan.parallel import SHARDING
from lablib.plan.predictions import PlanColumn
from lablib.plan.rules import CHUNKED

MICRO_BATCHES = (1, 2, 4, 8, 16)
RECOMPUTE = ("none", "selective", "full")
_MIN_TOKENS = 1024
_MAX_CHUNKS = 12


def splits_of(
    model: Transformer, cluster: Cluster, total: int, seq_len: int, given: Mapping[str, tuple[int, ...]]
) -> dict[str, Array]:
    """Of each axis its size in each split of `total` GPUs that leaves a whole number of data ranks.

    `given`: axis -> the sizes to try, empty for the default; an `expert_tensor` of 0 means equal to `tensor`.
    ValueError: no such sizes multiply to the number of GPUs.
    """
    small = [n for n in range(1, isqrt(total) + 1) if total % n == 0]
    divisors = sorted({*small, *(total // n for n in small)})
    experts = model.experts.num_experts if model.experts else 1
    values = {
        "tensor": [n for n in divisors if n <= cluster.devices_per_node],
        "pipeline": [n for n in divisors if n <= model.num_layers],
        "context": [n for n in divisors if n <= max(1, seq_len // _MIN_TOKENS)],
        "expert": [n for n in range(1, experts + 1) if experts % n == 0],
        "expert_tensor": [],
    }
    values = {name: given[name] or each for name, each in values.items()}
    tensor, pipeline, context, expert, expert_tensor = (
        each.ravel() for each in np.meshgrid(*(np.array(each, np.int64) for each in values.values()), indexing="ij")
    )
    inner = tensor * pipeline * context
    # With one tensor rank an expert_tensor of 0 and of 1 are the same: keep the 0.
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


def grid_of(
    model: Transformer,
    splits: Mapping[str, Array],
    schedules: Sequence[str],
    chunks: Sequence[int],
    micro_batches: Sequence[int],
    stages: Sequence[int],
    recompute: Sequence[str],
) -> dict[str, Any]:
    """The columns of `predict_many`: every split with every schedule and its pieces, micro-batch, ZeRO stage and so on.

    Empty chunks or stages mean the default. ValueError: values that no plan can have together.
    """
    pairs = _pairs(model, schedules, chunks)
    asked, stages = bool(stages), stages or SHARDING
    sizes = (len(splits["data"]), len(pairs), len(micro_batches), len(stages), len(recompute))
    split, pair, micro, stage, recomputed = (each.ravel() for each in np.indices(sizes, np.int32))
    names = tuple(dict.fromkeys(name for name, _ in pairs))
    pieces = np.array([count for _, count in pairs])[pair]
    pipeline = splits["pipeline"][split]
    # One stage needs one schedule. Pieces are whole layers, unless chunks are given.
    is_first = (pair == next((k for k, (_, n) in enumerate(pairs) if n == 1), 0)) & (not chunks or 1 in chunks)
    is_whole = (pieces == 1) | bool(chunks) | (model.num_layers % (pipeline * pieces) == 0)
    keep = np.where(pipeline == 1, is_first, is_whole)
    ranks, experts = splits["data"] * splits["context"], splits["expert"] * splits["expert_tensor"]
    alone = ((ranks == 1) & (splits["tensor"] * ranks == experts))[split]  # no rank shares a state, nor experts
    keep &= ~alone | (stage == int(np.argmin(stages)))
    keep &= (pipeline == 1) | (np.array(stages)[stage] != 2) | asked
    split, pair, micro, stage, recomputed = (each[keep] for each in (split, pair, micro, stage, recomputed))
    if not len(split):
        raise ValueError(
            f"no plan has pipeline {_few(splits['pipeline'])}, schedule {', '.join(schedules)} and chunks "
            f"{_few(chunks) if chunks else 'of whole layers'} together; leave one of them out"
        )
    return {
        **{name: each[split] for name, each in splits.items()},
        # With one stage the pieces of a V follow each other, as one.
        "chunks": np.where(splits["pipeline"][split] == 1, 1, np.array([count for _, count in pairs])[pair]),
        "schedule": PlanColumn(names, np.array([names.index(name) for name, _ in pairs])[pair]),
        "micro_batch": np.array(micro_batches)[micro],
        "zero_stage": PlanColumn(tuple(stages), stage),
        "recompute": PlanColumn(tuple(recompute), recomputed),
    }


def _pairs(model: Transformer, schedules: Sequence[str], chunks: Sequence[int]) -> list[tuple[str, int]]:
    """Schedules with the pieces per stage that each may have. With one piece, interleaved schedules are 1F1B."""
    many = [n for n in chunks or range(2, min(_MAX_CHUNKS, model.num_layers) + 1) if n > 1]
    counts = {name: [2] if name in V_SHAPED else many if name in CHUNKED else [1] for name in schedules}
    pairs = [(name, n) for name, each in counts.items() for n in each if not chunks or n in chunks]
    if not pairs:
        raise ValueError(f"no schedule of {', '.join(schedules)} has chunks {_few(chunks)}; try interleaved")
    return pairs


def _few(values: Iterable[int]) -> str:
    distinct = sorted({int(value) for value in values})
    shown = ", ".join(map(str, distinct[:6]))
    return shown + (", ..." if len(distinct) > 6 else "")
