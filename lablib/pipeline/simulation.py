"""Simulate a plan for a picture: progress, critical path, deadlock, and memory.

A plan is replayed to its end, or up to its deadlock; `circle` then lists the ranks that wait for each other.

Source: replay.py, critical_path.py, deadlock.py, rules.py.
Simplified: see replay.py.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

from lablib.cost.arrays import Array, arrays, plain
from lablib.pipeline import rules
from lablib.pipeline.costs import Costs
from lablib.pipeline.critical_path import Critical, critical_path
from lablib.pipeline.deadlock import BlockedStep, find_deadlock, steps_done
from lablib.pipeline.plan import Action, Plan
from lablib.pipeline.replay import Replay, replay
from lablib.pipeline.validate import limits_of
from lablib.signature import Range, checked

MAX_MOMENTS = 200
Limit = Annotated[float, Range(gt=0, example=4)]  # of micro-batches on a rank; infinity: none


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated plan."""

    plan: Plan  # the whole plan
    replay: Replay  # of all actions that can run
    circle: tuple[BlockedStep, ...]  # the ranks that wait for each other; empty if the plan runs to its end
    max_in_flight: tuple[float, ...] | None  # the micro-batches that each rank may hold at once; None: no limit

    @cached_property
    def critical_path(self) -> tuple[Critical, ...]:
        """The actions that determine the makespan; empty if the plan deadlocks."""
        return () if self.circle else critical_path(self.replay)

    @property
    def ranks_over(self) -> tuple[int, ...]:
        """The ranks that exceed their limit."""
        limits = self.max_in_flight or ()
        held = zip(self.replay.in_flight, limits, strict=bool(limits))
        return tuple(rank for rank, (most, limit) in enumerate(held) if most > limit + 1e-9)

    @cached_property
    def moments_s(self) -> Array:
        """The times at which an action begins or ends, in order, at most `MAX_MOMENTS`."""
        every = sorted({0.0}.union(*map(plain, (*self.replay.start_s, *self.replay.end_s))))
        if len(every) > MAX_MOMENTS:
            every = [every[round(k * (len(every) - 1) / (MAX_MOMENTS - 1))] for k in range(MAX_MOMENTS)]
        return arrays(every)[0]

    def at(self, time_s: float) -> tuple[Action | None, ...]:
        """The action of each rank at this second; None if it idles. At the end of one action the next has begun."""
        found: list[Action | None] = []
        for row, start_s, end_s in zip(self.replay.plan, self.replay.start_s, self.replay.end_s, strict=True):
            # The last that has begun; an action of zero seconds is over when it begins.
            index = bisect_right(start_s, time_s) - 1
            found.append(row[index] if index >= 0 and end_s[index] > time_s else None)
        return tuple(found)


@checked
def simulate(
    plan: Plan, costs: Costs | None = None, max_in_flight: Limit | Sequence[Limit] | None = None
) -> Simulation:
    """Simulate a plan.

    Arguments:
        plan: any plan that keeps rules R1 to R3 of validate.py; a deadlock is reported, not raised.
        costs: of its actions; None: as in `replay`.
        max_in_flight: limit of micro-batches that a rank holds at once, with 1/v for a piece of a rank with v pieces;
            one number for all ranks, or one for each.

    Raises:
        ValueError: an action is missing, repeated, on another rank or before one that it needs on the same rank; costs
            that do not fit; not one limit for each rank.
    """
    limits = None if max_in_flight is None else limits_of(max_in_flight, plan.num_stages)
    broken = list(rules.places(plan)) or [*rules.once(plan), *rules.order(plan)]
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise ValueError(f"{plan.name}: {broken[0]}{more}.")
    try:
        return Simulation(plan, replay(plan, costs), (), limits)
    except ValueError:
        circle = find_deadlock(plan)
        if not circle:  # the costs do not fit
            raise
    rows = tuple(row[:count] for row, count in zip(plan, steps_done(plan), strict=True))
    return Simulation(plan, replay(replace(plan, actions=rows), costs), circle, limits)


@checked
def read_plan(text: str) -> Plan:
    """Parse a plan: one line per rank, actions separated by spaces; text before a colon is a name.

        rank 0:  F0 F1 B0 B1          0F0 0F1 0B0 0B1
        rank 1:  F0 B0 F1 B1          1F0 1B0 1F1 1B1

    An action without a leading number is at the piece with the number of the line. A piece is on the rank of the line
    in which it first occurs. ValueError: no line, or a word that is not an action.
    """
    rows = [line.split(":", 1)[-1].replace(",", " ").split() for line in text.splitlines() if line.strip()]
    if not rows:
        raise ValueError('a plan has a line of actions for each rank: got none; try "F0 F1 B0 B1".')
    lines = [" ".join(each if each[:1].isdigit() else f"{rank}{each}" for each in row) for rank, row in enumerate(rows)]
    plan = Plan.parse("your plan", lines)
    holds: dict[int, int] = {}
    for rank, row in enumerate(plan):
        for action in row:
            holds.setdefault(action.stage, rank)
    return replace(plan, rank_of=tuple(holds.get(piece, rank) for piece, rank in enumerate(plan.rank_of)))
