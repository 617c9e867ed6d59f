"""Where the sends and receives of a plan go: a plan in, a plan with messages among its steps out.

A plan says what is computed. What a rank computes for another rank's piece must be sent and received too, and the
order of that is a choice of its own; a bad one hangs. Links between two ranks are queues: messages are received in the
order in which they were sent.

    naive_communication     receive right before use, send right after: 1F1B hangs if a send waits for its receive
    with_communication      receive as soon as it is sent: cannot hang

Why it cannot: it plays the plan through and writes each message down at both of its ends at the same moment. So what
each rank has is its part of one line of events, and of the events that are not done, the first is next at all its ends.

    0F0  0SEND_F0  0F1  0SEND_F1+0RECV_B0  0B0       "+" an exchange: posted together, done when both are

Batching joins neighbours into one exchange, as 1F1B needs: forward to the next rank while its gradient comes back.

Source: the kinds and their spelling are those of torch.distributed.pipelining; an exchange is what batch_isend_irecv of
torch.distributed posts (in Megatron-LM, send_forward_recv_backward).
Simplified: the play gives every action one step of time.
"""

from collections.abc import Iterator
from itertools import groupby

from lablib.pipeline.deadlock import given, needed
from lablib.pipeline.messages import CommunicationPlan, Exchange, Step, receives, sends
from lablib.pipeline.plan import Action, Plan
from lablib.pipeline.validate import check
from lablib.signature import checked


@checked
def naive_communication(plan: Plan, *, batched: bool = False) -> CommunicationPlan:
    """Each rank receives what an action needs right before it, and sends what it made right after it.

    Arguments:
        batched: join messages that no action stands between into one exchange.
    """
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
def with_communication(plan: Plan, *, batched: bool = True) -> CommunicationPlan:
    """Every message is received when it is sent: as a plan that runs without messages, it runs with them.

    Arguments:
        plan: a valid one.
        batched: join messages that no action stands between into one exchange.

    Raises:
        WrongType: an argument that is of another type.
        ValueError: the plan breaks a rule (validate.py).
    """
    check(plan)
    rows: list[list[Step]] = [[] for _ in plan.actions]
    for moment in _play(plan):
        for rank, action in moment:
            rows[rank].append(action)
        for rank, action in moment:
            if message := sends(action, plan):
                rows[rank].append(Exchange((message,)))
                rows[plan.rank_of[message.other_end.stage]].append(Exchange((message.other_end,)))
    return CommunicationPlan(plan, tuple(_joined(row) if batched else tuple(row) for row in rows))


def _play(plan: Plan) -> Iterator[list[tuple[int, Action]]]:
    """Moment by moment, the actions that are done, each with its rank."""
    at, done = [0] * plan.num_stages, set()
    while any(at[rank] < len(row) for rank, row in enumerate(plan.actions)):
        moment = []
        for rank, row in enumerate(plan.actions):
            if at[rank] < len(row):
                event = needed(row[at[rank]], plan.num_pieces)
                if event is None or event in done:
                    moment.append((rank, row[at[rank]]))
                    at[rank] += 1
        done.update(given(action) for _, action in moment)
        yield moment


def _joined(steps: list[Step]) -> tuple[Step, ...]:
    """Exchanges that stand next to each other as one."""
    joined: list[Step] = []
    for are_exchanges, group in groupby(steps, key=lambda step: isinstance(step, Exchange)):
        if are_exchanges:
            joined.append(Exchange(tuple(message for step in group for message in step.messages)))  # pyright: ignore
        else:
            joined.extend(group)
    return tuple(joined)
