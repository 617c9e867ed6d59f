"""Naive data parallelism: after backward, average every gradient over the ranks, one all-reduce at a time.

Every rank holds a replica: the whole model, with equal parameters. It computes the gradient of its part of the batch.
The gradient of a mean over the batch is the mean of the gradients of equally large parts, so averaging gives every
replica the gradient of the whole batch, and equal steps keep the replicas equal.

    rank 0   forward  backward                     [0][1][2][3]  optimizer        [i]: all-reduce of gradient i
    rank 1   forward  backward                     [0][1][2][3]  optimizer        compute waits for all of them

Cost for n ranks, P parameters in K tensors, S bytes of gradients, alpha and beta of the link (ring):
    time_s      K 2(n-1) alpha + 2(n-1)/n S beta, all exposed: no overlap with compute
    peak bytes  as on one device
    sent bytes  2(n-1)/n S per rank and step, the minimum of an all-reduce
Shapes: a gradient has the shape of its parameter.
Source: Goyal et al., "Accurate, Large Minibatch SGD", 2017, arXiv 1706.02677, sections 2 and 3 (mean over all
workers, and the pitfalls of its normalization).
Simplified: gradients are dense and contiguous; every parameter is used by every rank in every step.
"""

from collections.abc import Iterator

import torch.distributed as dist
from torch import nn


def broadcast_module(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Make all replicas equal to the group's first rank. Communicates; writes parameters and buffers in place."""
    for tensor in (*module.parameters(), *module.buffers()):
        # `.data`: not recorded by autograd.
        dist.broadcast(tensor.data, group=group, group_src=0)


def average_gradients(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Replace every gradient by its mean over the ranks: between backward and the optimizer.

    Communicates: one all-reduce for each parameter, in order; a tied one counts once. Each trainable parameter has a
    gradient, which is changed in place.
    """
    world_size = dist.get_world_size(group)
    for param in parameters_with_gradients(module):
        assert param.grad is not None
        param.grad.div_(world_size)  # before the sum, which might overflow in 16 bits
        dist.all_reduce(param.grad, group=group)


def parameters_with_gradients(module: nn.Module) -> Iterator[nn.Parameter]:
    """The trainable parameters in order of registration. Raises ValueError if one has no gradient."""
    trainable = {name: param for name, param in module.named_parameters() if param.requires_grad}
    require_no_unused([name for name, param in trainable.items() if param.grad is None])
    return iter(trainable.values())


def require_once(name: str, is_seen: bool) -> None:
    """Raise ValueError for a second gradient in one backward: the first has already been sent."""
    if is_seen:
        raise ValueError(
            f"a parameter must get its gradient once in a backward: {name} got a second one; checkpoint layers used "
            "several times with use_reentrant=False."
        )


def require_no_unused(names: list[str]) -> None:
    """Raise ValueError for parameters without a gradient: other ranks would wait for their all-reduce forever."""
    if names:
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        raise ValueError(
            f"every trainable parameter must get a gradient in backward: {shown} got none; let the loss depend on it, "
            "or set requires_grad_(False) before training."
        )
