"""Q-GaLore: GaLore with directions in 4 bits, means in 8, and new directions only while they change.

    P~ = P in 4 bits (four_bits.py)
    R = P~^T G
    adam(R)                                      with means in 8 bits (adam8bit.py)
    w = w - lr lambda w - lr alpha P~ adam(R)

In many layers directions soon converge. Each matrix has its own gap T: after `queue_size` renewals in a row with a
|cosine| of the old and the new first direction of at least `cos_threshold`, T grows by `gamma_proj`.

Cost: bytes by `bytes_of`, for B = 256 about (2.03 max + 0.53 min) r. A step also needs 4 m n for one matrix's update, 4
k (m + n) if its directions are renewed, k = min(m, n); 0.8 MB for computing tables.
Source: Zhang et al., "Q-GaLore: Quantized GaLore with INT4 Projection and Layer-Adaptive Low-Rank Gradients", 2024,
arXiv 2407.08296, sections 3.2 to 3.4; the 8 bits of the means from their experiments.
Conventions: the authors' code tests the mean of five signed cosines. Simplified: weights are not kept in 8 bits.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lablib.optim.adam8bit import Adam8bit, bytes_of_means, new_mean, update_means_8bit
from lablib.optim.adamw import AdamW
from lablib.optim.base import Betas, Settings, State, split
from lablib.optim.blockwise import blocks
from lablib.optim.four_bits import dequantize_4bit, quantize_4bit
from lablib.optim.galore import check_projection, is_projected
from lablib.optim.projection import project, project_back, strongest_directions
from lablib.signature import Count, Finite, NonNegative, NonNegativeInt, checked


class QGaLore(Adam8bit):
    """8-bit AdamW on gradients projected to few directions, which are kept in 4 bits.

    Arguments:
        lr, betas, eps, weight_decay, check_finite, block_size, min_8bit_size: as for Adam8bit; rank, scale: GaLore.
        update_proj_gap: initial number of steps between renewals of directions.
        cos_threshold, queue_size, gamma_proj: condition for its growth, and factor.
    """

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
        cos_threshold: Finite = 0.4,
        queue_size: Count = 5,
        gamma_proj: Count = 2,
        block_size: Count = 256,
        min_8bit_size: NonNegativeInt = 4096,
        check_finite: bool = False,
    ):
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "check_finite": check_finite}
        projection = {"rank": rank, "update_proj_gap": update_proj_gap, "scale": scale}
        lazy = {"cos_threshold": cos_threshold, "queue_size": queue_size, "gamma_proj": gamma_proj}
        coding = {"block_size": block_size, "min_8bit_size": min_8bit_size}
        super(AdamW, self).__init__(params, **settings, **projection, **lazy, **coding)

    def check_group(self, group: Settings) -> None:
        check_projection(group)

    def new_state(self, param: Tensor, group: Settings) -> State:
        if not is_projected(param, group):
            return super().new_state(param, group)
        axes = param.new_zeros(min(param.shape), group["rank"])
        low, (codes, ranges) = project(torch.zeros_like(param), axes), quantize_4bit(axes)
        lazy = {"gap": group["update_proj_gap"], "next_renewal": 0, "num_similar": 0}
        means = new_mean("exp_avg", low, group) | new_mean("exp_avg_sq", low, group)
        return {"step": 0, **lazy, "projection": codes, "projection_ranges": ranges, **means}

    @classmethod
    def bytes_of(cls, shape: Sequence[int], itemsize: int, group: Settings) -> int:
        if group["rank"] is None or len(shape) != 2:
            return super().bytes_of(shape, itemsize, group)
        low, axes = group["rank"] * max(shape), group["rank"] * min(shape)
        return bytes_of_means(low, group) + -(-axes // 2) + 8 * -(-axes // 256)

    def update(self, params: list[Tensor], grads: list[Tensor], states: list[State], group: Settings) -> None:
        (params, grads, states), others = split(["projection" in state for state in states], params, grads, states)
        if others[0]:
            super().update(*others, group)
        if not params:
            return
        signed, unsigned = (blocks(is_signed, group["block_size"], params[0].device) for is_signed in (True, False))
        for param, grad, state in zip(params, grads, states, strict=True):
            if state["step"] == state["next_renewal"]:
                _renew(grad, state, group)
            axes = _axes(state, param, group)
            m, denominator, correction = update_means_8bit(project(grad, axes), state, group, signed, unsigned)
            direction = m.div_(denominator).div_(correction).to(param.dtype)
            param.mul_(1 - group["lr"] * group["weight_decay"])
            param.add_(project_back(direction, axes, param.shape), alpha=-group["lr"] * group["scale"])


def _renew(grad: Tensor, state: State, group: Settings) -> None:
    """Renew the directions, and set the step of the next renewal."""
    axes = strongest_directions(grad, group["rank"])
    if state["step"] > 0:
        cosine = F.cosine_similarity(_axes(state, grad, group)[:, 0], axes[:, 0], dim=0).abs()
        state["num_similar"] = state["num_similar"] + 1 if cosine >= group["cos_threshold"] else 0
        if state["num_similar"] >= group["queue_size"]:
            state["gap"] *= group["gamma_proj"]
    state["projection"], state["projection_ranges"] = quantize_4bit(axes)
    state["next_renewal"] = state["step"] + state["gap"]


def _axes(state: State, matrix: Tensor, group: Settings) -> Tensor:
    shape = torch.Size((min(matrix.shape), group["rank"]))
    return dequantize_4bit(state["projection"], state["projection_ranges"], shape).to(matrix.dtype)
