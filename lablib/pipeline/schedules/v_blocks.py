"""V-shaped schedules from a building block: the steps of one micro-batch, repeated every six steps.

With two pieces per rank in a V, a micro-batch passes every rank four times (F0 down, F1 up, I1 down, I0 up) and leaves
two weight gradients. With each as one step, a rank has 6 steps of work per micro-batch. So micro-batch j + 1 repeats
the steps of j, 6 steps later, and nothing collides if the passes of one fall on different steps modulo 6. The time a
micro-batch stays on a rank, divided by 6, is the number held at once: the block determines the memory.

    repeat      forwards and backwards of all micro-batches by their step, weight gradients in the steps between
    squeeze     keep only the order: no rank waits for a step
    drain       after the last micro-batch has come in, weight gradients are done only when a rank would wait

Source: Qi, Wan, Amar, Lin, "Pipeline Parallelism with Controllable Memory", 2024, arXiv 2405.15362, sections 2 to 3
(there B is our I).
Simplified: the paper reorders all passes at both ends by a search; here only the weight gradients at the end move,
which reaches the bubble stated in the paper.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from lablib.pipeline.plan import Action, Kind, Plan
from lablib.pipeline.schedules.row import vee

PERIOD = 6  # steps of work that one micro-batch is for each rank
_NEVER = 1 << 60
_Order = list[Action | None]  # None: the oldest waiting weight gradient, if any


@dataclass(frozen=True, slots=True)
class Pass:
    """One of the four passes: its step at rank 0, and the steps to the next rank (negative on the way up)."""

    at_rank_0: int
    a_rank: int

    def step(self, rank: int) -> int:
        """Its step at a rank, counted from the block's first."""
        return self.at_rank_0 + self.a_rank * rank


@dataclass(frozen=True, slots=True)
class BuildingBlock:
    """The passes of one micro-batch: forward down and up the V, backward (input) down and up."""

    F0: Pass
    F1: Pass
    I1: Pass
    I0: Pass


def repeat(name: str, block: BuildingBlock, num_stages: int, num_microbatches: int) -> Plan:
    """The plan that repeats `block` for every micro-batch."""
    ranks = [_Rank(_by_step(block, rank, num_stages, num_microbatches)) for rank in range(num_stages)]
    clock = _Clock(2 * num_stages, num_microbatches)
    while any(rank.is_busy for rank in ranks):
        # Other ranks see the results of a step in the next step.
        clock.tick([action for rank in ranks if (action := rank.take(clock)) is not None])
    return Plan(name, num_stages, num_microbatches, tuple(tuple(rank.row) for rank in ranks), vee(num_stages))


def _by_step(block: BuildingBlock, rank: int, num_stages: int, num_microbatches: int) -> _Order:
    """The actions of a rank by step; after the last micro-batch has come in, without the weight gradients."""
    down, up = rank, 2 * num_stages - 1 - rank
    first = [
        (block.F0.step(rank), down, Kind.F),
        (block.F1.step(rank), up, Kind.F),
        (block.I1.step(rank), up, Kind.I),
        (block.I0.step(rank), down, Kind.I),
    ]
    between = set(range(PERIOD)) - {step % PERIOD for step, _, _ in first}
    assert len(between) == 2, "two passes of the block collide"
    last_in = block.F0.step(rank) + PERIOD * (num_microbatches - 1)
    steps: list[tuple[int, Action | None]] = [(step, None) for step in range(last_in) if step % PERIOD in between]
    steps += [
        (step + PERIOD * microbatch, Action(piece, kind, microbatch))
        for step, piece, kind in first
        for microbatch in range(num_microbatches)
    ]
    return [action for _, action in sorted(steps, key=lambda pair: pair[0])]


class _Clock:
    """The current step, and the step after which each F and I is done."""

    def __init__(self, num_pieces: int, num_microbatches: int):
        self.now = 0
        self._last = num_pieces - 1
        self._since = {kind: [[_NEVER] * num_microbatches for _ in range(num_pieces)] for kind in (Kind.F, Kind.I)}

    def is_ready(self, action: Action) -> bool:
        """Whether the action's input has arrived."""
        kind, piece, microbatch = action.kind, action.stage, action.microbatch
        if kind is Kind.F:
            return piece == 0 or self._since[Kind.F][piece - 1][microbatch] <= self.now
        if piece == self._last:
            return self._since[Kind.F][piece][microbatch] <= self.now
        return self._since[Kind.I][piece + 1][microbatch] <= self.now

    def tick(self, done: Sequence[Action]) -> None:
        self.now += 1
        for action in done:
            if action.kind is not Kind.W:
                self._since[action.kind][action.stage][action.microbatch] = self.now


class _Rank:
    """One rank; `row` has its finished actions."""

    def __init__(self, order: _Order):
        self.row: list[Action] = []
        self._order = order
        # From here on weight gradients are done only when the rank would wait.
        self._drain_from = max((at for at, action in enumerate(order) if action is None), default=-1) + 1
        self._next = 0
        self._waiting: deque[Action] = deque()  # weight gradients

    @property
    def is_busy(self) -> bool:
        return self._next < len(self._order) or bool(self._waiting)

    def take(self, clock: _Clock) -> Action | None:
        """Do the next action and return it; None if it cannot run yet."""
        while self._next < len(self._order) and self._order[self._next] is None and not self._waiting:
            self._next += 1
        if self._next == len(self._order):
            return self._take_weight()
        action = self._order[self._next]
        if action is None:
            self._next += 1
            return self._take_weight()
        if clock.is_ready(action):
            self._next += 1
            self.row.append(action)
            if action.kind is Kind.I:
                self._waiting.append(Action(action.stage, Kind.W, action.microbatch))
            return action
        return self._take_weight() if self._next >= self._drain_from else None

    def _take_weight(self) -> Action | None:
        if not self._waiting:
            return None
        self.row.append(self._waiting.popleft())
        return self.row[-1]
