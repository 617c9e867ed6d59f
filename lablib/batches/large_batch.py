"""The learning rate for another batch size: linear scaling for SGD, square-root scaling for Adam.

A batch k times as large takes k times fewer steps through the same examples; so each step should be longer:

    linear        rate x k             SGD. k steps with gradients g_i of one batch each are about one step with their
                                       mean and k times the rate, as long as the weights hardly move in between.
    square root   rate x sqrt(k)       Adam. It divides by the gradient's size: where noise dominates, a batch k times
                                       as large has gradients sqrt(k) times smaller, which Adam undoes. Steps then have
                                       the same length, and k times fewer of them reach a factor sqrt(k) less far, which
                                       the rate makes up for. To average over the same examples, 1 - beta grows by k.
    noise scale   rate_max / (1 + B_noise / B)      SGD, between the two ends: linear far below the noise scale of
                                       noise_scale.py, and no more than `rate_max` far above

Each rule holds only while noise dominates: a rate above the limit of the curvature diverges at any batch size. Linear
scaling starts with a warmup, as weights move fast early on.

Cost: none.
Source: Goyal et al., "Accurate, Large Minibatch SGD", 2017, arXiv 1706.02677, section 2.1; Malladi et al., "On the SDEs
and Scaling Rules for Adaptive Gradient Algorithms", 2022, arXiv 2205.10287, definition 5.1 (Adam's betas and epsilon);
McCandlish et al., 2018, arXiv 1812.06162, equation 2.6.
Simplified: the rules are for runs with the same number of examples; they do not limit k.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from lablib.signature import Count, FractionBelow1, NonNegative, Range, check_fields, checked


@dataclass(frozen=True, slots=True)
class AdamSettings:
    """The settings of Adam that depend on the batch size; torch's names and ranges."""

    lr: NonNegative
    betas: tuple[FractionBelow1, FractionBelow1]
    eps: NonNegative

    def __post_init__(self) -> None:
        check_fields(self)


@checked
def linear_rate(rate: NonNegative, from_batch: Count, to_batch: Count) -> float:
    """SGD's rate at `to_batch`, from a good rate at `from_batch`."""
    return rate * (to_batch / from_batch)


@checked
def square_root_rate(rate: NonNegative, from_batch: Count, to_batch: Count) -> float:
    """Adam's rate at `to_batch`, from a good rate at `from_batch`."""
    return rate * math.sqrt(to_batch / from_batch)


@checked
def noise_scale_rate(max_rate: NonNegative, noise_scale: Annotated[float, Range(ge=0)], batch_size: Count) -> float:
    """SGD's best rate at a batch size, from the best rate of an infinite batch and the noise scale, in examples."""
    return max_rate / (1 + noise_scale * (1 / batch_size))


@checked
def scale_adam(settings: AdamSettings, from_batch: Count, to_batch: Count) -> AdamSettings:
    """All of Adam's settings at `to_batch`: lr x sqrt(k), 1 - beta x k, eps / sqrt(k). ValueError: a beta below 0."""
    ratio = to_batch / from_batch
    beta1, beta2 = (1 - ratio * (1 - beta) for beta in settings.betas)
    if min(beta1, beta2) < 0:
        largest = int(from_batch / (1 - min(settings.betas)) * (1 + 1e-9))
        raise ValueError(
            f"Adam's betas must stay at least 0: got {min(beta1, beta2):.3g} at batch {to_batch}; "
            f"try a batch of at most {largest}."
        )
    root = math.sqrt(ratio)
    return AdamSettings(settings.lr * root, (beta1, beta2), settings.eps / root)
