"""Calls that wait for each other in a circle where a stream carries them out one after another: what NCCL does.

gloo and the simulator carry out each send and receive by itself. NCCL has one stream a rank for each communicator, and
puts the calls there in the order in which they are made: each begins when the one before has ended. A send ends when
its receiver takes it; up to some megabytes it may end sooner, in NCCL's buffers. So in a ring in which every rank sends
and then receives, each send waits for a receive that stands behind another send:

    rank 0     send to 1 ......... recv from 2          no rank comes to its recv, unless the buffers hold the messages
    rank 1     send to 2 ......... recv from 0
    rank 2     send to 0 ......... recv from 1

Where every rank receives first, no buffer helps. `batch_isend_irecv` puts its calls there as one step: they take place
at the same time, and nothing waits, at any size.

A rank waits for those whose streams are at other calls than its own; a circle of such waits is found as one of this
graph. It stays whatever is called later, so the order in which ranks make their calls does not matter: they may be
issued while a program runs (lablib/sim/communication/nccl_order.py), or when it has ended
(lablib/real/gpu/message_circles.py).

Source: torch 2.11 to 2.13, ProcessGroupNCCL.cpp, `pointToPoint` and its warning ("In eager initialization mode,
unbatched P2P ops are treated as independent collective ops, and are thus serialized"), pull requests 154132 and 156748;
NCCL's user guide, "Point-to-point communication"; NVIDIA/nccl, issues 479 and 783. E. G. Coffman, M. J. Elphick,
A. Shoshani, "System deadlocks", ACM Computing Surveys 3(2), 1971: circular wait.
Simplified: a communicator waits for no other. NCCL looks at no tags, so the messages of one way meet in order.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class StreamCall:
    """One call of one rank.

    Attributes:
        rank: whose.
        ranks: who must make it: sender and receiver of a message, in this order, or all members of a collective.
        name: "send", "recv", or that of a collective.
        source: the line of the program; "" where it is not known.
    """

    rank: int
    ranks: tuple[int, ...]
    name: str
    source: str = ""

    @property
    def is_message(self) -> bool:
        return self.name in ("send", "recv")


class _Meeting(NamedTuple):
    """A message or a collective: what takes place when all `ranks` have come to it. `number`: which one of theirs."""

    ranks: tuple[int, ...]
    is_message: bool
    number: int


class Communicator:
    """What waits on the streams of the ranks of one communicator."""

    def __init__(self) -> None:
        self._steps: defaultdict[int, deque[dict[_Meeting, StreamCall]]] = defaultdict(deque)  # by rank, not yet ended
        self._num_issued: Counter[tuple[int, tuple[int, ...], bool]] = Counter()
        self._num_come: Counter[_Meeting] = Counter()  # of what has not taken place: how many ranks are at it

    def issue(self, calls: Sequence[StreamCall]) -> list[StreamCall]:
        """Add what a rank's stream does at once, one call or a batch.

        Returns:
            The calls of a circle that has closed; empty if none has.
        """
        step, rank = {}, calls[0].rank
        for call in calls:
            key = rank, call.ranks, call.is_message
            step[_Meeting(call.ranks, call.is_message, self._num_issued[key])] = call
            self._num_issued[key] += 1
        self._steps[rank].append(step)
        return self._begin([rank]) if len(self._steps[rank]) == 1 else []

    def hold_sends(self, circle: Sequence[StreamCall]) -> list[StreamCall]:
        """Go on as if NCCL's buffers held the sends of a circle; return the next circle, empty if there is none."""
        begun = []
        for send in (call for call in circle if call.name == "send"):
            meeting = next(meeting for meeting, call in self._first(send.rank).items() if call is send)
            begun += [send.rank] if self._leave(send.rank, meeting) else []
        return self._begin(begun) or self._circle(list(self._steps))

    def _first(self, rank: int) -> dict[_Meeting, StreamCall]:
        """The step that a rank's stream is at; empty where that has nothing to do, as far as is known."""
        steps = self._steps[rank]
        return steps[0] if steps else {}

    def _begin(self, ranks: Iterable[int]) -> list[StreamCall]:
        """The streams of `ranks` begin their first steps, and all that follows; return a circle that has closed."""
        begun = list(ranks)
        for rank in begun:  # which grows
            for meeting in list(self._first(rank)):
                self._num_come[meeting] += 1
                if self._num_come[meeting] == len(meeting.ranks):
                    del self._num_come[meeting]
                    begun += [other for other in meeting.ranks if self._leave(other, meeting)]
        return self._circle(begun)

    def _leave(self, rank: int, meeting: _Meeting) -> bool:
        """A rank's part in a message or collective ends. Whether its stream comes to a next step by that."""
        step = self._first(rank)
        if step.pop(meeting, None) is None or step:  # a send that a buffer holds has ended before
            return False
        self._steps[rank].popleft()
        return bool(self._steps[rank])

    def _circle(self, begun: Sequence[int]) -> list[StreamCall]:
        """A circle among those for whom the ranks wait that have begun a step."""
        if not any(meeting.is_message for meeting in self._num_come):
            return []  # collectives meet in order
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
