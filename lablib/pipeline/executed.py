"""A measured run of a plan: the timeline of its actions, comparable to the replay's, and their costs.

The executor names its computation after the action, "forward 0F0", "input gradient 2I1". From the timeline of a run
this file reads one span per action, named as in the plan, and from these spans the costs for a replay:

    run = launch(program, ranks=4)
    done = executed(run.timeline, plan)                      one span per action, as `replay(plan).timeline`
    replay(plan, measured_costs(run.timeline, plan))         the expected time of the plan

Simplified: an action lasts from its first operator to its last; its cost is the mean over the micro-batches.
"""

from collections import defaultdict
from dataclasses import replace

from lablib.pipeline.costs import Costs
from lablib.pipeline.plan import Kind, Plan
from lablib.record.timeline import COMPUTE, Span, Timeline
from lablib.signature import checked


@checked
def executed(timeline: Timeline, plan: Plan, step: int = -1) -> Timeline:
    """One span per action of one step of a run, named "1F0" as in the plan; second 0 is the start of the first.

    `timeline`: of a run of the executor with this plan, on its ranks. `step`: its number in the run; -1: the last.
    ValueError: the run has no such step of this plan.
    """
    spans = [span for rank in range(plan.num_stages) for span in _actions(timeline, plan, rank, step)]
    first_s = min((span.start_s for span in spans), default=0.0)
    moved = [replace(span, start_s=span.start_s - first_s, end_s=span.end_s - first_s) for span in spans]
    return Timeline(tuple(moved), plan.num_stages)


def _actions(timeline: Timeline, plan: Plan, rank: int, step: int) -> list[Span]:
    row = plan.actions[rank]
    if not row:
        return []
    at = {f"{action.kind.phase} {action}": index for index, action in enumerate(row)}
    parts = [span for span in timeline.select(rank) if span.stream == COMPUTE and span.phase in at]
    steps: list[dict[int, Span]] = []
    last = len(row)
    for span in sorted(parts, key=lambda span: span.start_s):
        if at[span.phase] < last:
            steps.append({})
        last = at[span.phase]
        before = steps[-1].get(last)
        steps[-1][last] = span if before is None else _joined(before, span)
    if not -len(steps) <= step < len(steps):
        raise ValueError(
            f"rank {rank} did {len(steps)} steps of {plan.name}: got step={step}; give the plan that was run, and the "
            "timeline of a run with trace=True."
        )
    missing = [str(each) for i, each in enumerate(row) if i not in steps[step] and each.kind is not Kind.W]
    if missing:
        raise ValueError(f"rank {rank} did not do {missing[0]} of {plan.name}: give the plan that was run.")
    found: list[Span] = []
    now_s = min(span.start_s for span in steps[step].values())
    for index, action in enumerate(row):
        # An action without computation, such as W of a piece without products, takes no time.
        span = steps[step].get(index, Span(rank, COMPUTE, "", "", now_s, now_s))
        found.append(replace(span, name=str(action), phase=action.kind.phase))
        now_s = span.end_s
    return found


def _joined(before: Span, span: Span) -> Span:
    """Both spans as one: from the start of the first to the later end, with the work of both."""
    return replace(
        before,
        end_s=max(before.end_s, span.end_s),
        flops=before.flops + span.flops,
        size_bytes=before.size_bytes + span.size_bytes,
    )


@checked
def measured_costs(timeline: Timeline, plan: Plan, step: int = -1, send_s: float | None = None) -> Costs:
    """Measured costs of the actions of a run, each the mean over its micro-batches; arguments as for `executed`.

    `send_s`: of a message; None: the fastest message between the ranks of each boundary.
    """
    took: dict[tuple[Kind, int], list[float]] = defaultdict(list)
    done = executed(timeline, plan, step)
    for rank, row in enumerate(plan):
        for action, span in zip(row, done.select(rank), strict=True):
            took[action.kind, action.stage].append(span.duration_s)
    means = {key: sum(seconds) / len(seconds) for key, seconds in took.items()}
    each = {kind: [means.get((kind, piece), 0.0) for piece in range(plan.num_pieces)] for kind in Kind}
    # A piece has either B or the split actions I and W.
    whole = [b or i + w for b, i, w in zip(each[Kind.B], each[Kind.I], each[Kind.W], strict=True)]
    sends = [_send_s(timeline, a, b) for a, b in zip(plan.rank_of, plan.rank_of[1:], strict=False)]
    return Costs(each[Kind.F], whole, each[Kind.I], each[Kind.W], sends if send_s is None else send_s)


def _send_s(timeline: Timeline, a: int, b: int) -> float:
    """Seconds of a message between two ranks without contention: the fastest of all, in both directions."""
    ways = [(rank, to) for rank, to in ((a, b), (b, a)) if a != b]
    spans = [(span, to) for rank, to in ways for span in timeline.select(rank) if span.is_communication]
    return min((span.duration_s for span, to in spans if span.name == f"send to {to}"), default=0.0)
