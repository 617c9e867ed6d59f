"""Muon: the momentum of a matrix with singular values made about equal, so every direction has the same step.

A few strong directions dominate a gradient matrix. Muon replaces its momentum U S V^T by U V^T, the nearest orthogonal
matrix, so weak directions count the same as strong ones:

    B = mu B + (1 - mu) g                        B~ = mu B + (1 - mu) g once more (Nesterov), or B
    O = NewtonSchulz(B~)                         about U V^T (newton_schulz.py)
    w = w - lr lambda w - lr scale O             scale = sqrt(max(1, m / n)): "original"
                                                         0.2 sqrt(max(m, n)): "match_rms_adamw", AdamW's size of step

Only for matrices of hidden layers: vectors, embeddings and the head use AdamW.

Cost: 4 bytes of state per parameter (float32); during the step about 10 for each number of the largest matrix; the
FLOPs of Newton-Schulz, 5 (4 m^2 n + 2 m^3) for m <= n.
Source: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024, kellerjordan.github.io; Liu et
al., "Muon is Scalable for LLM Training", 2025, arXiv 2502.16982, section 2.2 (decay, and 0.2 sqrt(max)).
Conventions, torch.optim.Muon's: momentum as a mean (the author's B = mu B + g has the same direction); products in
BF16; eps bounds the norm from below, where the author's code adds it.
"""

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lablib.optim import foreach
from lablib.optim.base import BatchedOptimizer, Settings, State
from lablib.optim.newton_schulz import COEFFICIENTS, newton_schulz
from lablib.signature import FractionBelow1, NonNegative, OneOf, Range, checked

SCALES = {
    "original": lambda rows, columns: math.sqrt(max(1, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
}


class Muon(BatchedOptimizer):
    """Orthogonalized momentum for matrices; equal to torch.optim.Muon.

    Arguments:
        lr, weight_decay, check_finite: as for AdamW.
        momentum: decay rate of the mean of gradients per step.
        nesterov: whether the gradient counts once more.
        ns_coefficients, eps, ns_steps: of the Newton-Schulz iteration.
        adjust_lr_fn: "original" or "match_rms_adamw".
    """

    @checked
    def __init__(
        self,
        params: ParamsT,
        lr: NonNegative = 1e-3,
        weight_decay: NonNegative = 0.1,
        momentum: FractionBelow1 = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
        eps: NonNegative = 1e-7,
        ns_steps: Annotated[int, Range(ge=0, le=99)] = 5,
        adjust_lr_fn: Annotated[str, OneOf(SCALES)] = "original",
        *,
        check_finite: bool = False,
    ):
        settings = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov, "eps": eps}
        newton_schulz = {"ns_coefficients": ns_coefficients, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn}
        super().__init__(params, **settings, **newton_schulz, check_finite=check_finite)

    def check_group(self, group: Settings) -> None:
        for shape in (tuple(param.shape) for param in group["params"] if param.ndim != 2):
            raise ValueError(f"Muon takes matrices: got a parameter of shape {shape}; give it to AdamW.")

    def new_state(self, param: Tensor, group: Settings) -> State:
        return {"momentum_buffer": torch.zeros_like(param)}

    @classmethod
    def bytes_of(cls, shape: Sequence[int], itemsize: int, group: Settings) -> int:
        return itemsize * math.prod(shape)

    def update(self, params: list[Tensor], grads: list[Tensor], states: list[State], group: Settings) -> None:
        momentum, buffers = group["momentum"], [state["momentum_buffer"] for state in states]
        foreach.lerp_(buffers, grads, 1 - momentum)
        foreach.mul_(params, 1 - group["lr"] * group["weight_decay"])
        for param, grad, buffer in zip(params, grads, buffers, strict=True):  # one product fills a GPU, so no batching
            mean = grad.lerp(buffer, momentum) if group["nesterov"] else buffer
            mean = newton_schulz(mean, group["ns_steps"], group["ns_coefficients"], group["eps"])
            param.add_(mean, alpha=-group["lr"] * SCALES[group["adjust_lr_fn"]](*param.shape))
