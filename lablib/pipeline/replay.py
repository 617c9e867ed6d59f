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
from itertools import accumulate, pairwise
from math import fsum
from operator import sub
from typing import TYPE_CHECKING, Any

from lablib.cost.arrays import Array, arrays, plain
from lablib.pipeline.costs import Costs, PieceCosts
from lablib.pipeline.deadlock import find_deadlock
from lablib.pipeline.plan import Kind, Plan
from lablib.record.draw import draw
from lablib.record.timeline import COMPUTE, Span, Timeline
from lablib.signature import checked
from lablib.text.units import plural

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True, slots=True)
class Lowered:
    """The actions of all ranks, one rank after the other, as columns of numbers.

    `ends` numbers the moments that an action can wait for, 3 for each piece and micro-batch: the end of F, of B or I,
    of W. The last number means none.
    """

    key: list[int]  # the moment when the action ends
    need: list[int]  # the moment that it waits for
    lag_s: list[float]  # of the message between them
    gap_s: list[float]  # blocking messages between the rank's previous action and this one
    time_s: list[float]
    bounds: list[int]  # first action of each rank, and the end
    num_ends: int

    @staticmethod
    def of(plan: Plan, costs: PieceCosts, overlap: bool) -> Lowered:
        """From a plan and the costs of its actions."""
        _check_range(plan)
        nothing = 3 * plan.num_pieces * plan.num_microbatches
        table = _table(plan, costs)
        found = Lowered([], [], [], [], [], list(accumulate(map(len, plan), initial=0)), nothing + 1)
        for row in plan:
            before_s = None  # message of the rank's previous action
            for action in row:
                first, back, lag_s, sent_s, time_s = table[action.kind][action.stage]
                key = first + action.microbatch
                found.key.append(key)
                found.need.append(nothing if back is None else key - back)
                found.lag_s.append(lag_s)
                found.gap_s.append(0.0 if overlap or before_s is None else max(before_s, lag_s))
                found.time_s.append(time_s)
                before_s = sent_s
        return found


def _table(plan: Plan, costs: PieceCosts) -> dict[Kind, list[tuple[int, int | None, float, float, float]]]:
    """For each kind and piece: its first moment; how far back the needed moment is; seconds of the message before it,
    of the message after it, and of the action."""
    pieces, m = plan.num_pieces, plan.num_microbatches
    whole = pieces * m
    # F needs the piece before; B and I the piece after, and the last piece its own F; W its own I.
    backs = ([None] + [m] * (pieces - 1), [-m] * (pieces - 1) + [whole], [whole] * pieces)
    # Seconds of the message over the boundary before and after each piece; 0 without a message
    crosses = [a != b for a, b in zip(plan.rank_of, plan.rank_of[1:], strict=False)]
    times = [float(time_s) if is_sent else 0.0 for time_s, is_sent in zip(costs.send_s, crosses, strict=True)]
    down, up = [0.0, *times], [*times, 0.0]
    none = [0.0] * pieces
    rows = {
        Kind.F: (0, down, up, costs.forward_s),
        Kind.B: (1, up, down, costs.backward_s),
        Kind.I: (1, up, down, costs.input_s),
        Kind.W: (2, none, none, costs.weight_s),
    }
    return {
        kind: [(row * whole + piece * m, *rest) for piece, rest in enumerate(zip(backs[row], *columns, strict=True))]
        for kind, (row, *columns) in rows.items()
    }


