"""The messages of a step on one rank: post them in the order of the plan, wait for them before use.

    post(exchange)     post an exchange in one `batch_isend_irecv`, without waiting
    take(message)      wait for a received tensor: the input of an action
    give(message, x)   store the output of an action, for the exchange that sends it or the next piece on the same rank

Why no order deadlocks. All messages of a plan with communication are in one total order, and a rank posts its part of
that order (lablib/pipeline/communication.py). The first message that is not done is next at both of its ends. So it is
transferred, even if a rank's messages are queued on one stream, as in NCCL. Two messages that cross between neighbours
are in one exchange, and a batch is transferred at once.

Memory: a receive has its buffer from the moment it is posted. A sent tensor is kept until it has arrived, which is
polled before each action that allocates more.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.pipeline.executor.boundaries import Shape
from lablib.pipeline.messages import CommunicationPlan, Exchange, PipelineMessage


class StepMessages:
    """Messages of one rank in one step of a plan.

    `shapes`: for each micro-batch, the output shapes of each piece but the last. `group`: the ranks of the plan.
    """

    def __init__(
        self,
        plan: CommunicationPlan,
        group: dist.ProcessGroup | None,
        shapes: Sequence[Sequence[Shape]],
        device: torch.device,
    ):
        self._plan, self._group, self._shapes, self._device = plan, group, shapes, device
        self._here: dict[PipelineMessage, Tensor] = {}  # computed, or to be received
        self._receives: dict[PipelineMessage, dist.Work] = {}
        self._sends: list[tuple[dist.Work, Tensor]] = []

    def give(self, message: PipelineMessage, tensor: Tensor) -> None:
        """Keep the output of an action until it is sent or taken. ValueError: another shape or dtype than expected."""
        if (tuple(tensor.shape), tensor.dtype) != self._shape(message):
            raise ValueError(
                f"{message}: the other end expects {_text(*self._shape(message))}, the piece's output on meta: got "
                f"{_text(tuple(tensor.shape), tensor.dtype)}; cast inside the pieces, not by autocast around the step."
            )
        rank_of, other = self._plan.plan.rank_of, message.other_end
        is_local = rank_of[message.stage] == rank_of[other.stage]
        self._here[other if is_local else message] = tensor

    def take(self, message: PipelineMessage) -> Tensor:
        """A received tensor (waits for it), or the output of another piece on this rank."""
        if message in self._receives:
            self._receives.pop(message).wait()
        return self._here.pop(message)

    def post(self, exchange: Exchange) -> None:
        """Start all sends and receives of an exchange."""
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
            works = works * len(ops)  # NCCL returns one for the batch
        for message, tensor, work in zip(exchange.messages, tensors, works, strict=True):
            if message.is_send:
                self._sends.append((work, tensor))
            else:
                self._here[message], self._receives[message] = tensor, work

    def finish(self) -> None:
        """Wait until all sent messages have arrived."""
        for work, _ in self._sends:
            work.wait()
        self._sends.clear()

    def _shape(self, message: PipelineMessage) -> Shape:
        """Shape of the activation at the boundary of the message, and of its gradient."""
        return self._shapes[message.microbatch][min(message.stage, message.other_end.stage)]

    def _buffer(self, message: PipelineMessage) -> Tensor:
        shape, dtype = self._shape(message)
        return torch.empty(shape, dtype=dtype, device=self._device)

    def let_go(self) -> None:
        """Free the tensors that have arrived at the other end."""
        self._sends = [(work, tensor) for work, tensor in self._sends if not work.is_completed()]


def _text(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
