"""Gradient clipping by norm: scale a gradient with a norm above `max_norm` down to it, in the same direction.

One bad batch can have a gradient a hundred times as long as usual, and one step along it undoes many. The norm and the
factor are of all parameters' gradients as one vector g, so the direction stays:

    g <- g * min(1, max_norm / (|g| + 1e-6)),     |g|^2 = sum over all parameters of the sum of their squares

Clipping each parameter (or each rank) by its own norm is different: parts with long gradients shrink, others do not,
and the direction changes. With sharded parameters a rank has only its part of |g|^2, but squares are additive:

    |g|^2 = sum over ranks |g_rank|^2 of the shards, + |g|^2, once, of replicated parameters

so one all-reduce of one number gives every rank the same norm, and the same factor. The order of a step:

    accumulate all micro-batches -> unscale (divide by the loss scale) -> clip -> optimizer.step

Clipping before unscaling would make the norm S times too long, and a clipped step S times too short; clipping after
each micro-batch gives a sum of clipped gradients instead of a clipped sum.

Cost: two passes over the gradients (read; read and write); sharded, an all-reduce of 8 bytes, which waits for all
gradients: no optimizer step starts before it.
Shapes: gradients have their parameters' shapes.
Source: Pascanu et al., "On the difficulty of training recurrent neural networks", 2012, arXiv 1211.5063, algorithm 1;
the 1e-6 and the behaviour with inf and NaN are torch.nn.utils.clip_grad_norm_'s (torch 2.13).
Simplified: the 2-norm; dense gradients; a rank's gradients are on one device.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Annotated

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from lablib.signature import Range, checked

EPS = 1e-6
MaxNorm = Annotated[float, Range(gt=0), "try 1.0, or math.inf to measure only"]


@checked
def clip_grad_norm_(
    params: Tensor | Iterable[Tensor],
    max_norm: MaxNorm,
    *,
    sharded_over: dist.ProcessGroup | None = None,
    replicated: Sequence[Tensor] = (),
    error_if_nonfinite: bool = False,
) -> Float[Tensor, ""]:
    """Clip all gradients together to at most `max_norm`, in place; returns their norm before, in float64.

    Communicates one number if `sharded_over` is given.

    Arguments:
        params: of the model, or this rank's shards of it; parameters without gradient are left out.
        max_norm: positive; inf to only measure the norm.
        sharded_over: ranks that hold the other shards (`dist.group.WORLD` for all).
        replicated: parameters among `params` that are whole on every rank of the group, with equal gradients:
            counted once.
        error_if_nonfinite: raise if the norm is inf or NaN, on all ranks. Otherwise inf makes the gradients 0, and NaN
            where they were inf; NaN makes all NaN: a `LossScaler` skips such a step before.

    Raises:
        ValueError: a replicated parameter is not one of `params`.
        RuntimeError: see `error_if_nonfinite`.
    """
    params = [params] if isinstance(params, Tensor) else list(params)  # a tensor is one parameter, as in torch
    shared = {id(param) for param in replicated}
    if not shared <= {id(param) for param in params}:
        raise ValueError("replicated must name parameters that are in params: got another tensor.")
    whole = _squared_norm([param for param in params if id(param) in shared])
    total = _squared_norm([param for param in params if id(param) not in shared])
    if sharded_over is not None:
        dist.all_reduce(total, group=sharded_over)
    norm = (total + whole).sqrt()
    if error_if_nonfinite and not bool(norm.isfinite()):
        raise RuntimeError(
            f"the gradients' norm must be finite to clip by it: got {norm.item()}; skip the step, or look for the "
            "parameter with named_nonfinite()."
        )
    if math.isfinite(max_norm):
        factor = (max_norm / (norm + EPS)).clamp(max=1.0)  # no `if`: the host does not wait for the norm
        for grad in _gradients(params):
            grad.mul_(factor)
    return norm


@checked
def named_nonfinite(named_params: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Names of the parameters with an inf or a NaN in the gradient: `named_nonfinite(model.named_parameters())`."""
    return [name for name, param in named_params if param.grad is not None and not bool(param.grad.isfinite().all())]


def _squared_norm(params: Sequence[Tensor]) -> Tensor:
    """Sum of squares. In float64: a square overflows FP16 beyond 256 and FP32 beyond 1.8e19, and BF16 adds coarsely."""
    squares = [torch.linalg.vector_norm(grad, dtype=torch.float64).square() for grad in _gradients(params)]
    return torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)


def _gradients(params: Sequence[Tensor]) -> list[Tensor]:
    return [param.grad for param in params if param.grad is not None]
