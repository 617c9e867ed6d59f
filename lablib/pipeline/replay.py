"""Replay a pipeline plan: start and end of every action, memory and idle time of each rank.

An action starts when its rank is free and its input has arrived:

    F of piece i    F of piece i - 1
    B, I of piece i B or I of piece i + 1; of the last piece, its own F
    W of piece i    its own I

    start = max( end of the rank's previous action + gap,  end of the needed action + send_s )  gap = 0 with overlap
    bubble = 1 - sum of busy seconds / (p * makespan)

With blocking messages, `gap` is the time of the rank's sends and receives (Megatron's send_forward_recv_backward does
both at once), and it counts as idle. One pass over the actions: each rank runs until an input is missing, then the next
rank continues.

Cost: O(actions). Plans are checked only as far as needed here: see validate.py.
Source: the dependencies of Huang et al., "GPipe", 2018, arXiv 1811.06965, and Qi et al., "Zero Bubble Pipeline
Parallelism", 2023, arXiv 2401.10241, section 2 (B split into input and weight).
Simplified: a link carries any number of messages at once; a blocking sender does not wait for its receiver to be ready.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from lablib.pipeline.costs import Costs, PieceCosts
from lablib.pipeline.deadlock import find_deadlock
from lablib.pipeline.plan import Action, Kind, Plan
from lablib.record.draw import draw
from lablib.record.timeline import COMPUTE, Span, Timeline
from lablib.signature import checked
from lablib.text.units import plural

if TYPE_CHECKING:
    import plotly.graph_objects as go

_CODES = {Kind.F: 0, Kind.B: 1, Kind.I: 2, Kind.W: 3}
# The piece before waits for B or for I: they share a row of the table of ends.
_ROWS = np.array([0, 1, 1, 2])


@dataclass(frozen=True, slots=True)
class Lowered:
    """The actions of all ranks, one rank after the other, as columns of numbers.

    `ends` numbers the moments that an action can wait for, 3 for each piece and micro-batch: the end of F, of B or I,
    of W. The last number means none.
    """

    key: np.ndarray  # the moment when the action ends
    need: np.ndarray  # the moment that it waits for
    lag_s: np.ndarray  # of the message between them
    gap_s: np.ndarray  # blocking messages between the rank's previous action and this one
    time_s: np.ndarray
    bounds: list[int]  # first action of each rank, and the end
    num_ends: int

    @staticmethod
    def of(plan: Plan, costs: PieceCosts, overlap: bool) -> Lowered:
        """From a plan and the costs of its actions."""
        pieces, m = plan.num_pieces, plan.num_microbatches
        bounds = [0, *np.cumsum([len(row) for row in plan]).tolist()]
        piece = np.array([action.stage for row in plan for action in row], np.int64)
        kind = np.array([_CODES[action.kind] for row in plan for action in row], np.int64)
        microbatch = np.array([action.microbatch for row in plan for action in row], np.int64)
        _check_range(plan, piece, microbatch)
        row = _ROWS[kind]
        nothing = 3 * pieces * m
        key = (row * pieces + piece) * m + microbatch
        is_turn = (row == 1) & (piece == pieces - 1)
        # One row back, or one neighbouring piece: F needs the piece before, B and I the piece after.
        need = np.where(row == 0, key - m, np.where(row == 1, key + m, key - pieces * m))
        need[is_turn] = key[is_turn] - pieces * m
        need[(row == 0) & (piece == 0)] = nothing
        # Piece i receives over boundary i - 1 forward, over boundary i backward.
        down, up = _messages(plan, costs.send_s)
        lag = np.where(row == 0, down[piece], np.where(row == 1, up[piece], 0.0))
        sent = np.where(row == 0, up[piece], np.where(row == 1, down[piece], 0.0))
        gap = np.zeros(len(key))
        if not overlap and len(key):
            gap[1:] = np.maximum(sent[:-1], lag[1:])
            gap[[b for b in bounds if b < len(key)]] = 0.0
        times = np.array([costs.forward_s, costs.backward_s, costs.input_s, costs.weight_s], float)
        return Lowered(key, need, lag, gap, times[kind, piece], bounds, nothing + 1)


def _messages(plan: Plan, send_s: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of the message over the boundary before and after each piece; 0 without a message."""
    crosses = [a != b for a, b in zip(plan.rank_of, plan.rank_of[1:], strict=False)]
    times = [time_s if is_sent else 0.0 for time_s, is_sent in zip(send_s, crosses, strict=True)]
    return np.array([0.0, *times]), np.array([*times, 0.0])


