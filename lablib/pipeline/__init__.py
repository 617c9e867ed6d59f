"""Pipeline schedules as data: what each stage does, in which order; and what that costs.

plan.py          an action, a plan
costs.py         what the actions take
replay.py        when each runs, what each rank holds
closed_form.py   the same as formulas, for a planner
"""

# ruff: noqa: I001  (in reading order)
from lablib.pipeline.plan import Action, Kind, Plan
from lablib.pipeline.costs import Costs
from lablib.pipeline.replay import Replay, replay

__all__ = ["Action", "Kind", "Plan", "Costs", "Replay", "replay"]
