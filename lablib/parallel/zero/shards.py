"""Shards: parameters as pieces of one flat buffer, cut into equal parts, one for each rank.

Data parallelism keeps everything on every rank. In ZeRO each rank owns a part. Parameters have different sizes, so they
are not assigned one by one: the parameters of a *unit* (a bucket, or a submodule) are concatenated in a flat buffer,
which is padded so that every rank's part, its *shard*, has the same length. A parameter is a view of the buffer. It may
span several shards, and a shard has pieces of several parameters:

    full      [ weight 5          ][ bias 3   ][ 0 ]        numel 8, 3 ranks: shards of 3, padded to 9
    shards    [ rank 0 ][ rank 1     ][ rank 2     ]

    all_gather       every rank's shard -> the full buffer, on every rank
    reduce_scatter   a full buffer on every rank -> each rank's shard of the mean

Cost for n ranks, S bytes of the padded buffer, alpha and beta of the link (ring), of either collective:
    time_s      (n-1) alpha + (n-1)/n S beta
    peak bytes  S + S/n
    sent bytes  (n-1)/n S per rank: in sequence they are an all-reduce
Shapes: a full buffer is [N], N the padded elements of a unit; a shard is [N / n].
Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020, arXiv
1910.02054, section 5; Zhao et al., "PyTorch FSDP", VLDB 2023, arXiv 2304.11277, section 3.2.1 (flat parameters).
Simplified: parameters of a unit have one dtype and device; optimizers that need a parameter's shape (norms by matrix,
Muon) get only pieces: see `zero/per_parameter.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib.parallel.data.overlapped import Handle
from lablib.parallel.tensor.regions import all_gather_single, reduce_scatter_single
from lablib.signature import Count, check_type, checked


class ReduceScatter(Protocol):
    """Starts to fill `shard` with this rank's part of the group's mean of `full`; `full` may be overwritten."""

    def __call__(self, full: Tensor, shard: Tensor, group: dist.ProcessGroup | None, /) -> Handle: ...


def num_under_way(reduce_scatter: ReduceScatter) -> int:
    """The number of its calls in flight at once: its `num_under_way`, or 1. Each keeps a full buffer."""
    return getattr(reduce_scatter, "num_under_way", 1)


class AllGather(Protocol):
    """Starts to fill `full` with the group's shards in the order of their ranks.

    In stages 1 and 2 without mixed precision `shard` is a view of `full`. A lossy gather must not be used there, as it
    would overwrite the only copy of the parameters.
    """

    def __call__(self, shard: Tensor, full: Tensor, group: dist.ProcessGroup | None, /) -> Handle: ...


def reduce_scatter_average(full: Tensor, shard: Tensor, group: dist.ProcessGroup | None = None) -> Handle:
    """`shard` becomes this rank's part of the mean of `full`, by one reduce-scatter in the background."""
    full.div_(dist.get_world_size(group))  # before the sum, which might overflow in 16 bits
    work = reduce_scatter_single(shard, full, group=group, async_op=True)
    assert work is not None  # only ranks outside the group get None
    return work


def all_gather_shards(shard: Tensor, full: Tensor, group: dist.ProcessGroup | None = None) -> Handle:
    """`full` becomes the concatenated shards of all ranks, by one all-gather in the background."""
    work = all_gather_single(full, shard, group=group, async_op=True)
    assert work is not None
    return work


class ShardPiece(NamedTuple):
    """A shard's part of a parameter: `numel` elements, from `start_in_param` of the flattened parameter on."""

    name: str
    start_in_param: int
    start_in_shard: int
    numel: int


