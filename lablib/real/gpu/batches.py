"""Batches of calls on GPUs: the calls between start and end of coalescing, as in `batch_isend_irecv`.

The calls of a batch launch nothing: its end launches one kernel for all of them, outside of every operation. So start
and end are wrapped: each batch has a number, and the end runs inside a profiler event with the number in its name.
(torch 2.13: `_coalescing_manager` of torch/distributed/distributed_c10d.py; NCCL's group ends there.)
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lablib.process.replaced import replaced
from lablib.torch_compat import end_coalescing, mark, place, start_coalescing

BATCH_MARK = "lablib::batch "  # name of the event around the end of a batch, followed by its number


class Batches:
    """Numbers the batches of this process, from 1. `ended` is called with number and work of each that has ended."""

    def __init__(self, ended: Callable[[int, Any], None]):
        self._ended = ended
        self._count = 0
        self._open: dict[str, int] = {}  # by group

    def number(self, group: Any) -> int:
        """The current batch of a call of this group; 0 for none."""
        return self._open.get(group.group_name, 0)

    @contextmanager
    def numbering(self) -> Iterator[None]:
        """Number and mark batches within this context."""

        def start(group: Any, device: Any) -> None:
            self._count += 1
            self._open[group.group_name] = self._count
            start_coalescing(group, device)

        def end(group: Any, device: Any) -> Any:
            batch = self._open.pop(group.group_name, 0)
            with mark(f"{BATCH_MARK}{batch}"):
                work = end_coalescing(group, device)
            self._ended(batch, work)
            return work

        with replaced((*place("start_coalescing"), start), (*place("end_coalescing"), end)):
            yield
