"""What torch keeps in its modules, not as a setting: process groups, and what context managers of torch change.

A process that enters `loss_parallel` or `context_parallel` changes torch for itself alone. Ranks share the modules, so
what these change is a rank's own:

    process groups     torch.distributed's world: the groups, their names and counters
    loss_parallel      DTensor's table of operators with a handler of their own: entries added, then removed
    context_parallel   the same table, replaced; torch.nn.functional.scaled_dot_product_attention, replaced
    FSDP1              the set of what its profiler is timing, which may hold a name once

DTensor and FSDP1 may be imported in the middle of a run. Their part of a state that was taken before is None, and what
is given back for it is as in a new process.

Simplified: the sharding rules that `context_parallel` adds to DTensor stay shared.
"""

from functools import partial
from typing import Any

import torch.nn.functional as F

from lablib.owners.owner import Owner
from lablib.torch_compat import World as PlainWorld
from lablib.torch_compat import loaded, op_dispatcher, op_handlers, place, set_op_handlers


class World(PlainWorld):
    """torch.distributed's per-process registry of groups, with dictionaries of its own instead of module globals."""

    group_count: Any = 0
    pg_map = pg_names = pg_group_ranks = pg_backend_config = tags_to_pg = pg_to_tag = group_count  # in each its own

    def __init__(self) -> None:
        super().__init__()
        for name in ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg", "pg_to_tag"):
            setattr(self, name, {})


def _tables() -> tuple:
    """What context managers of torch change: the things themselves, of which programs change the content."""
    timed = handlers = handlers_at_first = None
    if (profiler := loaded("torch.distributed.fsdp._debug_utils")) is not None:
        timed = profiler.SimpleProfiler.profiling
    if (api := loaded("torch.distributed.tensor._api")) is not None:
        handlers, parallel = op_handlers(op_dispatcher(api)), _context_parallel()
        handlers_at_first = handlers if parallel is None else parallel.existing_custom_ops
    return F.scaled_dot_product_attention, timed, handlers, handlers_at_first


def _ranks_tables(state: tuple) -> tuple:
    """What a rank begins with."""
    attention, _, handlers, _ = state
    own = None if handlers is None else dict(handlers)
    return attention, None, own, own


def _set_tables(state: tuple) -> None:
    F.scaled_dot_product_attention, timed, handlers, handlers_at_first = state
    if (profiler := loaded("torch.distributed.fsdp._debug_utils")) is not None:
        profiler.SimpleProfiler.profiling = set() if timed is None else timed
    if (api := loaded("torch.distributed.tensor._api")) is not None:
        dispatcher = op_dispatcher(api)
        handlers = op_handlers(type(dispatcher)()) if handlers is None else handlers
        set_op_handlers(dispatcher, handlers)
        if (parallel := _context_parallel()) is not None:  # it puts these back
            parallel.existing_custom_ops = handlers if handlers_at_first is None else handlers_at_first


def _context_parallel() -> Any:
    """Which imports DTensor; None while nobody has imported it."""
    return loaded("torch.distributed.tensor.experimental._context_parallel._attention")


_PLACE = place("process_world")

OWNERS = (
    Owner("process groups", partial(getattr, *_PLACE), partial(setattr, *_PLACE), is_always=True),
    Owner("tables in modules of torch", _tables, _set_tables, begin=_ranks_tables, is_always=True),
)
