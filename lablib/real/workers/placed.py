"""Move a program's arguments from the host's memory to the rank's GPU.

lablib/process/arguments.py lists the moved tensors. Tensors shared by two arguments are shared on the GPU. Simplified:
views of one storage become separate tensors.
"""

from typing import Any

import torch
from torch import Tensor, nn

from lablib.process.arguments import replaced


def placed(value: Any, device: torch.device) -> Any:
    """The value with its tensors on `device`. A leaf of autograd remains one, with its gradient."""

    def move(one: Tensor | nn.Module) -> Tensor | nn.Module:
        return one.to(device) if isinstance(one, nn.Module) else _moved(one, device)

    return replaced(value, move)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    there = tensor.detach().to(device).requires_grad_(tensor.requires_grad)
    there = nn.Parameter(there, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else there
    there.grad = None if tensor.grad is None else tensor.grad.to(device)
    return there
