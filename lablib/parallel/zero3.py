"""ZeRO stage 3: parameters are sharded, too. A unit is gathered just before it computes, and freed just after.

A rank keeps its shard of every unit (a submodule, such as a block). Before forward of a unit its parameters are
gathered, after it they are freed; backward gathers them again, and reduce-scatters the unit's gradients when they are
complete. So that no one waits for a gather, that of the next unit starts before this unit computes: it is *prefetched*.

    comm       [gather 0][gather 1 ][gather 2 ]           [gather 1   ][scatter 2][gather 0   ][scatter 1]
    compute             [forward 0 ][forward 1 ][forward 2][backward 2    ][backward 1    ][backward 0   ]

Phases (the code has the same headings):
    1. before forward     wait for this unit's gather, start that of the next; mark the inputs
    2. after forward      free the parameters; mark the outputs
    3. before backward    the gradient of an output arrives: gather again, start the gather of the unit before
    4. a gradient is ready, inputs are done    with all gradients of a unit: reduce-scatter; with nothing left: free
    5. backward ends      wait for what is under way, free what is left

Parameters outside of all units, and those that several units use, belong to the root: gathered before the first unit,
freed when backward ends. Autograd saves views of a buffer for backward, so a buffer is freed by taking its memory away
(`resize_(0)`), and has it back when backward needs it.

Cost for n ranks, P parameters of p bytes (gradients: the same), K bytes of optimizer state and master copy for each, U
bytes of the largest unit, R of the root:
    time_s      max(compute, communication) where units are large, plus the first gather and the last reduce-scatter
    peak bytes  (p + p + K)/n P at rest; while it computes R + 2 U of parameters, in backward 2 U of gradients
    sent bytes  (n-1)/n (3 S - R) per rank and step, S = p P: without freeing after forward 2(n-1)/n S
Shapes: a full buffer is [N], N the padded elements of a unit; a shard is [N / n].
Source: Rajbhandari et al., "ZeRO", SC 2020, arXiv 1910.02054, sections 5.3 and 7.2.2; Zhao et al., "PyTorch FSDP", VLDB
2023, arXiv 2304.11277, sections 3.2 and 3.3; torch.distributed.fsdp.fully_shard (torch 2.13) for what hooks do when.
Simplified: the whole module exists on every rank before it is sharded; inputs and outputs of units are tensors in
tuples, lists and dicts, and units do not change their inputs in place; buffers are broadcast once.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib.parallel.data_parallel import Handle
from lablib.parallel.naive_data_parallel import broadcast_module, require_no_unused
from lablib.parallel.zero1 import Reduction, cast_floating, require_reduced
from lablib.parallel.zero_shards import (
    AllGather,
    FlatUnit,
    ReduceScatter,
    all_gather_shards,
    num_under_way,
    reduce_scatter_average,
    require_same_ranks,
    require_shardable,
)
from lablib.torch_compat import graph_task_id, queue_callback, tree_leaves, tree_map_only

Owners = dict[nn.Parameter, list[tuple[nn.Module, str]]]  # parameter -> the modules that have it, and its name there


class Zero3(nn.Module):
    """A sharded module: forward and backward gather what they need, and leave each rank its shards' mean gradients.

    Used as `Zero1`, which also describes the arguments that are not described here. The parameters of the module are,
    outside of forward and backward, flat pieces: what this rank's shard has of each.

    Arguments:
        units: submodules that are gathered as one; None: the members of every `nn.ModuleList` and `nn.Sequential`.
        reshard_after_forward: free parameters after forward and gather them again in backward; False: keep them.
        prefetch: start the gather of the next unit before this unit computes.
        backward_all_gather: how parameters travel in backward, if not as in forward.

    Raises:
        ValueError: as `Zero1`; a unit that is not in the module.
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
    ):
        super().__init__()
        require_shardable(module, group)
        self.module, self.group, self.param_dtype = module, group, param_dtype
        self.world_size = dist.get_world_size(group)
        self._reshards, self._prefetches = reshard_after_forward, prefetch
        self._reduce_scatter, self._all_gather = reduce_scatter, all_gather
        self._backward_all_gather = backward_all_gather or all_gather
        self._is_synchronizing, self._is_in_backward = True, False
        self._under_way: list[Reduction] = []
        broadcast_module(module, group)
        modules = default_units(module) if units is None else list(units)
        options: dict[str, Any] = dict(param_dtype=param_dtype, reduce_dtype=reduce_dtype, multiple_of=multiple_of)
        names = {param: name for name, param in module.named_parameters()}
        self._gathered_units = [
            GatheredUnit(owned, names, group, options) for owned in parameters_by_unit(module, modules).values()
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
        require_same_ranks(self.group, self.world_size)
        if self._is_in_backward and graph_task_id() == -1:
            self._reset()  # a backward that raised leaves nothing behind
        self._last_order, self._order = self._order or self._last_order, []
        args, kwargs = cast_floating((args, kwargs), self.param_dtype)
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, backward only adds to this rank's full gradients: parameters are gathered, nothing is reduced."""
        before, self._is_synchronizing = self._is_synchronizing, False
        try:
            yield
        finally:
            self._is_synchronizing = before

    # ---- 1. before forward ----

    def _before_forward(self, unit: "GatheredUnit", module: nn.Module, args: Any, kwargs: Any) -> Any:
        if graph_task_id() != -1:  # activation checkpointing computes it again: backward will free it
            unit.gather(self._backward_all_gather)
            return None
        unit.gather(self._all_gather)
        self._order.append(unit)
        place = len(self._order)
        if self._last_order[place - 1 : place] == [unit]:  # the order is as it was the last time
            self._prefetch(self._last_order[place : place + 1], self._all_gather)
        use = Use(unit)
        unit.open_uses.append(use)
        return mark_inputs(args, kwargs, partial(self._on_inputs_done, use), use) if torch.is_grad_enabled() else None

    def _prefetch(self, units: Sequence["GatheredUnit"], all_gather: AllGather) -> None:
        if self._prefetches:
            for unit in units:
                unit.start_gather(all_gather)

    # ---- 2. after forward ----

    def _after_forward(self, unit: "GatheredUnit", module: nn.Module, args: Any, output: Any) -> None:
        if graph_task_id() != -1:
            return
        if not unit.open_uses:
            return  # a hook before ours raised
        use = unit.open_uses.pop()
        outputs = [out for out in tree_leaves(output) if isinstance(out, Tensor) and out.requires_grad]
        before = next((other for other in reversed(self._order) if other is not unit), unit)
        for out in outputs:
            out.register_hook(partial(self._before_backward, use, before))
        if not outputs or (self._reshards and unit is not self._root):
            unit.free()
        if not outputs and unit is self._root:
            self._free_all()  # what was prefetched and not used

    # ---- 3. before backward ----

    def _before_backward(self, use: "Use", before: "GatheredUnit", grad: Tensor) -> None:
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

    def _on_gradient(self, unit: "GatheredUnit", param: Tensor) -> None:
        """Autograd calls this with the *parameter*, once its gradient is in `param.grad`."""
        self._begin_backward()
        unit.arrived.add(param)
        if len(unit.arrived) < len(unit.trainable):
            return
        if self._is_synchronizing:
            self._reduce(unit)
        unit.arrived.clear()
        unit.is_complete = True
        # Where nothing tells the end of backward, the last gradient does, unless a frozen parameter may be needed yet.
        if len(unit.trainable) == unit.num_params:
            self._free_if_done(unit)

    def _on_inputs_done(self, use: "Use") -> None:
        """Backward has passed through this use of a unit."""
        use.unit.active.discard(use)
        self._free_if_done(use.unit)

    def _free_if_done(self, unit: "GatheredUnit") -> None:
        if unit is not self._root and not unit.active:
            unit.free()

    def _reduce(self, unit: "GatheredUnit") -> None:
        # One on its way, which has had the time of a whole unit of backward; its buffer goes before the next comes.
        self._finish_reductions(num_under_way(self._reduce_scatter) - 1)
        flat = unit.flats[0]
        full = flat.pack_gradients(unit.trainable)
        for param in unit.trainable:
            param.grad = None
        shard = full.new_empty(flat.layout.shard_numel)
        self._under_way.append(Reduction(flat, full, shard, self._reduce_scatter(full, shard, self.group)))

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
        """Gradients as the optimizer wants them. Raises ValueError where a backward is still missing."""
        require_reduced(self.units)
        for flat in self.units:
            flat.before_step()

    def after_step(self) -> None:
        """Shards are up to date; what is still gathered is not."""
        self._free_all()
        for flat in self.units:
            flat.after_step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, full and sharded. They are always freed, whatever `set_to_none` says."""
        for unit in self._gathered_units:
            for param in unit.trainable:
                param.grad = None
            for flat in unit.flats:
                flat.master.grad = flat.shard.grad = None

    @property
    def _root(self) -> "GatheredUnit":
        return self._gathered_units[0]

    def _free_all(self) -> None:
        for unit in self._gathered_units:
            unit.free()


class Use:
    """One use of a unit in forward; `has_end`: backward tells when it has passed, as an input has a gradient."""

    def __init__(self, unit: "GatheredUnit"):
        self.unit, self.has_end = unit, False


class GatheredUnit:
    """The parameters of a submodule, gathered and freed together.

    Attributes:
        flats: the flat units of its trainable parameters, if any, and then of its frozen ones, if any.
        trainable: the full trainable parameters, of which autograd makes gradients; without memory while it is freed.
        arrived: those whose gradient has come in this backward, until it is reduced.
        is_complete: all have come in this backward.
        active: uses that backward has begun and not ended.
    """

    def __init__(self, owners: Owners, names: dict[nn.Parameter, str], group: Any, options: dict[str, Any]):
        self.flats: list[FlatUnit] = []
        self.trainable: list[nn.Parameter] = []
        self.num_params = len(owners)
        self.arrived: set[Tensor] = set()
        self.open_uses: list[Use] = []
        self.active: set[Use] = set()
        self._slots: list[tuple[nn.Module, str, nn.Parameter, nn.Parameter]] = []
        self._gathers: list[Handle] | None = None  # under way
        self._is_gathered = True
        for requires_grad in (True, False):
            params = [param for param in owners if param.requires_grad == requires_grad]
            if params:
                flat = FlatUnit([(names[param], param) for param in params], group, in_place=False, **options)
                self.flats.append(flat)
                self._replace(flat, params, owners)
        self.is_complete = not self.trainable
        self.free()

    def _replace(self, flat: FlatUnit, params: list[nn.Parameter], owners: Owners) -> None:
        """Two parameters for each of the module's: the full one, and what this rank keeps of it."""
        pieces = {piece.name: piece for piece in flat.layout.pieces(dist.get_rank(flat.group))}
        for param, name, view in zip(params, flat.layout.names, flat.layout.views(flat.full), strict=True):
            full = nn.Parameter(view.data, requires_grad=param.requires_grad)
            start, numel = (pieces[name].start_in_shard, pieces[name].numel) if name in pieces else (0, 0)
            kept = nn.Parameter(flat.shard.data[start : start + numel], requires_grad=param.requires_grad)
            self._slots += [(owner, attribute, full, kept) for owner, attribute in owners[param]]
            if full.requires_grad:
                self.trainable.append(full)
        flat.params = ()  # the module's own parameters go

    def start_gather(self, all_gather: AllGather) -> None:
        """Give the buffers memory, and start to gather; nothing if that was done."""
        if self._is_gathered or self._gathers is not None:
            return
        for flat in self.flats:
            flat.full.untyped_storage().resize_(flat.full.nbytes)
        self._gathers = [all_gather(flat.shard.detach(), flat.full, flat.group) for flat in self.flats]

    def gather(self, all_gather: AllGather) -> None:
        """Have the parameters in the module when this returns."""
        self.start_gather(all_gather)
        for handle in self._gathers or ():
            handle.wait()
        if not self._is_gathered:
            self._show(is_full=True)
        self._gathers = None

    def free(self) -> None:
        """Leave the module its pieces, and take the memory of the buffers."""
        for handle in self._gathers or ():
            handle.wait()  # prefetched, and not used
        if self._is_gathered:
            self._show(is_full=False)
        self._gathers = None
        for flat in self.flats:
            flat.full.untyped_storage().resize_(0)

    def _show(self, is_full: bool) -> None:
        self._is_gathered = is_full
        for owner, attribute, full, kept in self._slots:
            setattr(owner, attribute, full if is_full else kept)

    def missing(self) -> list[str]:
        """Names of the trainable parameters whose gradient has not come."""
        names = self.flats[0].layout.names
        return [name for name, param in zip(names, self.trainable, strict=True) if param not in self.arrived]

    def forget_backward(self) -> None:
        self.arrived.clear()
        self.active.clear()
        self.open_uses.clear()
        self.is_complete = not self.trainable


# ---- which parameter belongs to which unit ----


def default_units(module: nn.Module) -> list[nn.Module]:
    """The members of every `nn.ModuleList` and `nn.Sequential`, but not those within members; they have parameters."""
    found: list[nn.Module] = []
    for child in module.children() if not isinstance(module, (nn.ModuleList, nn.Sequential)) else [module]:
        if isinstance(child, (nn.ModuleList, nn.Sequential)):
            found += [member for member in child.children() if any(True for _ in member.parameters())]
        else:
            found += default_units(child)
    return list(dict.fromkeys(found))


def parameters_by_unit(module: nn.Module, units: Sequence[nn.Module]) -> dict[nn.Module, Owners]:
    """For the root and then each unit its parameters: those that no unit within it has, and no other unit uses.

    Raises:
        ValueError: a unit that is not in the module, or is the module itself.
    """
    inside = set(module.modules()) - {module}
    strangers = [unit for unit in units if unit not in inside]
    if strangers:
        raise ValueError(f"units must be submodules of the module: got {type(strangers[0]).__name__}, which is not.")
    users: dict[nn.Parameter, set[nn.Module]] = {}
    places: dict[nn.Parameter, dict[tuple[nn.Module, str], None]] = {}

    # A stack, not recursion: a function that calls itself is a reference cycle, and would keep the whole model alive.
    stack = [(module, module)]
    while stack:
        owner, unit = stack.pop()
        unit = owner if owner in units else unit
        for name, param in owner.named_parameters(recurse=False, remove_duplicate=False):
            users.setdefault(param, set()).add(unit)
            places.setdefault(param, {})[owner, name] = None  # once, though a shared module is met twice
        stack += [(child, unit) for child in reversed(list(owner.children()))]
    found: dict[nn.Module, Owners] = {unit: {} for unit in (module, *units)}
    for param, using in users.items():
        found[next(iter(using)) if len(using) == 1 else module][param] = list(places[param])
    return found


# ---- marks in the graph ----


class _Inputs(torch.autograd.Function):
    """The identity. Its backward runs when backward has passed through all that was computed from its results."""

    @staticmethod
    def forward(ctx: Any, on_done: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.on_done = on_done
        return inputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        ctx.on_done()
        return None, *grads


def mark_inputs(args: Any, kwargs: Any, on_done: Any, use: Use) -> tuple[Any, Any]:
    """Let `on_done` be called when backward has passed through this use; where no input has a gradient, nothing can."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.requires_grad]
    if not tensors:
        return args, kwargs
    use.has_end = True
    marked = dict(zip(map(id, tensors), _Inputs.apply(on_done, *tensors), strict=True))  # pyright: ignore
    return tree_map_only(Tensor, lambda x: marked.get(id(x), x), (args, kwargs))
