"""Deadlock of a plan: whether it runs to its end, or which ranks wait for each other.

The plan is executed step by step: a rank continues while the input of its next step is available, and waits otherwise.
If no rank can continue and steps are left, some ranks wait for each other in a circle, which explains the deadlock:

    rank 0 waits at step 3, 0SEND_F1, for rank 1 to receive (1RECV_F1, its step 5);
    rank 1 waits at step 4, 1SEND_B0, for rank 0 to receive (0RECV_B0, its step 4).

An action needs the previous action of its micro-batch's way through the pieces. In a plan with messages (messages.py),
the rank waits for an input from another rank in its receive. A receive waits until the other end has posted its send,
and a send waits for its receive if sends block, as large ones do on most transports.

Cost: one pass over all steps, linear in their number.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lablib.pipeline.messages import CommunicationPlan, Exchange, PipelineMessage, Step
from lablib.pipeline.plan import Action, Kind, Plan

Computed = tuple[int, Kind, int]  # piece, F or I, micro-batch
Event = Computed | PipelineMessage  # a computed result, or a posted end of a message


@dataclass(frozen=True, slots=True)
class BlockedStep:
    """Rank `rank` waits at its step `index`, which is `step`, for rank `on_rank`; `reason` is the text.

    `index` counts from 0; messages count steps from 1.
    """

    rank: int
    index: int
    step: str
    reason: str
    on_rank: int | None

    def __str__(self) -> str:
        return f"rank {self.rank} waits at step {self.index + 1}, {self.step}, {self.reason}"


def find_deadlock(plan: Plan | CommunicationPlan, blocking_sends: bool = True) -> tuple[BlockedStep, ...]:
    """The ranks that wait for each other in a circle, in its order; empty if the plan runs to its end.

    If a rank waits for an action that no rank ever does, the result is a chain that ends there.

    Arguments:
        plan: with messages or without; without, a result is available to all ranks at once.
        blocking_sends: a send is done when the other end receives, not before.
    """
    rows, needs = _rows_and_needs(plan, blocking_sends)
    stuck = {rank: at for rank, at in enumerate(_play(rows, needs)) if at < len(rows[rank])}
    if not stuck:
        return ()
    ended = (row[: stuck.get(rank, len(row))] for rank, row in enumerate(rows))
    done = {event for row in ended for step in row for event in _gives(step)}
    # A rank that waits in an exchange has posted it.
    done |= {event for rank, at in stuck.items() for event in _posts(rows[rank][at])}
    where = {e: (rank, at) for rank, row in enumerate(rows) for at, step in enumerate(row) for e in _gives(step)}
    waits = {}
    for rank, at in stuck.items():
        missing = next(event for event in needs(rows[rank][at]) if event not in done)
        waits[rank] = _wait(rank, at, rows[rank][at], missing, where.get(missing))
    return _circle(waits)


def steps_done(plan: Plan | CommunicationPlan, blocking_sends: bool = True) -> list[int]:
    """How many steps of each rank can be done; all of them, unless the plan deadlocks."""
    return _play(*_rows_and_needs(plan, blocking_sends))


def needed(action: Action, num_pieces: int) -> Computed | None:
    """The event that an action waits for: from another piece, or the last piece's own forward."""
    stage, kind, microbatch = action.stage, action.kind, action.microbatch
    if kind is Kind.F:
        return (stage - 1, Kind.F, microbatch) if stage else None
    if kind is Kind.W:
        return (stage, Kind.I, microbatch)
    return (stage + 1, Kind.I, microbatch) if stage + 1 < num_pieces else (stage, Kind.F, microbatch)


def given(action: Action) -> Computed | None:
    """The event that an action makes: its activation, or the gradient of its input."""
    if action.kind is Kind.W:
        return None
    return (action.stage, Kind.F if action.kind is Kind.F else Kind.I, action.microbatch)


def _gives(step: Step) -> Iterable[Event]:
    if isinstance(step, Exchange):
        return step.messages
    event = given(step)
    return () if event is None else (event,)


def _posts(step: Step) -> Iterable[Event]:
    return step.messages if isinstance(step, Exchange) else ()


_Needs = Callable[[Step], Iterable[Event]]


def _rows_and_needs(plan: Plan | CommunicationPlan, blocking_sends: bool) -> tuple[Sequence[Sequence[Step]], _Needs]:
    """The steps of each rank, and a function that lists the events that a step waits for."""
    if isinstance(plan, Plan):
        num_pieces = plan.num_pieces

        def needs_of_action(step: Step) -> Iterable[Event]:
            assert isinstance(step, Action)
            event = needed(step, num_pieces)
            return () if event is None else (event,)

        return plan.actions, needs_of_action

    rank_of = plan.plan.rank_of

    def needs(step: Step) -> Iterable[Event]:
        if isinstance(step, Exchange):
            return [each.other_end for each in step.messages if blocking_sends or not each.is_send]
        event = needed(step, len(rank_of))
        # The receive has already waited for results of other ranks.
        return () if event is None or rank_of[event[0]] != rank_of[step.stage] else (event,)

    return plan.steps, needs


def _play(rows: Sequence[Sequence[Step]], needs: _Needs) -> list[int]:
    """How many steps of each rank can be done."""
    at = [0] * len(rows)
    done: set[Event] = set()
    waiting: dict[Event, list[int]] = {}
    can_go_on = deque(range(len(rows)))

    def happen(events: Iterable[Event]) -> None:
        for event in events:
            done.add(event)
            can_go_on.extend(waiting.pop(event, ()))

    while can_go_on:
        rank = can_go_on.popleft()
        while at[rank] < len(rows[rank]):
            step = rows[rank][at[rank]]
            happen(_posts(step))
            missing = next((event for event in needs(step) if event not in done), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            if isinstance(step, Action):
                happen(_gives(step))
            at[rank] += 1
    return at


def _wait(rank: int, at: int, step: Step, missing: Event, where: tuple[int, int] | None) -> BlockedStep:
    on_rank, index = where or (None, -1)
    if isinstance(missing, PipelineMessage):
        verb = "send" if missing.is_send else "receive"
        reason = f"for rank {on_rank} to {verb} ({missing}, its step {index + 1})" if where else f"for {missing}"
    else:
        stage, kind, microbatch = missing
        whose = "its own" if on_rank == rank else f"rank {on_rank}'s"
        what = "activation" if kind is Kind.F else "gradient"
        reason = f"for the {what} of micro-batch {microbatch} from piece {stage}"
        reason += f", {whose} step {index + 1}" if where else ""
    if where is None:
        reason += ", which no rank ever does"
    return BlockedStep(rank, at, str(step), reason, on_rank)


def _circle(waits: dict[int, BlockedStep]) -> tuple[BlockedStep, ...]:
    """Follow the waiting ranks from the first, until one repeats."""
    path: list[int] = []
    rank: int | None = min(waits)
    while rank is not None and rank in waits and rank not in path:
        path.append(rank)
        rank = waits[rank].on_rank
    start = path.index(rank) if rank in path else 0
    return tuple(waits[each] for each in path[start:])
