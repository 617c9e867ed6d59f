"""Whole state of a cut module: parameters, gradients, and the norm of the gradients.

`cuts` of a layer lists the parameters that are shards; the others, and their gradients, are whole on every rank. A sum
over all parameters must distinguish them: in the gradient norm, the squares of a shard count on each rank, those of a
whole parameter only once. Summing everything over ranks counts norms and biases n times; without a sum every rank has a
different norm, and replicas diverge.

Cost for n ranks, P_s parameters in shards, of w bytes:
    sent bytes  whole parameters: (n-1)/n P_s w; the norm: 2(n-1)/n of 8 bytes
Source: Shoeybi et al., "Megatron-LM", 2019, arXiv 1909.08053; parameters counted once in its gradient norm:
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
    """The parameters of the whole model, copies, by name. Communicates: an all-gather for each shard."""
    return {name: whole(param.detach(), owner, key) for name, param, owner, key in each_parameter(module)}


def full_gradients(module: nn.Module) -> dict[str, Tensor]:
    """The gradients of the whole model, by name, without those that are None. As `full_parameters`."""
    return {
        name: whole(param.grad, owner, key)
        for name, param, owner, key in each_parameter(module)
        if param.grad is not None
    }


def gradient_norm(module: nn.Module, group: Group = None) -> Tensor:
    """The 2-norm of the whole model's gradient, in float64, the same on all ranks of `group`.

    Communicates: one all-reduce; with expert parallelism, one more for each group that cuts experts.
    """
    squares: dict[bool, Any] = {True: 0.0, False: 0.0}  # of shards, of whole parameters
    of_experts: dict[tuple[Group, ...], Any] = {}  # by the groups that cut them
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
    """Every parameter once: its name, the parameter, its layer, and its name in the layer."""
    seen: set[nn.Parameter] = set()
    for path, owner in module.named_modules():
        for key, param in owner.named_parameters(recurse=False):
            if param not in seen:
                seen.add(param)
                yield f"{path}.{key}".removeprefix("."), param, owner, key


def whole(tensor: Tensor, owner: Any, key: str) -> Tensor:
    """The whole of a tensor like a parameter of a layer (or its gradient), a copy. Communicates."""
    if key not in getattr(owner, "cuts", {}):
        return tensor.clone()
    dim, size = owner.cuts[key]
    start, end = shard_range(size, dist.get_rank(owner.group), dist.get_world_size(owner.group), owner.multiple_of)
    real = tensor.narrow(dim, 0, end - start)  # without padding
    gathered = all_gather_dim(real, dim, size, owner.group, owner.multiple_of)
    for dim, size, group in getattr(owner, "further_cuts", {}).get(key, ()):  # further cuts of experts
        gathered = all_gather_dim(gathered, dim, size, group)
    return gathered
