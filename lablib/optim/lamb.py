"""LAMB: Adam's direction with a step in proportion to the weights of each layer, for large batches.

At a large rate the steps of some layers are too large for their weights and training diverges, while other layers could
take larger ones. LAMB scales the update of each layer (each parameter tensor) to the norm of its weights:

    r = m^ / (sqrt(v^) + eps)                    Adam's direction (adamw.py)
    u = r + lambda w
    w = w - lr (|w| / |u|) u                     |w| / |u|, the trust ratio; 1 if either is zero

So every step changes every layer by the share lr, for any gradients.

Cost: 8 bytes of state per parameter (float32); 4 more during the step, for u; about 21 FLOPs.
Source: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", 2019, arXiv 1904.00962,
algorithm 2.
Conventions: the paper passes |w| through a function phi that may bound it; the identity here, as in the authors' code.
Decay is inside the trust ratio, so it changes the direction, not the length. Some codes clip gradients to norm 1 first:
clip outside.
"""

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lablib.optim import foreach
from lablib.optim.adamw import adam_directions, new_moments
from lablib.optim.base import BatchedOptimizer, Betas, Settings, State
from lablib.signature import NonNegative, checked


class LAMB(BatchedOptimizer):
    """Adam with steps in proportion to each layer's weights.

    Arguments:
        lr: relative change of each layer per step.
        eps: added to the root; the authors take 1e-6.
        weight_decay: share of the weights that is added to the direction.
        betas, check_finite: as for AdamW.
    """

    @checked
    def __init__(
        self,
        params: ParamsT,
        lr: NonNegative = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: NonNegative = 1e-6,
        weight_decay: NonNegative = 0.01,
        *,
        check_finite: bool = False,
    ):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, check_finite=check_finite)

    def new_state(self, param: Tensor, group: Settings) -> State:
        return new_moments(param)

    def update(self, params: list[Tensor], grads: list[Tensor], states: list[State], group: Settings) -> None:
        # u = m^ / (sqrt(v^) + eps) + lambda w
        updates = adam_directions(grads, states, group["betas"], group["eps"])
        foreach.add_(updates, params, alpha=group["weight_decay"])
        # w = w - lr (|w| / |u|) u
        foreach.mul_(updates, trust_ratios(params, updates))
        foreach.add_(params, updates, alpha=-group["lr"])


def trust_ratios(params: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """|w| / |u| for each tensor; 1 if either is zero."""
    lengths = zip(foreach.norm(params), foreach.norm(updates), strict=True)
    return [torch.where((w > 0) & (u > 0), w / u, torch.ones_like(w)) for w, u in lengths]
