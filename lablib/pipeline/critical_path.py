"""The critical path of a replayed plan: a chain of actions, each waiting for the one before, as long as the makespan.

A faster action outside the chain does not shorten the step, and one second more on any action of the chain makes it one
second longer. So it shows what to optimize: the stages where it computes, and the boundaries where it waits for a
message.

    1F1B, 2 stages, 2 micro-batches       0F0 -> 1F0 -> 1B0 -> 1F1 -> 1B1 -> 0B1        1 + 1 + 2 + 1 + 2 + 2 = 9 s

Cost: one walk backward from the last action, at most one step per action. An action begins at the later of two moments:
its rank is free (after the rank's previous action and the gap of a blocking message), or its input has arrived (after
another action and its message). The walk goes to the later one; in a tie, to the action on the same rank.
Source: Kelley, Walker, "Critical-path planning and scheduling", 1959 (the method).
Simplified: of several chains of the same length, one is shown.
"""

from bisect import bisect_right
from dataclasses import dataclass

from lablib.cost.arrays import plain
from lablib.pipeline.plan import Action
from lablib.pipeline.replay import Replay
from lablib.signature import checked


@dataclass(frozen=True, slots=True)
class Critical:
    """One action of the path."""

    rank: int  # rank, index: position in the plan
    index: int
    action: Action  # the action
    start_s: float  # start_s, end_s: its start and end
    end_s: float
    lag_s: float  # seconds between the end of the action before it on the path and its start: a message; 0 for none


@checked
def critical_path(replay: Replay) -> tuple[Critical, ...]:
    """The actions that determine the makespan, from the first to the last; empty for a plan without actions."""
    rows, bounds = replay.rows, replay.rows.bounds
    if not rows.key:
        return ()
    starts, ends = ([time_s for row in rows for time_s in plain(row)] for rows in (replay.start_s, replay.end_s))
    maker = [-1] * rows.num_ends
    for action, key in enumerate(rows.key):  # the action that ends at each moment
        maker[key] = action
    firsts = set(bounds)
    path: list[Critical] = []
    at = ends.index(max(ends))
    while at >= 0:
        # max(own rank is free, input has arrived): the larger one is bit for bit the number that replay computed.
        own = -1 if at in firsts else at - 1
        needed = maker[rows.need[at]]
        free_s = ends[own] + rows.gap_s[at] if own >= 0 else 0.0
        came_s = ends[needed] + rows.lag_s[at] if needed >= 0 else 0.0
        before = own if own >= 0 and free_s >= came_s else needed
        lag_s = starts[at] - ends[before] if before >= 0 else 0.0
        rank = bisect_right(bounds, at) - 1
        index = at - bounds[rank]
        action = replay.plan.actions[rank][index]
        path.append(Critical(rank, index, action, starts[at], ends[at], lag_s))
        at = before
    return tuple(reversed(path))
