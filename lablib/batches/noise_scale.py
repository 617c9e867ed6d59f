"""The gradient noise scale: the batch size at which a batch's gradient is half signal, half noise.

The gradient of a batch of B examples drawn at random is the true gradient G plus noise with a variance that falls as 1
/ B. With Sigma the covariance of one example's gradient:

    E |G_B|^2 = |G|^2 + tr(Sigma) / B                   signal, and noise
    noise scale = tr(Sigma) / |G|^2                     the B at which both are equal (the paper's B_simple)

Far below it, twice the batch makes a step nearly twice as good; far above it, twice the batch has almost no effect.

`|G_B|^2` alone overestimates |G|^2 by tr(Sigma) / B (naive). But the squared norms of a small and of a large batch are
two equations for two unknowns (the paper's A.2 and A.3):

    |G|^2      ~ (B_big |G_big|^2 - B_small |G_small|^2) / (B_big - B_small)
    tr(Sigma)  ~ (|G_small|^2 - |G_big|^2) / (1 / B_small - 1 / B_big)

Both are unbiased. Their ratio is not, so average each over many steps, then divide. Data parallelism and accumulation
provide both batches: the gradient of each part, and the mean of all.

The resulting law for steps S and examples E = B S to reach a given loss, with the best rate at each B:

    (S / S_min - 1) (E / E_min - 1) = 1         S = S_min (1 + B_crit / B),  E = E_min (1 + B / B_crit)

with B_crit = E_min / S_min, of the order of the noise scale. At B = B_crit, steps and examples are twice their minimum.

Cost: a norm for each part's gradient and for the mean; over ranks, one number of each is averaged.
Shapes: k small batches' gradients, P parameters, N examples of a data set.
Source: McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, arXiv 1812.06162, sections 2.2 and 2.3,
equations 2.9 and 2.11, appendix A.1.
Simplified: the Hessian is taken as a multiple of the identity (B_simple for B_noise); examples are drawn with
replacement; the law is exact for a constant B_crit, but it grows as the loss falls.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from lablib.signature import Checked, Count, NonEmpty, Positive, checked

Some = Annotated[Sequence[float], NonEmpty()]
Fitted = Annotated[Positive, "measure at more sizes, from far below the noise scale to far above"]


@dataclass(frozen=True, slots=True)
class GradientNoise:
    """Signal and noise of gradients."""

    signal: float  # |G|^2, squared length of the true gradient. An estimate can be negative.
    noise: float  # tr(Sigma), variance of one example's gradient, summed over parameters

    @property
    def noise_scale(self) -> float:
        """In examples; infinite without a signal."""
        return self.noise / self.signal if self.signal > 0 else math.inf


@checked
def exact_noise(gradients_NP: Float[Tensor, "N P"]) -> GradientNoise:
    """Signal and noise of a data set from the gradients of all its N examples."""
    _check_rows(gradients_NP)
    mean_P = gradients_NP.mean(0)
    return GradientNoise(float(mean_P.square().sum()), float((gradients_NP - mean_P).square().sum(1).mean()))


@checked
def naive_noise(small_norms_squared: Some, small_batch: Count, big_norm_squared: float) -> GradientNoise:
    """Take the large batch's gradient for the true one: too much signal, too little noise."""
    noise = (_mean(small_norms_squared) - big_norm_squared) * small_batch
    return GradientNoise(big_norm_squared, noise)


@checked
def estimate_noise(
    small_norms_squared: Some, small_batch: Count, big_norm_squared: float, big_batch: int
) -> GradientNoise:
    """Unbiased estimates of both, from the gradients of one step. ValueError: the small batch is not smaller.

    Arguments:
        small_norms_squared: |G_small|^2 of one or more small batches, of micro-batches or ranks, say; averaged.
        small_batch, big_batch: examples that each gradient is a mean over.
        big_norm_squared: |G_big|^2; usually of the mean of the small batches.
    """
    if small_batch >= big_batch:
        raise ValueError(
            f"small_batch must be below big_batch: got {small_batch} and {big_batch}; "
            "take a part of the batch and the whole."
        )
    small, big = _mean(small_norms_squared), big_norm_squared
    signal = (big_batch * big - small_batch * small) / (big_batch - small_batch)
    noise = (small - big) / (1 / small_batch - 1 / big_batch)
    return GradientNoise(signal, noise)


@checked
def estimate_from_parts(gradients_kP: Float[Tensor, "k P"], part_batch: Count) -> GradientNoise:
    """The same from the gradients of k equal parts of a batch, each a mean over `part_batch` examples."""
    _check_rows(gradients_kP)
    if len(gradients_kP) < 2:
        raise ValueError(f"two parts at least are needed to see noise: got {len(gradients_kP)}; cut the batch.")
    squares = gradients_kP.square().sum(1).tolist()
    whole = float(gradients_kP.mean(0).square().sum())
    return estimate_noise(squares, part_batch, whole, part_batch * len(gradients_kP))


@checked
def average_noise(estimates: Iterable[GradientNoise]) -> GradientNoise:
    """Signal and noise, each averaged over steps: their ratio converges, unlike the mean of ratios."""
    estimates = list(estimates)
    return GradientNoise(_mean([one.signal for one in estimates]), _mean([one.noise for one in estimates]))


@dataclass(frozen=True, slots=True)
class StepsLaw(Checked):
    """Steps and examples to a given loss, by batch size."""

    min_steps: Fitted  # S_min, steps of an infinite batch
    critical_batch: Fitted  # B_crit, where steps and examples are both twice their minimum

    @property
    def min_examples(self) -> float:
        """E_min, examples of the smallest batches."""
        return self.min_steps * self.critical_batch

    def steps(self, batch_size: float) -> float:
        return self.min_steps * (1 + self.critical_batch / batch_size)

    def examples(self, batch_size: float) -> float:
        return self.steps(batch_size) * batch_size


@checked
def fit_steps_law(batch_sizes: Sequence[float], steps: Sequence[float]) -> StepsLaw:
    """Fit the law to measured steps by least squares of the relative errors. S is linear in 1 / B.

    ValueError: fewer than two sizes, not one measurement for each, or measurements that do not follow the law.
    """
    is_positive = all(0 < value < math.inf for value in (*batch_sizes, *steps))
    if len(set(batch_sizes)) < 2 or len(steps) != len(batch_sizes) or not is_positive:
        raise ValueError(
            f"steps at two batch sizes at least, all positive and finite: got {len(steps)} of steps and "
            f"{len(batch_sizes)} sizes."
        )
    measured = torch.tensor(steps, dtype=torch.float64)
    inverse = 1 / torch.tensor(batch_sizes, dtype=torch.float64)
    # Each row of S_min + (S_min B_crit) / B = S, divided by S: all sizes have the same weight.
    rows = torch.stack([1 / measured, inverse / measured], dim=1)
    min_steps, min_examples = torch.linalg.lstsq(rows, torch.ones(len(steps), 1, dtype=torch.float64)).solution[:, 0]
    return StepsLaw(float(min_steps), float(min_examples / min_steps))


def _check_rows(gradients: Tensor) -> None:
    if gradients.ndim != 2 or not gradients.is_floating_point() or not gradients.numel():
        raise ValueError(
            "gradients must be a row of numbers for each example or part, [rows, parameters]: "
            f"got shape {tuple(gradients.shape)}, {gradients.dtype}; try torch.stack(rows)."
        )


def _mean(values: Sequence[float]) -> float:
    if not values:
        raise ValueError("an average needs at least one value: got none.")
    return sum(values) / len(values)
