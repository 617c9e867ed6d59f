"""Messages between two simulated ranks: `send` and `recv` of the process group."""

from collections.abc import Callable

from torch import Tensor

from lablib.engine.communication import ANY_SOURCE, Message
from lablib.errors import CollectiveMismatchError, DeadlockError, LaunchError
from lablib.sim.communication.collectives import Collectives, dtype_of, raw
from lablib.sim.communication.delivery import RECEIVER, SENDER, Delivery
from lablib.sim.communication.work import SimWork
from lablib.sim.source import program_line
from lablib.text.messages import safe_repr

_HIGHEST_TAG = 2**31 - 1


class Messages(Collectives):
    """One rank's end of a group, with its messages."""

    def send(self, tensors: list[Tensor], dst: int, tag: int) -> SimWork:
        self._check_peer(dst, "sends to")
        data = raw(tensors)
        message = self._message("send", data[0], dst, tag)
        self._post(self._group.post_send, message)
        return self._work(message, SENDER, message.source, data, [], [])

    def recv(self, tensors: list[Tensor], src: int, tag: int) -> SimWork:
        self._check_peer(src, "receives from")
        return self._receive(tensors, src, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> SimWork:
        return self._receive(tensors, ANY_SOURCE, tag)

    def _receive(self, tensors: list[Tensor], src: int, tag: int) -> SimWork:
        data = raw(tensors)
        message = self._message("recv", data[0], src, tag)
        if src == ANY_SOURCE:
            # Give up the turn until no rank can issue a send before the earliest matching one.
            at_s = message.issue_s
            self._turns.yield_turn(at_s)
            while (first_s := self._group.first_send_s(message)) > at_s:
                at_s = first_s
                self._turns.yield_turn(at_s)
        self._post(self._group.post_receive, message)
        return self._work(message, RECEIVER, message.source, [], data, tensors)

    def _check_peer(self, member: int, verb: str) -> None:
        rank = self._global(member)
        if self._group.is_phantom(member):
            self._turns.fail(
                LaunchError(
                    f"rank {self._rank_state.rank} {verb} rank {rank}, which is not simulated ({program_line()}): a "
                    f"collective of phantoms can be priced, a message has no rank at its other end; add rank {rank} to "
                    f"simulate="
                )
            )

    def _message(self, kind: str, tensor: Tensor, peer: int, tag: int) -> Message:
        self._turns.check(self._rank_state.rank)
        if self.accepts:
            self.accepts((tensor,))
        if self._nccl:
            self._nccl.check_message(tensor, from_anyone=peer == ANY_SOURCE)
        # Reject a tag as gloo does, with the same types of error.
        if not isinstance(tag, int) or tag > _HIGHEST_TAG:
            raise TypeError(f"a tag must be a whole number below 2**31: got {safe_repr(tag)}")
        if tag < 0:
            raise RuntimeError(f"Tag must be nonnegative: got {safe_repr(tag)}; number messages from 0")
        rank = self._rank_state
        if rank.memory_tracker is not None:
            rank.memory_tracker.communicates([tensor])
        return Message(
            *(kind, rank, self._member, peer, tag, tensor.nbytes, dtype_of([tensor]), tuple(tensor.shape)),
            *(rank.clock_s, rank.phase(), program_line(), None if peer == ANY_SOURCE else self._global(peer)),
            *(self._group.label, tensor),
            is_in_order=self._nccl is not None and self._nccl.is_own(tensor),
            payload=Delivery(),
        )

    def _post(self, post: Callable[[Message], None], message: Message) -> None:
        try:
            if message.is_in_order:
                me, peer = (self._group.global_ranks[place] for place in (self._member, message.peer))
                self._note(self._group.payload.message(message.kind, me, peer, str(message.source)))
            post(message)
        except (CollectiveMismatchError, DeadlockError) as error:
            self._turns.fail(error)
