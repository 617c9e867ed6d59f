"""GaLore: Adam on a matrix's gradient projected on few directions, with small means and full weights.

The r strongest singular vectors of a gradient, taken every T steps, are the columns of P. Of G (m x n, m <= n) only

    every T steps: P = U[:, :r]  of  G = U S V^T
    R = P^T G                                    r x n instead of m x n: the gradient for Adam and its means
    w = w - lr lambda w - lr alpha P adam(R)     adam(R) = m^ / (sqrt(v^) + eps), as in adamw.py

and for m > n the other side, P = V[:, :r], R = G P. The part outside P is lost for this step (projection.py), until a
later P includes it. The means are kept when P changes, though they were in other directions.

Cost: 4 (2 r max(m, n) + r min(m, n)) bytes of state per matrix (float32); 4 more per parameter for the update, matrix
by matrix; 4 r FLOPs per parameter, and about 4 min(m, n) / T for the decomposition.
Source: Zhao et al., "GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection", 2024, arXiv 2403.03507,
algorithm 2 and section 4.
Conventions: the authors' code projects square matrices from the right, the paper from the left, as here. It adds eps
before the correction, and decays after the step. Embeddings, head and vectors are not projected: in their code they are
a group without rank; here one with `rank=None` (vectors in any group).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lablib.optim import foreach
from lablib.optim.adamw import AdamW, adam_directions, new_moments
from lablib.optim.base import Betas, Settings, State, split
from lablib.optim.projection import project, project_back, strongest_directions
from lablib.signature import Count, NonNegative, checked


class GaLore(AdamW):
    """AdamW on gradients projected to few directions.

    Arguments:
        lr, betas, eps, weight_decay, check_finite: as for AdamW.
        rank: number of directions per matrix; None: no projection.
        update_proj_gap: steps between choices of directions.
        scale: alpha, factor of a projected step.
    """

    is_element_wise = False

    @checked
    def __init__(
        self,
        params: ParamsT,
        lr: NonNegative = 1e-2,
        betas: Betas = (0.9, 0.999),
        eps: NonNegative = 1e-8,
        weight_decay: NonNegative = 0.0,
        *,
        rank: Count | None = 128,
        update_proj_gap: Count = 200,
        scale: NonNegative = 0.25,
        check_finite: bool = False,
    ):
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "check_finite": check_finite}
        projection = {"rank": rank, "update_proj_gap": update_proj_gap, "scale": scale}
        super(AdamW, self).__init__(params, **settings, **projection)

    def check_group(self, group: Settings) -> None:
        check_projection(group)

    def new_state(self, param: Tensor, group: Settings) -> State:
        if not is_projected(param, group):
            return new_moments(param)
        axes = param.new_zeros(min(param.shape), group["rank"])
        return {"projection": axes} | new_moments(project(torch.zeros_like(param), axes))

    @classmethod
    def bytes_of(cls, shape: Sequence[int], itemsize: int, group: Settings) -> int:
        if group["rank"] is None or len(shape) != 2:
            return super().bytes_of(shape, itemsize, group)
        return itemsize * group["rank"] * (2 * max(shape) + min(shape))

    def update(self, params: list[Tensor], grads: list[Tensor], states: list[State], group: Settings) -> None:
        (params, grads, states), others = split(["projection" in state for state in states], params, grads, states)
        if others[0]:
            super().update(*others, group)
        if not params:
            return
        for grad, state in zip(grads, states, strict=True):
            if state["step"] % group["update_proj_gap"] == 0:
                state["projection"].copy_(strongest_directions(grad, group["rank"]))
        low = [project(grad, state["projection"]) for grad, state in zip(grads, states, strict=True)]
        directions = adam_directions(low, states, group["betas"], group["eps"])
        foreach.mul_(params, 1 - group["lr"] * group["weight_decay"])
        for param, direction, state in zip(params, directions, states, strict=True):
            alpha = -group["lr"] * group["scale"]
            param.add_(project_back(direction, state["projection"], param.shape), alpha=alpha)


def is_projected(param: Tensor, group: Settings) -> bool:
    """Whether this is a matrix of a group with a rank."""
    return param.ndim == 2 and group["rank"] is not None


def check_projection(group: Settings) -> None:
    """Raise ValueError for a rank above the smaller side of a matrix."""
    for shape in (tuple(param.shape) for param in group["params"] if is_projected(param, group)):
        if group["rank"] > min(shape):
            raise ValueError(
                f"rank must be at most the smaller side of a matrix: got {group['rank']} for one of shape {shape}; try "
                f"{max(1, min(shape) // 4)}, or rank=None for its group."
            )
