"""SOAP: Adam in the principal axes of a matrix's gradients, where their numbers are hardly correlated.

    M = beta1 M + (1 - beta1) G                              in the matrix's own axes
    G' = Q_L^T G Q_R          M' = Q_L^T M Q_R               rotated
    V = beta2 V + (1 - beta2) G'^2                           kept rotated
    W = W - lr lambda W - lr Q_L (M'^ / (sqrt(V^) + eps)) Q_R^T
    L = beta2 L + (1 - beta2) G G^T       R = beta2 R + (1 - beta2) G^T G       Shampoo's
    every f steps: Q_L = qr(L Q_L), Q_R = qr(R Q_R)          their eigenvectors: a step of the power method

Cost: 8 m n + 8 (m^2 + n^2) bytes of state (float32), 24 per parameter if square; 12 n^3 FLOPs of rotations and 4 n^3
for L and R in a step of n x n, every f steps 20/3 n^3 for the decompositions. A step also needs 4 N + 16 m n bytes for
N numbers in total and the largest matrix m x n; or 12 max(m, n)^2, if more, when axes are renewed.
Source: Vyas et al., "SOAP: Improving and Stabilizing Shampoo using Adam", 2024, arXiv 2409.11321, algorithms 3 and 4.
Conventions: as in the authors' code, the first gradient only sets L, R and the axes, and vectors get AdamW. Their code
also adds eps before the correction, decays after the step and sorts the axes. V is kept when the axes change.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lablib.optim import foreach
from lablib.optim.adamw import AdamW, new_moments
from lablib.optim.base import Betas, Settings, State, split
from lablib.signature import Count, NonNegative, NonNegativeInt, checked


class SOAP(AdamW):
    """AdamW in the eigenvectors of Shampoo's matrices.

    Arguments:
        lr, betas, eps, weight_decay, check_finite: as for AdamW; betas[1] also averages L and R.
        precondition_frequency: steps between renewals of the axes.
        max_precond_dim: longer sides of a matrix are not rotated.
    """

    is_element_wise = False

    @checked
    def __init__(
        self,
        params: ParamsT,
        lr: NonNegative = 3e-3,
        betas: Betas = (0.95, 0.95),
        eps: NonNegative = 1e-8,
        weight_decay: NonNegative = 0.01,
        *,
        precondition_frequency: Count = 10,
        max_precond_dim: NonNegativeInt = 10_000,
        check_finite: bool = False,
    ):
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "check_finite": check_finite}
        turns = {"precondition_frequency": precondition_frequency, "max_precond_dim": max_precond_dim}
        super(AdamW, self).__init__(params, **settings, **turns)

    def new_state(self, param: Tensor, group: Settings) -> State:
        state = new_moments(param)
        for side, size in zip(("L", "R"), param.shape, strict=True) if param.ndim == 2 else ():
            if size <= group["max_precond_dim"]:
                state |= {side: param.new_zeros(size, size), f"Q_{side}": param.new_zeros(size, size)}
        return state

    @classmethod
    def bytes_of(cls, shape: Sequence[int], itemsize: int, group: Settings) -> int:
        turned = sum(side**2 for side in shape if side <= group["max_precond_dim"]) if len(shape) == 2 else 0
        return super().bytes_of(shape, itemsize, group) + 2 * itemsize * turned

    def update(self, params: list[Tensor], grads: list[Tensor], states: list[State], group: Settings) -> None:
        (params, grads, states), others = split(["L" in s or "R" in s for s in states], params, grads, states)
        if others[0]:
            super().update(*others, group)
        ready, _ = split([state["step"] > 0 for state in states], params, grads, states)
        if ready[0]:
            self._step(*ready, group)
        for grad, state in zip(grads, states, strict=True):
            _renew(grad, state, group)

    def _step(self, params: list[Tensor], grads: list[Tensor], states: list[State], group: Settings) -> None:
        beta1, beta2 = group["betas"]
        exp_avgs, exp_avg_sqs = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq"))
        rotated = [_rotate(grad, state) for grad, state in zip(grads, states, strict=True)]
        foreach.lerp_(exp_avgs, grads, 1 - beta1)
        foreach.mul_(exp_avg_sqs, beta2)
        foreach.addcmul_(exp_avg_sqs, rotated, rotated, 1 - beta2)
        foreach.mul_(params, 1 - group["lr"] * group["weight_decay"])
        for param, m, v, state in zip(params, exp_avgs, exp_avg_sqs, states, strict=True):
            t = state["step"]  # the first gradient only sets the axes: this is the number of updates
            denominator = v.sqrt().div_(math.sqrt(1 - beta2**t)).add_(group["eps"])
            direction = _rotate(m, state).div_(denominator)
            param.add_(_rotate_back(direction, state), alpha=-group["lr"] / (1 - beta1**t))


def _rotate(x: Tensor, state: State) -> Tensor:
    """Q_L^T x Q_R, a new tensor."""
    x = state["Q_L"].T @ x if "L" in state else x
    return x @ state["Q_R"] if "R" in state else x


def _rotate_back(x: Tensor, state: State) -> Tensor:
    """Q_L x Q_R^T."""
    x = state["Q_L"] @ x if "L" in state else x
    return x @ state["Q_R"].T if "R" in state else x


def _renew(grad: Tensor, state: State, group: Settings) -> None:
    """Count the gradient, update L and R, and renew the axes if due."""
    for side, outer in (("L", lambda: grad @ grad.T), ("R", lambda: grad.T @ grad)):
        if side in state:
            matrix = state[side].lerp_(outer(), 1 - group["betas"][1])
            wide, axes = matrix.to(torch.promote_types(matrix.dtype, torch.float32)), state[f"Q_{side}"]
            if state["step"] == 0:
                axes.copy_(torch.linalg.eigh(wide).eigenvectors.flip(1))  # the largest first, as in the power method
            elif state["step"] % group["precondition_frequency"] == 0:
                axes.copy_(torch.linalg.qr(wide @ axes.to(wide.dtype)).Q)
    state["step"] += 1
