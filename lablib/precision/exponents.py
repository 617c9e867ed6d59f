"""Exponents of gradients: histogram of a tensor by power of two, and the share that a format loses.

A number of a format is 1.xxx * 2^e: the exponent e decides whether it is in range, the mantissa how precise it is. So a
histogram of exponents, next to the ranges of formats, shows the losses of each format:

    e < log2(smallest) - 1              lost (underflow): nearer to zero than to the smallest subnormal number
    ... <= e < e_min                    subnormal: kept with fewer bits, one fewer for each power of two
    e_min <= e <= e_max                 normal: all bits
    e_max < e                           too large: an infinity, or the largest number

    watch = GradientExponents(model)        # hooks: counts while the model trains
    ... backward ...
    watch.weights, watch.activations    # counts of the gradients of parameters, and of linear layers' outputs

Cost: one pass over each tensor. Shapes: any.
Source: Micikevicius et al., "Mixed Precision Training", 2017, arXiv 1710.03740, figures 2b and 3.
Simplified: only by exponent: exactly half the smallest number, which rounds to zero, counts as kept, and numbers that
round up beyond the largest count as normal.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lablib.precision.formats import Format
from lablib.signature import checked


@dataclass(frozen=True, slots=True)
class RangeShares:
    """Shares of lost, subnormal, normal and too large numbers in a format, without zeros and infinities."""

    lost: float
    subnormal: float
    normal: float
    too_large: float


@dataclass(frozen=True, slots=True)
class ExponentCounts:
    """Counts of numbers by exponent."""

    by_exponent: Mapping[int, int] = field(default_factory=dict)  # e -> count of x with 2^e <= |x| < 2^(e+1)
    zeros: int = 0  # count of zeros, which have no exponent
    not_finite: int = 0  # count of infinities and NaN

    @property
    def num_nonzero(self) -> int:
        return sum(self.by_exponent.values())

    def __add__(self, other: "ExponentCounts") -> "ExponentCounts":
        by_exponent = dict(sorted((Counter(self.by_exponent) + Counter(other.by_exponent)).items()))
        return ExponentCounts(by_exponent, self.zeros + other.zeros, self.not_finite + other.not_finite)

    def scaled(self, power: int) -> "ExponentCounts":
        """The counts of the same numbers times 2^power."""
        by_exponent = {exponent + power: count for exponent, count in self.by_exponent.items()}
        return ExponentCounts(by_exponent, self.zeros, self.not_finite)

    def shares(self, format: Format) -> RangeShares:
        """Shares of these numbers in a format. All zero if nothing was counted."""
        edges = (format.underflow_exponent, format.min_exponent, format.max_exponent + 1)
        parts = [0, 0, 0, 0]
        for exponent, count in self.by_exponent.items():
            parts[sum(exponent >= edge for edge in edges)] += count
        return RangeShares(*(part / max(self.num_nonzero, 1) for part in parts))


@checked
def exponent_counts(tensors: Iterable[Tensor]) -> ExponentCounts:
    """The counts by exponent of all numbers of these floating-point tensors."""
    return sum((_counts_of(tensor) for tensor in tensors), ExponentCounts())


def _counts_of(tensor: Tensor) -> ExponentCounts:
    x = tensor.detach().flatten()
    x = x if x.dtype == torch.float64 else x.float()
    is_finite, is_zero = x.isfinite(), x == 0
    # |x| = mantissa * 2^exponent, the mantissa in [1/2, 1): one less for a mantissa in [1, 2).
    exponents = torch.frexp(x[is_finite & ~is_zero]).exponent - 1
    found, counts = exponents.unique(return_counts=True)
    by_exponent = dict(zip(found.tolist(), counts.tolist(), strict=True))
    return ExponentCounts(by_exponent, int(is_zero.sum()), int((~is_finite).sum()))


class GradientExponents:
    """Count the exponents of a model's gradients during training.

    Attributes:
        weights: of the gradients of parameters, as each backward pass leaves them in `.grad`.
        activations: of the gradients of the outputs of linear layers. The loss is a mean over tokens, and each of these
            belongs to one token, so they are much smaller.
    """

    def __init__(self, model: nn.Module):
        self.weights = self.activations = ExponentCounts()
        self._handles = [param.register_post_accumulate_grad_hook(self._weight) for param in model.parameters()]
        for module in model.modules():
            if isinstance(module, nn.Linear):
                self._handles.append(module.register_forward_hook(self._output))

    def remove(self) -> None:
        """Remove the hooks from the model."""
        for handle in self._handles:
            handle.remove()

    def _weight(self, param: Tensor) -> None:
        assert param.grad is not None
        self.weights += exponent_counts([param.grad])

    def _output(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(self._activation)

    def _activation(self, gradient: Tensor) -> None:
        self.activations += exponent_counts([gradient])
