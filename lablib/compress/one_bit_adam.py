"""1-bit Adam: Adam during warmup; then its variance is frozen, and ranks exchange the signs of momentum.

Error feedback works for steps that are linear in the gradient, as in SGD and momentum. Adam divides by the root of a
mean of squares: the omitted part of a gradient cannot be added to its square later. But the variance v converges early
(`variance_ratio` measures it). So:

    warmup       g = all_reduce(g_r)                       Adam; v changes every step
    compressed   m_r = beta1 m + (1 - beta1) g_r           from the common m, with this rank's own gradient
                 m = one_bit(m_r), with error feedback     on all ranks the same
                 w = w - lr m / (sqrt(v) + eps)            v as at the end of warmup

History. DeepSpeed had it from 2020 on (pull request 380), 1-bit LAMB from 2021 (970) and 0/1 Adam from 2022, and
removed all three in September 2026 as unused and unmaintained (pull request 8490, issue 8489). Other techniques
replaced it: it needs the whole momentum on every rank, which ZeRO shards (issue 5046: not compatible); an all-reduce
cannot sum signs, so it needed its own communication backend (pull requests 817 and 5473); and with links of 100 Gbit/s
and more it gains little over 16 bits.

Cost for n ranks, N parameters, a warmup of T_w of T steps:
    time_s      packing and unpacking of signs: two passes each
    peak bytes  Adam's 8 N, residuals 4 N (1 + 1/n), a flat copy of momentum 4 N
    sent bytes  2(n-1)/n 4 N in warmup, about 2(n-1)/n N/8 after it: T_w / T + 1/32 of Adam's altogether
Shapes: momentum is sent flat, [N].
Source: Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence Speed", 2021,
arXiv 2102.02888, algorithm 1; the length of warmup: deepspeed.ai/tutorials/onebit-adam, section 1.4; the removal:
github.com/deepspeedai/DeepSpeed/pull/8490, merged 2026-09-12. That links and ZeRO replaced it is our interpretation;
the pull request says only that it was unused.
Simplified: bias is corrected, as in AdamW, for v as at the end of warmup; the scale is `one_bit.py`'s.
"""

from typing import Annotated

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lablib.compress.error_feedback import ErrorFeedback
from lablib.compress.one_bit import OneBit
from lablib.optim import foreach
from lablib.optim.adamw import new_moments, update_moments
from lablib.optim.base import BatchedOptimizer, Betas, Settings, State, count_steps
from lablib.parallel.data.overlapped import Reduce, all_reduce_average, reduce_for
from lablib.signature import Count, NonNegative, checked


class OneBitAdam(BatchedOptimizer):
    """AdamW on this rank's gradients: it communicates in `step`; do not use DataParallel.

    Arguments:
        warmup_steps: T_w, with exact averages; at least 1. DeepSpeed's tutorial: 15 to 25% of all.
        group: None for all ranks.
        reduce: averages momentum after warmup; None: one bit, with feedback on both sides.
        lr, betas, eps, weight_decay: as in AdamW.
    """

    @checked
    def __init__(
        self,
        params: ParamsT,
        warmup_steps: Annotated[Count, "try warmup_steps=100"],
        lr: NonNegative = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: NonNegative = 1e-8,
        weight_decay: NonNegative = 0.0,
        *,
        group: dist.ProcessGroup | None = None,
        reduce: Reduce | None = None,
    ):
        self.warmup_steps = warmup_steps
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, check_finite=False)
        self.group = group
        reduce = ErrorFeedback(OneBit()) if reduce is None else reduce
        self._reduces = [reduce_for(reduce, i, group["params"]) for i, group in enumerate(self.param_groups)]

    def new_state(self, param: Tensor, group: Settings) -> State:
        return new_moments(param)

    def update(self, params: list[Tensor], grads: list[Tensor], states: list[State], group: Settings) -> None:
        beta1, beta2 = group["betas"]
        exp_avgs = [state["exp_avg"] for state in states]
        if states[0]["step"] < self.warmup_steps:
            _replace(grads, all_reduce_average, self.group)
            _, denominators, corrections = update_moments(grads, states, group["betas"], group["eps"])
        else:
            corrections = [1 - beta1**step for step in count_steps(states)]
            foreach.lerp_(exp_avgs, grads, 1 - beta1)
            place = next(i for i, other in enumerate(self.param_groups) if other is group)
            _replace(exp_avgs, self._reduces[place], self.group)
            denominators = list(foreach.sqrt([state["exp_avg_sq"] for state in states]))
            foreach.div_(denominators, (1 - beta2**self.warmup_steps) ** 0.5)
            foreach.add_(denominators, group["eps"])
        foreach.mul_(params, 1 - group["lr"] * group["weight_decay"])
        foreach.addcdiv_(params, exp_avgs, denominators, [-group["lr"] / c for c in corrections])


def _replace(tensors: list[Tensor], reduce: Reduce, group: dist.ProcessGroup | None) -> None:
    """Replace tensors by their means over the ranks, all in one buffer."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    reduce(flat, group).wait()
    for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))


@checked
def variance_ratio(before: Tensor, after: Tensor) -> float:
    """Convergence of a variance over some steps: the smaller of the two sums over the larger, 1 if converged.

    Tang et al. compare Adam's `exp_avg_sq` 1 / (1 - beta2) steps apart; near 1, freezing it changes little. ValueError:
    other shapes, a variance below 0 or without a number, or both zero.
    """
    if before.shape != after.shape:
        raise ValueError(f"variances must have the same shape: got {tuple(before.shape)} and {tuple(after.shape)}.")
    if before.is_complex() or after.is_complex():
        raise ValueError("variances are real numbers: got complex ones.")
    sums = sorted((float(before.double().sum()), float(after.double().sum())))
    if not (0 <= sums[0] <= sums[1] < float("inf")) or sums[1] == 0:
        raise ValueError(f"variances are at least 0, and some above: got sums of {sums[0]} and {sums[1]}.")
    return sums[0] / sums[1]