@dataclass(frozen=True, eq=False)
class Replay:
    """A replayed plan. Times in seconds from its start.

    Attributes:
        plan, costs: of the replay.
        start_s, end_s: of each rank, one entry per action, in the plan's order.
        makespan_s: the end of the last action.
        rows: the plan as numbers.
    """

    plan: Plan
    costs: Costs
    start_s: tuple[np.ndarray, ...]
    end_s: tuple[np.ndarray, ...]
    makespan_s: float
    rows: Lowered = field(repr=False)

    @cached_property
    def busy_s(self) -> tuple[float, ...]:
        """Seconds each rank computes."""
        return tuple(float((end - start).sum()) for start, end in zip(self.start_s, self.end_s, strict=True))

    @property
    def bubble_fraction(self) -> float:
        """The idle share of all ranks' time, in [0, 1)."""
        time_s = self.plan.num_stages * self.makespan_s
        return 1 - sum(self.busy_s) / time_s if time_s else 0.0

    @property
    def staggered_bubble_fraction(self) -> float:
        """The bubble without a barrier before the optimizer step, so that the next step follows at once: the idle share
        of the longest time from a rank's first action to its last."""
        spans_s = [float(end[-1] - start[0]) for start, end in zip(self.start_s, self.end_s, strict=True) if len(end)]
        time_s = self.plan.num_stages * max(spans_s, default=0.0)
        return 1 - sum(self.busy_s) / time_s if time_s else 0.0

    @cached_property
    def in_flight(self) -> tuple[float, ...]:
        """The most micro-batches each rank holds at once; a piece of a rank with v pieces counts 1/v.

        A micro-batch is held from the start of F to the end of B, or of W.
        """
        return tuple(float(self.held(rank)[1].max()) for rank in range(self.plan.num_stages))

    @cached_property
    def peak_bytes(self) -> tuple[float, ...]:
        """The most bytes each rank holds at once, `static_bytes` included."""
        return tuple(float(size_bytes.max()) for _, size_bytes in self.memory)

    @cached_property
    def memory(self) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """The bytes each rank holds: (seconds, bytes) at each change; a value is valid until the next change.

        F allocates its activations when it starts; B and W free them when they end.
        """
        costs = self.costs.of_pieces(self.plan)
        released = self.costs.released_at_input
        courses = [self._course(rank, costs.activation_bytes, released) for rank in range(self.plan.num_stages)]
        return tuple((times_s, size + held) for size, (times_s, held) in zip(costs.static_bytes, courses, strict=True))

    def held(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """The micro-batches a rank holds, counted as in `in_flight`: (seconds, micro-batches), as `memory`."""
        times_s, held = self._course(rank, [1.0] * self.plan.num_pieces, 0.0)
        return times_s, held / self.plan.num_chunks

    def _course(self, rank: int, sizes: list[float], released_at_input: float) -> tuple[np.ndarray, np.ndarray]:
        row = self.plan.actions[rank]
        is_forward = np.array([action.kind is Kind.F for action in row], bool)
        times_s = np.where(is_forward, self.start_s[rank], self.end_s[rank])
        return np.concatenate(([0.0], times_s)), np.concatenate(([0.0], _held(row, sizes, released_at_input)))

    @cached_property
    def timeline(self) -> Timeline:
        """One span per action, named as in the plan ("1F0")."""
        return Timeline(tuple(self._spans()), self.plan.num_stages)

    def _spans(self) -> Iterator[Span]:
        for rank, row in enumerate(self.plan):
            for action, start, end in zip(row, self.start_s[rank].tolist(), self.end_s[rank].tolist(), strict=True):
                yield Span(rank, COMPUTE, str(action), action.kind.phase, start, end)

    def figure(self, **options: Any) -> go.Figure:
        """The timeline above, the memory of each rank below."""
        return draw("figure_pipeline", self, **options)

    def __repr__(self) -> str:
        return (
            f"Replay({self.plan.name}, {plural(self.plan.num_stages, 'stages')}, "
            f"{plural(self.plan.num_microbatches, 'micro-batches')}, "
            f"makespan {self.makespan_s:.4g} s, bubble {self.bubble_fraction:.1%})"
        )


@checked
def replay(plan: Plan, costs: Costs | None = None) -> Replay:
    """Start and end of every action of a plan.

    Arguments:
        plan: any order of actions that can be executed.
        costs: of the actions; None: F, I and W take 1 s, B 2 s, messages nothing.

    Raises:
        ValueError: for costs that do not fit the plan, and for a plan that deadlocks.
    """
    costs = costs or Costs()
    rows = Lowered.of(plan, costs.of_pieces(plan), costs.overlap)
    start_s, end_s = _run(plan, rows)
    makespan_s = max((float(end[-1]) for end in end_s if len(end)), default=0.0)
    return Replay(plan, costs, start_s, end_s, makespan_s, rows)


def _run(plan: Plan, rows: Lowered) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Starts and ends of each rank's actions: a rank runs until an input is missing, and continues when it arrives."""
    keys, needs, lags, gaps, times = (c.tolist() for c in (rows.key, rows.need, rows.lag_s, rows.gap_s, rows.time_s))
    bounds = rows.bounds
    ends: list[float | None] = [None] * rows.num_ends
    ends[-1] = 0.0
    starts = [0.0] * len(keys)
    waiting = [-1] * rows.num_ends  # for each moment, the one rank that waits for it
    at, clock = bounds[:-1], [0.0] * plan.num_stages
    ready = list(range(plan.num_stages - 1, -1, -1))
    while ready:
        rank = ready.pop()
        now = clock[rank]
        for i in range(at[rank], bounds[rank + 1]):
            came = ends[needs[i]]
            if came is None:
                waiting[needs[i]] = rank
                at[rank] = i
                break
            start, free = came + lags[i], now + gaps[i]
            if free > start:
                start = free
            starts[i] = start
            key = keys[i]
            ends[key] = now = start + times[i]
            if waiting[key] >= 0:
                ready.append(waiting[key])
        else:
            at[rank] = bounds[rank + 1]
        clock[rank] = now
    if at != bounds[1:]:
        waits = "; ".join(map(str, find_deadlock(plan)))
        raise ValueError(f"the plan {plan.name!r} cannot be carried out: {waits}. Put every action after its inputs.")
    begins, finals = np.array(starts), np.array(ends, float)[rows.key]
    cuts = bounds[1:-1]
    return tuple(np.split(begins, cuts)), tuple(np.split(finals, cuts))


def _check_range(plan: Plan, piece: np.ndarray, microbatch: np.ndarray) -> None:
    for name, found, count in (("piece", piece, plan.num_pieces), ("micro-batch", microbatch, plan.num_microbatches)):
        if len(found) and not 0 <= int(found.min()) <= int(found.max()) < count:
            raise ValueError(f"a {name} of the plan is between 0 and {count - 1}: got {found.min()} to {found.max()}")


def _held(row: tuple[Action, ...], sizes: list[float], released_at_input: float) -> np.ndarray:
    """Memory of a rank after each of its actions, with `sizes[piece]` for one micro-batch at a piece."""
    shares = {Kind.F: 1.0, Kind.B: -1.0, Kind.I: -released_at_input, Kind.W: released_at_input - 1.0}
    return np.cumsum([shares[action.kind] * sizes[action.stage] for action in row])
