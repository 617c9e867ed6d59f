"""Adafactor: Adam's second mean as sums over rows and columns. A matrix of m x n keeps m + n numbers instead of 2 m n.

If the squares of a gradient were a column times a row, their row means R and column means C would determine them: v = R
C / mean(R). In practice that is a good approximation. There is no first mean. At step t:

    beta2 = 1 - t^-0.8                           a mean over all steps at first: no bias correction needed
    R = beta2 R + (1 - beta2) mean of g^2 over columns          C the same over rows
    v = R C / mean(R)                            vectors keep v itself
    u = g / sqrt(v)
    w = w - lr lambda w - alpha u / max(1, rms(u) / d)          alpha = max(eps2, rms(w)) min(lr, 1 / sqrt(t))

The rate is relative to the size of the weights, rms(w). The update is clipped to the size d, as a slow second mean
makes it too large when gradients grow.

Cost: 4 (1/m + 1/n) bytes of state per parameter (float32), vectors 4; 4 more during the step, for u; about 16 FLOPs.
Source: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", 2018, arXiv 1804.04235,
algorithms 4 and 5, section 8.
Conventions, torch.optim.Adafactor's: means where the paper has sums (the same); eps1 bounds mean(R) and sqrt(v) from
below, where the paper adds 1e-30 to g^2; `lr` is the paper's 1e-2 in rho_t; decay as AdamW's. Tensors of more than two
dimensions are matrices in their last two.
"""

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lablib.optim import foreach
from lablib.optim.base import BatchedOptimizer, Settings, State, count_steps
from lablib.signature import NonNegative, Range, checked


class Adafactor(BatchedOptimizer):
    """Second means as rows and columns; equal to torch.optim.Adafactor.

    Arguments:
        lr: the largest relative rate, as a share of rms(w) per step.
        beta2_decay: the exponent of t in 1 - beta2; not above 0.
        eps: eps1 (None: the spacing of the dtype at 1) and eps2, the least rms(w) that counts.
        d: the largest rms of an update, at least 1.
        weight_decay, check_finite: as for AdamW.
    """

    @checked
    def __init__(
        self,
        params: ParamsT,
        lr: NonNegative = 1e-2,
        beta2_decay: Annotated[float, Range(gt=-math.inf, le=0)] = -0.8,
        eps: tuple[NonNegative | None, NonNegative] = (None, 1e-3),
        d: Annotated[float, Range(ge=1)] = 1.0,
        weight_decay: NonNegative = 0.0,
        *,
        check_finite: bool = False,
    ):
        settings = {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay}
        super().__init__(params, **settings, check_finite=check_finite)

    def new_state(self, param: Tensor, group: Settings) -> State:
        if param.ndim < 2:
            return {"step": 0, "variance": torch.zeros_like(param)}
        rows, columns = param[..., :1], param[..., :1, :]
        return {"step": 0, "row_var": torch.zeros_like(rows), "col_var": torch.zeros_like(columns)}

    @classmethod
    def bytes_of(cls, shape: Sequence[int], itemsize: int, group: Settings) -> int:
        full = itemsize * math.prod(shape)
        return full // shape[-1] + full // shape[-2] if len(shape) >= 2 else full

    def update(self, params: list[Tensor], grads: list[Tensor], states: list[State], group: Settings) -> None:
        lr, (eps1, eps2), steps = group["lr"], group["eps"], count_steps(states)
        alphas = [_rms(w).clamp(min=eps2) * min(lr, 1 / math.sqrt(t)) for w, t in zip(params, steps, strict=True)]
        foreach.mul_(params, 1 - lr * group["weight_decay"])
        updates = [
            _over_root(g, state, t ** group["beta2_decay"], torch.finfo(g.dtype).eps if eps1 is None else eps1)
            for g, state, t in zip(grads, states, steps, strict=True)
        ]
        # w = w - alpha u / max(1, rms(u) / d)
        clips = [(_rms(u) / group["d"]).clamp(min=1) for u in updates]
        foreach.mul_(updates, [-alpha / clip for alpha, clip in zip(alphas, clips, strict=True)])
        foreach.add_(params, updates)


def _over_root(g: Tensor, state: State, weight: float, eps1: float) -> Tensor:
    """Update the state with g and this weight; returns g / sqrt(v)."""
    if g.ndim < 2:
        v = state["variance"].lerp_(g.square(), weight).clone()
    else:
        rows, columns = state["row_var"], state["col_var"]
        v = g.square()
        rows.lerp_(v.mean(dim=-1, keepdim=True), weight)
        columns.lerp_(v.mean(dim=-2, keepdim=True), weight)
        torch.mul(rows / rows.mean(dim=-2, keepdim=True).clamp_(min=eps1), columns, out=v)  # reuse memory
    return v.clamp_(min=eps1**2).rsqrt_().mul_(g)


def _rms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x) / math.sqrt(x.numel())
