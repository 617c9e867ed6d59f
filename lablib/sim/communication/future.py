"""Futures of communications, and the stream on which their callbacks run.

`then(callback)` runs the callback at once, as the data is available. Its kernels must not start before the transfer
ends, and must not delay the compute stream until then. So callbacks have a separate stream:

    comm:world           |----------|
    compute:callbacks               |==|      starts when the transfer ends
    compute              |===|====|====|==|   goes on; `wait`, or the first operation that touches a result, joins

Source: torch, the docstring of `Work.get_future`: a callback is called inline, and its kernels run on a stream for
callbacks, which waits for NCCL's; the future that `then` returns has an event of that stream.
Simplified: torch takes the stream from a pool; here each rank has one, so callbacks run one after another, and they do
not slow down other kernels. A future that torch's C++ makes of several (`collect_all`) is a plain one, with callbacks
on the compute stream. As the transfer's end must be known, the other ranks go on until then, and a later send of this
rank may start in their past (network.py).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lablib.record.timeline import CALLBACKS
from lablib.sim.communication.pending import Awaited
from lablib.sim.ranks.rank import Rank
from lablib.torch_compat import tree_leaves


class StreamMoment:
    """A point in time on the callbacks' stream, for which the compute stream can wait."""

    def __init__(self, rank: Rank, end_s: float):
        self._rank, self._end_s = rank, end_s

    def wait(self) -> bool:
        self._rank.join(self._end_s)
        return True

    def is_over(self) -> bool:
        return self._end_s <= self._rank.clock_s


class SimFuture(torch.futures.Future):
    """A completed future: its value is available, its end in virtual time may lie in the future."""

    def __init__(self, rank: Rank, awaited: Awaited, value: Any):
        super().__init__()
        self._rank, self._awaited = rank, awaited
        self.set_result(value)

    def wait(self) -> Any:
        """Make the current stream wait. Returns the value."""
        self._awaited.wait()
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> torch.futures.Future:
        """A future of the callback's result. Its `wait` raises the callback's exception."""
        try:
            value, end = self._run(callback)
        except Exception as error:
            failed: torch.futures.Future = torch.futures.Future()
            failed.set_exception(error)
            return failed
        if not end.is_over():
            for leaf in tree_leaves((self.value(), value)):
                if isinstance(leaf, Tensor):
                    self._rank.pending.add(leaf, end)
        return SimFuture(self._rank, end, value)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        def run(_: torch.futures.Future) -> None:
            self._run(callback)

        super().add_done_callback(run)

    def _run(self, callback: Callable[[Any], Any]) -> tuple[Any, StreamMoment]:
        """Run the callback on the callbacks' stream, after this future's communication."""
        rank = self._rank
        if rank.stream == CALLBACKS:  # a callback within a callback
            self._awaited.wait()
            return callback(self), StreamMoment(rank, rank.clock_s)
        stream, compute_s, pending = rank.stream, rank.clock_s, rank.pending
        rank.stream, rank.pending = CALLBACKS, pending.copy()
        rank.join(rank.callbacks_s)
        try:
            self._awaited.wait()
            return callback(self), StreamMoment(rank, rank.clock_s)
        finally:
            pending.take_over(rank.pending)
            rank.callbacks_s = rank.clock_s
            rank.stream, rank.clock_s, rank.pending = stream, compute_s, pending
