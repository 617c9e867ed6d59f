"""The rules of a plan, one function each, which yields `Finding`s. validate.py lists the rules.

Each reads the plan once, so its cost is linear in the number of actions.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from lablib.pipeline.deadlock import find_deadlock, given
from lablib.pipeline.messages import CommunicationPlan, Exchange, PipelineMessage, receives
from lablib.pipeline.plan import Action, Kind, Plan
from lablib.text.units import plural


class PlanRule(IntEnum):
    """The rules by name; the head of validate.py describes each."""

    ONCE = 1
    PLACE = 2
    ORDER = 3
    MESSAGES = 4
    DEADLOCK = 5
    MEMORY = 6


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation of a rule."""

    rule: PlanRule  # the violated rule
    rank: int | None  # of the mistake; None if it concerns no single rank
    index: int | None  # the step of that rank, from 0 (in the text, from 1); None if an action is missing
    action: str  # that step, or the missing action, as text: "1F0"
    text: str  # the message

    def __str__(self) -> str:
        return f"R{int(self.rule)}: {self.text}"


def once(plan: Plan) -> Iterator[Finding]:
    """R1. Each piece does F, and either B or I and W, once for each micro-batch; and no other micro-batch."""
    count: Counter[Action] = Counter()
    for rank, actions in enumerate(plan.actions):
        for index, action in enumerate(actions):
            count[action] += 1
            text = None
            if not 0 <= action.microbatch < plan.num_microbatches:
                text = f"there is no micro-batch {action.microbatch}: the plan has {plan.num_microbatches}"
            elif count[action] > 1:
                text = f"{action} is done {count[action]} times: step {index + 1} of rank {rank} does it again"
            elif action.kind is not Kind.F and _is_done_otherwise(action, count):
                text = f"{action}, step {index + 1} of rank {rank}, repeats a backward: it is B, or I and W, never both"
            if text:
                yield Finding(PlanRule.ONCE, rank, index, str(action), text)
    for stage, rank in enumerate(plan.rank_of):
        for microbatch in range(plan.num_microbatches):
            for action in _missing(stage, microbatch, count):
                text = f"{action} is missing: rank {rank} never does it"
                yield Finding(PlanRule.ONCE, rank, None, str(action), text)


def _is_done_otherwise(action: Action, count: Counter[Action]) -> bool:
    others = (Kind.I, Kind.W) if action.kind is Kind.B else (Kind.B,)
    return any(Action(action.stage, kind, action.microbatch) in count for kind in others)


def _missing(stage: int, microbatch: int, count: Counter[Action]) -> Iterator[Action]:
    forward, whole, for_input, for_weights = (Action(stage, kind, microbatch) for kind in Kind)
    if forward not in count:
        yield forward
    if whole in count:
        return
    if for_input not in count and for_weights not in count:
        yield whole
    elif for_input not in count:
        yield for_input
    elif for_weights not in count:
        yield for_weights


def places(plan: Plan) -> Iterator[Finding]:
    """R2. There is a row for each rank, and each action is in the row of its piece's rank."""
    if len(plan.actions) != plan.num_stages:
        text = f"the plan is for {plural(plan.num_stages, 'ranks')} and has actions for {len(plan.actions)}"
        yield Finding(PlanRule.PLACE, None, None, "", text)
    for stage, rank in enumerate(plan.rank_of):
        if not 0 <= rank < plan.num_stages:
            text = f"piece {stage} is on rank {rank}: there are {plan.num_stages}"
            yield Finding(PlanRule.PLACE, rank, None, "", text)
    for rank, actions in enumerate(plan.actions):
        for index, action in enumerate(actions):
            text = None
            if not 0 <= action.stage < plan.num_pieces:
                text = f"step {index + 1} of rank {rank}, {action}, is at no piece: the model has {plan.num_pieces}"
            elif plan.rank_of[action.stage] != rank:
                holder = plan.rank_of[action.stage]
                text = f"step {index + 1} of rank {rank} is {action}: piece {action.stage} is on rank {holder}"
            if text:
                yield Finding(PlanRule.PLACE, rank, index, str(action), text)


def order(plan: Plan) -> Iterator[Finding]:
    """R3. In each row: F before B and I, I before W. Missing actions are left to R1."""
    for rank, actions in enumerate(plan.actions):
        at = {action: index for index, action in reversed(list(enumerate(actions)))}
        for index, action in enumerate(actions):
            if action.kind is Kind.F:
                continue
            before = Action(action.stage, Kind.I if action.kind is Kind.W else Kind.F, action.microbatch)
            if at.get(before, index) > index:
                text = f"{action}, step {index + 1} of rank {rank}, comes before {before}, its step {at[before] + 1}"
                yield Finding(PlanRule.ORDER, rank, index, str(action), text)


