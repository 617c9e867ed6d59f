"""Pipeline schedules as data: what each stage does, in which order; and what that costs.

plan.py     an action, a plan
"""

from lablib.pipeline.plan import Action, Kind, Plan

__all__ = ["Action", "Kind", "Plan"]
