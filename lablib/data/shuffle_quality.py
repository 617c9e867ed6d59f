"""Randomness of an order, measured by four numbers, and their values for a uniformly random order.

An order is a list: place t has the sample that was at place order[t] before. N samples, d = t - order[t].

    displacement     mean |d|, of N                     uniform: (N^2 - 1) / (3 N), a third of N
    correlation      of places in and out (Spearman)    uniform: 0; 1 - 6 sum d^2 / (N (N^2 - 1))
    neighbours kept  share of pairs one after the       uniform: 2 / N
                     other that were so before
    distance         cut in and out into w windows: distance of the origins of each window's samples from
                     uniform, as total variation: half of sum |share - 1 / w|, 0 to 1 - 1 / w

The first two measure how far samples move, the third which samples stay together, the last the composition of a batch:
an order in which only whole shards change places is good in the first two and bad in the others.

Cost: N numbers; w^2 for the distance.
Source: C. Spearman, "The Proof and Measurement of Association between Two Things", 1904. (N^2 - 1) / (3 N) is the mean
distance of two random places; the expected distance of windows is the normal approximation of their shares.
Simplified: places alone; the final test is the loss of a training run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import torch

from lablib.signature import Count, Range, checked


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """Four numbers of one order."""

    displacement: float  # mean |d|, as a part of N
    correlation: float  # of the places before and after, -1 to 1
    neighbours_kept: float  # part of the pairs of neighbours that were neighbours before, either way round
    distance: float  # of the windows from uniform, 0 to 1


@checked
def shuffle_quality(order: Sequence[int], windows: Count = 10) -> ShuffleQuality:
    """The four numbers of a permutation of 0 ... N - 1, N at least 2, with at most N windows; otherwise ValueError."""
    num = len(order)
    if num < 2 or sorted(order) != list(range(num)):
        raise ValueError(
            f"an order must have each of 0 to N - 1 once, N at least 2: got {num} numbers that have not; "
            "count_seen says which are lost."
        )
    _check_windows(windows, num)
    moved = torch.tensor(order, dtype=torch.float64) - torch.arange(num, dtype=torch.float64)
    kept = sum(abs(before - after) == 1 for before, after in pairwise(order))
    return ShuffleQuality(
        displacement=float(moved.abs().mean()) / num,
        correlation=1 - 6 * float(moved.square().sum()) / (num * (num**2 - 1)),
        neighbours_kept=kept / (num - 1),
        distance=_distance(order, windows),
    )


@checked
def uniform_quality(num_samples: Annotated[int, Range(ge=2)], windows: Count = 10) -> ShuffleQuality:
    """Expected values for a uniformly random order, the reference."""
    _check_windows(windows, num_samples)
    num, share = num_samples, 1 / windows
    size = num / windows
    # Samples of one window in another: hypergeometric. E|x| of a normal x is sqrt(2 / pi) deviations.
    deviation = math.sqrt(size * share * (1 - share) * (num - size) / (num - 1)) / size
    distance = windows / 2 * math.sqrt(2 / math.pi) * deviation
    return ShuffleQuality((num**2 - 1) / (3 * num**2), 0.0, 2 / num, distance)


def _check_windows(windows: int, num_samples: int) -> None:
    if windows > num_samples:
        raise ValueError(f"windows must be from 1 to the {num_samples} samples: got {windows}.")


def _distance(order: Sequence[int], windows: int) -> float:
    """Total variation of (window in, window out) from uniform, the mean over the windows out."""
    num = len(order)
    window = torch.arange(num) * windows // num
    pairs = window * windows + window[torch.tensor(order)]  # of each place: its window now and before
    counts = torch.bincount(pairs, minlength=windows**2).reshape(windows, windows).double()
    here, before = counts.sum(1, keepdim=True), counts.sum(0, keepdim=True)
    return float((counts / here - before / num).abs().sum(1).mean()) / 2
