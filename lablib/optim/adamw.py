"""AdamW: a step of about the same size for every number, and decay separate from the gradient.

Two running means, of the gradient g and of its square; both start at zero, so early ones are too small by 1 - beta^t,
which the bias correction undoes. At step t, with rate lr and decay lambda:

    m = beta1 m + (1 - beta1) g                  m^ = m / (1 - beta1^t)
    v = beta2 v + (1 - beta2) g^2                v^ = v / (1 - beta2^t)
    w = w - lr lambda w - lr m^ / (sqrt(v^) + eps)

Decoupled decay takes the same share of every weight. L2 regularization adds lambda w to g instead, and so to m and v:
weights with large gradients then decay less.

Cost: 8 bytes of state per parameter (float32); 4 more during the step, for the denominators; about 16 FLOPs.
Source: Kingma and Ba, "Adam", 2014, arXiv 1412.6980, algorithm 1; Loshchilov and Hutter, "Decoupled Weight Decay
Regularization", 2017, arXiv 1711.05101, algorithm 2.
Conventions: epsilon outside the root and after the correction, as in both papers and in torch; some codes add it to
sqrt(v), before the correction. The decay is multiplied by lr, as in torch; in the paper only by the schedule.
"""

import math

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lablib.optim import foreach
from lablib.optim.base import BatchedOptimizer, Betas, Settings, State, count_steps
from lablib.signature import NonNegative, checked


class AdamW(BatchedOptimizer):
    """Adam with decoupled weight decay; equal to torch.optim.AdamW.

    Arguments:
        lr: rate; a step is about +-lr for each number.
        betas: decay rates of the means of g and of g^2 per step.
        eps: added to the root, so that a number without gradient does not divide by zero.
        weight_decay: share of the weights removed per step, times lr.
        check_finite: whether `step` raises at a gradient that is not finite, naming the parameter.
    """

    is_element_wise = True

    @checked
    def __init__(
        self,
        params: ParamsT,
        lr: NonNegative = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: NonNegative = 1e-8,
        weight_decay: NonNegative = 1e-2,
        *,
        check_finite: bool = False,
    ):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, check_finite=check_finite)

    def new_state(self, param: Tensor, group: Settings) -> State:
        return new_moments(param)

    def update(self, params: list[Tensor], grads: list[Tensor], states: list[State], group: Settings) -> None:
        exp_avgs, denominators, corrections = update_moments(grads, states, group["betas"], group["eps"])
        # w = w (1 - lr lambda) - (lr / (1 - beta1^t)) m / denominator
        foreach.mul_(params, 1 - group["lr"] * group["weight_decay"])
        foreach.addcdiv_(params, exp_avgs, denominators, [-group["lr"] / c for c in corrections])


def new_moments(param: Tensor) -> State:
    """Means of g and g^2 in the shape of a tensor, before the first step."""
    return {"step": 0, "exp_avg": torch.zeros_like(param), "exp_avg_sq": torch.zeros_like(param)}


def update_moments(
    grads: list[Tensor], states: list[State], betas: tuple[float, float], eps: float
) -> tuple[list[Tensor], list[Tensor], list[float]]:
    """Count the step, update the means of `new_moments`; returns the m, new tensors sqrt(v^) + eps, and 1 - beta1^t."""
    beta1, beta2 = betas
    steps = count_steps(states)
    exp_avgs = [state["exp_avg"] for state in states]
    exp_avg_sqs = [state["exp_avg_sq"] for state in states]
    # m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2
    foreach.lerp_(exp_avgs, grads, 1 - beta1)
    foreach.mul_(exp_avg_sqs, beta2)
    foreach.addcmul_(exp_avg_sqs, grads, grads, 1 - beta2)
    # sqrt(v^) + eps: here the step's memory peaks
    denominators = list(foreach.sqrt(exp_avg_sqs))
    foreach.div_(denominators, [math.sqrt(1 - beta2**t) for t in steps])
    foreach.add_(denominators, eps)
    return exp_avgs, denominators, [1 - beta1**t for t in steps]


def adam_directions(grads: list[Tensor], states: list[State], betas: tuple[float, float], eps: float) -> list[Tensor]:
    """m^ / (sqrt(v^) + eps), in new tensors: what Adam would subtract at lr = 1."""
    exp_avgs, directions, corrections = update_moments(grads, states, betas, eps)
    foreach.reciprocal_(directions)
    foreach.mul_(directions, exp_avgs)
    foreach.div_(directions, corrections)
    return directions
