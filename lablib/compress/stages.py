"""Several communications one after another, with work between them, behind one handle.

A compressed collective has several calls: pieces are sent to their owners, summed, quantized again, and sent back. It
is written as a generator that yields after starting each communication:

    @staged
    def two_phases(buffer, group):
        ...
        yield dist.all_to_all_single(pieces, parts, group=group, async_op=True)     # backward computes at the same time
        ...                                                                         # the pieces have arrived
        yield dist.all_gather_single(...)

`staged` makes it a function that returns `Stages`, the handle of one such generator. `InSequence` makes it a `Reduce`
for `DataParallel`: whenever a bucket is launched, earlier buckets advance by a stage, so that their second
communications also run during backward.

    backward    | bucket 0 ready | bucket 1 ready | bucket 2 ready | ends
    comm        [ 0, stage 1     ][ 0, 2 ][ 1, 1  ][ 1, 2 ][ 2, 1  ][ 2, 2 ]

Cost: none. Shapes: none.
Source: the order of stages is as in lablib/parallel/data/hierarchical.py.
Simplified: a stage begins at a call of `move_on` or `wait`, not automatically at the end of the previous stage.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.parallel.data.overlapped import Handle

P = ParamSpec("P")
# torch 2.13 renamed it; 2.11 has only the old name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Stages:
    """The handle of a generator that yields the handle of each communication that it starts. Starts the first."""

    def __init__(self, stages: Iterator[Handle]):
        self._stages = stages
        self._under_way = next(stages, None)

    @property
    def is_done(self) -> bool:
        return self._under_way is None

    def move_on(self) -> None:
        """Wait for the communication in flight, do the work after it, and start the next, if there is one."""
        if self._under_way is not None:
            self._under_way.wait()
            self._under_way = next(self._stages, None)

    def wait(self) -> None:
        """Return when the last stage has ended and its work is done."""
        while not self.is_done:
            self.move_on()


def staged(function: Callable[P, Iterator[Handle]]) -> Callable[P, Stages]:
    """The generator as a function that starts it, without gradients, and returns its `Stages`."""
    generator = torch.no_grad()(function)

    @wraps(function)
    def start(*args: P.args, **kwargs: P.kwargs) -> Stages:
        return Stages(generator(*args, **kwargs))

    return start


def all_gather_bytes(messages: Tensor, message: Tensor, group: dist.ProcessGroup | None) -> Handle:
    """Start to fill `messages` [n, bytes] with every rank's `message` [bytes]."""
    work = _all_gather(messages.view(-1), message, group=group, async_op=True)
    assert work is not None  # only ranks outside the group get None
    return work


def all_to_all_bytes(messages: Tensor, group: dist.ProcessGroup | None) -> tuple[Tensor, Handle]:
    """Start to send row i of `messages` [n, bytes] to rank i; returns the received rows, and the handle."""
    received = torch.empty_like(messages)
    work = dist.all_to_all_single(received, messages, group=group, async_op=True)
    assert work is not None
    return received, work


class InSequence:
    """A `Reduce` for `DataParallel` from one that returns `Stages`; all ranks must have the same order of buckets.

    replica = DataParallel(model, reduce=InSequence(quantized_all_reduce))
    """

    def __init__(self, reduce: Callable[[Tensor, dist.ProcessGroup | None], Stages]):
        self._reduce = reduce
        self._flights: list[Stages] = []

    def __call__(self, buffer: Tensor, group: dist.ProcessGroup | None = None) -> "_Flight":
        self.move_on()  # earlier buckets had the time of a whole bucket for their stage: a short wait, if any
        self._flights.append(self._reduce(buffer, group))
        return _Flight(self, self._flights[-1])

    def move_on(self) -> None:
        """Every bucket in flight ends its stage and starts the next."""
        for flight in self._flights:
            flight.move_on()
        self._flights = [flight for flight in self._flights if not flight.is_done]


class _Flight:
    """One bucket in flight; waiting for it also advances the others."""

    def __init__(self, turns: InSequence, stages: Stages):
        self._turns, self._stages = turns, stages

    def wait(self) -> None:
        while not self._stages.is_done:
            self._turns.move_on()
