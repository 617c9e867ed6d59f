"""Add sends and receives to a plan.

A plan lists computations. A result for a piece on another rank must also be sent and received. The order of messages is
a separate choice, and a bad one hangs. Links between two ranks are queues: messages are received in the
order in which they were sent.

    naive_communication     receive right before use, send right after: 1F1B hangs if a send waits for its receive
    with_communication      receive as soon as it is sent: cannot hang

Why it cannot: it replays the plan and lists each message at both of its ends, in the order in which messages are made.
So each rank has its part of one total order of events, and the first event that is not done is next on all ranks that
take part in it.

    0F0  0SEND_F0  0F1  0SEND_F1+0RECV_B0  0B0       "+" an exchange: posted together, done when both are done

A receive comes before the action that its rank runs when the message is sent. So an executor that posts it there and
continues loses no time: the buffer is ready before the message arrives. That holds for the costs of the replay; with
other costs nothing hangs either, but a message may wait for its receiver.

Batching joins neighbours into one exchange, as 1F1B needs: forward to the next rank while its gradient comes back.

Source: the kinds and their spelling are from torch.distributed.pipelining; an exchange is one batch_isend_irecv of
torch.distributed (in Megatron-LM, send_forward_recv_backward).
"""

from bisect import bisect_right
from itertools import groupby

from lablib.pipeline.costs import Costs
from lablib.pipeline.messages import CommunicationPlan, Exchange, Step, receives, sends
from lablib.pipeline.plan import Plan
from lablib.pipeline.replay import replay
from lablib.pipeline.validate import check
from lablib.signature import checked


@checked
def naive_communication(plan: Plan, *, batched: bool = False) -> CommunicationPlan:
    """Each rank receives an action's input directly before it, and sends its output after it; `batched` joins these."""
    rows = []
    for actions in plan.actions:
        steps: list[Step] = []
        for action in actions:
            received, sent = receives(action, plan), sends(action, plan)
            steps += [Exchange((received,))] if received else []
            steps.append(action)
            steps += [Exchange((sent,))] if sent else []
        rows.append(_joined(steps) if batched else tuple(steps))
    return CommunicationPlan(plan, tuple(rows))


@checked
def with_communication(plan: Plan, costs: Costs | None = None, *, batched: bool = True) -> CommunicationPlan:
    """Post every receive when its message is sent: a plan that runs without messages then also runs with them.

    Arguments:
        costs: of its actions, for the order of the messages; None: F, I and W take 1 s, B 2 s.
        batched: join messages without an action between them into one exchange.

    Raises ValueError: the plan breaks a rule (validate.py), or the costs do not fit it.
    """
    check(plan)
    # The end of each action, and a count: an action of zero seconds still comes after its dependencies
    by_time, by_count = replay(plan, costs), replay(plan, Costs(1.0, 1.0))
    ends = [
        list(zip(end_s.tolist(), count.tolist(), strict=True))
        for end_s, count in zip(by_time.end_s, by_count.end_s, strict=True)
    ]
    made = [
        (ends[rank][index], rank, index, message)
        for rank, row in enumerate(plan.actions)
        for index, action in enumerate(row)
        if (message := sends(action, plan))
    ]
    # The messages of each rank by the number of actions before them, taken from one order of events.
    between: list[list[list[Step]]] = [[[] for _ in range(len(row) + 1)] for row in plan.actions]
    for end, rank, index, message in sorted(made, key=lambda each: each[:2]):
        receiver = plan.rank_of[message.other_end.stage]
        between[rank][index + 1].append(Exchange((message,)))
        between[receiver][bisect_right(ends[receiver], end)].append(Exchange((message.other_end,)))
    rows = []
    for row, exchanges in zip(plan.actions, between, strict=True):
        steps = [*exchanges[0]]
        for action, after in zip(row, exchanges[1:], strict=True):
            steps += [action, *after]
        rows.append(_joined(steps) if batched else tuple(steps))
    return CommunicationPlan(plan, tuple(rows))


def _joined(steps: list[Step]) -> tuple[Step, ...]:
    joined: list[Step] = []
    for are_exchanges, group in groupby(steps, key=lambda step: isinstance(step, Exchange)):
        if are_exchanges:
            joined.append(Exchange(tuple(message for step in group for message in step.messages)))  # pyright: ignore
        else:
            joined.extend(group)
    return tuple(joined)
