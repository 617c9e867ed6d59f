"""Batches for data-parallel training: one global order of sequences, of which every rank reads its own part.

The corpus is cut into sequences of T + 1 bytes (inputs, and targets one byte on), each epoch shuffles them from
`seed`, and a global batch is the next B of that order. Rank r of W takes the r-th block of B / W:

    order        5 2 7 0 | 6 1 4 3 |          B = 4: two global batches
    world size 1 5 2 7 0 | 6 1 4 3 |
    world size 2 5 2     | 6 1     |  rank 0
                     7 0 |     4 3 |  rank 1

So the union over ranks of a global batch is the same for every world size, and training on 1, 2 or 4 ranks sees the
same text in the same order: what makes their gradients comparable. No communication: each rank computes the order.
For the same reason the number of global batches taken is a whole state (`ResumableBatches`): a run can go on after any
of them, on any number of ranks.

Cost: N / T numbers of 8 bytes for the order; a batch reads B (T + 1) / W bytes.
Shapes: B global batch, b = B / W this rank's part, T sequence length.
Source: the contract of `torch.utils.data.DistributedSampler`, which deals sequences out in turn, where here each
rank's part is a block, so that the parts in rank order are the global batch.
Simplified: an epoch's last sequences that fill no batch are left out; reading is synchronous.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from lablib.data.sharding import check_rank_of
from lablib.data.text import Corpus
from lablib.signature import Count, NonNegativeInt, checked, shown


class Batch(NamedTuple):
    """This rank's part of a global batch: int64, and `targets[:, t]` is the byte after `inputs[:, t]`."""

    inputs: Int64[Tensor, "b T"]
    targets: Int64[Tensor, "b T"]


@checked
def batches(
    corpus: Corpus,
    batch_size: Count,
    seq_len: Count,
    seed: int = 0,
    rank: int = 0,
    world_size: Count = 1,
    device: torch.device | str | None = None,
    start: NonNegativeInt = 0,
) -> Iterator[Batch]:
    """This rank's batches, without end: epoch after epoch, each in its own order.

    Arguments:
        batch_size: sequences B of a global batch, over all ranks; a multiple of `world_size`.
        seq_len: tokens T of a sequence.
        seed: of the order; the same on every rank.
        device: where the batches shall be; None: torch's default device.
        start: global batches to leave out.

    Raises ValueError: sizes that do not fit, at once and not at the first batch.
    """
    if batch_size % world_size:
        near = -(-batch_size // world_size) * world_size
        raise ValueError(
            "batch_size (over all ranks) must be a multiple of world_size: "
            f"got {batch_size} and {world_size}; try {near}."
        )
    check_rank_of(rank, world_size)
    num_sequences = (len(corpus) - 1) // seq_len
    if num_sequences < batch_size:
        raise ValueError(
            f"a corpus must hold one batch of {batch_size} x {seq_len} bytes: {corpus.name} has {len(corpus)}; "
            "try a smaller batch_size or seq_len."
        )
    device = torch.get_default_device() if device is None else torch.device(device)
    return _generate(corpus.tokens, batch_size, seq_len, seed, rank, world_size, device, start)


def _generate(
    tokens_N: UInt8[Tensor, " N"],
    batch_size: int,
    seq_len: int,
    seed: int,
    rank: int,
    world_size: int,
    device: torch.device,
    start: int,
) -> Iterator[Batch]:
    local_size = batch_size // world_size
    num_sequences = (len(tokens_N) - 1) // seq_len
    # The order is the host's, as a GPU's generator would draw another: the same on every rank and every device.
    generator = torch.Generator("cpu").manual_seed(seed)
    places_T = torch.arange(seq_len + 1, device="cpu")
    num_epochs, start = divmod(start, num_sequences // batch_size)
    for _ in range(num_epochs):  # the generator's state after them
        torch.randperm(num_sequences, generator=generator, device="cpu")
    while True:
        order = torch.randperm(num_sequences, generator=generator, device="cpu")
        firsts, start = range(start * batch_size, num_sequences - batch_size + 1, batch_size), 0
        for first in firsts:
            mine_b = order[first + rank * local_size :][:local_size]
            # The last target of a sequence is the first input of its neighbour: windows of T + 1, T apart.
            window_bT = (mine_b * seq_len)[:, None] + places_T
            taken_bT = tokens_N[window_bT].to(device, torch.int64)
            yield Batch(taken_bT[:, :-1].contiguous(), taken_bT[:, 1:].contiguous())


class ResumableBatches:
    """`batches` as an iterator with a state, which is the same on all ranks and for any number of them.

    Arguments: as of `batches`.
    """

    def __init__(
        self,
        corpus: Corpus,
        batch_size: int,
        seq_len: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str | None = None,
    ):
        self._make = partial(batches, corpus, batch_size, seq_len, seed, rank, world_size, device)
        self._sizes = {"batch_size": batch_size, "seq_len": seq_len, "seed": seed, "sha256": corpus.sha256}
        self.num_taken, self._rest = 0, self._make()

    def __iter__(self) -> "ResumableBatches":
        return self

    def __next__(self) -> Batch:
        self.num_taken += 1
        return next(self._rest)

    def state_dict(self) -> dict[str, Any]:
        """Global batches taken, and what defines their order."""
        return {"num_taken": self.num_taken, **self._sizes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the batches of a saved run. ValueError: another corpus, order or size of batches."""
        for name, value in self._sizes.items():
            if state.get(name) != value:
                raise ValueError(
                    f"a run goes on with the same order of batches: {name} was {shown(state.get(name))}, and is "
                    f"{shown(value)}; set it back, or start a new run."
                )
        self.num_taken = state["num_taken"]
        self._rest = self._make(start=self.num_taken)
