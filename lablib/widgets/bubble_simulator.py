"""Bubble simulator: timeline, memory and critical path of a pipeline schedule or a user's plan.

Controls at the top: schedule, stages, micro-batches, chunks, times of F, I and W on each stage, messages and a limit of
memory. Below: the timeline with the critical path, and the memory of each rank on the same axis. The last control steps
through the moments of the plan, or plays them. A plan that deadlocks is drawn up to the deadlock, with its cycle.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from lablib.figures.plans.pipeline_simulation import figure_pipeline_simulation
from lablib.pipeline import schedules
from lablib.pipeline.costs import Costs
from lablib.pipeline.simulation import Simulation, read_plan, simulate
from lablib.signature import checked
from lablib.widgets.controls import Choice, Control, IntChoice, Steps, Text, Toggle
from lablib.widgets.explore import Exploration, explore

OWN = "your own plan"
OWN_EXAMPLE = """rank 0: F0 F1 F2 B0 F3 B1 B2 B3
rank 1: F0 F1 B0 F2 B1 F3 B2 B3
rank 2: F0 B0 F1 B1 F2 B2 F3 B3"""
DEADLOCK_EXAMPLE = """rank 0: F0 B0 F1 B1
rank 1: F0 F1 B0 B1"""
EXAMPLES = (
    {"schedule": "gpipe"},
    {"schedule": "zb-h1", "forward": "1 1 1 2"},
    {"schedule": OWN, "own": DEADLOCK_EXAMPLE},
)


@dataclass(frozen=True)
class Scene:
    """A simulation and the displayed moment; None for the whole."""

    simulation: Simulation
    moment_s: float | None

    def figure(self) -> go.Figure:
        """Timeline and memory, with the moment marked."""
        return figure_pipeline_simulation(self.simulation, self.moment_s)


@checked
def bubble_simulator(interactive: bool = True, stages: int = 4, microbatches: int = 8) -> Exploration:
    """The simulator, to end a cell with, at so many stages at first; not interactive: its figure at a few settings."""
    controls: list[Control] = [
        Choice("schedule", "Schedule", (*schedules.SCHEDULES, OWN), "1f1b"),
        IntChoice("stages", "Stages", range(1, 17), stages, "ranks"),
        IntChoice(
            "microbatches", "Micro-batches", (*range(1, 33), 48, 64, 96, 128, 192, 256, 384, 512), microbatches, ""
        ),
        IntChoice("chunks", "Chunks", range(1, 9), 1),
        Text("forward", "F, each piece (s)", "1"),
        Text("for_input", "I, each piece (s)", "1"),
        Text("for_weights", "W, each piece (s)", "1"),
        IntChoice("send_percent", "Message (% of a second)", (0, 2, 5, 10, 20, 30, 50, 75, 100, 200), 0),
        Toggle("overlap", "Messages travel while ranks compute", True),
        Text("limit", "Limit (empty: none)", ""),
        Text("own", "Your own plan", OWN_EXAMPLE, rows=5),
        Steps("moment", "Moment", lambda scene: len(scene.simulation.moments_s)),
    ]
    return explore(Simulator(), Scene.figure, controls, interactive, EXAMPLES, without_effect=without_effect)


def without_effect(settings: Mapping[str, Any]) -> set[str]:
    """The controls without effect: of the plan not chosen, and overlap if no message takes time."""
    if settings["schedule"] == OWN:
        idle = {"stages", "microbatches", "chunks"}
    else:
        idle = {"own"} if schedules.SCHEDULES[settings["schedule"]].takes_chunks else {"own", "chunks"}
    return idle if settings["send_percent"] else idle | {"overlap"}


class Simulator:
    """Computes the controls' settings; a step from moment to moment does not simulate again.

    The last argument, `moment`, is 0 for the whole plan and k for its k-th moment.
    """

    def __init__(self) -> None:
        self._settings: dict[str, Any] = {}
        self._simulation: Simulation | None = None

    def __call__(self, *, moment: int, **settings: Any) -> Scene:
        if self._simulation is None or settings != self._settings:
            self._simulation, self._settings = simulation_of(**settings), settings
        moments_s = self._simulation.moments_s
        return Scene(self._simulation, float(moments_s[min(moment, len(moments_s)) - 1]) if moment else None)


def simulation_of(
    *,
    schedule: str,
    stages: int,
    microbatches: int,
    chunks: int,
    forward: str,
    for_input: str,
    for_weights: str,
    send_percent: int,
    overlap: bool,
    limit: str,
    own: str,
) -> Simulation:
    """The simulation of the controls' settings, except the moment."""
    if schedule == OWN:
        plan = read_plan(own)
    else:  # schedules for one number of chunks ignore the slider
        takes = schedules.SCHEDULES[schedule]
        plan = schedules.make(schedule, stages, microbatches, chunks if takes.takes_chunks else takes.num_chunks)
    costs = Costs(
        forward_s=numbers("F", forward, plan.num_pieces, "pieces"),
        input_s=numbers("I", for_input, plan.num_pieces, "pieces"),
        weight_s=numbers("W", for_weights, plan.num_pieces, "pieces"),
        send_s=send_percent / 100,
        overlap=overlap,
    )
    return simulate(plan, costs, numbers("the limit", limit, plan.num_stages, "ranks") if limit.strip() else None)


def numbers(name: str, text: str, count: int, of_what: str) -> float | list[float]:
    """Parse one number for all, or one for each."""
    try:
        found = [float(word) for word in text.replace(",", " ").split()]
    except ValueError:
        found = []
    if len(found) not in (1, count):
        example = " ".join(["1"] * (count - 1) + ["2"]) if count <= 8 else "1"
        got = f"got {len(found)} numbers" if len(found) > 1 else f"got {text!r}"
        raise ValueError(f"{name} takes one number, or one for each of the {count} {of_what}: {got}; try {example}.")
    return found[0] if len(found) == 1 else found
