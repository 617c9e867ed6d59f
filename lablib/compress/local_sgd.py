"""Local SGD: every rank trains separately for H steps; then parameters, not gradients, are averaged.

Averaging after each step is data parallelism. Averaging every H steps sends 1/H of the bytes and waits 1/H as often,
while replicas diverge, each towards the optimum of its own data:

    rank 0   step step step step  |        |  step step step step  |
                                  |average |                       |average      H = 4
    rank 1   step step step step  |        |  step step step step  |

With plain SGD and H = 1 it is data parallelism exactly: mean(w - lr g_r) = w - lr mean(g_r).

Cost for n ranks, S bytes of parameters:
    time_s      an all-reduce every H steps, exposed
    peak bytes  S more while averaging
    sent bytes  2(n-1)/n S / H per rank and step, on average
Shapes: parameters are sent flat, [N].
Source: Stich, "Local SGD Converges Fast and Communicates Little", 2018, arXiv 1805.09767, algorithm 1; Lin et al.,
"Don't Use Large Mini-Batches, Use Local SGD", 2018, arXiv 1808.07217 (averaging each step first, then H).
Simplified: optimizer states stay local; H is constant; buffers, such as BatchNorm's, are not averaged.
"""

from typing import Annotated

import torch
import torch.distributed as dist
from torch import nn

from lablib.compress.lossy_average import check_gradients
from lablib.parallel.data.naive import broadcast_module
from lablib.parallel.data.overlapped import all_reduce_average
from lablib.signature import Count, checked


class LocalSGD:
    """Average a module's parameters over the ranks after every H steps.

        averaging = LocalSGD(model, every=16)
        for inputs, targets in text:
            ...                                  # forward, backward, optimizer.step(): nothing is sent
            averaging.step()

    Construction broadcasts parameters and buffers from the group's first rank.

    Arguments:
        module: the replica, with parameters to train.
        every: H, at least 1; the same on all ranks.
        group: None for all ranks.
    """

    @checked
    def __init__(
        self, module: nn.Module, every: Annotated[Count, "try every=16"], group: dist.ProcessGroup | None = None
    ):
        self.every, self.group, self.num_steps = every, group, 0
        self.params = trainable("LocalSGD", module)
        broadcast_module(module, group)

    @torch.no_grad()
    def step(self) -> bool:
        """Count a step; after every H-th, average. Returns whether it did. Communicates; changes parameters."""
        self.num_steps += 1
        if self.num_steps % self.every:
            return False
        flat = torch.cat([param.flatten() for param in self.params])
        check_gradients("LocalSGD", flat, "parameters")
        all_reduce_average(flat, self.group).wait()
        for param, mean in zip(self.params, flat.split([param.numel() for param in self.params]), strict=True):
            param.copy_(mean.view_as(param))
        return True


def trainable(name: str, module: nn.Module) -> list[nn.Parameter]:
    """The parameters that require gradients, each once. Raises ValueError if there is none."""
    params = [param for param in module.parameters() if param.requires_grad]
    if not params:
        raise ValueError(f"{name} needs a parameter to train: no parameter of the module requires a gradient.")
    return params
