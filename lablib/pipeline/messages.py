"""Messages between the pieces of a pipeline, and a plan with messages among its steps.

    0SEND_F1    piece 0 sends the activation of micro-batch 1 to piece 1      1RECV_F1    piece 1 receives it
    1SEND_B1    piece 1 sends its gradient back to piece 0                    0RECV_B1    piece 0 receives it

An exchange is a group of messages posted together, and done when all are done: 0SEND_F1+0RECV_B0.
The spelling is from torch.distributed.pipelining.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from lablib.pipeline.plan import Action, Kind, Plan


class MessageKind(StrEnum):
    """One end of a message, and its content: an activation forward or a gradient backward."""

    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"


_OTHER_END = {
    MessageKind.SEND_F: (MessageKind.RECV_F, +1),
    MessageKind.RECV_F: (MessageKind.SEND_F, -1),
    MessageKind.SEND_B: (MessageKind.RECV_B, -1),
    MessageKind.RECV_B: (MessageKind.SEND_B, +1),
}
_TEXT = re.compile(r"(\d+)(SEND_F|RECV_F|SEND_B|RECV_B)(\d+)")


@dataclass(frozen=True, slots=True)
class PipelineMessage:
    """One end of a message: of `microbatch`, at the piece `stage`, which sends or receives it."""

    stage: int
    kind: MessageKind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @property
    def is_send(self) -> bool:
        """Whether the stage sends it; otherwise it receives it."""
        return self.kind in (MessageKind.SEND_F, MessageKind.SEND_B)

    @property
    def carries(self) -> str:
        """Its content: "activation", or "gradient" on the way back."""
        return "activation" if self.kind in (MessageKind.SEND_F, MessageKind.RECV_F) else "gradient"

    @property
    def other_end(self) -> "PipelineMessage":
        """The same message at its other end."""
        kind, away = _OTHER_END[self.kind]
        return PipelineMessage(self.stage + away, kind, self.microbatch)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Messages that a rank posts together, in this order; the step is done when all are done."""

    messages: tuple[PipelineMessage, ...]

    def __str__(self) -> str:
        return "+".join(map(str, self.messages))


def sends(action: Action, plan: Plan) -> PipelineMessage | None:
    """The message that this action makes for another rank."""
    return _between_ranks(action, plan, MessageKind.SEND_F, MessageKind.SEND_B)


def receives(action: Action, plan: Plan) -> PipelineMessage | None:
    """The message from another rank that this action waits for."""
    return _between_ranks(action, plan, MessageKind.RECV_F, MessageKind.RECV_B)


def _between_ranks(action: Action, plan: Plan, forward: MessageKind, backward: MessageKind) -> PipelineMessage | None:
    """The action's message; None for W, without a piece at the other end, or if that piece is on the same rank."""
    if action.kind is Kind.W:
        return None
    message = PipelineMessage(action.stage, forward if action.kind is Kind.F else backward, action.microbatch)
    other = message.other_end.stage
    if not 0 <= other < plan.num_pieces or plan.rank_of[other] == plan.rank_of[message.stage]:
        return None
    return message


Step = Action | Exchange


@dataclass(frozen=True)
class CommunicationPlan:
    """A plan and the steps of each rank in order: actions, and exchanges between them. ValueError: other actions."""

    plan: Plan
    steps: tuple[tuple[Step, ...], ...]

    def __post_init__(self):
        computed = tuple(tuple(step for step in row if isinstance(step, Action)) for row in self.steps)
        if computed != self.plan.actions:
            raise ValueError("the actions among the steps must be the plan's, in its order: change both or neither.")

    @property
    def name(self) -> str:
        """The plan's."""
        return self.plan.name

    def peer(self, message: PipelineMessage) -> int:
        """The rank at the other end."""
        return self.plan.rank_of[message.other_end.stage]

    def __str__(self) -> str:
        return "\n".join(f"stage {rank}  " + " ".join(map(str, row)) for rank, row in enumerate(self.steps))

    @classmethod
    def parse(cls, name: str, lines: Sequence[str], rank_of: Sequence[int] | None = None) -> "CommunicationPlan":
        """From text, one line per rank: `CommunicationPlan.parse("mine", ["0F0 0SEND_F0", "1RECV_F0 1F0"])`.

        Arguments as in `Plan.parse`. Raises ValueError for a step that is spelt wrong.
        """
        steps = tuple(tuple(map(_parse_step, line.split())) for line in lines)
        actions = [" ".join(str(step) for step in row if isinstance(step, Action)) for row in steps]
        return cls(Plan.parse(name, actions, rank_of), steps)


def _parse_step(text: str) -> Step:
    ends = [_TEXT.fullmatch(part) for part in text.split("+")]
    messages = tuple(PipelineMessage(int(end[1]), MessageKind(end[2]), int(end[3])) for end in ends if end)
    return Exchange(messages) if len(messages) == len(ends) else Action.parse(text)
