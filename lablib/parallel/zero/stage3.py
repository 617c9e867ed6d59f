"""ZeRO stage 3: parameters are also sharded. A unit is gathered just before it computes, and freed just after.

A rank keeps its shard of every unit (a submodule, such as a block). Before forward of a unit its parameters are
gathered, after it they are freed; backward gathers them again, and reduce-scatters the unit's gradients when they are
complete. To hide the gathers, the gather of the next unit starts before this unit computes: it is *prefetched*.

    comm       [gather 0][gather 1 ][gather 2 ]           [gather 1   ][scatter 2][gather 0   ][scatter 1]
    compute             [forward 0 ][forward 1 ][forward 2][backward 2    ][backward 1    ][backward 0   ]

Phases (the code has the same headings):
    1. before forward     wait for this unit's gather, start the next; mark the inputs
    2. after forward      free the parameters; mark the outputs
    3. before backward    the gradient of an output arrives: gather again, start the gather of the unit before
    4. a gradient is ready, inputs are done    with all gradients of a unit: reduce-scatter; after its backward: free
    5. backward ends      wait for reductions in flight, free all units

Parameters outside all units, and parameters of several units, belong to the root: gathered before the first unit, freed
when backward ends. Autograd saves views of a buffer for backward, so a buffer is freed by `resize_(0)` of its memory,
which is allocated again for backward.

Cost for n ranks, P parameters of p bytes (gradients: the same), K bytes of optimizer state and master copy for each, U
bytes of the largest unit, R of the root:
    time_s      max(compute, communication) for large units, plus the first gather and the last reduce-scatter
    peak bytes  (p + p + K)/n P at rest; during computation R + 2 U of parameters, in backward 2 U of gradients
    sent bytes  (n-1)/n (3 S - R) per rank and step, S = p P: without freeing after forward 2(n-1)/n S
Shapes: a full buffer is [N], N the padded elements of a unit; a shard is [N / n].
Source: Rajbhandari et al., "ZeRO", SC 2020, arXiv 1910.02054, sections 5.3 and 7.2.2; Zhao et al., "PyTorch FSDP", VLDB
2023, arXiv 2304.11277, sections 3.2 and 3.3; torch.distributed.fsdp.fully_shard (torch 2.13) for the hooks.
Simplified: the whole module exists on every rank before it is sharded; inputs and outputs of units are tensors in
tuples, lists and dicts, and units do not change their inputs in place; buffers are broadcast once.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib.parallel.data.naive import broadcast_module, require_no_unused
from lablib.parallel.data.overlapped import Synchronizing
from lablib.parallel.experts.gradients import ExpertGroup
from lablib.parallel.experts.layer import mixtures
from lablib.parallel.zero import shards
from lablib.parallel.zero.shards import (
    AllGather,
    ReduceScatter,
    all_gather_shards,
    num_under_way,
    reduce_scatter_average,
)
from lablib.parallel.zero.stage1 import Reduction, cast_floating, require_reduced, start_reduction
from lablib.parallel.zero.units import GatheredUnit, Use, default_units, mark_inputs, parameters_by_unit
from lablib.torch_compat import graph_task_id, queue_callback, tree_leaves


class Zero3(Synchronizing):
    """A sharded module: forward and backward gather units, and give each rank its shards' mean gradients.

    Used as `Zero1`, which also describes the other arguments. Outside forward and backward, the parameters of the
    module are flat pieces of this rank's shard.

    Arguments:
        units: submodules that are gathered as one; None: the members of every `nn.ModuleList` and `nn.Sequential`.
            With `experts`, also the experts of each mixture.
        reshard_after_forward: free parameters after forward and gather them again in backward; False: keep them.
        prefetch: start the gather of the next unit before this unit computes.
        backward_all_gather: the all-gather of parameters in backward, if not as in forward.

    Raises ValueError: as `Zero1`; a unit that is not in the module.
    """

    def __init__(
        self,
        module: nn.Module,
        group: dist.ProcessGroup | None = None,
        units: Sequence[nn.Module] | None = None,
        *,
        reshard_after_forward: bool = True,
        prefetch: bool = True,
        reduce_scatter: ReduceScatter = reduce_scatter_average,
        all_gather: AllGather = all_gather_shards,
        backward_all_gather: AllGather | None = None,
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        multiple_of: int = 1,
        experts: ExpertGroup | None = None,
    ):
        super().__init__()
        shards.require_shardable(module, group)
        self.module, self.group, self.param_dtype = module, group, param_dtype
        self.world_size = dist.get_world_size(group)
        self._reshards, self._prefetches = reshard_after_forward, prefetch
        self._reduce_scatter, self._all_gather = reduce_scatter, all_gather
        self._backward_all_gather = backward_all_gather or all_gather
        self._is_in_backward = False
        self._under_way: list[Reduction] = []
        of_experts, same_experts = (set[Tensor](), group) if experts is None else experts
        broadcast_module(module, same_experts)
        modules = default_units(module) if units is None else list(units)
        modules += [] if experts is None else [mixture.experts for mixture in mixtures(module)]
        options: dict[str, Any] = dict(param_dtype=param_dtype, reduce_dtype=reduce_dtype, multiple_of=multiple_of)
        names = {param: name for name, param in module.named_parameters()}
        owners = parameters_by_unit(module, modules).values()
        self._gathered_units = [
            GatheredUnit(owned, names, group if of_experts.isdisjoint(owned) else same_experts, options)
            for owned in owners
        ]
        self.units = [flat for unit in self._gathered_units for flat in unit.flats]
        self._order: list[GatheredUnit] = []
        self._last_order = self._gathered_units
        for owner, unit in zip((module, *modules), self._gathered_units, strict=True):
            owner.register_forward_pre_hook(partial(self._before_forward, unit), prepend=True, with_kwargs=True)
            owner.register_forward_hook(partial(self._after_forward, unit), always_call=True)
            for param in unit.trainable:
                param.register_post_accumulate_grad_hook(partial(self._on_gradient, unit))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        shards.require_same_ranks(self.group, self.world_size)
        if self._is_in_backward and graph_task_id() == -1:
            self._reset()  # discard the state of a backward that raised
        self._last_order, self._order = self._order or self._last_order, []
        args, kwargs = cast_floating((args, kwargs), self.param_dtype)
        return self.module(*args, **kwargs)

    # ---- 1. before forward ----

    def _before_forward(self, unit: GatheredUnit, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if graph_task_id() != -1:  # activation checkpointing recomputes it: backward will free it
            unit.gather(self._backward_all_gather)
            return None
        unit.gather(self._all_gather)
        self._order.append(unit)
        place = len(self._order)
        if self._last_order[place - 1 : place] == [unit]:  # the same order as last time
            self._prefetch(self._last_order[place : place + 1], self._all_gather)
        use = Use(unit)
        unit.open_uses.append(use)
        return mark_inputs(args, kwargs, partial(self._on_inputs_done, use), use) if torch.is_grad_enabled() else None

    def _prefetch(self, units: Sequence[GatheredUnit], all_gather: AllGather) -> None:
        if self._prefetches:
            for unit in units:
                unit.start_gather(all_gather)

    # ---- 2. after forward ----

    def _after_forward(self, unit: GatheredUnit, module: nn.Module, args: Any, output: Any) -> None:
        if graph_task_id() != -1:
            return
        if not unit.open_uses:
            return  # an earlier hook raised
        use = unit.open_uses.pop()
        outputs = [out for out in tree_leaves(output) if isinstance(out, Tensor) and out.requires_grad]
        before = next((other for other in reversed(self._order) if other is not unit), unit)
        for out in outputs:
            out.register_hook(partial(self._before_backward, use, before))
        if not outputs or (self._reshards and unit is not self._root):
            unit.free()
        if not outputs and unit is self._root:
            self._free_all()  # prefetched and not used

    # ---- 3. before backward ----

    def _before_backward(self, use: Use, before: GatheredUnit, grad: Tensor) -> None:
        """The gradient of an output of this use of a unit has arrived."""
        self._begin_backward()
        if use.has_end:
            use.unit.active.add(use)
        use.unit.gather(self._backward_all_gather)
        self._prefetch([before], self._backward_all_gather)

    def _begin_backward(self) -> None:
        if not self._is_in_backward:
            self._is_in_backward = True
            queue_callback(self._on_backward_end)

    # ---- 4. a gradient is ready, inputs are done ----

    def _on_gradient(self, unit: GatheredUnit, param: Tensor) -> None:
        """Autograd calls this with the *parameter*, once its gradient is in `param.grad`."""
        self._begin_backward()
        unit.arrived.add(param)
        if len(unit.arrived) < len(unit.trainable):
            return
        if self._is_synchronizing:
            self._reduce(unit)
        unit.arrived.clear()
        unit.is_complete = True
        # Without a hook at the end of backward, free after the last gradient, unless a frozen parameter may be needed.
        if len(unit.trainable) == unit.num_params:
            self._free_if_done(unit)

    def _on_inputs_done(self, use: Use) -> None:
        """Backward has passed through this use of a unit."""
        use.unit.active.discard(use)
        self._free_if_done(use.unit)

    def _free_if_done(self, unit: GatheredUnit) -> None:
        if unit is not self._root and not unit.active:
            unit.free()

    def _reduce(self, unit: GatheredUnit) -> None:
        # One in flight, after the time of a whole unit of backward; free its buffer before the next.
        self._finish_reductions(num_under_way(self._reduce_scatter) - 1)
        flat = unit.flats[0]
        full = flat.pack_gradients(unit.trainable)
        for param in unit.trainable:
            param.grad = None
        self._under_way.append(start_reduction(flat, full, self._reduce_scatter, self.world_size))

    def _finish_reductions(self, num_left: int = 0) -> None:
        while len(self._under_way) > num_left:
            done = self._under_way.pop(0)
            done.handle.wait()
            done.unit.add_gradient(done.shard)

    # ---- 5. backward ends ----

    def _on_backward_end(self) -> None:
        self._finish_reductions()
        unused = [name for unit in self._gathered_units if not unit.is_complete for name in unit.missing()]
        self._reset()
        if self._is_synchronizing:
            require_no_unused(unused)

    def _reset(self) -> None:
        for reduction in self._under_way:
            reduction.handle.wait()
        self._under_way.clear()
        self._is_in_backward = False
        self._free_all()
        for unit in self._gathered_units:
            unit.forget_backward()

    # ---- a step ----

    def before_step(self) -> None:
        """Prepare gradients for the optimizer. Raises ValueError if a backward is missing."""
        require_reduced(self.units)
        for flat in self.units:
            flat.before_step()

    def after_step(self) -> None:
        """Free gathered units, which are out of date."""
        self._free_all()
        for flat in self.units:
            flat.after_step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Free the gradients, full and sharded, also with `set_to_none=False`."""
        for unit in self._gathered_units:
            for param in unit.trainable:
                param.grad = None
            for flat in unit.flats:
                flat.master.grad = flat.shard.grad = None

    @property
    def _root(self) -> GatheredUnit:
        return self._gathered_units[0]

    def _free_all(self) -> None:
        for unit in self._gathered_units:
            unit.free()
