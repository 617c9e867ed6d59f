"""Detect unbatched messages that would deadlock on NCCL, without a GPU.

A torch NCCL group with a device given at `init_process_group(device_id=...)` puts the unbatched messages of a rank on
one stream of the GPU, with its collectives; `batch_isend_irecv` puts its whole batch there as one operation
(lablib/record/circular_wait.py). Without a `device_id` each pair of ranks has a communicator with a separate stream for
its messages; a batch uses the group's.

A circular wait with a send proceeds if NCCL's buffers hold the message: a warning. One without a send is an error.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from types import FrameType

import torch.distributed as dist

from lablib.errors import DeadlockError, Wait
from lablib.record.circular_wait import Communicator, StreamCall
from lablib.text.units import plural

_BATCH = dist.batch_isend_irecv.__code__
_REMEDY = (
    "put them into one dist.batch_isend_irecv, or let one side send before it receives and the other receive before it "
    "sends"
)
_ONE_SIDE = "make both sides of a message before a collective, or both after it"


class NcclOrder:
    """The calls of one group, shared by its members.

    Args:
        ranks: global ranks of the simulated members.
        is_eager: whether the group was given its device, as on the real backend.
    """

    def __init__(self, ranks: Sequence[int], label: str, is_eager: bool):
        self._ranks, self._label, self._is_eager = tuple(ranks), label, is_eager
        self._communicators: defaultdict[frozenset[int], Communicator] = defaultdict(Communicator)
        self._batches: dict[int, tuple[int, list[StreamCall]]] = {}  # by rank, its current batch: number and calls

    def collective(self, rank: int, name: str, source: str) -> str:
        """Record a collective of a rank. Returns and raises as `message`."""
        return self._issue(frozenset(), [StreamCall(rank, self._ranks, name, source)])

    def message(self, name: str, rank: int, peer: int, source: str) -> str:
        """Record a message of a rank. Returns a warning, or "".

        `name`: "send" or "recv". Raises DeadlockError: it would hang on NCCL.
        """
        ranks = (rank, peer) if name == "send" else (peer, rank)
        call = StreamCall(rank, ranks, name, source)
        number, size = _batch()
        if not number:
            return self._issue(frozenset(() if self._is_eager else ranks), [call])
        known, calls = self._batches.get(rank, (0, []))
        calls = [*calls, call] if known == number else [call]
        self._batches[rank] = number, calls
        if len(calls) < size:
            return ""
        del self._batches[rank]
        return self._issue(frozenset(), calls)

    def _issue(self, line: frozenset[int], calls: list[StreamCall]) -> str:
        circle = self._communicators[line].issue(calls)
        warning = ""
        while circle:
            if all(call.name != "send" for call in circle):
                raise DeadlockError(f"{self._why('this would hang', circle)}.", list(_waits(circle, self._label)))
            first, *others = map(str, _waits(circle, self._label))
            why = self._why("this would hang with messages that its buffers do not hold", circle)
            warning = warning or f"{why}: {first}, and so do {plural(len(others), 'other ranks')}"
            circle = self._communicators[line].hold_sends(circle)
        return warning

    def _why(self, what: str, circle: Sequence[StreamCall]) -> str:
        return (
            f"on NCCL {what}: unbatched messages of group {self._label} wait in line on each rank, and these wait for "
            f"one another; {_REMEDY if all(call.is_message for call in circle) else _ONE_SIDE}"
        )


def _waits(circle: Sequence[StreamCall], label: str) -> Iterator[Wait]:
    for call in sorted(circle, key=lambda call: call.rank):
        peers = tuple(rank for rank in call.ranks if rank != call.rank)
        what = {"send": f"sends to rank {peers[0]}", "recv": f"receives from rank {peers[0]}"}
        yield Wait(call.rank, what.get(call.name, f"is in {call.name}"), call.source, "", peers, call.name, label)


def _batch() -> tuple[int, int]:
    """Identity and number of messages of the current `batch_isend_irecv` call; (0, 0) if none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _BATCH:
            return id(frame), len(frame.f_locals["p2p_op_list"])
        frame = frame.f_back
    return 0, 0
