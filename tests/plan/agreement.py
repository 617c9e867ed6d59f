"""When the planner and the simulator agree on a step."""

import numpy as np
import pytest

from lablib import Run
from lablib.plan import Prediction
from lablib.record.ledger import CATEGORIES

_TIME, _MEMORY = 0.05, 0.02
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
        # Gradients in 32 bits, which a program makes for its masters, are states to the ledger.
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