@dataclass(frozen=True, eq=False)
class Replay:
    """A replayed plan. Times in seconds from its start."""

    plan: Plan  # plan, costs: of the replay
    costs: Costs
    # start_s, end_s: of each rank, one entry per action, in the plan's order; arrays, or lists without numpy
    start_s: tuple[Array, ...]
    end_s: tuple[Array, ...]
    makespan_s: float  # the end of the last action
    rows: Lowered = field(repr=False)  # the plan as numbers

    @cached_property
    def busy_s(self) -> tuple[float, ...]:
        """Seconds each rank computes."""
        times = zip(map(plain, self.start_s), map(plain, self.end_s), strict=True)
        return tuple(fsum(map(sub, end, start)) for start, end in times)

    @property
    def bubble_fraction(self) -> float:
        """The idle share of all ranks' time, in [0, 1)."""
        time_s = self.plan.num_stages * self.makespan_s
        return 1 - sum(self.busy_s) / time_s if time_s else 0.0

    @cached_property
    def in_flight(self) -> tuple[float, ...]:
        """The most micro-batches each rank holds at once; a piece of a rank with v pieces counts 1/v.

        A micro-batch is held from the start of F to the end of B, or of W.
        """
        sizes = [1.0] * self.plan.num_pieces
        return tuple(max(self._held(rank, sizes, 0.0)) / self.plan.num_chunks for rank in range(self.plan.num_stages))

    @cached_property
    def peak_bytes(self) -> tuple[float, ...]:
        """The most bytes each rank holds at once, `static_bytes` included."""
        return tuple(max(size_bytes) for size_bytes in self._held_bytes())

    @cached_property
    def memory(self) -> tuple[tuple[Array, Array], ...]:
        """The bytes each rank holds: (seconds, bytes) at each change; a value is valid until the next change.

        F allocates its activations when it starts; B and W free them when they end.
        """
        return tuple(map(self._course, range(self.plan.num_stages), self._held_bytes()))

    def held(self, rank: int) -> tuple[Array, Array]:
        """The micro-batches a rank holds, counted as in `in_flight`: (seconds, micro-batches), as `memory`."""
        held = self._held(rank, [1.0] * self.plan.num_pieces, 0.0)
        return self._course(rank, [count / self.plan.num_chunks for count in held])

    def _course(self, rank: int, held: list[float]) -> tuple[Array, Array]:
        moments = zip(self.plan.actions[rank], plain(self.start_s[rank]), plain(self.end_s[rank]), strict=True)
        changes_s = [start if action.kind is Kind.F else end for action, start, end in moments]
        times_s, sizes = arrays([0.0, *changes_s], held)
        return times_s, sizes

    def _held(self, rank: int, sizes: list[float], released_at_input: float) -> list[float]:
        """Memory of a rank at the start and after each of its actions; `sizes[piece]` for a micro-batch at a piece."""
        shares = {Kind.F: 1.0, Kind.B: -1.0, Kind.I: -released_at_input, Kind.W: released_at_input - 1.0}
        row = self.plan.actions[rank]
        return list(accumulate((shares[action.kind] * sizes[action.stage] for action in row), initial=0.0))

    def _held_bytes(self) -> Iterator[list[float]]:
        costs = self.costs.of_pieces(self.plan)
        for rank, size in enumerate(costs.static_bytes):
            held = self._held(rank, costs.activation_bytes, self.costs.released_at_input)
            yield [size + each for each in held]

    @cached_property
    def timeline(self) -> Timeline:
        """One span per action, named as in the plan ("1F0")."""
        spans = []
        for rank, row in enumerate(self.plan):
            times = zip(row, plain(self.start_s[rank]), plain(self.end_s[rank]), strict=True)
            spans += [Span(rank, COMPUTE, str(action), action.kind.phase, a, b) for action, a, b in times]
        return Timeline(tuple(spans), self.plan.num_stages)

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
    """Start and end of every action of a plan, in any order that can be executed.

    `costs`: of the actions; None: F, I and W take 1 s, B 2 s, messages nothing. ValueError: costs that do not fit the
    plan, and a plan that deadlocks.
    """
    costs = costs or Costs()
    rows = Lowered.of(plan, costs.of_pieces(plan), costs.overlap)
    start_s, end_s = _run(plan, rows)
    makespan_s = max((end[-1] for end in end_s if end), default=0.0)
    return Replay(plan, costs, arrays(*start_s), arrays(*end_s), makespan_s, rows)


def _run(plan: Plan, rows: Lowered) -> tuple[list[list[float]], list[list[float]]]:
    """Starts and ends of each rank's actions: a rank runs until an input is missing, and continues when it arrives."""
    keys, needs, lags, gaps, times = rows.key, rows.need, rows.lag_s, rows.gap_s, rows.time_s
    bounds = rows.bounds
    ends: list[Any] = [None] * rows.num_ends
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
    over = [ends[key] for key in keys]
    cuts = list(pairwise(bounds))
    return [starts[a:b] for a, b in cuts], [over[a:b] for a, b in cuts]


def _check_range(plan: Plan) -> None:
    pieces = [action.stage for row in plan for action in row]
    microbatches = [action.microbatch for row in plan for action in row]
    ranges = (("piece", pieces, plan.num_pieces), ("micro-batch", microbatches, plan.num_microbatches))
    for name, found, count in ranges:
        if found and not 0 <= min(found) <= max(found) < count:
            raise ValueError(f"a {name} of the plan is between 0 and {count - 1}: got {min(found)} to {max(found)}")
