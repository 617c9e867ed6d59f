"""State of model and optimizer by the names of the whole model, for torch.distributed.checkpoint.

A checkpoint holds tensors and small objects by name. Every rank saves its mapping, with the same names on all ranks.
Equal names are one tensor: copies are saved once, DTensors and `BoxedTensor`s by their parts. So the names do not say
how the run was cut, and another layout reads the same ones:

    model.blocks.0.mlp.up.weight                 a parameter, or a buffer
    optimizer.exp_avg.blocks.0.mlp.up.weight     state of the optimizer for it; `step` is one number
    optimizer.groups                             settings of all groups, an object

A load writes into the tensors of the mapping, so an optimizer that has not stepped needs its state before:
`named_state` makes one step with gradients of zero, and sets parameters and optimizer back.

Cost: names only; before the first step, a copy of the parameters while the state is made; a load into shards holds the
optimizer's state twice.
Source: torch.distributed.checkpoint (torch 2.13): tensors are loaded in place, objects replaced.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lablib.signature import checked
from lablib.train.boxes import BoxedTensor, copy_boxes


class Held(NamedTuple):
    """A tensor of this rank, and its parts by the names of the whole model."""

    tensor: Tensor  # a parameter of the optimizer, perhaps a flat shard; or a tensor that is not trained
    parts: Callable[[Tensor], Mapping[str, Tensor]]  # views of a tensor with the same shape, by name


@checked
def named_state(optimizer: torch.optim.Optimizer, held: Sequence[Held]) -> dict[str, Any]:
    """The state by name; before the first step, the state that the first step will find.

    ValueError: state of a shard with another shape than the shard, which has no place in the parameter.
    """
    saved, index = optimizer.state_dict() if optimizer.state else _first_state(optimizer), _index(optimizer)
    groups = [{name: value for name, value in group.items() if name != "params"} for group in saved["param_groups"]]
    found: dict[str, Any] = {"optimizer.groups": groups}
    for tensor, parts in held:
        own = parts(tensor.detach())
        found |= {f"model.{name}": value for name, value in own.items()}
        for key, value in saved["state"].get(index.get(tensor), {}).items():
            if isinstance(value, Tensor) and value.shape == tensor.shape:
                cut = parts(value)
            elif isinstance(value, Tensor) and value.ndim and isinstance(next(iter(own.values())), BoxedTensor):
                raise ValueError(
                    f"a checkpoint cuts the optimizer's state like parameters: {key!r} has the shape "
                    f"{tuple(value.shape)}, the shard {tuple(tensor.shape)}; take another optimizer, or no shards."
                )
            else:
                cut = dict.fromkeys(own, value)
            found |= {f"optimizer.{key}.{name}": value for name, value in cut.items()}
    return found


@checked
def load_named_state(
    optimizer: torch.optim.Optimizer, held: Sequence[Held], state: Mapping[str, Any], has_stepped: bool = True
) -> None:
    """Load a mapping of `named_state` of the same tensors; `has_stepped`: whether the optimizer had made a step."""
    by_name, index = dict[str, dict[str, Any]](), _index(optimizer)
    for full_name, value in state.items():
        if full_name.startswith("optimizer.") and full_name != "optimizer.groups":
            key, _, name = full_name.removeprefix("optimizer.").partition(".")
            by_name.setdefault(name, {})[key] = value
    new: dict[int, dict[str, Any]] = {}
    for tensor, parts in held:
        own = parts(tensor.detach())
        for name, value in own.items():
            copy_boxes(value, state[f"model.{name}"])
        if tensor not in index:
            continue
        of_tensor = new.setdefault(index[tensor], {})
        for key, value in by_name.get(next(iter(own)), {}).items():
            of_tensor[key] = value
            if isinstance(value, BoxedTensor):
                of_tensor[key] = torch.zeros_like(tensor, dtype=value.dtype)
                for name, part in parts(of_tensor[key]).items():
                    copy_boxes(part, by_name[name][key])
    if not has_stepped:
        optimizer.state.clear()
        return
    groups = [
        {**saved, "params": group["params"]}
        for group, saved in zip(optimizer.state_dict()["param_groups"], state["optimizer.groups"], strict=True)
    ]
    optimizer.load_state_dict({"state": new, "param_groups": groups})


def _index(optimizer: torch.optim.Optimizer) -> dict[Tensor, int]:
    """The number of each parameter in the state of the optimizer."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return {param: number for number, param in enumerate(params)}


@torch.no_grad()
def _first_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's state after a step without gradients. Parameters, gradients and optimizer are as before."""
    params = list(_index(optimizer))
    before = [(param.detach().clone(), param.grad) for param in params]
    for param in params:
        param.grad = torch.zeros_like(param)
    optimizer.step()
    saved = optimizer.state_dict()
    optimizer.state.clear()
    for param, (value, grad) in zip(params, before, strict=True):
        param.copy_(value)
        param.grad = grad
    return saved
