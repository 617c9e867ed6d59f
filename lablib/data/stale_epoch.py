"""The stale epoch: every epoch in the same order, as the sampler's epoch was never set.

A DistributedSampler shuffles from seed + epoch and does not count epochs: without `sampler.set_epoch(epoch)` it stays
0. Nothing fails. The delivered samples show it: compare two epochs on one rank, place by place.

    share of places with the same sample     1 if stale; 1 / N for two random orders
    share of the rank's samples that it had  1 if the rank never changes its part (a shuffle within fixed shards);
      in the epoch before                    1 / W for new parts of all N over W ranks

Cost: a number per sample and epoch.
Source: torch 2.13, `torch/utils/data/distributed.py`, the warning in DistributedSampler's docstring.
Simplified: samples are known by their numbers; of a real loader, deliver the number with the sample, or hash it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from lablib.signature import checked

STALE_SHARE = 0.5  # of the places: far above what chance gives, far below 1


@dataclass(frozen=True, slots=True)
class EpochPair:
    """Two epochs of one rank."""

    first: int  # first, second: their numbers
    second: int
    same_places: float  # part of the places with the same sample in both
    same_samples: float  # part of the second's samples that the first had

    @property
    def is_stale(self) -> bool:
        """The second has the first's order."""
        return self.same_places > STALE_SHARE


@checked
def compare_epochs(epochs: Sequence[Sequence[int]]) -> list[EpochPair]:
    """All pairs of epochs of one rank, in order; at least two samples in each, or chance would be taken for a bug."""
    for number, epoch in enumerate(epochs):
        if len(epoch) < 2:
            raise ValueError(f"an epoch must have at least 2 samples to be compared: epoch {number} has {len(epoch)}.")
    return [
        _compare(first, second, epochs[first], epochs[second]) for first, second in combinations(range(len(epochs)), 2)
    ]


@checked
def stale_epochs(epochs: Sequence[Sequence[int]]) -> list[int]:
    """The numbers of the epochs that repeat the order of an earlier one; none: all is well."""
    return sorted({pair.second for pair in compare_epochs(epochs) if pair.is_stale})


def _compare(first: int, second: int, before: Sequence[int], after: Sequence[int]) -> EpochPair:
    same = sum(one == other for one, other in zip(before, after, strict=False))
    known = set(before)
    return EpochPair(
        first, second, same / max(len(before), len(after)), sum(one in known for one in after) / len(after)
    )
