"""A table of plans by makespan, fastest first, with the reason why a plan does not count.

Source: replay.py (times), validate.py (rules). Simplified: as replay.py.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from lablib.pipeline.costs import Costs
from lablib.pipeline.plan import Plan
from lablib.pipeline.simulation import Limit, Simulation, read_plan, simulate
from lablib.signature import NonEmpty, checked
from lablib.text.units import plural


@checked
def leader_board(
    plans: Annotated[Mapping[str, Plan | str], NonEmpty()],
    costs: Costs | None = None,
    max_in_flight: Limit | Sequence[Limit] | None = None,
) -> Any:
    """The plans by makespan, as a pandas table. A bad plan is a row with a reason, not an error.

    Arguments:
        plans: by name; a text is read by `read_plan`. The first sets the numbers of stages and micro-batches.
        max_in_flight: limit of micro-batches that a stage holds, one number for all or one for each; None: no limit.
    """
    import pandas as pd

    first = next(iter(plans.values()))
    size = _size(simulate(_read(first), costs, max_in_flight).plan)  # an error in the first plan is raised
    rows = {name: _row(plan, costs, max_in_flight, size) for name, plan in plans.items()}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("plan")
    order = ["does not count", "makespan (s)"]
    return table.sort_values(order, kind="stable", key=lambda one: one != "" if one.name == order[0] else one)


def _row(
    plan: Plan | str, costs: Costs | None, limit: float | Sequence[float] | None, size: tuple[int, int]
) -> dict[str, float | str | None]:
    try:
        read = _read(plan)
        # A plan for another number of stages does not count, and these limits are not for its stages.
        found = simulate(read, costs, None if read.num_stages != size[0] else limit)
    except ValueError as error:
        return {"makespan (s)": None, "bubble (%)": None, "holds": None, "does not count": str(error)}
    done = found.replay
    ends = not found.circle
    return {
        "makespan (s)": done.makespan_s if ends else None,
        "bubble (%)": round(100 * done.bubble_fraction, 1) if ends else None,
        "holds": max(done.in_flight),
        "does not count": _reason(found, size),
    }


def _read(plan: Plan | str) -> Plan:
    return read_plan(plan) if isinstance(plan, str) else plan


def _size(plan: Plan) -> tuple[int, int]:
    return plan.num_stages, plan.num_microbatches


def _reason(found: Simulation, size: tuple[int, int]) -> str:
    plan = found.plan
    if _size(plan) != size:
        wanted, got = (f"{plural(p, 'stages')} and {plural(m, 'micro-batches')}" for p, m in (size, _size(plan)))
        return f"it is for {got}, not {wanted}"
    if found.circle:
        return "; ".join(map(str, found.circle))
    if found.ranks_over and found.max_in_flight:
        rank = found.ranks_over[0]
        return f"rank {rank} holds more than {found.max_in_flight[rank]:g}"
    return ""
