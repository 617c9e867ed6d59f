"""Exact makespan of a plan with very many micro-batches, from two small plans and their period.

After the fill, a schedule repeats its rows every q micro-batches, and after a while the times repeat too: q more
micro-batches shift every moment by the same number of seconds.

    x(k)            the ends that later actions wait for, after k rounds of q micro-batches
    x(k + 1)      = M(x(k))          the same max-plus map each round (maxima and sums only)
    x(k + 1)      = x(k) + c         if this holds once, on all ranks, it holds always, as M(x + c) = M(x) + c
    makespan(m + q) = makespan(m) + c

Two plans, of m and of m + q micro-batches, show it. Their rows must have the same beginning, then q more micro-batches,
and the same end except for the numbers; and from some slice through all ranks on, every end must be c later, with its
inputs. Comparing the makespans is not enough: a slightly slower rank takes many micro-batches to become the bottleneck.

Cost: replays of plans of some 4 p to 16 p micro-batches, for any m. Without a period, the full plan is replayed: GPipe
and breadth-first let a fast rank run ahead without bound (closed_form.py has both), and V-Min mostly ends differently.
Legend: p ranks, m micro-batches, q the period, c its seconds.
Source: Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", 1992, section 3.7 (a max-plus matrix is
ultimately periodic).
Simplified: the schedule is assumed to continue with m as it did from m to m + q.
"""

from collections.abc import Callable
from dataclasses import dataclass

from lablib.cost.arrays import Array, np
from lablib.pipeline.costs import Costs
from lablib.pipeline.plan import Plan
from lablib.pipeline.replay import Replay, replay
from lablib.signature import checked, shown

_ROUNDING = 1e-12  # of the makespan


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Makespan and bubble of a plan, and its period."""

    makespan_s: float  # makespan_s, bubble_fraction: as from `replay` of the whole plan
    bubble_fraction: float
    period: int  # micro-batches q after which the times repeat; 0 if they do not, and the whole plan was replayed
    period_s: float  # seconds of q more micro-batches
    num_replayed: int  # micro-batches of the largest plan that was replayed


@checked
def steady_state(plan_of: Callable[[int], Plan], num_microbatches: int, costs: Costs | None = None) -> SteadyState:
    """Makespan and bubble of the plan of many micro-batches.

    `plan_of`: a schedule as a function of the number of micro-batches, e.g. `partial(one_f_one_b, 16)`. Numbers that it
    refuses with a ValueError are skipped, but not `num_microbatches`.
    """
    plans = (_plan_or_none(plan_of, number) for number in range(1, num_microbatches + 1))
    num_stages = (next(filter(None, plans), None) or plan_of(num_microbatches)).num_stages
    size = 4 * num_stages
    while 2 * size < num_microbatches:
        # With the same remainder as m, so that they differ by whole rounds.
        plan = _plan_or_none(plan_of, size + (num_microbatches - size) % num_stages)
        if plan is not None:
            small = replay(plan, costs)
            for period in _periods(small):
                if found := _extend(plan_of, small, period, num_microbatches, costs):
                    return found
        size *= 2
    whole = replay(plan_of(num_microbatches), costs)
    return SteadyState(whole.makespan_s, whole.bubble_fraction, 0, 0.0, num_microbatches)


def _plan_or_none(plan_of: Callable[[int], Plan], num_microbatches: int) -> Plan | None:
    """The plan of this number of micro-batches; None if the schedule is not defined for it."""
    try:
        plan = plan_of(num_microbatches)
    except ValueError:
        return None
    except TypeError as error:
        rule = "plan_of must take a number of micro-batches"
        raise TypeError(f"{rule}: got {shown(plan_of)}: {error}; try lambda m: gpipe(4, m)") from error
    if not isinstance(plan, Plan):
        raise TypeError(f"plan_of must return a Plan: got {shown(plan)}; try lambda m: gpipe(4, m)")
    return plan


def _periods(small: Replay) -> list[int]:
    """The two smallest numbers of micro-batches after which the middle of a plan seems to repeat."""
    ends, m, tolerance = _ends(small), small.plan.num_microbatches, _tolerance(small)
    found = []
    for period in range(1, small.plan.num_stages + 1):
        middle = ends[:, m // 2 : m // 2 + period] - ends[:, m // 2 - period : m // 2]
        if np.ptp(middle[~np.isnan(middle)]) <= tolerance:
            found.append(period)
    return found[:1] + [small.plan.num_stages] * (small.plan.num_stages not in found[:1] and bool(found))


def _extend(
    plan_of: Callable[[int], Plan], small: Replay, period: int, num_microbatches: int, costs: Costs | None
) -> SteadyState | None:
    """The makespan of m micro-batches, if `period` more than in the small plan shift all times by the same seconds."""
    m = small.plan.num_microbatches
    if (num_microbatches - m) % period:
        return None
    plan = _plan_or_none(plan_of, m + period)
    if plan is None:
        return None
    large = replay(plan, costs)
    if not _repeats(small, large, period):
        return None
    rounds = (num_microbatches - m) // period
    period_s = large.makespan_s - small.makespan_s
    makespan_s = small.makespan_s + rounds * period_s
    busy_s = sum(small.busy_s) + rounds * (sum(large.busy_s) - sum(small.busy_s))
    time_s = small.plan.num_stages * makespan_s
    return SteadyState(makespan_s, 1 - busy_s / time_s if time_s else 0.0, period, period_s, m + period)


def _repeats(small: Replay, large: Replay, period: int) -> bool:
    """Whether all times shift by the same seconds after some slice through all ranks, in the common beginning."""
    before, after, tolerance = _ends(small), _ends(large), _tolerance(small)
    period_s = large.makespan_s - small.makespan_s
    is_later = np.abs(after[:, period:] - before - period_s) <= tolerance
    is_same = np.abs(after[:, : before.shape[1]] - before) <= tolerance
    for rank in range(small.plan.num_stages):
        moments, needs = _row(small, rank)
        others, _ = _row(large, rank)
        later = is_later[tuple(moments.T)] & (is_later[tuple(needs.T)] | (needs[:, 0] < 0))
        slice_at = len(later) - _count_true(later[::-1])
        common = _count_true((moments == others[: len(moments)]).all(1))
        if slice_at >= common or not is_same[tuple(moments[slice_at])]:
            return False
        # The end of the longer plan is the end of the shorter, renumbered.
        end = others[len(others) - len(moments) + slice_at :] - (0, period)
        if not (moments[slice_at:] == end).all():
            return False
    return True


def _count_true(flags: Array) -> int:
    return len(flags) if flags.all() else int(np.argmin(flags))


def _ends(of: Replay) -> Array:
    """The end of each moment that an action can wait for: [F, B or I, and W of each piece, micro-batch]; NaN: none."""
    m = of.plan.num_microbatches
    ends = np.full(3 * of.plan.num_pieces * m, np.nan)
    ends[of.rows.key] = np.concatenate(of.end_s)
    return ends.reshape(-1, m)


def _row(of: Replay, rank: int) -> tuple[Array, Array]:
    """The moments that each action of a rank makes and needs, as places in `_ends`; (-1, 0): none."""
    m, here = of.plan.num_microbatches, slice(of.rows.bounds[rank], of.rows.bounds[rank + 1])
    key, need = np.array(of.rows.key[here]), np.array(of.rows.need[here])
    moments, needs = np.stack(np.divmod(key, m), 1), np.stack(np.divmod(need, m), 1)
    needs[need == of.rows.num_ends - 1] = (-1, 0)
    return moments, needs


def _tolerance(of: Replay) -> float:
    return _ROUNDING * max(of.makespan_s, 1e-300)
