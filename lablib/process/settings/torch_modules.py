"""Per-process state in torch's modules: process groups, and state changed by torch's context managers.

In a separate process `loss_parallel` or `context_parallel` changes torch for that rank only. Simulated ranks share the
modules, so these are per-rank state:

    process groups     torch.distributed's world: the groups, their names and counters
    loss_parallel      DTensor's table of custom operator handlers: entries added, then removed
    context_parallel   the same table, replaced; torch.nn.functional.scaled_dot_product_attention, replaced
    FSDP1              the set of names that its profiler is timing, each at most once
    DTensor            the tracker of its random numbers, made at the first draw on a GPU

DTensor and FSDP1 may be imported during a run. Their part of a state taken before is None, restored as in a new
process.

Simplified: the sharding rules that `context_parallel` adds to DTensor stay shared.
"""

import sys
from functools import partial
from typing import Any

import torch.nn.functional as F

from lablib.process.settings.setting import ProcessSetting, attributes
from lablib.torch_compat import World as PlainWorld
from lablib.torch_compat import loaded, op_dispatcher, op_handlers, place, rng_tracker, set_op_handlers, set_rng_tracker


class World(PlainWorld):
    """torch.distributed's per-process registry of groups, with its own dictionaries instead of module globals."""

    default_pg: Any = None
    group_count: Any = 0
    pg_map = pg_names = pg_group_ranks = pg_backend_config = tags_to_pg = pg_to_tag = group_count  # set per instance

    def __init__(self) -> None:
        super().__init__()
        for name in ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg", "pg_to_tag"):
            setattr(self, name, {})


_PROFILER, _DTENSOR = "torch.distributed.fsdp._debug_utils", "torch.distributed.tensor._api"
_RANDOM = "torch.distributed.tensor._random"
_CONTEXT_PARALLEL = "torch.distributed.tensor.experimental._context_parallel._attention"  # imports DTensor


def _tables() -> tuple:
    """State changed by torch's context managers, and DTensor's tracker."""
    timed = handlers = handlers_at_first = tracker = None
    if (profiler := loaded(_PROFILER)) is not None:
        timed = frozenset(profiler.SimpleProfiler.profiling)
    if (api := loaded(_DTENSOR)) is not None:
        handlers, parallel = dict(op_handlers(op_dispatcher(api))), loaded(_CONTEXT_PARALLEL)
        handlers_at_first = handlers if parallel is None else dict(parallel.existing_custom_ops)
    if (drawing := loaded(_RANDOM)) is not None:
        tracker = rng_tracker(drawing)
    return F.scaled_dot_product_attention, timed, handlers, handlers_at_first, tracker


def _set_tables(state: tuple) -> None:
    F.scaled_dot_product_attention, timed, handlers, handlers_at_first, tracker = state
    if (drawing := loaded(_RANDOM)) is not None:
        set_rng_tracker(drawing, tracker)
    if (profiler := loaded(_PROFILER)) is not None:
        profiler.SimpleProfiler.profiling = set(timed or ())
    if (api := loaded(_DTENSOR)) is not None:
        dispatcher = op_dispatcher(api)
        handlers = op_handlers(type(dispatcher)()) if handlers is None else handlers
        set_op_handlers(dispatcher, dict(handlers))
        if (parallel := loaded(_CONTEXT_PARALLEL)) is not None:  # it restores these
            parallel.existing_custom_ops = dict(handlers if handlers_at_first is None else handlers_at_first)


def _reads_of_tables() -> list:
    """Functions that reveal a change: the loaded modules, the tables in them, and copies of these."""
    names = (_PROFILER, _DTENSOR, _CONTEXT_PARALLEL, _RANDOM)
    profiler, api, parallel, drawing = found = tuple(map(loaded, names))
    if any(module is None and name in sys.modules for module, name in zip(found, names, strict=True)):
        return [_tables]  # an import is in progress
    reads = [partial(getattr, F, "scaled_dot_product_attention"), *(partial(sys.modules.get, name) for name in names)]
    stands = [partial(getattr, profiler.SimpleProfiler, "profiling")] if profiler else []
    stands += [partial(op_handlers, op_dispatcher(api))] if api else []
    stands += [partial(getattr, parallel, "existing_custom_ops")] if parallel else []
    return [*reads, *([partial(rng_tracker, drawing)] if drawing else []), *stands, *(table().copy for table in stands)]


SETTINGS = (
    attributes("process groups", *place("process_world"), is_always=True),
    ProcessSetting("tables in modules of torch", _tables, _set_tables, reads=_reads_of_tables),
)
