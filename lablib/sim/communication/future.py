"""The future of a communication, and the stream on which what is chained to it runs.

`then(callback)` runs the callback at once: the data is there. Its kernels, though, must not start before the transfer
is over, and must not hold up the compute stream until then. So callbacks have a stream of their own:

    comm:world           |----------|
    compute:callbacks               |==|      starts when what it is chained to is over
    compute              |===|====|====|==|   goes on; `wait`, or the first operation that touches a result, joins

Source: torch, the docstring of `Work.get_future`: a callback is called inline, and its kernels run on a stream for
callbacks, which waits for NCCL's; the future that `then` returns has an event of that stream.
Simplified: torch takes the stream from a pool; here each rank has one, so callbacks follow each other, and they do not
slow down other kernels. A future that torch's C++ makes of several (`collect_all`) is a plain one, whose callbacks are
work of the compute stream. As the transfer's end must be known, the other ranks go on until then, and what this rank
sends next may start in their past (network.py).
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
    """How far a callback's stream had come: something that the compute stream can wait for."""

    def __init__(self, rank: Rank, end_s: float):
        self._rank, self._end_s = rank, end_s

    def wait(self) -> bool:
        self._rank.join(self._end_s)
        return True

    def is_over(self) -> bool:
        return self._end_s <= self._rank.clock_s


class SimFuture(torch.futures.Future):
    """A future that is complete: its value is there, its end in virtual time may be to come.

    Args:
        rank: whose.
        awaited: what must be over before its value can be used.
        value: its value.
    """

    def __init__(self, rank: Rank, awaited: Awaited, value: Any):
        super().__init__()
        self._rank, self._awaited = rank, awaited
        self.set_result(value)

    def wait(self) -> Any:
        """The value. The current stream waits for it."""
        self._awaited.wait()
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> torch.futures.Future:
        """A future of what the callback returns. What it raises is raised by the `wait` of that."""
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
        """Call it; what it computes is work of the callbacks' stream, once this future's is over."""
        rank = self._rank
        if rank.stream == CALLBACKS:  # a callback in a callback
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
