"""Predictions of many plans at once: the formulas of `predict` on arrays.

    found = predict_many("gpt3-175b", "dgx-a100", data=64 // tensor, tensor=tensor, batch=1536)     tensor an array
    found.step_time_s.argmin()         found[3] is the whole Prediction of the fourth plan

Plans with the same choices (schedule, recomputation, ...) form a group, and a group is one evaluation of step.py and
memory.py on arrays. A layer is priced once for each distinct cut (pieces.py). Blocks of some thousand plans keep the
numbers of a group in the processor's cache.

A plan that breaks a rule (rules.py) has NaN for its numbers, and the number of the rule.

Cost: some 500 array operations per block, for any number of micro-batches and stages.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from lablib.cost.arrays import Array, np
from lablib.hardware.catalogue import find_cluster
from lablib.hardware.cluster import Cluster
from lablib.hardware.link import Link
from lablib.models.sizes import GPTConfig
from lablib.models.transformer import Transformer
from lablib.models.transformer_flops import step_flops
from lablib.plan.arguments import find_model
from lablib.plan.derating import USUAL, Derating
from lablib.plan.memory import peak_bytes
from lablib.plan.prediction import AXES
from lablib.plan.predictions import NUMBERS, OUTSIDE, SPLIT, PlanColumn, Predictions, setup_of_choices
from lablib.plan.rules import RULES
from lablib.plan.setup import Setup
from lablib.plan.step import step_of
from lablib.signature import check_type, shown

_BLOCK = 16384
_MAX_NUMBER = 10**9  # products of several numbers must fit in 64 bits
Progress = Callable[[int, int], None]


def predict_many(
    model: str | Transformer | GPTConfig,
    cluster: str | Cluster,
    *,
    data: Any = 1,
    tensor: Any = 1,
    pipeline: Any = 1,
    context: Any = 1,
    expert: Any = 1,
    expert_tensor: Any = None,
    chunks: Any = 1,
    replicas: Any = 1,
    micro_batch: Any = 1,
    batch: Any = 1,
    seq_len: Any = None,
    zero_stage: Any = 0,
    sequence_parallel: Any = None,
    reshard_after_forward: Any = True,
    zero_plus_plus: tuple[str, ...] = (),
    precision: Any = "bfloat16",
    recompute: Any = "none",
    schedule: Any = "1f1b",
    optimizer: Any = "adamw",
    stack: Any = None,
    compression: Any = "none",
    offload: tuple[str, ...] = (),
    trainable: str = "all",
    derating: Derating | None = None,
    host_link: str | Link = "pcie4",
    progress: Progress | None = None,
) -> Predictions:
    """Predict one training step of each of many plans: the numbers of `predict`, to rounding.

    Arguments:
        data to seq_len: whole numbers, 1 or more, or arrays of them; they broadcast. expert_tensor: None: as many as
            `tensor`.
        zero_stage to compression, without zero_plus_plus: as in `Parallel` and `predict`; one value for all plans, or
            an array or list with one for each.
        zero_plus_plus, offload, trainable, derating, host_link: as there; the same for all plans.
        progress: called with the number of plans done and of all.

    Raises:
        ValueError: unknown names, numbers below 1, columns of different lengths. A plan that breaks a rule of
            rules.py raises nothing: see `Predictions.obstacle`.
    """
    model, cluster = find_model(model), find_cluster(cluster)
    check_type("progress", progress, Progress | None)
    seq_len = model.max_seq_len if seq_len is None else seq_len
    expert_tensor = tensor if expert_tensor is None else expert_tensor
    given = (data, tensor, pipeline, context, expert, expert_tensor, chunks, replicas, micro_batch, batch, seq_len)
    numbers = {name: _whole_numbers(name, each) for name, each in zip(NUMBERS, given, strict=True)}
    split = (zero_stage, sequence_parallel, reshard_after_forward)
    outside = (precision, recompute, schedule, optimizer, stack, compression)
    columns = {name: PlanColumn.of(each) for name, each in zip((*SPLIT, *OUTSIDE), (*split, *outside), strict=True)}
    length = _length({**numbers, **{name: column.codes for name, column in columns.items()}})
    numbers = {name: np.broadcast_to(each, length) for name, each in numbers.items()}
    columns = {name: PlanColumn(each.values, np.broadcast_to(each.codes, length)) for name, each in columns.items()}
    fixed = {
        "model": model,
        "cluster": cluster,
        "zero_plus_plus": zero_plus_plus,
        **{"offload": offload, "trainable": trainable, "derating": derating, "host_link": host_link},
    }
    found, done = _Sheet(length), 0
    for plans, values in _groups(columns, length):
        choices = setup_of_choices(fixed, values)
        for begin in range(0, len(plans), _BLOCK):
            block = plans[begin : begin + _BLOCK]
            _fill(found, replace(choices, **{name: each[block] for name, each in numbers.items()}), block)
            done += len(block)
            if progress:
                progress(done, length)
    driver_bytes = (USUAL if derating is None else derating).driver_bytes
    limit = cluster.device.memory_bytes - driver_bytes
    return Predictions(numbers, columns, fixed, **vars(found), memory_limit_bytes=limit)


def _whole_numbers(name: str, given: Any) -> Array:
    try:
        array = np.atleast_1d(np.asarray(given))
    except Exception:  # rows of different lengths or endless nesting: any error of numpy means that it is no column
        raise _no_column(name, given) from None
    if array.dtype.kind == "O" and array.size and all(type(each) is int and each >= 1 for each in array.flat):
        raise _too_large(name, array.max())
    if array.dtype.kind not in "iu" or array.ndim != 1 or (array.size and array.min() < 1):
        raise _no_column(name, given)
    if array.size and array.max() > _MAX_NUMBER:
        raise _too_large(name, array.max())
    return array.astype(np.int64)


def _no_column(name: str, given: Any) -> ValueError:
    return ValueError(f"{name} must be whole numbers, 1 or more, in one dimension: got {shown(given)}; try [1, 2, 4]")


def _too_large(name: str, value: int) -> ValueError:
    got = f"{value:,}" if value < 10**40 else shown(value)
    return ValueError(f"{name} must be {_MAX_NUMBER:,} or less: got {got}; `predict` takes any number below 2**63")


def _length(columns: Mapping[str, Array]) -> int:
    lengths = {name: len(column) for name, column in columns.items() if len(column) != 1}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns must have one length, or be one value for all plans: got {lengths}")
    return next(iter(lengths.values()), 1)


def _groups(columns: Mapping[str, PlanColumn], length: int) -> Iterator[tuple[Array, dict[str, Any]]]:
    """Groups of plans with the same choices, each with its choices."""
    key = np.zeros(length, np.int64)
    for column in columns.values():
        key = key * len(column.values) + column.codes
    order = np.argsort(key, kind="stable")
    for plans in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
        if len(plans):
            yield plans, {name: column[plans[0]] for name, column in columns.items()}


class _Sheet:
    """The columns of results; `_fill` writes them."""

    def __init__(self, length: int):
        for name in ("step_time_s", "tokens_per_s", "mfu", "hfu", "peak_memory_bytes", "bubble_fraction"):
            setattr(self, name, np.full(length, np.nan))
        self.exposed_s = {axis: np.full(length, np.nan) for axis in AXES}
        self.obstacle = np.full(length, -1, np.int16)


def _fill(found: Any, setup: Setup, plans: Array) -> None:
    """Check the rules, then compute the numbers of plans that break none."""
    broken = first_broken(setup)
    found.obstacle[plans] = broken
    if (broken >= 0).any():
        possible = np.flatnonzero(broken < 0)
        plans, setup = plans[possible], replace(setup, **{name: getattr(setup, name)[possible] for name in NUMBERS})
    if not len(plans):
        return
    step = step_of(setup)
    step.check_takes_time()
    tokens = setup.batch.astype(float) * setup.seq_len  # perhaps beyond 2^63
    # Model and hardware FLOPs, as in predict.py.
    recomputed = setup.recompute.recomputed_flops(setup.model, setup.machine.stack, setup.layers, setup.seq_len)
    useful = step_flops(setup.model, tokens, setup.seq_len, has_weight_gradients=setup.has_weight_gradients)
    hardware = useful + tokens * recomputed
    peak = setup.machine.peak_flops_per_s * setup.num_ranks * step.step_s
    found.step_time_s[plans] = step.step_s
    found.tokens_per_s[plans] = tokens / step.step_s
    found.mfu[plans], found.hfu[plans] = useful / peak, hardware / peak
    found.bubble_fraction[plans] = step.bubble_fraction
    found.peak_memory_bytes[plans] = peak_bytes(setup, step)
    for axis in AXES:
        found.exposed_s[axis][plans] = getattr(step, axis).exposed_s


def first_broken(setup: Setup) -> Array:
    """The number of the first rule that each plan breaks; -1: none."""
    broken = np.full(len(setup.data), -1, np.int16)
    for number in reversed(range(len(RULES))):
        broken[np.broadcast_to(RULES[number].is_broken(setup), broken.shape)] = number
    return broken
