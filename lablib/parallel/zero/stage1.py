"""ZeRO stage 1: sharded optimizer state. Each rank updates its part of the parameters, then all ranks gather them.

Replicas of plain data parallelism repeat the same optimizer step n times, with n copies of its state: for Adam twice
(with master parameters three times) the bytes of FP32 parameters. Here a rank updates only its shard, and has state
only for its shard. It needs only the mean gradient of that shard, so a bucket is reduce-scattered, not all-reduced;
after the step an all-gather gives all ranks the new parameters. Together these send the same bytes as the all-reduce.

    compute    forward | backward 3 | backward 2 | backward 1 |    wait | step of 1/n |  wait
    comm                            [ reduce-scatter 3 ][ 2 ][ 1 ]                    [ all-gather ]

Phases of one step (the code has the same headings):
    1. a gradient is ready     count it; a complete bucket is launched, in the order of the plan: `data/overlapped.py`
    2. a bucket is launched    pack it; it becomes the gradient. Start its reduce-scatter, without waiting
    3. backward ends           wait for reductions in flight; write this rank's part of the mean
    4. the shards have changed all-gather the parameters

Cost for n ranks, P parameters of p bytes (gradients: the same), K bytes of optimizer state and master copy per
parameter:
    time_s      as data parallelism, plus the all-gather after the step, (n-1) alpha + (n-1)/n S beta, exposed
    peak bytes  (p + p + K/n) P at rest, and a bucket during backward
    sent bytes  2(n-1)/n S per rank and step, S = p P: as data parallelism; 0 under `no_sync`
Shapes: a full buffer is [N], N the padded elements of a bucket; a shard is [N / n].
Source: Rajbhandari et al., "ZeRO", SC 2020, arXiv 1910.02054, sections 5.1 and 7.2.1.
Simplified: all parameters are gathered before the next forward; buffers are broadcast once; frozen parameters stay on
every rank.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib.parallel.data.bucketed import BUCKET_BYTES, plan_buckets
from lablib.parallel.data.naive import broadcast_module, require_no_unused
from lablib.parallel.data.overlapped import BucketBackward, Handle, Synchronizing
from lablib.parallel.experts.gradients import ExpertGroup
from lablib.parallel.zero import shards
from lablib.parallel.zero.shards import AllGather, FlatUnit, ReduceScatter, all_gather_shards, reduce_scatter_average
from lablib.torch_compat import graph_task_id, queue_callback, tree_leaves, tree_map_only


@dataclass
class Reduction:
    """The reduce-scatter in flight of a unit's gradient, from `full` to `shard`."""

    unit: FlatUnit
    full: Tensor
    shard: Tensor
    handle: Handle


