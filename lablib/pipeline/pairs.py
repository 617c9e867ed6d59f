"""DualPipe-V with overlapped pairs: derivation of the published bubble and of the `p + 1` activations.

A plan of DualPipe-V has a forward and a backward of different micro-batches next to each other, F0 B1 and F1 B0.
Overlapped, they take FB seconds and hide each other's all-to-all; both results are available when the pair ends. Then a
rank idles

    (p - 1) (FB + B - 3 W)  =  (p - 1) (F + I - W)  +  (p - 1) (FB - F - W)        B = I + W

    F + I - W      one after the other, as ZB-H1: a forward more before the first work and an input gradient more after
                   the last, on each of the p - 1 ranks on the way; a weight gradient fills the end
    FB - F - W     added by pairs: a forward's output waits for the rest of its pair, of which a W fills a part

so of the 3 W one comes from B - W = I, one fills the drain, and one fills the wait for pairs. Activations: when the
first gradient comes to a rank, it has run 2 p forwards, as that took 2 p steps down and up the V. It holds 2 p pieces,
each half of its layers. A pair allocates for its forward before its backward frees: 2 p + 1. The authors count DualPipe
on PP = 2 p ranks, with two copies of the weights: PP / 2 - 1 for p - 1, and PP + 1 activations.

Legend: p ranks; F, I, W, B seconds of a piece; FB of a pair.
Source: the table of the README of deepseek-ai/DualPipe, 2025; DeepSeek-AI, 2024, arXiv 2412.19437, table 2. The two
parts are ours, found by replay: exact for F <= I, W <= I and FB = F + B; for a shorter FB, on the last rank.
Simplified: messages are free.
"""

from collections.abc import Sequence

from lablib.pipeline.costs import Costs
from lablib.pipeline.deadlock import Computed, given, needed
from lablib.pipeline.plan import Action, Kind, Plan
from lablib.pipeline.replay import replay
from lablib.pipeline.schedules import dualpipe_v
from lablib.signature import Count, NonNegative, checked, shown


@checked
def pairs_bubble_s(num_stages: Count, forward_s: float, input_s: float, weight_s: float, pair_s: float) -> float:
    """Idle seconds of a rank of DualPipe-V with overlapped pairs, from the seconds of a piece and of a pair."""
    return (num_stages - 1) * (pair_s + (input_s + weight_s) - 3 * weight_s)


@checked
def pairs_of(plan: Plan) -> tuple[tuple[tuple[Action, ...], ...], ...]:
    """Each rank's actions of a DualPipe-V, grouped into pairs."""
    p, m = plan.num_stages, plan.num_microbatches
    if m < 2 * p or plan.actions != dualpipe_v(p, m).actions:
        raise ValueError(f"{shown(plan.name)} has no pairs: give a plan of dualpipe_v.")
    rows = []
    for rank, row in enumerate(plan):
        # The fill comes before the first pair: F0, then F0 F1, then I1 W F1.
        below, above = plan.num_stages - 1 - rank, rank + 1
        at = 2 * below + 2 * above + 3 * below
        items: list[tuple[Action, ...]] = [(action,) for action in row[:at]]
        while at < len(row):
            size = 2 if [action.kind for action in row[at : at + 2]] == [Kind.F, Kind.B] else 1
            items.append(row[at : at + size])
            at += size
        rows.append(tuple(items))
    return tuple(rows)


@checked
def replay_pairs(plan: Plan, costs: Costs, pair_s: NonNegative) -> tuple[float, ...]:
    """Idle seconds of each rank of a `dualpipe_v` plan with overlapped pairs of `pair_s`; costs: of other actions."""
    rows, alone = pairs_of(plan), replay(plan, costs)
    took = {
        action: end_s - start_s
        for row, starts, ends in zip(plan, alone.start_s, alone.end_s, strict=True)
        for action, start_s, end_s in zip(row, starts.tolist(), ends.tolist(), strict=True)
    }
    made: dict[Computed, float] = {}
    at, now_s, busy_s = [0] * len(rows), [0.0] * len(rows), [0.0] * len(rows)
    while ready := [
        (rank, row[at[rank]])
        for rank, row in enumerate(rows)
        if at[rank] < len(row) and _needs(row[at[rank]], plan) <= made.keys()
    ]:
        for rank, item in ready:
            time_s = pair_s if len(item) > 1 else sum(took[action] for action in item)
            start_s = max([now_s[rank], *(made[event] for event in _needs(item, plan))])
            made.update({event: start_s + time_s for action in item if (event := given(action))})
            now_s[rank], busy_s[rank], at[rank] = start_s + time_s, busy_s[rank] + time_s, at[rank] + 1
    return tuple(max(now_s) - each for each in busy_s)


def _needs(item: Sequence[Action], plan: Plan) -> set[Computed]:
    """The events that an action or a pair needs from outside."""
    events = {needed(action, plan.num_pieces) for action in item} - {given(action) for action in item}
    return {event for event in events if event is not None}
