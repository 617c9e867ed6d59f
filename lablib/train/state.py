"""The state of an optimizer as a flat mapping, for torch.distributed.checkpoint.

A checkpoint holds tensors and small objects by name. Every rank saves its mapping. Equal names on several ranks are
copies of one tensor, saved once. A tensor that differs between ranks has the rank in its name ("rank3."). A load writes
into the tensors of the mapping, so an optimizer that has not stepped needs its state before: `flat_optimizer` makes one
step with gradients of zero, and sets parameters and optimizer back.

    optimizer.groups                 settings of all groups, an object
    optimizer.state.0.exp_avg        state of the first parameter, in the order of the groups

Cost: names only; before the first step, a copy of the parameters while the state is made.
Source: torch.distributed.checkpoint (torch 2.13): tensors are loaded in place, objects replaced.
"""

from collections.abc import Mapping
from typing import Any

import torch

from lablib.signature import checked


@checked
def flat_optimizer(optimizer: torch.optim.Optimizer, prefix: str = "") -> dict[str, Any]:
    """The state by name; before the first step, the state that the first step will find."""
    saved = optimizer.state_dict() if optimizer.state else _first_state(optimizer)
    groups = [{name: value for name, value in group.items() if name != "params"} for group in saved["param_groups"]]
    states = {
        f"{prefix}optimizer.state.{index}.{name}": value
        for index, state in saved["state"].items()
        for name, value in state.items()
    }
    return {f"{prefix}optimizer.groups": groups, **states}


@checked
def load_flat_optimizer(optimizer: torch.optim.Optimizer, flat: Mapping[str, Any], prefix: str = "") -> None:
    """Load a mapping of `flat_optimizer`, for the same parameters in the same groups."""
    start, state = f"{prefix}optimizer.state.", dict[int, dict[str, Any]]()
    for key, value in flat.items():
        if key.startswith(start):
            index, _, name = key.removeprefix(start).partition(".")
            state.setdefault(int(index), {})[name] = value
    own = optimizer.state_dict()["param_groups"]
    groups = [
        {**saved, "params": group["params"]}
        for group, saved in zip(own, flat[f"{prefix}optimizer.groups"], strict=True)
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


@torch.no_grad()
def _first_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's state after a step without gradients. Parameters, gradients and optimizer are as before."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
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