class Zero1(Synchronizing):
    """A replica with sharded optimizer state: after `loss.backward()` each rank has its shards' mean gradients.

        sharded = Zero1(model)
        optimizer = torch.optim.AdamW([unit.master for unit in sharded.units])
        loss_of(sharded(inputs), targets).backward()      # communicates
        sharded.before_step(); optimizer.step(); sharded.after_step()      # communicates; `Zero` has them as one

    Arguments:
        module: on this rank's device. Parameters that do not require gradients at construction are ignored.
        group: the ranks that share the state; None for all.
        bucket_bytes: maximum bytes of a bucket.
        reduce_scatter, all_gather: collectives for gradients and parameters; see `zero/shards.py`.
        param_dtype: of computing and gathering; None: the parameters' dtype. The optimizer updates a copy of its shard
            in the parameters' dtype.
        reduce_dtype: of reducing and keeping gradients: `param_dtype` (None), or the parameters' dtype.
        multiple_of: a shard's elements are a multiple of this.
        experts: of a module after `ExpertParallel.parallelize`. Only ranks with the same ones share their state; in
            `group`, the ranks along data and expert.

    Raises:
        ValueError: no parameter to train, several dtypes or devices, a group without this rank; in backward, a
            parameter without a gradient, or one with a gradient already reduced in this step.
    """

    def __init__(
        self,
        module: nn.Module,
        group: dist.ProcessGroup | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        *,
        reduce_scatter: ReduceScatter = reduce_scatter_average,
        all_gather: AllGather = all_gather_shards,
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        multiple_of: int = 1,
        experts: ExpertGroup | None = None,
    ):
        super().__init__()
        shards.require_shardable(module, group)
        self.module, self.group, self.param_dtype = module, group, param_dtype
        self.world_size = dist.get_world_size(group)
        self._reduce_scatter, self._all_gather = reduce_scatter, all_gather
        self._backward: BucketBackward | None = None
        of_experts, same_experts = (set[Tensor](), group) if experts is None else experts
        broadcast_module(module, same_experts)
        named = [(name, param) for name, param in module.named_parameters() if param.requires_grad]
        self.units = [
            FlatUnit(
                [named[i] for i in plan],
                same_experts if named[plan[0]][1] in of_experts else group,
                in_place=True,
                param_dtype=param_dtype,
                reduce_dtype=reduce_dtype,
                multiple_of=multiple_of,
            )
            for plan in plan_buckets([param for _, param in named], bucket_bytes, of_experts)
        ]
        self._names: dict[Tensor, str] = {param: name for name, param in named}
        self._unit_of: dict[Tensor, int] = {param: i for i, unit in enumerate(self.units) for param in unit.params}
        for param in module.parameters():
            if not param.requires_grad and param_dtype is not None:
                param.data = param.data.to(param_dtype)
        for unit in self.units:
            for param, view in zip(unit.params, unit.layout.views(unit.full), strict=True):
                param.data = view
                param.register_post_accumulate_grad_hook(self._on_gradient)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        shards.require_same_ranks(self.group, self.world_size)
        if self._backward is not None and graph_task_id() == -1:  # not called by activation checkpointing
            for reduction in self._backward.under_way:
                reduction.handle.wait()
            self._backward = None  # discard the state of a backward that raised
        args, kwargs = cast_floating((args, kwargs), self.param_dtype)
        output = self.module(*args, **kwargs)
        for out in tree_leaves(output):
            if isinstance(out, Tensor) and out.requires_grad:
                out.register_hook(self._on_backward_begin)
        return output

    # ---- 1. a gradient is ready ----

    def _on_gradient(self, param: Tensor) -> None:
        """Autograd calls this with the *parameter*, once its gradient is in `param.grad`."""
        if not self._is_synchronizing:
            return
        self._on_backward_begin()
        now = self._backward
        assert now is not None
        for index in now.complete(param, self._names[param], self._unit_of[param]):
            self._launch(self.units[index], now)

    def _on_backward_begin(self, grad: Tensor | None = None) -> None:
        # The gradient of the module's output comes first, before any nested backward, which ends separately.
        if self._is_synchronizing and self._backward is None:
            self._backward = BucketBackward([len(unit.params) for unit in self.units])
            queue_callback(self._on_backward_end)

    # ---- 2. a bucket is launched ----

    def _launch(self, unit: FlatUnit, now: BucketBackward) -> None:
        if unit.gradient is not None:  # the mean is stored among local gradients, so nothing can be added
            raise ValueError(
                f"stage 1 reduces gradients once per step: {unit.layout.names[0]} is reduced; run all backward passes "
                "but the last under no_sync(), and zero_grad() after each step."
            )
        full = unit.pack_gradients(unit.params)
        if full.dtype == unit.full.dtype:  # the bucket is the gradient; in another dtype both are kept
            for param, view in zip(unit.params, unit.layout.views(full), strict=True):
                param.grad = view
        now.under_way.append(self._start(unit, full))

    def _start(self, unit: FlatUnit, full: Tensor) -> Reduction:
        return start_reduction(unit, full, self._reduce_scatter, self.world_size)

    # ---- 3. backward ends ----

    def _on_backward_end(self) -> None:
        now, self._backward = self._backward, None
        assert now is not None
        for reduction in now.under_way:
            self._finish(reduction)
        require_no_unused([name for param, name in self._names.items() if param not in now.seen])

    def _finish(self, reduction: Reduction) -> None:
        """Write the mean of this rank's part into the full gradient; its other parts are no longer valid."""
        reduction.handle.wait()
        unit, own = reduction.unit, reduction.unit.layout.shard_of(dist.get_rank(reduction.unit.group))
        unit.gradient = reduction.shard
        if reduction.full.dtype == unit.full.dtype:
            unit.gradient = reduction.full[own].copy_(reduction.shard)

    # ---- 4. the shards have changed ----

    def before_step(self) -> None:
        """Prepare gradients for the optimizer. Raises ValueError if a backward is missing."""
        require_reduced(self.units)
        for unit in self.units:
            unit.before_step()

    def after_step(self) -> None:
        """All-gather the updated parameters. Communicates."""
        for unit in self.units:
            unit.after_step()
        handles = [self._all_gather(unit.shard.detach(), unit.full, unit.group) for unit in self.units]
        for handle in handles:
            handle.wait()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Free the gradients, full and sharded, also with `set_to_none=False`."""
        for unit in self.units:
            unit.master.grad = unit.shard.grad = None
            for param in unit.params:
                param.grad = None


def start_reduction(unit: FlatUnit, full: Tensor, reduce_scatter: ReduceScatter, world_size: int) -> Reduction:
    """Start the mean over `world_size` ranks of a unit's gradient, which fewer ranks share if it is of experts."""
    shard = full.new_empty(unit.layout.shard_numel)
    if unit.layout.world_size < world_size:  # already a sum over the ranks that spread the experts
        full.div_(world_size // unit.layout.world_size)
    return Reduction(unit, full, shard, reduce_scatter(full, shard, unit.group))


def cast_floating(tree: Any, dtype: torch.dtype | None) -> Any:
    """Cast floating-point tensors in nested arguments; None: no cast."""
    if dtype is None:
        return tree
    return tree_map_only(Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, tree)


def require_reduced(units: list[FlatUnit]) -> None:
    """Raise ValueError unless every trainable unit has its mean gradient."""
    missing = [unit.layout.names[0] for unit in units if unit.is_trainable and unit.gradient is None]
    if missing:
        raise ValueError(
            f"a step needs reduced gradients: there are none for {missing[0]}; run backward first, and the last one of "
            "a step outside of no_sync()."
        )
