"""Sophia-G: a mean of gradients divided by a mean of curvatures, with a change of at most lr per number.

Newton's step divides a gradient by the curvature, so it is large where the loss is flat. Sophia estimates the diagonal
h of the Hessian every k steps, and clips steps that are too large because h is small, old or wrong:

    m = beta1 m + (1 - beta1) g
    w = w - lr lambda w - lr clip(m / max(gamma h, eps), 1)                      every step
    h = beta2 h + (1 - beta2) B g'^2                                             every k steps: `update_curvature(B)`

g' is the gradient of the mean loss of B tokens against labels *drawn from the model's own predictions*
(`sampled_label_loss`): then B g'^2 is an unbiased estimate of the diagonal of the Gauss-Newton matrix (Bartlett's
identity). With the true labels it is not: they measure the error of the model, not the curvature of the loss.

    optimizer.zero_grad(); sampled_label_loss(model(x)).backward(); optimizer.update_curvature(x.numel())

Before the first estimate h is zero and each step is lr sign(m), as in Lion.

Cost: 8 bytes of state per parameter (float32); 4 more during the step; every k steps another forward and backward.
Source: Liu et al., "Sophia: A Scalable Stochastic Second-order Optimizer for Language Model Pre-training", 2023, arXiv
2305.14342, algorithms 2 and 3; defaults of section 3.1 (gamma 0.05 for Sophia-G, k = 10).
Conventions: the authors' code keeps g'^2 without B and multiplies by it in the step, and adds 1e-15 to the denominator
where the paper takes the larger of it and eps; it updates h after the step, the paper before; both are possible here.
"""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lablib.optim import foreach
from lablib.optim.base import BatchedOptimizer, Betas, Settings, State
from lablib.signature import Count, NonNegative, Positive, checked


class SophiaG(BatchedOptimizer):
    """Clipped steps along the gradient over the curvature.

    Arguments:
        lr: maximum change of a number per step.
        betas: decay rates of the means of g and of the curvature per update.
        gamma: of the curvature in the denominator: the larger, the fewer numbers are clipped.
        eps: the smallest denominator.
        weight_decay, check_finite: as for AdamW.
    """

    is_element_wise = True

    @checked
    def __init__(
        self,
        params: ParamsT,
        lr: NonNegative = 1e-4,
        betas: Betas = (0.96, 0.99),
        gamma: Positive = 0.05,
        eps: NonNegative = 1e-12,
        weight_decay: NonNegative = 0.1,
        *,
        check_finite: bool = False,
    ):
        settings = {"lr": lr, "betas": betas, "gamma": gamma, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, **settings, check_finite=check_finite)

    def new_state(self, param: Tensor, group: Settings) -> State:
        return {"exp_avg": torch.zeros_like(param), "hessian": torch.zeros_like(param)}

    def update(self, params: list[Tensor], grads: list[Tensor], states: list[State], group: Settings) -> None:
        exp_avgs = [state["exp_avg"] for state in states]
        foreach.lerp_(exp_avgs, grads, 1 - group["betas"][0])
        # clip(m / max(gamma h, eps), 1)
        updates = list(foreach.mul([state["hessian"] for state in states], group["gamma"]))
        foreach.clamp_min_(updates, group["eps"])
        foreach.reciprocal_(updates)
        foreach.mul_(updates, exp_avgs)
        foreach.clamp_min_(updates, -1.0)
        foreach.clamp_max_(updates, 1.0)
        foreach.mul_(params, 1 - group["lr"] * group["weight_decay"])
        foreach.add_(params, updates, alpha=-group["lr"])

    @checked
    @torch.no_grad()
    def update_curvature(self, num_tokens: Annotated[Count, "give the tokens of the sampled loss"]) -> None:
        """Update the estimate with gradients of `sampled_label_loss`, a mean over `num_tokens`. Raises as `step`."""
        self.check_gradients()
        for group, _, grads, states in self.batches():
            beta2, hessians = group["betas"][1], [state["hessian"] for state in states]
            foreach.mul_(hessians, beta2)
            foreach.addcmul_(hessians, grads, grads, (1 - beta2) * num_tokens)


@checked
def sampled_label_loss(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """The mean cross-entropy of logits (..., classes) against labels drawn from the logits themselves."""
    if not logits.is_floating_point() or not logits.ndim or not logits.numel():
        raise ValueError(
            f"logits must be floating-point numbers (..., classes), one class or more: got {logits.dtype} of shape "
            f"{tuple(logits.shape)}; give the output of the model."
        )
    flat = logits.reshape(-1, logits.shape[-1])
    labels = torch.multinomial(flat.detach().softmax(-1), 1, generator=generator)
    return F.cross_entropy(flat, labels[:, 0])
