"""Sharding: the samples of an epoch that each rank reads.

Every rank computes the same order of the N samples from (seed, epoch), and takes its part of it, without communication:

    order       5 2 7 0 6 1 4              N = 7, W = 2 ranks
    rank 0      5   7   6   4              sample i of the order goes to rank i mod W
    rank 1        2   0   1   *            7 is odd. keep: rank 1 has one less; pad: * is 5 again; drop: 4 is left out

The seed must be the same everywhere. With different seeds each rank takes 1 / W of another order: a sample is taken by
0, 1, 2, ... ranks (binomial), and (1 - 1 / W)^W of all, about 1 / e, are not seen in that epoch.

Cost: N numbers of 8 bytes for the order, N / W for a part.
Source: torch 2.13, `torch/utils/data/distributed.py`: order, padding and dropping as in DistributedSampler.
Simplified: samples one by one; whole shards are dealt out by `resumable_shards.py`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import torch

from lablib.signature import Count, NonNegativeInt, Range, checked

NumSamples = Annotated[int, Range(ge=0, le=10**9)]  # beyond that a list of all is no longer sensible


class Uneven(Enum):
    """Rule for samples that do not divide by the ranks."""

    KEEP = "keep"  # the first ranks have one more
    PAD = "pad"  # the first samples of the order again
    DROP = "drop"  # the last of the order left out


@checked
def epoch_order(num_samples: NumSamples, seed: NonNegativeInt = 0, epoch: NonNegativeInt = 0) -> list[int]:
    """The order of an epoch, the same on every rank: a random permutation.

    It adds seed and epoch, as torch does: so seed 0 in epoch 1 is seed 1 in epoch 0.
    """
    generator = torch.Generator("cpu").manual_seed(seed + epoch)
    return torch.randperm(num_samples, generator=generator, device="cpu").tolist()


@checked
def rank_part(order: Sequence[int], rank: int, world_size: Count, uneven: Uneven = Uneven.PAD) -> list[int]:
    """This rank's samples: every W-th of the order, from `rank` on."""
    check_rank_of(rank, world_size)
    return dealt(order, rank, world_size, uneven)


def dealt(order: Sequence[int], rank: int, world_size: int, uneven: Uneven) -> list[int]:
    """`rank_part` without its checks."""
    order = list(order)
    remainder = len(order) % world_size
    if remainder and uneven is Uneven.DROP:
        order = order[:-remainder]
    elif order and remainder and uneven is Uneven.PAD:
        missing = world_size - remainder
        order += (order * (missing // len(order) + 1))[:missing]  # fewer samples than ranks: more than once
    return order[rank::world_size]


@dataclass(frozen=True, slots=True)
class Seen:
    """Lost and repeated samples of an epoch, over all ranks and workers."""

    num_samples: int  # samples of the data set
    lost: tuple[int, ...]  # samples that were not delivered, in order
    repeated: tuple[int, ...]  # samples that were delivered more than once, in order

    @property
    def is_exact(self) -> bool:
        """Each sample came once."""
        return not self.lost and not self.repeated


@checked
def count_seen(deliveries: Sequence[Sequence[int]], num_samples: NumSamples) -> Seen:
    """Count the samples, from 0 to num_samples - 1, that each rank (or worker) got in an epoch."""
    counts = Counter(sample for one in deliveries for sample in one)
    unknown = sorted(sample for sample in counts if not 0 <= sample < num_samples)
    if unknown:
        raise ValueError(f"samples must be from 0 to {num_samples - 1}: got {unknown[:5]}.")
    every = range(num_samples)
    return Seen(num_samples, tuple(s for s in every if not counts[s]), tuple(s for s in every if counts[s] > 1))


def check_rank_of(rank: int, world_size: int) -> None:
    """Raise ValueError for a rank that `world_size` ranks do not have."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be from 0 to world_size - 1 = {world_size - 1}: got {rank}.")
