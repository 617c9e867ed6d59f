"""Lab 14: combined steps and the bytes of each axis; orders of a mesh's axes; plans as tables."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import pandas as pd
import plotly.graph_objects as go
import torch
import torch.distributed as dist
from torch import Tensor

from lablib.course import checks_for, guess, print_text, try_out
from lablib.course.table import in_rows
from lablib.figures import show
from lablib.figures.chart import ROWS, Axis, Panel, bars, chart
from lablib.figures.style import COMPUTE, LOOKS, Look
from lablib.launch import launch
from lablib.models import GPTConfig
from lablib.parallel import Combination, CombinedStep, Mesh
from lablib.phases import phase
from lablib.plan import Prediction
from lablib.run import Run
from lablib.signature import NonEmpty, checked
from lablib.studies import placements
from lablib.studies.placement import PlacedMesh
from lablib.text.units import format_quantity, plural
from lablib.widgets import placement_calculator

SMALL = GPTConfig(4, 16, 4, vocab_size=32, max_seq_len=16)
TEXT = torch.randint(0, 32, (3, 8, 17), generator=torch.Generator().manual_seed(0))  # three batches
LARGE = GPTConfig(16, 4096, 32, vocab_size=32_000, max_seq_len=2048, tied_head=False)

# --- Question ---

GROUPS = (  # of four tensor ranks
    Look("tensor group A", "A", "#0072B2", "", ink="#FFFFFF"),
    Look("tensor group B", "B", "#E69F00", "/"),
    Look("tensor group C", "C", "#009E73", ".", ink="#FFFFFF"),
    Look("tensor group D", "D", "#CC79A7", "x"),
)


def figure_question() -> go.Figure:
    """The tensor groups of 16 GPUs on two nodes, for two orders of the axes."""
    orders = {"tensor last": [rank // 4 for rank in range(16)], "tensor first": [rank % 4 for rank in range(16)]}
    marks = []
    for group, look in enumerate(GROUPS):
        places = [(row, rank) for row, groups in orders.items() for rank in range(16) if groups[rank] == group]
        rows, ranks = [row for row, _ in places], [rank for _, rank in places]
        words = [f"GPU {rank}, node {rank // 8}: {look.name}" for rank in ranks]
        mark = bars(look, look.name, [1] * len(ranks), rows, words, orientation="h", base=ranks)
        marks.append(mark.styled(text=[look.letter] * len(ranks), textposition="inside", insidetextanchor="middle"))
    across = Axis("GPU", ticks={8.0: "node 0 | node 1"}, span=(0, 16))
    sentence = "Which GPUs should share the matrices of a layer: neighbours on a node, or GPUs of both nodes?"
    columns: dict[str, list[Any]] = {"GPU": list(range(16))}
    columns |= {row: [GROUPS[group].letter for group in groups] for row, groups in orders.items()}
    title = "Two orders of 2 data, 2 pipeline and 4 tensor ranks"
    return chart(title, Panel(across, ROWS, marks), sentence, columns, pixels=110, barmode="overlay")


# --- Combined steps ---


def small_step(mesh: Mesh, make_optimizer: Any, **options: Any) -> CombinedStep:
    """This rank's part of a step of a small GPT in float64, on a mesh."""
    how = Combination(SMALL, mesh, batch_size=8, seq_len=16, num_micro_batches=2)
    return CombinedStep(how, make_optimizer, dtype=torch.float64, **options)


def three_steps(mesh: Mesh) -> tuple[list[tuple[float, float]], dict[str, Tensor]]:
    """Loss and gradient norm of each of three steps of SGD with clipping, and the whole model after them."""
    step = small_step(mesh, partial(torch.optim.SGD, lr=0.5), max_norm=1.0)
    reports = [step(batch[:, :-1], batch[:, 1:]) for batch in TEXT.to(torch.get_default_device())]
    return [(one.loss.item(), one.norm.item()) for one in reports], step.full_parameters()


def run_on(mesh: Mesh, cluster: str) -> Run:
    """A step of the large GPT on the simulator, after a phase "setup". One of each set of identical ranks runs."""
    how = Combination(LARGE, mesh, batch_size=16, seq_len=2048, num_micro_batches=4)

    def one_step() -> None:
        with phase("setup"):
            step = CombinedStep(how, partial(torch.optim.AdamW, lr=1e-4), dtype=torch.bfloat16)
            tokens = torch.zeros(how.batch_size, how.seq_len, dtype=torch.long)
            dist.barrier()
        step(tokens, tokens)

    others = {axis: 0 for axis in mesh.axes if axis != "pipeline"}
    stages = [mesh.rank(pipeline=stage, **others) for stage in range(mesh.sizes["pipeline"])]
    return launch(one_step, ranks=mesh.num_ranks, simulate=stages, cluster=cluster, fidelity="shapes")


def sent_by_axis(run: Run, mesh: Mesh) -> pd.DataFrame:
    """Calls of rank 0 along each axis after the setup: their number, bytes in total, bytes of the largest message."""
    begins_s, rows = max(span.end_s for span in run.timeline.select(0, phase="setup")), []
    groups = {axis: {*mesh.group_of(0, axis)} for axis in mesh.axes}
    for transfer in (one for one in run.traffic.transfers if one.start_s >= begins_s and 0 in one.ranks):
        sent = transfer.sent_bytes[transfer.ranks.index(0)]
        rows += [{"axis": axis, "sent": sent} for axis, group in groups.items() if set(transfer.ranks) <= group]
    columns = {"calls": "count", "sent in total (B)": "sum", "largest message (B)": "max"}
    return pd.DataFrame(rows).groupby("axis").agg(**{name: ("sent", how) for name, how in columns.items()})