@dataclass(frozen=True)
class FlatLayout:
    """Places of a unit's parameters in its flat buffer and in the shards. Pure: no memory."""

    names: tuple[str, ...]  # of the parameters, in the order of the buffer
    shapes: tuple[tuple[int, ...], ...]  # of the parameters
    world_size: int  # ranks that share the unit
    multiple_of: int = 1  # a shard's elements are a multiple of this, for blocks (8-bit states, quantization)

    @property
    def numels(self) -> tuple[int, ...]:
        """Elements of each parameter."""
        return tuple(map(prod, self.shapes))

    @property
    def numel(self) -> int:
        """Elements of all parameters."""
        return sum(self.numels)

    @property
    def shard_numel(self) -> int:
        """Elements of every shard: N / n rounded up to the multiple."""
        return -(-self.numel // (self.world_size * self.multiple_of)) * self.multiple_of

    @property
    def padded_numel(self) -> int:
        """Elements of the full buffer."""
        return self.shard_numel * self.world_size

    def shard_of(self, rank: int) -> slice:
        """The part of the buffer that this rank of the group owns."""
        return slice(rank * self.shard_numel, (rank + 1) * self.shard_numel)

    def pieces(self, rank: int) -> list[ShardPiece]:
        """The pieces of parameters on a rank's shard, in order; parameters without a piece are left out."""
        shard, found = self.shard_of(rank), []
        starts = list(accumulate(self.numels, initial=0))[:-1]
        for name, start, numel in zip(self.names, starts, self.numels, strict=True):
            first, end = max(start, shard.start), min(start + numel, shard.stop)
            if first < end:
                found.append(ShardPiece(name, first - start, first - shard.start, end - first))
        return found

    def views(self, full: Tensor) -> list[Tensor]:
        """The parameters, as views of a flat buffer."""
        parts = full[: self.numel].split(self.numels)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


class FlatUnit:
    """The parameters of a unit as one flat buffer, and this rank's shard of it.

    Attributes:
        layout: places of the parameters.
        params: the module's parameters before it was sharded.
        full: the flat buffer, in the dtype of computing. The user of the unit allocates and frees it.
        shard: this rank's part in that dtype, which ranks gather. A view of `full` if `in_place`.
        master: the parameters of the optimizer: the shard, or with mixed precision a copy in the module's dtype.
    """

    @checked
    def __init__(
        self,
        named_params: Sequence[tuple[str, nn.Parameter]],
        group: dist.ProcessGroup | None,
        *,
        in_place: bool,
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        multiple_of: Count = 1,
    ):
        if param_dtype is not None and not param_dtype.is_floating_point:
            raise ValueError(f"param_dtype must be a floating-point dtype: got {param_dtype}; try torch.bfloat16.")
        names, params = zip(*named_params, strict=True)
        shapes = tuple(tuple(param.shape) for param in params)
        self.group, self.params, self.is_trainable = group, params, params[0].requires_grad
        self.layout = FlatLayout(names, shapes, dist.get_world_size(group), multiple_of)
        master_dtype: torch.dtype = params[0].dtype
        param_dtype = param_dtype or master_dtype
        self.reduce_dtype = reduce_dtype or param_dtype
        if self.reduce_dtype not in (param_dtype, master_dtype):
            raise ValueError(
                f"reduce_dtype must be the dtype of computing, {param_dtype}, or of the master parameters, "
                f"{master_dtype}: got {self.reduce_dtype}."
            )
        own = self.layout.shard_of(dist.get_rank(group))
        with torch.no_grad():
            flat = _joined(params, self.layout.padded_numel)
            self.full = flat.to(param_dtype)
            # `.data`: a tensor that shares memory, but not autograd's version counter.
            piece = self.full[own].data if in_place else self.full[own].clone()
            self.shard = nn.Parameter(piece, requires_grad=self.is_trainable)
            is_mixed = param_dtype != master_dtype and self.is_trainable
            self.master = nn.Parameter(flat[own].clone()) if is_mixed else self.shard

    @property
    def gradient(self) -> Tensor | None:
        """This rank's shard of the reduced gradient, in `reduce_dtype`; None before the first backward of a step."""
        return self._keeper.grad

    @gradient.setter
    def gradient(self, value: Tensor | None) -> None:
        self._keeper.grad = value

    @property
    def _keeper(self) -> nn.Parameter:
        """`.grad` has the dtype of its parameter, so the gradient is stored on the shard with its dtype."""
        return self.master if self.master.dtype == self.reduce_dtype else self.shard

    def add_gradient(self, shard: Tensor) -> None:
        """Add a reduced gradient to the sum of earlier micro-batches."""
        if self.gradient is None:
            self.gradient = shard
        else:
            self.gradient.add_(shard)
        if self.master is not self._keeper:
            self.master.grad = None  # out of date

    def before_step(self) -> None:
        """Give the optimizer the gradient in the dtype of the master; a second call has no effect."""
        if self.gradient is not None and self.master.grad is None:
            self.master.grad = self.gradient.to(self.master.dtype)

    def after_step(self) -> None:
        """Copy the master to the shard."""
        if self.master is not self.shard:
            with torch.no_grad():
                self.shard.copy_(self.master)
            if self.master is not self._keeper:
                self.master.grad = None

    def load(self, tensors: Sequence[Tensor]) -> None:
        """Load these parameters, full and in order, into the master shard; `after_step` updates the rest."""
        own = self.layout.shard_of(dist.get_rank(self.group))
        with torch.no_grad():
            self.master.copy_(_joined(tensors, self.layout.padded_numel)[own])

    def pack_gradients(self, params: Sequence[Tensor]) -> Tensor:
        """The gradients of `params` (the unit's parameters, in order) as a new full buffer, padded with zeros."""
        return _joined([param.grad for param in params], self.layout.padded_numel).to(self.reduce_dtype)

    def gather(self, shard: Tensor) -> list[Tensor]:
        """Every rank's `shard` (a tensor like the unit's) gathered and cut into parameters. Communicates, and waits."""
        full = shard.new_empty(self.layout.padded_numel)
        all_gather_shards(shard.detach(), full, self.group).wait()
        return self.layout.views(full)


def _joined(tensors: Sequence[Tensor | None], numel: int) -> Tensor:
    """Flattened tensors concatenated, then zeros up to `numel`: always new memory."""
    flat = [tensor.detach().flatten() for tensor in tensors if tensor is not None]
    return torch.cat([*flat, flat[0].new_zeros(numel - sum(map(torch.numel, flat)))])


# ---- checks ----


def require_in_group(name: str, group: Any) -> None:
    """Raise ValueError if this rank is not in the group."""
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        check_type(name, group, dist.ProcessGroup | None)
    if dist.get_rank(group) < 0:  # pyright: ignore[reportArgumentType]
        raise ValueError(f"{name}: rank {dist.get_rank()} is not in it; give each rank a group that contains it.")


def require_shardable(module: nn.Module, group: dist.ProcessGroup | None) -> None:
    """Raise ValueError for modules without trainable parameters, or with several dtypes or devices, or integers."""
    require_in_group("group", group)
    named = dict(module.named_parameters())
    if not any(param.requires_grad for param in named.values()):
        raise ValueError("ZeRO needs a parameter to train: no parameter of the module requires a gradient.")
    first_name, first = next(iter(named.items()))
    for name, param in named.items():
        if not param.is_floating_point():
            raise ValueError(f"parameters must be floating-point numbers: {name} is {param.dtype}; make it a buffer.")
        if (param.dtype, param.device) != (first.dtype, first.device):
            raise ValueError(
                f"parameters must have one dtype and device, as they share flat buffers: {first_name} is {first.dtype} "
                f"on {first.device}, {name} is {param.dtype} on {param.device}; use module.to(...) first, and "
                "param_dtype for mixed precision."
            )


def require_same_training(name: str, param: nn.Parameter, is_trainable: bool) -> None:
    """Raise ValueError if a parameter was frozen, or set free, after it was sharded."""
    if param.requires_grad != is_trainable:
        raise ValueError(
            f"requires_grad of a parameter must stay as when it was sharded: {name} has {param.requires_grad} instead "
            f"of {is_trainable}; set it before, and shard again."
        )


def require_same_ranks(group: dist.ProcessGroup | None, world_size: int) -> None:
    """Raise ValueError if the number of ranks has changed since the shards were cut."""
    if dist.get_world_size(group) != world_size:
        raise ValueError(
            f"the module was sharded over {world_size} ranks and now there are {dist.get_world_size(group)}: save a "
            "full_state_dict before the ranks change, and shard again."
        )
