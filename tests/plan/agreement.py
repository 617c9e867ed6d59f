"""When the planner and the simulator agree on a step: time and memory; seconds on the wires of every axis."""

from typing import Any

import numpy as np
import pytest

from lablib import Run
from lablib.plan import Prediction
from lablib.record.memory import CATEGORIES
from lablib.record.timeline import Span

_TIME, _MEMORY, _WIRES = 0.05, 0.02, 0.05
_TIED = 0.002  # moments of a step that hold nearly as much as its peak


def agrees(run: Run, prediction: Prediction, stage_ranks: list[int], skipped: str = "", together: bool = False) -> None:
    """Step time; peak of every stage; and its categories, each to 2% of itself or to half a percent of the peak.

    `together`: activations that came over the wires, and those that did not, are one category.
    """
    setup_ends_s = max((s.end_s for s in run.timeline.spans if s.phase.split("/")[0] == "setup"), default=0.0)
    measured_s = run.timeline.without("setup").makespan_s
    assert prediction.step_time_s == pytest.approx(measured_s, rel=_TIME)
    for stage, rank in enumerate(stage_ranks):
        times_s, held = run.memory.curve(rank)
        # A model is built in 64 bits, which may need more than its step.
        held = {name: size[times_s >= setup_ends_s] for name, size in held.items()}
        # Gradients in 32 bits, which a program makes for its masters, are states to the memory tracker.
        held["states"] = held["gradient"] + held["optimizer state"]
        total = np.sum([held[name] for name in CATEGORIES], axis=0)
        peak = total.max()
        assert prediction.stage_bytes[stage] == pytest.approx(peak, rel=_MEMORY), f"stage {stage}"
        expected = {"communication": prediction.memory[stage]["communication buffer"], **prediction.memory[stage]}
        expected["states"] = expected["gradient"] + expected["optimizer state"]
        held["kept"] = held["activation"] + held["communication"] + held["other"]
        expected["kept"] = expected["activation"] + expected["communication"] + expected["other"]
        names = {"parameter", "states", "activation", "communication", "other"} - {skipped}
        names = {"parameter", "states", "kept"} if together else names
        # Of several moments at the peak the planner may name another than the first.
        agreeing = np.asarray(total >= (1 - _TIED) * peak)
        for name in names:
            tolerance = np.maximum(_MEMORY * held[name], 0.005 * peak)
            agreeing &= np.abs(held[name] - expected[name]) <= tolerance
        assert agreeing.any(), (
            f"stage {stage}: { {name: held[name][total.argmax()] for name in held} } and {prediction.memory[stage]}"
        )


def agrees_on_communication(
    run: Run, prediction: Prediction, stage_ranks: list[int], collectives: str, has_exposed: bool = False
) -> None:
    """Seconds on the wires of every axis to 5%; with `has_exposed` also those not hidden, to 5% of all of the axis.

    The ranks of the stages are looked at, and of each axis the one with most. `collectives`: the axis they are of;
    messages are the pipeline's, and count for who sends them.
    """
    step = run.timeline.without("setup")
    totals_s = {axis: 0.0 for axis in prediction.communication}
    for rank in stage_ranks:
        spans = [s for s in step.select(rank=rank, stream="comm") if not _is_of_buckets(s)]
        sent_s = sum(s.duration_s for s in spans if s.stream.endswith(":send"))
        collective_s = sum(s.duration_s for s in spans if not s.stream.endswith((":send", ":recv")))
        totals_s["pipeline"] = max(totals_s["pipeline"], sent_s)
        totals_s[collectives] = max(totals_s[collectives], collective_s)
    for axis, (total_s, _) in prediction.communication.items():
        assert total_s == pytest.approx(totals_s[axis], rel=_WIRES), axis
    if has_exposed:
        early_s = sum(s.duration_s for s in step.select(rank=stage_ranks[0], stream="comm") if _is_of_buckets(s))
        exposed_s = step.exposed_s(stage_ranks[0]) - early_s
        total_s, shown_s = prediction.communication[collectives]
        assert shown_s == pytest.approx(exposed_s, abs=_WIRES * total_s + 1e-12), collectives


def thorough(value: Any) -> Any:
    """A parameter that tells nothing another does not, for a run with --all."""
    return pytest.param(value, marks=pytest.mark.thorough)


def _is_of_buckets(span: Span) -> bool:
    """Once in a training DDP's ranks agree on the order of their buckets, in the second forward pass."""
    return span.name == "broadcast" and span.phase == "forward"
