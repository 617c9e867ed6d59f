"""Loader ranks: a program in which rank 0 trains and every other rank loads batches for it.

Where a machine has too few cores for its GPUs, batches come from other machines: each loader sends them one after
another, P at most on the way or waiting, and rank 0 receives them in turn. It is the loop of loader_timeline.py as
messages, so it runs on the simulator, where the times of loads and steps can be chosen and a timeline is made:

    rank 0      recv 0 [step 0] recv 1 [step 1] recv 2 ...
    rank 1      [load 0] send 0 [load 2] send 2 ...            loader of batches 0, 2, 4, ...
    rank 2      [load 1] send 1 [load 3] ...                   a send ends when rank 0 has the batch: wait for the
                                                               P-th last send before the next load
Work is counted in units: one addition to one number. On a simulated GPU that takes `unit_s` of kernel overhead, by
which a program chooses seconds: 10 ms are 10e-3 / unit_s units; `SlowRank(rank, 1000.0)` makes each last 1,000 times
as long, for fewer of them.

Cost: num_batches messages of batch_bytes; rank 0 receives at most k P batches ahead of its step.
Source: A. Audibert et al., "tf.data service: A Case for Disaggregating ML Input Data Processing", 2023, arXiv
2210.14826; M. Zhao et al., "Understanding Data Storage and Ingestion for Large-Scale Deep Recommendation Model
Training", 2022, arXiv 2108.09373.
Simplified: one trainer; batches in turn; the simulator prices the work of devices, the host's takes no virtual time, so
a loader's work is priced as a device's.
"""

from collections import deque
from collections.abc import Sequence
from typing import Annotated

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.signature import Count, NonNegativeInt, Range, checked


@checked
def train_with_loader_ranks(
    load_units: Sequence[NonNegativeInt],
    step_units: NonNegativeInt,
    prefetch: Count = 2,
    batch_bytes: Annotated[int, Range(ge=8)] = 8,
) -> list[int]:
    """The program of every rank; communicates. Returns the numbers of the batches, in order, that this rank loaded, or
    computed with (rank 0).

    Arguments:
        load_units, step_units: work to load each batch, and of a step.
        prefetch: batches P that each loader may have ready.
        batch_bytes: bytes of a message.

    Raises ValueError: fewer than two ranks.
    """
    loaders = dist.get_world_size() - 1
    if loaders < 1:
        raise ValueError("one rank trains and at least one loads: got 1 rank; try ranks=3.")
    if dist.get_rank() == 0:
        return _train(len(load_units), step_units, loaders, batch_bytes)
    return _load(load_units, dist.get_rank() - 1, loaders, prefetch, batch_bytes)


def _train(num_batches: int, step_units: int, loaders: int, batch_bytes: int) -> list[int]:
    batches, one = torch.zeros(num_batches, batch_bytes // 8, dtype=torch.int64), torch.ones(1)
    for number in range(num_batches):
        dist.recv(batches[number], src=1 + number % loaders)
        work(step_units, one)
    return batches[:, 0].tolist()


def _load(load_units: Sequence[int], first: int, loaders: int, prefetch: int, batch_bytes: int) -> list[int]:
    mine, sends = list(range(first, len(load_units), loaders)), deque[dist.Work]()
    batches = torch.tensor([[number] * (batch_bytes // 8) for number in mine], dtype=torch.int64)
    one = torch.ones(1)
    for place, number in enumerate(mine):
        if len(sends) >= prefetch:
            sends.popleft().wait()  # once: gloo waits forever for a send that it has waited for
        work(load_units[number], one)
        send = dist.isend(batches[place], dst=0)
        assert send is not None  # None: this rank is not in the group
        sends.append(send)
    for send in sends:
        send.wait()
    return mine


def work(units: int, one: Tensor) -> None:
    """`units` additions to one number."""
    for _ in range(units):
        one + 1  # noqa: B018  (only its time is wanted)
