"""The pipeline schedules, one per file: functions from sizes to a `Plan`.

    gpipe(p, m)                   all forwards, all backwards
    one_f_one_b(p, m)             forwards and backwards in turns
    interleaved_1f1b(p, m, v)     the same, with v small pieces per rank
    breadth_first(p, m, v)        as gpipe, with v small pieces per rank
    zb_h1(p, m) zb_h2(p, m)       weight gradients fill the bubble
    zb_v(p, m) dualpipe_v(p, m)   the same, with two pieces per rank in a V
    v_half(p, m) v_min(p, m)      the same, with less memory

row.py writes one rank's actions as phases and checks sizes, v_blocks.py repeats the building block of the V schedules.

`SCHEDULES` has them by name, and `make("zb-v", 4, 8)` is `zb_v(4, 8)`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lablib.errors import unknown_name
from lablib.pipeline.plan import Plan
from lablib.pipeline.schedules.breadth_first import breadth_first as breadth_first
from lablib.pipeline.schedules.dualpipe_v import dualpipe_v as dualpipe_v
from lablib.pipeline.schedules.gpipe import gpipe as gpipe
from lablib.pipeline.schedules.interleaved_1f1b import interleaved_1f1b as interleaved_1f1b
from lablib.pipeline.schedules.one_f_one_b import one_f_one_b as one_f_one_b
from lablib.pipeline.schedules.v_half import v_half as v_half
from lablib.pipeline.schedules.v_min import v_min as v_min
from lablib.pipeline.schedules.zb_h1 import zb_h1 as zb_h1
from lablib.pipeline.schedules.zb_h2 import zb_h2 as zb_h2
from lablib.pipeline.schedules.zb_v import zb_v as zb_v


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule and its sizes."""

    plan: Callable[..., Plan]  # the function that makes its plan
    takes_chunks: bool = False  # whether `plan` has a third argument, the pieces on each rank
    num_chunks: int = 1  # otherwise: the fixed number of pieces on each rank
    defers_weights: bool = False  # whether weight gradients (W) are computed apart from those of inputs (I)


SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        "gpipe": Schedule(gpipe),
        "1f1b": Schedule(one_f_one_b),
        "interleaved": Schedule(interleaved_1f1b, takes_chunks=True),
        "breadth-first": Schedule(breadth_first, takes_chunks=True),
        "zb-h1": Schedule(zb_h1, defers_weights=True),
        "zb-h2": Schedule(zb_h2, defers_weights=True),
        "zb-v": Schedule(zb_v, num_chunks=2, defers_weights=True),
        "dualpipe-v": Schedule(dualpipe_v, num_chunks=2, defers_weights=True),
        "v-half": Schedule(v_half, num_chunks=2, defers_weights=True),
        "v-min": Schedule(v_min, num_chunks=2, defers_weights=True),
    }
)


def make(name: str, num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Plan:
    """The plan of a schedule by its name, one of `SCHEDULES`.

    `num_chunks`: pieces of the model on each rank. V-shaped schedules have 2, and accept 1 or 2.
    """
    if not isinstance(name, str) or name not in SCHEDULES:
        raise unknown_name("schedule", name, list(SCHEDULES))
    schedule = SCHEDULES[name]
    if schedule.takes_chunks:
        return schedule.plan(num_stages, num_microbatches, num_chunks)
    if num_chunks not in (1, schedule.num_chunks):
        takers = " or ".join(other for other, each in SCHEDULES.items() if each.takes_chunks)
        raise ValueError(
            f"{name} has {schedule.num_chunks} piece{'s' * (schedule.num_chunks > 1)} on each rank: "
            f"got num_chunks={num_chunks}; try num_chunks={schedule.num_chunks}, or {takers}."
        )
    return schedule.plan(num_stages, num_microbatches)
