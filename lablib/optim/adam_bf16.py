"""Adam with BF16 state: two bytes for each mean, rounded up or down at random so that small updates are not lost.

BF16 keeps 8 bits of a number. Once v has converged, v = 0.999 v + 0.001 g^2 changes it by less than 1/256, and rounding
to the nearest would never change it again. Rounded stochastically,

    round(x) = the next BF16 number towards zero, or the one beyond it, with a chance in proportion to the nearness

the rounding is unbiased: E[round(x)] = x. The same holds for weights kept in BF16, where steps of lr are mostly smaller
than the spacing; then no copy in 32 bits is needed.

    m = round(beta1 m + (1 - beta1) g)       v = round(beta2 v + (1 - beta2) g^2)       w = round(AdamW's step)

Rounding is cheap with bits: a float32 without its lower 16 bits is a BF16. A random number of 16 bits is added first,
and the carry into the upper half has the right probability.

Cost: 4 bytes of state per parameter; 14 during the step, for each number of the largest tensor.
Source: Zamirai et al., "Revisiting BFloat16 Training", 2020, arXiv 2010.06192, section 4 (stochastic rounding of
weights); Gupta et al., 2015, arXiv 1502.02551, section 3.1. AdamW: adamw.py.
Conventions: the step uses m and v before rounding. Parameters of other dtypes than BF16 are not rounded.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import BFloat16, Float32
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lablib.optim.adamw import AdamW
from lablib.optim.base import Betas, Settings, State
from lablib.signature import NonNegative, checked


class AdamBF16(AdamW):
    """AdamW with means in BF16, and BF16 parameters without a copy in 32 bits.

    Arguments:
        lr, betas, eps, weight_decay, check_finite: as for AdamW.
        generator: source of random rounding; None: torch's own. It is not part of the saved state.
    """

    generator: torch.Generator | None = None  # of an optimizer that was copied or unpickled

    @checked
    def __init__(
        self,
        params: ParamsT,
        lr: NonNegative = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: NonNegative = 1e-8,
        weight_decay: NonNegative = 1e-2,
        *,
        generator: torch.Generator | None = None,
        check_finite: bool = False,
    ):
        super().__init__(params, lr, betas, eps, weight_decay, check_finite=check_finite)
        self.generator = generator

    def new_state(self, param: Tensor, group: Settings) -> State:
        exp_avg, exp_avg_sq = (torch.zeros_like(param, dtype=torch.bfloat16) for _ in range(2))
        return {"step": 0, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}

    @classmethod
    def bytes_of(cls, shape: Sequence[int], itemsize: int, group: Settings) -> int:
        return 2 * 2 * math.prod(shape)

    def update(self, params: list[Tensor], grads: list[Tensor], states: list[State], group: Settings) -> None:
        for param, grad, state in zip(params, grads, states, strict=True):  # 32 bits for one tensor at a time
            self._step(param, grad, state, group)

    def _step(self, param: Tensor, grad: Tensor, state: State, group: Settings) -> None:
        (beta1, beta2), lr, wide = group["betas"], group["lr"], torch.promote_types(param.dtype, torch.float32)
        state["step"] += 1
        grad = grad.to(wide)
        m = state["exp_avg"].to(wide).lerp_(grad, 1 - beta1)
        state["exp_avg"].copy_(stochastic_bf16(m.float(), self.generator))
        v = state["exp_avg_sq"].to(wide).mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        state["exp_avg_sq"].copy_(stochastic_bf16(v.float(), self.generator))
        # w = w (1 - lr lambda) - lr m^ / (sqrt(v^) + eps)
        denominator = v.sqrt_().div_(math.sqrt(1 - beta2 ** state["step"])).add_(group["eps"])
        w = param.to(wide)  # a copy only for 16 bits
        w.mul_(1 - lr * group["weight_decay"]).addcdiv_(m, denominator, value=-lr / (1 - beta1 ** state["step"]))
        if w is not param:
            param.copy_(stochastic_bf16(w, self.generator) if param.dtype == torch.bfloat16 else w)


@checked
def stochastic_bf16(x: Float32[Tensor, "..."], generator: torch.Generator | None = None) -> BFloat16[Tensor, "..."]:
    """x rounded to BF16, up or down at random so that the mean is x; x is not changed. NaN and infinity stay."""
    noise = torch.empty(x.shape, dtype=torch.int32, device=x.device).random_(0, 1 << 16, generator=generator)
    bits = noise.add_(x.view(torch.int32)).bitwise_and_(-(1 << 16))  # the lower 16 bits are cut off
    return bits.view(torch.float32).bfloat16()
