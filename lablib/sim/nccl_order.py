"""Unbatched messages on NCCL wait in line: which programs hang there, found without a GPU.

gloo and the simulator carry out each send and receive by itself. torch's NCCL group, told its device at
`init_process_group(device_id=...)`, puts the unbatched ones of a rank on one stream of the GPU, in the order of the
calls; `batch_isend_irecv` puts all of its batch there as one. What stands first must end before the next begins:

    every rank: irecv from the left, then isend to the right       no send ever begins: it hangs, whatever the size
    every rank: isend to the right, then irecv from the left       it goes on if NCCL's buffers hold the message, and
                                                                   hangs with larger ones
    every rank: batch_isend_irecv of both                          right

Without a `device_id` two ranks have a communicator of their own, with its own line, and only their messages meet there;
a batch is on the group's.

Source: torch 2.11 to 2.13, `ProcessGroupNCCL::pointToPoint`; NCCL's user guide, "Point-to-point communication": calls
that need to progress together must be in one group.
Simplified: collectives of the same line are left out.
"""

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch.distributed as dist

from lablib.errors import DeadlockError, Wait
from lablib.units import plural

_BATCH = dist.batch_isend_irecv.__code__
_REMEDY = (
    "put them into one dist.batch_isend_irecv, or let one side send before it receives and the other receive before it "
    "sends"
)


@dataclass(frozen=True, slots=True)
class Post:
    """One send or receive. Places are those in the group; `source` is the line of the program."""

    kind: str
    place: int
    peer: int
    source: str

    def is_answered_by(self, other: "Post") -> bool:
        return (self.place, self.peer) == (other.peer, other.place) and self.kind != other.kind


@dataclass(slots=True, eq=False)
class _Turn:
    """What a rank's stream does at once: one message, or a batch of `size`, of which `posts` are not carried out."""

    batch: int | None
    size: int
    posts: list[Post] = field(default_factory=list)
    num_posted: int = 0

    @property
    def is_open(self) -> bool:
        """Whether more of the batch is to come."""
        return self.num_posted < self.size


class _Line:
    """The messages of one communicator: for each of its members, what waits on its stream."""

    def __init__(self) -> None:
        self._turns: dict[int, deque[_Turn]] = {}
        self._buffered: list[Post] = []  # sends that NCCL's buffers must hold, for the receive to come

    def post(self, post: Post, batch: tuple[int, int] | None) -> list[Post]:
        """Add a message; return those of a circle that waits for itself, empty if there is none.

        Args:
            post: the message.
            batch: number and size of the batch that it belongs to, if it does.
        """
        turns = self._turns.setdefault(post.place, deque())
        number, size = batch or (None, 1)
        if not (turns and number is not None and turns[-1].batch == number and turns[-1].is_open):
            turns.append(_Turn(number, size))
        turns[-1].posts.append(post)
        turns[-1].num_posted += 1
        return self._circle(self._carry_out({post.place}))

    def hold_in_buffers(self, circle: Sequence[Post]) -> list[Post]:
        """Go on as if NCCL's buffers held the sends of a circle; return the next circle."""
        sends = [post for post in circle if post.kind == "send"]
        for send in sends:
            self._turns[send.place][0].posts.remove(send)
            self._buffered.append(send)
        return self._circle(self._carry_out({place for send in sends for place in (send.place, send.peer)}))

    def _first(self, place: int) -> _Turn | None:
        """What a rank's stream is at; None where that has nothing to do, as far as it is known."""
        turns = self._turns.get(place)
        while turns and not turns[0].posts and not turns[0].is_open:
            turns.popleft()
        return turns[0] if turns else None

    def _carry_out(self, places: set[int]) -> set[int]:
        """Everything that stands first on both sides happens; return the places where something has changed.

        Args:
            places: where something has changed so far.
        """
        left = list(places)
        while left:
            place = left.pop()
            for post in self._posts_of(place):
                if self._answer(post):
                    changed = {place, post.peer}
                    places |= changed
                    left += changed
        return places

    def _posts_of(self, place: int) -> list[Post]:
        first = self._first(place)
        return list(first.posts) if first else []

    def _answer(self, post: Post) -> bool:
        """Carry out a message whose other side stands first as well, or is in a buffer."""
        if post not in self._posts_of(post.place):
            return False  # carried out by the other side a moment ago
        waiting = self._buffered + self._posts_of(post.peer)
        other = next((other for other in waiting if post.is_answered_by(other)), None)
        if other is None:
            return False
        self._turns[post.place][0].posts.remove(post)
        holds = self._buffered if other in self._buffered else self._turns[post.peer][0].posts
        holds.remove(other)
        return True

    def _circle(self, places: set[int]) -> list[Post]:
        """Messages of which each waits for a stream that is at the next one, where something has changed."""
        seen: set[int] = set()
        return next(filter(None, (self._walk(place, [], seen) for place in sorted(places))), [])

    def _walk(self, place: int, path: list[Post], seen: set[int]) -> list[Post]:
        """The circle that is reached from a rank, along those whom its stream waits for."""
        for number, post in enumerate(path):
            if post.place == place:
                return path[number:]
        first = self._first(place)
        if place in seen or first is None or first.is_open:
            return []  # a batch of which more is to come may yet have what the others wait for
        seen.add(place)
        return next(filter(None, (self._walk(post.peer, [*path, post], seen) for post in first.posts)), [])


class NcclOrder:
    """The messages of one group, as its members share them.

    Args:
        ranks: global ranks of the members, in group order.
        label: what the group is called.
        is_eager: whether the group was told its device, as on the real backend.
    """

    def __init__(self, ranks: Sequence[int], label: str, is_eager: bool):
        self._ranks, self._label, self._is_eager = ranks, label, is_eager
        self._lines: dict[Any, _Line] = {}

    def post(self, kind: str, place: int, peer: int, source: str) -> str:
        """A member posts a message. Returns a warning, or "".

        Args:
            kind: "send" or "recv".
            place, peer: this side and the other, in group order.
            source: the line of the program.

        Raises:
            DeadlockError: it would hang on NCCL.
        """
        batch = _batch()
        pair = None if self._is_eager or batch else frozenset((place, peer))
        line = self._lines.setdefault(pair, _Line())
        circle = line.post(Post(kind, place, peer, source), batch)
        told = ""
        while circle:
            if all(post.kind == "recv" for post in circle):
                raise DeadlockError(f"{self._why('this would hang')}.", list(self._waits(circle)))
            first, *others = map(str, self._waits(circle))
            why = self._why("this would hang with messages that its buffers do not hold")
            told = told or f"{why}: {first}, and so do {plural(len(others), 'other ranks')}"
            circle = line.hold_in_buffers(circle)
        return told

    def _why(self, what: str) -> str:
        return (
            f"on NCCL {what}: unbatched messages of group {self._label} wait in line on each rank, and these wait for "
            f"one another; {_REMEDY}"
        )

    def _waits(self, circle: Sequence[Post]) -> Iterator[Wait]:
        for post in sorted(circle, key=lambda post: self._ranks[post.place]):
            peer = self._ranks[post.peer]
            what = f"{'sends to' if post.kind == 'send' else 'receives from'} rank {peer}"
            yield Wait(self._ranks[post.place], what, post.source, "", (peer,), post.kind, self._label)


def _batch() -> tuple[int, int] | None:
    """The call of `batch_isend_irecv` in whose course this is, as a number, and how many messages it has."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _BATCH:
            return id(frame), len(frame.f_locals["p2p_op_list"])
        frame = frame.f_back
    return None
