"""A module whose parameters are cut, seen as a whole: parameters, gradients, and the norm of the gradients.

A layer cut over ranks says which of its parameters are shards (`cuts`); the others are whole on every rank, and so are
their gradients. Both facts are needed wherever a sum runs over all parameters: in the norm by which gradients are
clipped, a shard's squares count once on each rank, but those of a whole parameter once in all. Adding up everything
over ranks counts norms and biases n times; adding up nothing gives every rank a norm of its own, and replicas drift.

Cost for n ranks, P_s parameters in shards, of w bytes:
    sent bytes  whole parameters: (n-1)/n P_s w; the norm: 2(n-1)/n of 8 bytes
Source: Shoeybi et al., "Megatron-LM", 2019, arXiv 1909.08053; what is counted once in its gradient norm:
NVIDIA/Megatron-LM, megatron/core/optimizer/clip_grads.py (parameters that are not duplicates).
Simplified: one group; the 2-norm.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib.parallel.tensor.regions import Group, all_gather_dim, shard_range


def full_parameters(module: nn.Module) -> dict[str, Tensor]:
    """The parameters as one device has them, copies, by name. Communicates: an all-gather for each shard."""
    return {name: whole(param.detach(), owner, key) for name, param, owner, key in each_parameter(module)}


def full_gradients(module: nn.Module) -> dict[str, Tensor]:
    """The gradients as one device has them, by name, without those that are None. As `full_parameters`."""
    return {
        name: whole(param.grad, owner, key)
        for name, param, owner, key in each_parameter(module)
        if param.grad is not None
    }


def gradient_norm(module: nn.Module, group: Group = None) -> Tensor:
    """The 2-norm of the whole model's gradient, in float64, the same on all ranks of `group`.

    Communicates: one all-reduce; with experts that are spread, one more for each group that they are cut over.
    """
    squares: dict[bool, Any] = {True: 0.0, False: 0.0}  # of shards, of what is whole
    of_experts: dict[tuple[Group, ...], Any] = {}  # by the groups over which they are cut, which are their own
    for _, param, owner, key in each_parameter(module):
        if param.grad is None:
            continue
        square = param.grad.double().square().sum()
        further: Any = getattr(owner, "further_cuts", None)
        if further is not None:
            groups: Any = (owner.group, *(group for *_, group in further[key]))
            of_experts[groups] = of_experts.get(groups, 0.0) + square
        else:
            squares[key in getattr(owner, "cuts", {})] += square
    of_shards = torch.as_tensor(squares[True], dtype=torch.float64)
    dist.all_reduce(of_shards, group=group)
    for groups, of_some in of_experts.items():
        for one in groups:
            dist.all_reduce(of_some, group=one)
        squares[False] += of_some
    return (of_shards + squares[False]).sqrt()


def each_parameter(module: nn.Module) -> Iterator[tuple[str, nn.Parameter, nn.Module, str]]:
    """Every parameter once: its name, itself, the layer that has it, and its name there."""
    seen: set[nn.Parameter] = set()
    for path, owner in module.named_modules():
        for key, param in owner.named_parameters(recurse=False):
            if param not in seen:
                seen.add(param)
                yield f"{path}.{key}".removeprefix("."), param, owner, key


def whole(tensor: Tensor, owner: Any, key: str) -> Tensor:
    """Something like a parameter of a layer (itself, its gradient) as one device has it, a copy. Communicates."""
    if key not in getattr(owner, "cuts", {}):
        return tensor.clone()
    dim, size = owner.cuts[key]
    start, end = shard_range(size, dist.get_rank(owner.group), dist.get_world_size(owner.group), owner.multiple_of)
    real = tensor.narrow(dim, 0, end - start)  # without padding
    gathered = all_gather_dim(real, dim, size, owner.group, owner.multiple_of)
    for dim, size, group in getattr(owner, "further_cuts", {}).get(key, ()):  # experts: of a rank, and cut besides
        gathered = all_gather_dim(gathered, dim, size, group)
    return gathered
