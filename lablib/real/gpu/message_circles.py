"""Note for a run on GPUs with messages in a circular wait (lablib/record/circular_wait.py).

The calls of the run are replayed without any buffer. A program that ends here ends with NCCL at every size; for any
other the note names the ranks of a cycle. gloo runs its calls concurrently, so such a program is correct there.

One communicator per group: each rank's GPU is given at the start (`device_id`, groups.py), so that NCCL connects before
the program begins. Without it, torch makes a communicator for each pair of ranks at their first call, which waits for
both: a ring would deadlock at any size.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby

from lablib.real.measurement.calls import Call
from lablib.record.circular_wait import Communicator, StreamCall

_WORDS = (
    "ranks {ranks} send to each other in a circle, one call after another: with NCCL each call waits until the one "
    "before has ended, so this ends while messages fit into NCCL's buffers, and hangs when they are larger; make them "
    "in one dist.batch_isend_irecv"
)


def circle_note(calls: Sequence[Sequence[Call]]) -> str:
    """The note for messages in a circular wait with NCCL; empty if there are none. `calls`: by rank."""
    circle = waiting_circle(calls)
    return _WORDS.format(ranks=", ".join(map(str, circle))) if circle else ""


def waiting_circle(calls: Sequence[Sequence[Call]]) -> list[int]:
    """The ranks of a circular wait without buffers, lowest first; empty if all calls can end."""
    groups: defaultdict[str, Communicator] = defaultdict(Communicator)
    steps = (step for rank, mine in enumerate(calls) for step in _steps(rank, mine))
    circles = (groups[group].issue(step) for group, step in steps)
    return sorted(call.rank for call in next(filter(None, circles), []))


def _steps(rank: int, calls: Sequence[Call]) -> Iterator[tuple[str, list[StreamCall]]]:
    """(group, calls) of each step of a rank: one call or a batch."""
    known = [call for call in calls if -1 not in _ranks(call)]  # without unmatched receives: their sender is unknown
    numbered = enumerate(sorted(known, key=lambda call: call.group_id))
    for (group, _), step in groupby(numbered, key=lambda one: (one[1].group_id, one[1].batch or -one[0])):
        yield group, [StreamCall(rank, _ranks(call), call.name) for _, call in step]


def _ranks(call: Call) -> tuple[int, ...]:
    return (call.source, call.target) if call.is_point_to_point else call.members