def placed_on(cluster: str, mesh: Mesh) -> tuple[PlacedMesh, ...]:
    """All orders of the axes for the large GPT, by the planner, the fastest first."""
    step_as: dict[str, Any] = {"batch": 16, "seq_len": 2048, "micro_batch": 2, "zero_stage": 1}
    return placements(LARGE, mesh, cluster, sequence_parallel=False, **step_as)


def plan_row(plan: Prediction) -> dict[str, str]:
    """A predicted plan as a row of a table."""
    sizes = {axis: str(getattr(plan.parallel, axis)) for axis in ("tensor", "pipeline", "data")}
    memory = {"memory per GPU": format_quantity(plan.peak_memory_bytes, "B"), "fits": "yes" if plan.fits else "no"}
    return sizes | memory | {"step": format_quantity(plan.step_time_s, "s"), "FLOPs used": f"{plan.mfu:.0%}"}


# --- Orders of a mesh's axes ---

MOST_ROWS = 24  # more orders are drawn as the fastest, and the slowest one
# From near to far: darker, with different patterns; the look, and the words of the table.
LEVELS = {
    "node": (Look("inside the node", "", "#BFE3D5", ""), "inside the node"),
    "rail": (Look("along a rail", "", "#56B4E9", "/"), "to the same place of another node"),
    "across": (Look("across rails", "", "#40407A", "x", ink="#FFFFFF"), "elsewhere"),
}


@checked
def figure_placements(placements: Annotated[Sequence[PlacedMesh], NonEmpty()], title: str) -> go.Figure:
    """A row for each order of the axes (far apart to neighbours): left the step, right the bytes sent.

    Args:
        placements: of `lablib.studies.placements`, the fastest first. Of more than 24 the fastest and the slowest are
            drawn; the table has all.
    """
    is_cut = len(placements) > MOST_ROWS
    drawn = [*placements[: MOST_ROWS - 1], placements[-1]] if is_cut else list(placements)
    names = [_order(one) for one in drawn]
    sideways: dict[str, Any] = {"orientation": "h", "width": 0.62}
    waits = [min(sum(one.exposed_s.values()), one.step_time_s) for one in drawn]
    rest = [one.step_time_s - wait for one, wait in zip(drawn, waits, strict=True)]
    times, sizes = [], []
    kinds = ((COMPUTE, "compute, bubble, optimizer", rest), (LOOKS["communication"], "waiting for wires", waits))
    for look, name, seconds in kinds:
        words = [
            f"<b>{row}</b><br>{name}: {format_quantity(s, 's')} of {format_quantity(one.step_time_s, 's')}"
            for row, s, one in zip(names, seconds, drawn, strict=True)
        ]
        times.append(bars(look, name, seconds, names, words, **sideways))
    for level, (look, _) in LEVELS.items():
        sent = [_sent(one, level) for one in drawn]
        words = []
        for row, size, one in zip(names, sent, drawn, strict=True):
            axes = [f"{a} {format_quantity(by[level], 'B')}" for a, by in one.sent_bytes.items() if by[level]]
            words.append("<br>".join([f"<b>{row}</b>", f"{look.name}: {format_quantity(size, 'B')}", *axes]))
        if any(sent):
            sizes.append(bars(look, look.name, sent, names, words, **sideways))
    longest_s, most = max(one.step_time_s for one in drawn), max(_sent(one, *LEVELS) for one in drawn)
    left = Panel(Axis("time of a step", "s", span=(0, 1.06 * longest_s)), ROWS, times)
    right = Panel(Axis("sent by a rank in a step", "B", span=(0, 1.06 * most)), ROWS, sizes)
    columns: dict[str, list[Any]] = {
        "order, far apart to neighbours": list(map(_order, placements)),
        "step (s)": [one.step_time_s for one in placements],
    }
    for axis in dict.fromkeys(axis for one in placements for axis in one.sent_bytes):
        columns[f"waits for {axis} (s)"] = [one.exposed_s.get(axis, 0.0) for one in placements]
    for level, (_, words) in LEVELS.items():
        columns[f"sent {words} (B)"] = [_sent(one, level) for one in placements]
    note = [f"Of {len(placements)} orders {len(drawn)} are drawn; the table has all"] if is_cut else []
    return chart(title, [left, right], _comparison(placements), columns, note, 30 * len(drawn) + 40, barmode="stack")


def _order(placement: PlacedMesh) -> str:
    """ "data 2, tensor 8": from far apart to neighbours."""
    return ", ".join(f"{axis} {size}" for axis, size in placement.mesh.sizes.items())


def _sent(placement: PlacedMesh, *levels: str) -> float:
    return sum(sum(sent[level] for sent in placement.sent_bytes.values()) for level in levels)


def _comparison(placements: Sequence[PlacedMesh]) -> str:
    best, worst = placements[0], placements[-1]
    time_s = format_quantity(best.step_time_s, "s")
    if len(placements) == 1:
        return f"{_order(best)}: a step takes {time_s}."
    far = [format_quantity(_sent(one, "rail", "across"), "B") for one in (best, worst)]
    return (
        f"Of {plural(len(placements), 'orders')} the fastest, {_order(best)}, takes {time_s}, the slowest, "
        f"{_order(worst)}, {format_quantity(worst.step_time_s, 's')}, {worst.step_time_s / best.step_time_s:.2f} times "
        f"as long; a rank sends {far[0]} to other nodes in the one, {far[1]} in the other."
    )
