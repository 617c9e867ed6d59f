"""Circular waits of unbatched calls on NCCL, which runs the calls of a communicator one after another.

gloo and the simulator run each send and receive independently. NCCL has one stream per rank and communicator, and
queues the calls there in program order: each begins when the one before has ended. A send ends when its receiver takes
it; up to some megabytes it may end sooner, in NCCL's buffers. So in a ring in which every rank sends and then receives,
each send waits for a receive that is queued behind another send:

    rank 0     send to 1 ......... recv from 2          no rank reaches its recv, unless the buffers hold the messages
    rank 1     send to 2 ......... recv from 0
    rank 2     send to 0 ......... recv from 1

If every rank receives first, no buffer helps. `batch_isend_irecv` queues its calls as one step: they run at the same
time without deadlock, at any size.

Graph: a rank waits for the ranks that have not reached its current call; a circular wait is a cycle. Later calls cannot
remove it, so the order between ranks does not matter: calls may be recorded while a program runs
(lablib/sim/communication/nccl_order.py), or after its end (lablib/real/gpu/message_circles.py).

Source: torch 2.11 to 2.13, ProcessGroupNCCL.cpp, `pointToPoint` and its warning ("In eager initialization mode,
unbatched P2P ops are treated as independent collective ops, and are thus serialized"), pull requests 154132 and 156748;
NCCL's user guide, "Point-to-point communication"; NVIDIA/nccl, issues 479 and 783. E. G. Coffman, M. J. Elphick, A.
Shoshani, "System deadlocks", ACM Computing Surveys 3(2), 1971: circular wait.
Simplified: communicators do not wait for each other. NCCL ignores tags, so messages between two ranks match in order.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class StreamCall:
    """One call of one rank."""

    rank: int  # the rank that makes it
    # all participants: sender and receiver of a message, in this order, or all members of a collective
    ranks: tuple[int, ...]
    name: str  # "send", "recv", or the name of a collective
    source: str = ""  # the line of the program; "" if unknown

    @property
    def is_message(self) -> bool:
        return self.name in ("send", "recv")


class _Meeting(NamedTuple):
    """A message or collective, which runs when all `ranks` have reached it. `number`: its count for these ranks."""

    ranks: tuple[int, ...]
    is_message: bool
    number: int


class Communicator:
    """The streams of the ranks of one communicator, with their unfinished calls."""

    def __init__(self) -> None:
        self._steps: defaultdict[int, deque[dict[_Meeting, StreamCall]]] = defaultdict(deque)  # by rank, not yet ended
        self._num_issued: Counter[tuple[int, tuple[int, ...], bool]] = Counter()
        self._num_come: Counter[_Meeting] = Counter()  # number of ranks that have reached each unfinished one

    def issue(self, calls: Sequence[StreamCall]) -> list[StreamCall]:
        """Add one call, or a batch, to a rank's stream; returns the calls of a cycle that has closed, empty if none."""
        step, rank = {}, calls[0].rank
        for call in calls:
            key = rank, call.ranks, call.is_message
            step[_Meeting(call.ranks, call.is_message, self._num_issued[key])] = call
            self._num_issued[key] += 1
        self._steps[rank].append(step)
        return self._begin([rank]) if len(self._steps[rank]) == 1 else []

    def hold_sends(self, circle: Sequence[StreamCall]) -> list[StreamCall]:
        """Continue as if NCCL's buffers held the sends of a cycle. Returns the next cycle; empty if none."""
        begun = []
        for send in (call for call in circle if call.name == "send"):
            meeting = next(meeting for meeting, call in self._first(send.rank).items() if call is send)
            begun += [send.rank] if self._leave(send.rank, meeting) else []
        return self._begin(begun) or self._circle(list(self._steps))

    def _first(self, rank: int) -> dict[_Meeting, StreamCall]:
        """The current step of a rank's stream; empty if nothing is queued."""
        steps = self._steps[rank]
        return steps[0] if steps else {}

    def _begin(self, ranks: Iterable[int]) -> list[StreamCall]:
        """Begin the first steps on the streams of `ranks`, and the steps that follow. Returns a closed cycle."""
        begun = list(ranks)
        for rank in begun:  # grows in the loop
            for meeting in list(self._first(rank)):
                self._num_come[meeting] += 1
                if self._num_come[meeting] == len(meeting.ranks):
                    del self._num_come[meeting]
                    begun += [other for other in meeting.ranks if self._leave(other, meeting)]
        return self._circle(begun)

    def _leave(self, rank: int, meeting: _Meeting) -> bool:
        """End a rank's part in a message or collective. Returns whether its stream reaches another step."""
        step = self._first(rank)
        if step.pop(meeting, None) is None or step:  # a send held by a buffer has already ended
            return False
        self._steps[rank].popleft()
        return bool(self._steps[rank])

    def _circle(self, begun: Sequence[int]) -> list[StreamCall]:
        """A cycle of waits that can be reached from ranks that have begun a step."""
        if not any(meeting.is_message for meeting in self._num_come):
            return []  # collectives are matched in order
        waits: dict[int, dict[int, StreamCall]] = {}
        left = list(begun)
        while left:
            rank = left.pop()
            if rank not in waits:
                waits[rank] = {
                    other: call
                    for meeting, call in self._first(rank).items()
                    for other in meeting.ranks
                    if meeting not in self._first(other)
                }
                left += waits[rank]
        try:
            TopologicalSorter(waits).prepare()
        except CycleError as error:
            return [waits[rank][other] for other, rank in pairwise(error.args[1])]
        return []
