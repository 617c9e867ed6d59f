"""Lion: the sign of a running mean. Every number moves by the same amount, and one mean is kept instead of two.

    u = beta1 m + (1 - beta1) g             mostly the past, with more of the new gradient than m
    w = w - lr (sign(u) + lambda w)
    m = beta2 m + (1 - beta2) g

As each step is +-lr for each number, lr is chosen 3 to 10 times smaller than AdamW's, and lambda larger by the same
factor, so that lr lambda does not change.

The sign and noise. For a gradient mu + noise of standard deviation sigma, u has the mean mu and, with converged m, the
standard deviation sigma_u = sigma sqrt((1 - beta1)^2 + beta1^2 (1 - beta2) / (1 + beta2)). For normal noise

    E[sign(u)] = erf(mu / (sqrt(2) sigma_u))            `expected_sign`

So if noise dominates, the mean step is proportional to mu / sigma_u; otherwise it is +-1.

Cost: 4 bytes of state per parameter (float32); 4 more during the step, for u; about 11 FLOPs.
Source: Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, arXiv 2302.06675, algorithm 2.
Conventions: the authors' code and the paper agree. The sign of zero is zero.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lablib.optim import foreach
from lablib.optim.base import BatchedOptimizer, Betas, Settings, State
from lablib.signature import NonNegative, checked


class Lion(BatchedOptimizer):
    """The sign of a mean of gradients.

    Arguments:
        lr: change of every number per step.
        betas: of the mean that is signed, and of the mean that is kept.
        weight_decay, check_finite: as for AdamW.
    """

    is_element_wise = True

    @checked
    def __init__(
        self,
        params: ParamsT,
        lr: NonNegative = 1e-4,
        betas: Betas = (0.9, 0.99),
        weight_decay: NonNegative = 0.0,
        *,
        check_finite: bool = False,
    ):
        super().__init__(params, lr=lr, betas=betas, weight_decay=weight_decay, check_finite=check_finite)

    def new_state(self, param: Tensor, group: Settings) -> State:
        return {"exp_avg": torch.zeros_like(param)}

    @classmethod
    def bytes_of(cls, shape: Sequence[int], itemsize: int, group: Settings) -> int:
        return itemsize * math.prod(shape)

    def update(self, params: list[Tensor], grads: list[Tensor], states: list[State], group: Settings) -> None:
        (beta1, beta2), exp_avgs = group["betas"], [state["exp_avg"] for state in states]
        # w = w (1 - lr lambda) - lr sign(beta1 m + (1 - beta1) g)
        signed = list(foreach.lerp(exp_avgs, grads, 1 - beta1))
        foreach.sign_(signed)
        foreach.mul_(params, 1 - group["lr"] * group["weight_decay"])
        foreach.add_(params, signed, alpha=-group["lr"])
        # m = beta2 m + (1 - beta2) g
        foreach.lerp_(exp_avgs, grads, 1 - beta2)


@checked
def expected_sign(signal_to_noise: float, betas: Betas = (0.9, 0.99)) -> float:
    """E[sign(u)], the mean step over lr, for gradients with normal noise, of mean over deviation `signal_to_noise`."""
    beta1, beta2 = betas
    noise_of_u = math.sqrt((1 - beta1) ** 2 + beta1**2 * (1 - beta2) / (1 + beta2))
    return math.erf(signal_to_noise / (math.sqrt(2) * noise_of_u))
