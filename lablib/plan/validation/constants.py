"""The constants of the planner that may be fitted, with the bounds that physics allows: those of plan/losses.py.

product_share, memory_share     of what kernels reach alone: 0.6 to 1
inside_share, outside_share     of a wire's specification: 0.5 to 1
dispatch_s                      of one eager operator on the host: 5 to 200 us
step_s                          fixed a step: 0.1 to 50 ms
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from lablib.plan.losses import Losses
from lablib.plan.predict import predict
from lablib.plan.validation.cross_validate import Constant
from lablib.plan.validation.score import Predictor

BOUNDS: Mapping[str, tuple[float, float]] = {
    "product_share": (0.6, 1.0),
    "memory_share": (0.6, 1.0),
    "inside_share": (0.5, 1.0),
    "outside_share": (0.5, 1.0),
    "generation_share": (0.3, 1.0),
    "dispatch_s": (5e-6, 200e-6),
    "step_s": (1e-4, 50e-3),
}


def constants() -> dict[str, Constant]:
    """The constants as they are now."""
    now = Losses()
    return {name: Constant(getattr(now, name), least, most) for name, (least, most) in BOUNDS.items()}


def planner_with(values: Mapping[str, float]) -> Predictor:
    """The planner with these values in the place of its own."""
    return partial(predict, losses=replace(Losses(), **values))
