"""What torch keeps in its modules and a program's context managers change: each rank gets its own.

A process that enters `loss_parallel` or `context_parallel` changes torch for itself alone. Ranks share the modules, so
what these change is swapped with every turn:

    loss_parallel      DTensor's table of operators with a handler of their own: entries added, then removed
    context_parallel   the same table, replaced; torch.nn.functional.scaled_dot_product_attention, replaced
    FSDP1              the set of what its profiler is timing, which may hold a name once

Simplified: the sharding rules that `context_parallel` adds to DTensor stay shared.
"""

from typing import Any

import torch.nn.functional as F

from lablib.torch_compat import loaded, op_dispatcher, op_handlers, set_op_handlers


class ModuleState:
    """One owner's view: a rank's, or with `is_rank=False` the process's. It begins as things are when it is made.

    DTensor may be imported in the middle of a run; then its table begins as a fresh one.
    """

    def __init__(self, is_rank: bool = True):
        self._attention = F.scaled_dot_product_attention
        self._timed: set[str] = set()
        dispatcher = _dispatcher()
        handlers = op_handlers(dispatcher) if dispatcher else None
        self._handlers = dict(handlers) if is_rank and handlers is not None else handlers
        self._handlers_at_first = self._handlers

    def put(self) -> None:
        """Make torch's modules say what this owner left in them."""
        F.scaled_dot_product_attention = self._attention
        profiler = loaded("torch.distributed.fsdp._debug_utils")
        if profiler is not None:
            profiler.SimpleProfiler.profiling = self._timed
        dispatcher = _dispatcher()
        if dispatcher is None:
            return
        if self._handlers is None:
            self._handlers = self._handlers_at_first = op_handlers(type(dispatcher)())
        set_op_handlers(dispatcher, self._handlers)
        attention = loaded("torch.distributed.tensor.experimental._context_parallel._attention")
        if attention is not None:
            attention.existing_custom_ops = self._handlers_at_first  # what context_parallel puts back

    def take(self) -> None:
        """Note what the owner leaves."""
        self._attention = F.scaled_dot_product_attention
        if (dispatcher := _dispatcher()) is not None:
            self._handlers = op_handlers(dispatcher)
            self._handlers_at_first = self._handlers_at_first or self._handlers


def _dispatcher() -> Any:
    """DTensor's dispatcher, or None while nobody has imported DTensor."""
    api = loaded("torch.distributed.tensor._api")
    return None if api is None else op_dispatcher(api)
