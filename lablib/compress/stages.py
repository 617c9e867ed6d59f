"""Several communications one after another, with work between them, behind one handle.

A compressed collective is more than one call: pieces go to their owners, are added up and quantized again, and go back.
Written as a generator it reads from top to bottom, and yields at each communication that it has started:

    def two_phases(buffer, group):
        ...
        yield dist.all_to_all_single(pieces, parts, group=group, async_op=True)     # others compute meanwhile
        ...                                                                         # here the pieces have come
        yield dist.all_gather_single(...)

`Stages` is the handle of one such generator. `InSequence` makes a `Reduce` of it for `DataParallel`: whenever a bucket
is launched, those ahead of it move on by a stage, so that their second communications run during backward too.

    backward    | bucket 0 ready | bucket 1 ready | bucket 2 ready | ends
    comm        [ 0, stage 1     ][ 0, 2 ][ 1, 1  ][ 1, 2 ][ 2, 1  ][ 2, 2 ]

Cost: none of its own. Shapes: none.
Source: the order of stages is that of lablib/parallel/data/hierarchical.py.
Simplified: a stage begins when somebody asks, not by itself on another stream when the one before ends.
"""

from collections.abc import Callable, Iterator

import torch.distributed as dist
from torch import Tensor

from lablib.parallel.data.overlapped import Handle


class Stages:
    """A handle of a generator that yields the handle of each communication that it starts. The first starts here."""

    def __init__(self, stages: Iterator[Handle]):
        self._stages = stages
        self._under_way = next(stages, None)

    @property
    def is_done(self) -> bool:
        return self._under_way is None

    def move_on(self) -> None:
        """Wait for the communication under way, do the work after it, and start the next, if there is one."""
        if self._under_way is not None:
            self._under_way.wait()
            self._under_way = next(self._stages, None)

    def wait(self) -> None:
        """Return when the last stage has ended and its work is done."""
        while not self.is_done:
            self.move_on()


class InSequence:
    """A `Reduce` for `DataParallel` of one that answers `Stages`; buckets must come in the same order on every rank.

    replica = DataParallel(model, reduce=InSequence(quantized_all_reduce))
    """

    def __init__(self, reduce: Callable[[Tensor, dist.ProcessGroup | None], Stages]):
        self._reduce = reduce
        self._flights: list[Stages] = []

    def __call__(self, buffer: Tensor, group: dist.ProcessGroup | None = None) -> "_Flight":
        self.move_on()  # each bucket ahead has had the time of a whole bucket for its stage: a short wait, or none
        self._flights.append(self._reduce(buffer, group))
        return _Flight(self, self._flights[-1])

    def move_on(self) -> None:
        """Every bucket under way ends its stage and starts the next."""
        for flight in self._flights:
            flight.move_on()
        self._flights = [flight for flight in self._flights if not flight.is_done]


class _Flight:
    """One bucket on its way; waiting for it brings the others forward, too."""

    def __init__(self, turns: InSequence, stages: Stages):
        self._turns, self._stages = turns, stages

    def wait(self) -> None:
        while not self._stages.is_done:
            self._turns.move_on()
