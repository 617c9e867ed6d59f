"""Learning-rate schedules: pure functions from the step to a factor of the peak rate.

Adam's first steps divide by a second moment from few gradients, so the rate rises for W steps (warmup). At the end it
must fall: the noise of batches keeps the loss above its minimum by an amount that grows with the rate. Schedules differ
in the middle and in the decay:

    factor(s) = (s + 1) / (W + 1)          s < W                warmup: no step has rate 0, none has the peak twice
              = 1                          W <= s < N - D       stable
              = f((s - (N - D)) / D)       N - D <= s < N       decay over the last D of N steps, f(0) = 1
              = f(1) = final               s >= N

    cosine     D = N - W, f half a cosine: falls from the first step after the warmup. N must be known at the start.
    linear     D = N - W, f a straight line
    WSD        D about a tenth of N: until N - D the rate does not depend on N. One run serves every N: decay from a
               checkpoint of its stable part, and continue from that checkpoint.

DeepSpeed's WarmupLR is different: its first two steps have the start rate, and the default warmup is logarithmic.

    factor(s) = first + (1 - first) g(s - 1)            g(i) = ln(i + 1) / ln(W), or i / W, for 0 <= i < W; then 1
                                                        WarmupDecayLR: then (N - i) / (N - W), at least 0

Use: `torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine(step, num_steps=1000, num_warmup=100))`.

Cost: none.
Source: Loshchilov and Hutter, "SGDR", 2016, arXiv 1608.03983, equation 5 (the cosine; one period, no restart); Hu et
al., "MiniCPM", 2024, arXiv 2404.06395, section 4.2 (WSD; an exponential f, D a tenth of N); Hagele et al., 2024, arXiv
2405.18392, section 3 (1 - sqrt); Goyal et al., 2017, arXiv 1706.02677, section 2.2 (warmup); DeepSpeed,
deepspeed/runtime/lr_schedules.py (WarmupLR, WarmupDecayLR).
Simplified: the warmup is linear but for DeepSpeed's, and the stable rate does not change.
"""

import math
from collections.abc import Callable
from typing import Annotated

from lablib.signature import Count, Fraction, NonNegativeInt, OneOf, PositiveFraction, checked

# Progress through the decay in [0, 1], and the last factor -> factor; 1 at progress 0, `final` at 1.
Decay = Callable[[float, float], float]
Share = Annotated[Fraction, "give a part of the peak rate, such as 0.1"]
PositiveShare = Annotated[PositiveFraction, "an exponential never reaches 0; try final=0.1"]


@checked
def linear_decay(progress: Fraction, final: Fraction) -> float:
    """A straight line."""
    return 1.0 - (1.0 - final) * progress


@checked
def cosine_decay(progress: Fraction, final: Fraction) -> float:
    """Half a period of a cosine: slow, fast, slow."""
    return final + (1.0 - final) * (1.0 + math.cos(math.pi * progress)) / 2.0


@checked
def square_root_decay(progress: Fraction, final: Fraction) -> float:
    """1 - sqrt: fast at first."""
    return 1.0 - (1.0 - final) * math.sqrt(progress)


@checked
def exponential_decay(progress: Fraction, final: PositiveShare) -> float:
    """By the same factor in each step; `final` must be above 0. MiniCPM halves the rate repeatedly."""
    return final**progress


@checked
def warmup_stable_decay(
    step: NonNegativeInt,
    num_steps: Count,
    num_warmup: NonNegativeInt,
    num_decay: NonNegativeInt,
    final: Share = 0.0,
    decay: Decay = linear_decay,
) -> float:
    """WSD: up over `num_warmup` steps, then constant, then down over the last `num_decay` of `num_steps`.

    `step`: from 0; from `num_steps` on the factor is `final`, 0 to 1. `decay`: its shape. ValueError: they do not fit.
    """
    if num_warmup + num_decay > num_steps:
        raise ValueError(
            f"warmup and decay must fit into the run: got {num_warmup} + {num_decay} of {num_steps} steps; "
            f"try a decay of {max(0, num_steps - num_warmup)}."
        )
    if step < num_warmup:
        return (step + 1) / (num_warmup + 1)
    num_into_decay = step - (num_steps - num_decay)
    if num_into_decay < 0:
        return 1.0
    return decay(num_into_decay / num_decay, final) if num_into_decay < num_decay else final


@checked
def cosine(step: NonNegativeInt, num_steps: Count, num_warmup: NonNegativeInt = 0, final: Share = 0.0) -> float:
    """Warmup, then half a cosine down to `final` at `num_steps`."""
    return warmup_stable_decay(step, num_steps, num_warmup, max(0, num_steps - num_warmup), final, cosine_decay)


@checked
def linear(step: NonNegativeInt, num_steps: Count, num_warmup: NonNegativeInt = 0, final: Share = 0.0) -> float:
    """Warmup, then a straight line down to `final` at `num_steps`."""
    return warmup_stable_decay(step, num_steps, num_warmup, max(0, num_steps - num_warmup), final, linear_decay)


@checked
def constant(step: NonNegativeInt, num_warmup: NonNegativeInt = 0) -> float:
    """Warmup, then always the peak rate."""
    return warmup_stable_decay(step, max(step, num_warmup) + 1, num_warmup, 0)


@checked
def deepspeed_warmup(
    step: NonNegativeInt,
    num_warmup: Count = 1000,
    first: Share = 0.0,
    shape: Annotated[str, OneOf(("log", "linear"))] = "log",
    num_steps: Count | None = None,
) -> float:
    """DeepSpeed's WarmupLR, or with `num_steps` its WarmupDecayLR; `first` is warmup_min_lr / warmup_max_lr.

    The scheduler sets the start rate for step 0, and is called after a step: step s uses its iteration s - 1.
    """
    if step == 0:
        return first
    iteration, num_warmup = step - 1, max(2, num_warmup)
    if iteration < num_warmup:
        gamma = math.log(iteration + 1) / math.log(num_warmup) if shape == "log" else iteration / num_warmup
    elif num_steps is None:
        gamma = 1.0
    else:
        gamma = max(0.0, (num_steps - iteration) / max(1, num_steps - num_warmup))
    return first + (1.0 - first) * gamma
