"""Placement of a mesh's axes on a cluster: step time and bytes per network level for every order.

The sizes of the axes are given; their order decides which ranks share a node. Each axis sends different bytes
(placement_bytes.py), and hides a different part behind compute. The network in a node is ten times faster; so the axis
with most exposed bytes goes last, and the others follow in the rest of the nodes.

    step = compute + bubble + exposed communication                                     lablib/plan/predict.py, order=

The seconds are the planner's, with each group priced at the places of its ranks (lablib/plan/order.py); the bytes
belong to the same collectives. An axis of experts is a part of the data axis (`Mesh(data=2, expert=4, tensor=2)` has
eight data ranks for everything but experts).

    who waits     all ranks of an axis, for its exposed part; in a pipeline for messages: the difference of the step
                  without their time

Cost: for each order one prediction (a millisecond), and the messages of its groups.
Source: Narayanan et al., SC21, arXiv 2104.04473, section 3, takeaways 1 to 3; Llama Team, 2024, arXiv 2407.21783,
section 3.3.2 (tensor, context, pipeline, data: by bandwidth and by latency that can be hidden).
Simplified: as lablib/plan/order.py: axes that use the same wires at the same time do not slow each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from lablib.hardware import Cluster, find_cluster
from lablib.models.sizes import GPTConfig
from lablib.models.transformer import Transformer
from lablib.parallel.mesh.mesh import Mesh
from lablib.plan import Parallel, Prediction
from lablib.plan.arguments import possible, setup_of
from lablib.plan.order import PLACED, placed_machine
from lablib.plan.predict import prediction_of
from lablib.plan.setup import Setup
from lablib.signature import check_type, checked, shown
from lablib.studies.placement_bytes import AXES, LEVELS, StepTraffic, step_calls, step_traffic
from lablib.text.units import format_quantity

MAX_RANKS = 1024  # limit for the matrix of bytes between ranks


@dataclass(frozen=True)
class PlacedMesh:
    """A mesh on a cluster: its step, and its traffic."""

    mesh: Mesh  # the order of its axes is the placement
    cluster: Cluster
    prediction: Prediction
    exposed_s: Mapping[str, float]  # axis -> seconds of a step in which ranks wait for it
    setup: Setup

    @property
    def step_time_s(self) -> float:
        return self.prediction.step_time_s

    @property
    def total_s(self) -> dict[str, float]:
        """Axis -> seconds of a step on the wires, hidden or not."""
        return {axis: self.prediction.communication[axis][0] for axis in AXES}

    @cached_property
    def traffic(self) -> StepTraffic:
        setup = self.setup
        return step_traffic(step_calls(setup), self.mesh, self.cluster, setup.parallel.chunks, setup.schedule)

    @cached_property
    def sent_bytes(self) -> dict[str, dict[str, float]]:
        """Axis -> level -> bytes that a mean rank sends in a step."""
        return {axis: self.traffic.sent_bytes(axis) for axis in AXES if axis in self.traffic.matrices}

    @property
    def waits_for(self) -> tuple[str, str]:
        """The axis that ranks wait for longest, and its farthest level of the network; ("", "") if none wait."""
        axis = max(self.exposed_s, key=lambda axis: self.exposed_s[axis], default="")
        if not axis or not self.exposed_s[axis] > 0:
            return "", ""
        sent = self.sent_bytes.get(axis, {})
        return axis, next((level for level in reversed(LEVELS) if sent.get(level)), "")

    def sentence(self) -> str:
        order = ", ".join(f"{axis} {size}" for axis, size in self.mesh.sizes.items())
        text = f"{order}: a step takes {format_quantity(self.step_time_s, 's')}"
        axis, level = self.waits_for
        if not axis:
            return f"{text}, and no rank waits for wires."
        words = {"node": "inside nodes", "rail": "along rails", "across": "across rails", "": "nowhere"}[level]
        share = self.exposed_s[axis] / self.step_time_s
        return f"{text}; ranks wait longest for the {axis} axis, which travels {words}: {share:.0%} of the step."

    def __repr__(self) -> str:
        return f"PlacedMesh({self.sentence()})"


def place(
    model: str | Transformer | GPTConfig,
    mesh: Mesh,
    cluster: str | Cluster,
    batch: int,
    *,
    zero_stage: int = 0,
    chunks: int = 1,
    sequence_parallel: bool | None = None,
    **options: Any,
) -> PlacedMesh:
    """One order of the axes, priced.

    Arguments:
        model: sizes, or a published model's name.
        mesh: axes among data, tensor, pipeline, context and expert; ranks of the last are neighbours. Data and expert
            ranks together have a copy of everything but experts.
        cluster: a name, a record or a TOML file.
        batch: sequences of a step, on all ranks together.
        zero_stage, chunks, sequence_parallel: as in `Parallel`.
        options: of `lablib.plan.predict`: micro_batch, seq_len, schedule, recompute, stack, derating, ...

    Raises:
        ValueError: an unknown axis; more than 1024 ranks; and as `predict`: unknown names, sizes that do not divide, an
            axis of experts with one of context.
    """
    check_type("place: mesh", mesh, Mesh)
    found = find_cluster(cluster)
    for axis in mesh.axes:
        if axis not in PLACED:
            raise ValueError(f"the axes of a placement are {', '.join(PLACED)}: got {shown(axis)}; rename or drop it.")
    if mesh.num_ranks > MAX_RANKS:
        raise ValueError(
            f"a placement counts the bytes between {MAX_RANKS:,} ranks or fewer: got {mesh.num_ranks:,}; try fewer "
            "data ranks, which only repeat the others."
        )
    for name in ("parallel", "order"):
        if name in options:
            raise ValueError(f"a placement has its {name} from the mesh: got {name} besides; leave it out.")
    sizes = {axis: mesh.sizes.get(axis, 1) for axis in PLACED}
    parallel = Parallel(
        sizes["data"] * sizes["expert"],
        *(sizes["tensor"], sizes["pipeline"], sizes["context"], sizes["expert"]),
        chunks=chunks,
        sequence_parallel=sequence_parallel,
        zero_stage=zero_stage,
    )
    setup = possible(setup_of(model, found, parallel, batch, **options), mesh.axes)
    step_calls(setup)  # raises for calls that it cannot count
    prediction = prediction_of(setup)
    exposed = {axis: prediction.communication[axis][1] for axis in AXES if axis != "pipeline"}
    machine = placed_machine(setup.machine, setup.parallel, mesh.axes, has_free_messages=True)
    without_messages = prediction_of(replace(setup, machine=machine))
    exposed["pipeline"] = prediction.step_time_s - without_messages.step_time_s
    return PlacedMesh(mesh, found, prediction, exposed, setup)


def placements(
    model: str | Transformer | GPTConfig, mesh: Mesh, cluster: str | Cluster, batch: int, **options: Any
) -> tuple[PlacedMesh, ...]:
    """Every order of the mesh's axes, the fastest first; of equally fast ones the one that sends less between nodes.

    Axes of one rank are left out, as their order changes nothing. Arguments and Raises as `place`.
    """
    check_type("placements: mesh", mesh, Mesh)
    place(model, mesh, cluster, batch, **options)  # so that errors are about the caller's order
    several = {axis: size for axis, size in mesh.sizes.items() if size > 1} or dict(mesh.sizes)
    placed = [place(model, each, cluster, batch, **options) for each in Mesh(**several).placements()]
    return tuple(sorted(placed, key=lambda one: (one.step_time_s, far_bytes(one))))


@checked
def far_bytes(placement: PlacedMesh) -> float:
    """Bytes that a mean rank sends to other nodes in a step."""
    return sum(sent["rail"] + sent["across"] for sent in placement.sent_bytes.values())
