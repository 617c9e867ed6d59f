"""Messages that wait for each other in a circle, if a library makes them one at a time: what NCCL does.

A rank's group has one communicator and one stream of the GPU. `isend`, `irecv`, `send` and `recv` return at once, and
the GPU makes them in the order of the calls, each only when the one before has ended. A send ends when the receiver
takes it; up to some megabytes it may end sooner, in the buffers of NCCL. So in a ring in which every rank sends and
then receives, each send waits for a receive that stands behind another send:

    rank 0     send to 1 ......... recv from 2          no rank comes to its recv, unless the buffers hold the messages
    rank 1     send to 2 ......... recv from 0
    rank 2     send to 0 ......... recv from 1

`batch_isend_irecv` makes its calls at the same time, as one kernel. Then nothing waits, at any size.

This file replays the calls of a run without any buffer. A program that ends here ends with NCCL at every size; of one
that does not it names the ranks that wait in a circle. On gloo and on the simulator asynchronous calls run beside each
other, so such a program is right there.

Why one communicator: the ranks are named their GPU at the start (`device_id`, groups.py), so that NCCL connects before
the program begins. Without, torch makes a communicator for each pair of ranks that talk, at their first call, which
waits for both: a ring would wait in a circle at any size.

Source: torch, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, `pointToPoint` and its warning ("In eager
initialization mode, unbatched P2P ops are treated as independent collective ops, and are thus serialized"), pull
requests 154132 and 156748; NCCL's user guide, "Point-to-point communication"; NVIDIA/nccl, issues 479 and 783.
Simplified: a group waits for no other group.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import groupby

from lablib.real.calls import Call

# What ranks do together: who must come, and which one of theirs it is. A message has its sender first. NCCL does not
# look at tags, so the messages of one way meet in order.
_Meeting = tuple[tuple[int, ...], str]
_Step = set[_Meeting]  # what a rank does at the same time: one call, or a batch
_WORDS = (
    "ranks {ranks} send to each other in a circle, one call after another: with NCCL each call waits until the one "
    "before has ended, so this ends while messages fit into NCCL's buffers, and hangs when they are larger; make them "
    "in one dist.batch_isend_irecv"
)


def circle_note(calls: Sequence[Sequence[Call]]) -> str:
    """What to tell of a program whose messages wait in a circle with NCCL; empty where none do. `calls`: by rank."""
    circle = waiting_circle(calls)
    return _WORDS.format(ranks=", ".join(map(str, circle))) if circle else ""


def waiting_circle(calls: Sequence[Sequence[Call]]) -> list[int]:
    """The ranks that wait for each other, lowest first, were no message held in a buffer; none where all can end."""
    groups = {call.group_id for mine in calls for call in mine if call.is_point_to_point}
    circles = (_circle([deque(_steps(mine, group)) for mine in calls]) for group in sorted(groups))
    return next((circle for circle in circles if circle), [])


def _steps(calls: Sequence[Call], group: str) -> Iterator[_Step]:
    """What a rank does in a group, one step after another."""
    mine = [call for call in calls if call.group_id == group]
    counts: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for _, together in groupby(enumerate(mine), key=lambda numbered: numbered[1].batch or -numbered[0]):
        step: _Step = set()
        for _, call in together:
            ranks = (call.source, call.target) if call.is_point_to_point else call.members
            if -1 not in ranks:  # who sends is not known of a receive that nobody answered
                kind = call.name if call.is_point_to_point else "collective"
                step.add((ranks, f"{call.is_point_to_point} {counts[kind, ranks]}"))
                counts[kind, ranks] += 1
        if step:
            yield step


def _circle(waiting: Sequence[deque[_Step]]) -> list[int]:
    """Let the ranks do all they can; then one that waits for one that waits for ... itself."""
    while _advance(waiting):
        pass
    for first, steps in enumerate(waiting):
        path = [first] if steps else []
        while path:
            ranks = {rank for others, _ in waiting[path[-1]][0] for rank in others}
            after = next((rank for rank in sorted(ranks - {path[-1]}) if waiting[rank]), None)
            if after is None:  # it waits for one that has ended: no circle, but a message that nobody takes
                break
            if after in path:
                return sorted(path[path.index(after) :])
            path.append(after)
    return []


def _advance(waiting: Sequence[deque[_Step]]) -> bool:
    """One round: every meeting to which all of its ranks have come takes place. Whether there was any."""
    heads = [steps[0] if steps else set() for steps in waiting]
    come = {meeting for head in heads for meeting in head if all(meeting in heads[rank] for rank in meeting[0])}
    for head, steps in zip(heads, waiting, strict=True):
        head -= come
        if steps and not head:
            steps.popleft()
    return bool(come)