def messages(plan: CommunicationPlan) -> Iterator[Finding]:
    """R4. Both ends of every message, the order on every link, and the place of each end among the actions."""
    wrong = [*_ends(plan)]
    yield from wrong or _links(plan)
    if not wrong:
        yield from _places_of_messages(plan)


def _rows(plan: CommunicationPlan) -> Iterator[tuple[int, int, PipelineMessage]]:
    """Every end of a message, with its rank and step."""
    for rank, row in enumerate(plan.steps):
        for index, step in enumerate(row):
            if isinstance(step, Exchange):
                yield from ((rank, index, message) for message in step.messages)


def _ends(plan: CommunicationPlan) -> Iterator[Finding]:
    """Each end is on its piece's rank, goes to a piece on another rank, occurs once, and has another end."""
    rank_of = plan.plan.rank_of
    ends = Counter(message for _, _, message in _rows(plan))
    seen: set[PipelineMessage] = set()
    for rank, index, message in _rows(plan):
        other, text = message.other_end, None
        if not (0 <= message.stage < len(rank_of) and 0 <= other.stage < len(rank_of)):
            text = f"goes to piece {other.stage}: the model has pieces 0 to {len(rank_of) - 1}"
        elif rank_of[message.stage] != rank:
            text = f"is of piece {message.stage}, which is on rank {rank_of[message.stage]}"
        elif rank_of[other.stage] == rank:
            text = f"goes to piece {other.stage} on the same rank: there is nothing to send"
        elif message in seen:
            text = "is there a second time"
        elif not ends[other]:
            text = f"has no other end: rank {rank_of[other.stage]} never does {other}"
        seen.add(message)
        if text:
            text = f"{message}, step {index + 1} of rank {rank}, {text}"
            yield Finding(PlanRule.MESSAGES, rank, index, str(message), text)


def _links(plan: CommunicationPlan) -> Iterator[Finding]:
    """From one rank to another, messages are received in the order in which they were sent."""
    sent: dict[tuple[int, int], list[PipelineMessage]] = {}
    received: dict[tuple[int, int], list[tuple[int, PipelineMessage]]] = {}
    for rank, index, message in _rows(plan):
        if message.is_send:
            sent.setdefault((rank, plan.peer(message)), []).append(message)
        else:
            received.setdefault((plan.peer(message), rank), []).append((index, message))
    for link, messages_sent in sent.items():
        for message, (index, receive) in zip(messages_sent, received[link], strict=True):
            if receive.other_end != message:
                text = (
                    f"{receive}, step {index + 1} of rank {link[1]}, receives in another order than rank {link[0]} "
                    f"sends: {message} comes first"
                )
                yield Finding(PlanRule.MESSAGES, link[1], index, str(receive), text)
                break  # from here on everything on this link is out of order


def _places_of_messages(plan: CommunicationPlan) -> Iterator[Finding]:
    """A send comes after the action that computes its tensor, a receive before the action that needs it."""
    for rank, row in enumerate(plan.steps):
        there: set[object] = set()
        for index, step in enumerate(row):
            if isinstance(step, Action):
                receive = receives(step, plan.plan)
                if receive and receive not in there:
                    text = f"{step}, step {index + 1} of rank {rank}, needs {receive}, which does not come before it"
                    yield Finding(PlanRule.MESSAGES, rank, index, str(step), text)
                there.add(given(step))
                continue
            there.update(step.messages)
            for message in step.messages:
                made = (message.stage, Kind.F if message.carries == "activation" else Kind.I, message.microbatch)
                if message.is_send and made not in there:
                    text = f"{message}, step {index + 1} of rank {rank}, sends a result that is not computed before it"
                    yield Finding(PlanRule.MESSAGES, rank, index, str(message), text)


def deadlock(plan: Plan | CommunicationPlan, blocking_sends: bool) -> Iterator[Finding]:
    """R5. One finding, with the circle of ranks that wait for each other."""
    if circle := find_deadlock(plan, blocking_sends):
        first, words = circle[0], "; ".join(map(str, circle))
        yield Finding(PlanRule.DEADLOCK, first.rank, first.index, first.step, f"no rank can continue: {words}")


def memory(plan: Plan, limits: Sequence[float]) -> Iterator[Finding]:
    """R6. For each rank, the first action after which it exceeds its limit."""
    for rank, (actions, limit) in enumerate(zip(plan.actions, limits, strict=True)):
        for index, held in enumerate(held_after(actions)):
            if held > limit:
                after = f"after step {index + 1}, {actions[index]}"
                text = f"rank {rank} holds {held} activations {after}: it may hold {limit}"
                yield Finding(PlanRule.MEMORY, rank, index, str(actions[index]), text)
                break


def held_after(actions: Sequence[Action]) -> Iterator[int]:
    """Activations that a rank holds after each of its actions."""
    held = 0
    for action in actions:
        if action.kind is Kind.F:
            held += 1
        elif action.kind is not Kind.I:
            held -= 1
        yield held
