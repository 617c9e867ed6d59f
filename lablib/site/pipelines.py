"""Pipelines of the page: the schedule of the plan with its own times, or a free choice, simulated action by action.

A picture has room for few actions: of a plan with many micro-batches or stages, the first are simulated as a step of
their own.

Simplified: the actions of a plan are its layers, embedding and head with recomputation, without the waiting for
ZeRO-3 and for the host.
"""

from typing import Any

from lablib.pipeline.costs import Costs
from lablib.pipeline.plan import Plan
from lablib.pipeline.schedules import SCHEDULES, make
from lablib.pipeline.simulation import Simulation, read_plan, simulate
from lablib.plan.arguments import possible, setup_of
from lablib.plan.setup import Setup
from lablib.plan.step import layers_of, step_of
from lablib.site.settings import OWN, Settings, arguments, number, whole

MAX_STAGES, MAX_MICROBATCHES = 32, 32


def pipeline(settings: Settings) -> dict[str, Any]:
    """The simulated actions of each rank. Raises ValueError for settings that are no pipeline."""
    simulation = _of_plan(settings) if settings["follow"] == "yes" else _free(settings)
    replay, plan = simulation.replay, simulation.replay.plan
    return {
        "name": plan.name,
        "stages": plan.num_stages,
        "microbatches": plan.num_microbatches,
        "makespan_s": replay.makespan_s,
        "bubble": replay.bubble_fraction,
        "busy_s": list(replay.busy_s),
        "in_flight": list(replay.in_flight),
        "actions": [
            [[str(action), str(action.kind), float(start), float(end)] for action, start, end in zip(*row, strict=True)]
            for row in zip(plan, replay.start_s, replay.end_s, strict=True)
        ],
        "critical": [[each.rank, each.index] for each in simulation.critical_path],
        "circle": [str(step) for step in simulation.circle],
    }


def _free(settings: Settings) -> Simulation:
    costs = Costs(
        forward_s=number(settings, "p_forward"),
        input_s=number(settings, "p_input"),
        weight_s=number(settings, "p_weight"),
        send_s=number(settings, "p_send"),
        overlap=settings["p_overlap"] == "yes",
    )
    if settings["p_schedule"] == OWN:
        return simulate(read_plan(settings["p_own"]), costs)
    stages, microbatches = whole(settings, "p_stages"), whole(settings, "p_microbatches")
    for name, count, most in (("stages", stages, MAX_STAGES), ("micro-batches", microbatches, 8 * MAX_MICROBATCHES)):
        if count > most:
            raise ValueError(f"a picture has {most} {name} or fewer: got {count}; try {most}")
    schedule = SCHEDULES[settings["p_schedule"]]
    chunks = whole(settings, "p_chunks") if schedule.takes_chunks else schedule.num_chunks
    return simulate(make(settings["p_schedule"], stages, microbatches, chunks), costs)


def _of_plan(settings: Settings) -> Simulation:
    setup = possible(setup_of(**arguments(settings)))
    stages, chunks = min(setup.pipeline, MAX_STAGES), setup.chunks
    microbatches = min(setup.num_microbatches, MAX_MICROBATCHES)
    if setup.schedule in ("interleaved", "breadth-first") and microbatches > stages:
        microbatches -= microbatches % stages
    plan = make(setup.schedule, stages, microbatches, chunks)
    return simulate(plan, costs_of(setup, plan))


def costs_of(setup: Setup, plan: Plan) -> Costs:
    """Seconds of the actions of a plan's pieces."""
    machine, pieces, p = setup.machine, step_of(setup).pieces, setup.pipeline
    recomputed_s = machine.time_s(setup.recompute.recomputed(pieces.layer, machine.stack, setup.layers))
    layer = (pieces.forward_s, pieces.input_s + recomputed_s, pieces.weight_s)
    layers = [layers_of(setup.model.num_layers, p, rank) / plan.num_chunks for rank in plan.rank_of]
    times = [[count * time_s for count in layers] for time_s in layer]
    for column, first_s, last_s in zip(times, pieces.embedding_s, pieces.head_s, strict=True):
        column[0] += first_s
        column[-1] += last_s
    part = setup.tensor if machine.stack.splits_messages else 1
    send_s = machine.collective_s("send", setup.whole_bytes / part, p, setup.num_ranks // p)
    forward_s, input_s, weight_s = times
    return Costs(forward_s, None, input_s, weight_s, send_s, machine.stack.pipeline_overlap)
