"""The messages of a step on one rank: posted where the plan has them, waited for where they are needed.

    post(exchange)     all of an exchange in one `batch_isend_irecv`; nothing is waited for
    take(message)      what was received, once it is there: an action's input
    give(message, x)   what an action made, for the exchange that sends it, or for the next piece on the same rank

Why no order deadlocks. All messages of a plan with communication are in one line of events, and a rank posts its part
of that line (lablib/pipeline/communication.py). Of those not done, the first is next at both of its ends. So it takes
place, even where a rank's messages wait in line on one stream, as NCCL's do; two that cross between neighbours are in
one exchange, and a batch takes place at once.

Memory: a receive has its buffer from when it is posted; what is sent is kept until it has arrived, which is looked at
(polled) before each action that makes more.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.pipeline.executor.boundaries import Shape
from lablib.pipeline.messages import CommunicationPlan, Exchange, PipelineMessage


class Messages:
    """Messages of one rank in one step of a plan.

    Arguments:
        plan: with messages.
        group: whose ranks are the plan's, in order; None: all ranks.
        shapes: of each micro-batch, what each piece gives to the next.
        device: where this rank computes.
    """

    def __init__(
        self,
        plan: CommunicationPlan,
        group: dist.ProcessGroup | None,
        shapes: Sequence[Sequence[Shape]],
        device: torch.device,
    ):
        self._plan, self._group, self._shapes, self._device = plan, group, shapes, device
        self._here: dict[PipelineMessage, Tensor] = {}  # made, or to be received
        self._receives: dict[PipelineMessage, dist.Work] = {}
        self._sends: list[tuple[dist.Work, Tensor]] = []

    def give(self, message: PipelineMessage, tensor: Tensor) -> None:
        """Keep the output of an action until it is sent or taken.

        Raises:
            ValueError: it is not of the shape and dtype that the other end expects.
        """
        if (tuple(tensor.shape), tensor.dtype) != self._shape(message):
            raise ValueError(
                f"{message}: the other end expects {_text(*self._shape(message))}, what the pieces gave on meta: got "
                f"{_text(tuple(tensor.shape), tensor.dtype)}; cast inside the pieces, not by autocast around the step."
            )
        rank_of, other = self._plan.plan.rank_of, message.other_end
        is_local = rank_of[message.stage] == rank_of[other.stage]
        self._here[other if is_local else message] = tensor

    def take(self, message: PipelineMessage) -> Tensor:
        """A received tensor, or the output of another of this rank's pieces. Waits for it."""
        if message in self._receives:
            self._receives.pop(message).wait()
        return self._here.pop(message)

    def post(self, exchange: Exchange) -> None:
        """Start to send and receive all of an exchange."""
        tensors = [
            self._here.pop(message).contiguous() if message.is_send else self._buffer(message)
            for message in exchange.messages
        ]
        ops = [
            dist.P2POp(dist.isend if m.is_send else dist.irecv, x, group=self._group, group_peer=self._plan.peer(m))
            for m, x in zip(exchange.messages, tensors, strict=True)
        ]
        works = dist.batch_isend_irecv(ops)
        if len(works) < len(ops):
            works = works * len(ops)  # NCCL's batch is one
        for message, tensor, work in zip(exchange.messages, tensors, works, strict=True):
            if message.is_send:
                self._sends.append((work, tensor))
            else:
                self._here[message], self._receives[message] = tensor, work

    def finish(self) -> None:
        """Wait until all that was sent has arrived."""
        for work, _ in self._sends:
            work.wait()
        self._sends.clear()

    def _shape(self, message: PipelineMessage) -> Shape:
        """Of the activation at the boundary that the message crosses, and so of its gradient."""
        return self._shapes[message.microbatch][min(message.stage, message.other_end.stage)]

    def _buffer(self, message: PipelineMessage) -> Tensor:
        shape, dtype = self._shape(message)
        return torch.empty(shape, dtype=dtype, device=self._device)

    def let_go(self) -> None:
        """Forget what has arrived at the other end."""
        self._sends = [(work, tensor) for work, tensor in self._sends if not work.is_completed()]


def _text(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
