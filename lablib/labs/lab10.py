"""Lab 10: a step of each ZeRO stage on the simulator, its memory and its bytes; limits of a GPU's memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch
import torch.distributed as dist

from lablib import parallel
from lablib.calibration import batch_for, this_machine
from lablib.course import checks_for, guess, print_text, recorded_comparison, try_out
from lablib.course.table import in_rows
from lablib.figures import figure_lines, figure_memory, show
from lablib.figures.chart import ROWS, Axis, Panel, bars, chart
from lablib.figures.describe import attach
from lablib.figures.style import MEMORY_LOOKS
from lablib.hardware import Link, find_cluster
from lablib.launch import launch
from lablib.models import GPT, GPTConfig, find_transformer, next_token_loss, num_parameters
from lablib.parallel.zero.bytes import BF16, FP32, MIXED, zero_bytes, zero_sent_bytes
from lablib.phases import phase
from lablib.reconcile import Reconciliation, reconcile
from lablib.record.timeline import Timeline
from lablib.run import Run
from lablib.studies import zero_latency
from lablib.text.units import format_quantity
from lablib.widgets import Choice, IntChoice, LogSlider, explore

CONFIG = GPTConfig(num_layers=8, d_model=1024, num_heads=8, vocab_size=1024, max_seq_len=512)
NUM_PARAMS, SEQUENCES = num_parameters(CONFIG), 2  # sequences of one rank
SMALL = GPTConfig(num_layers=4, d_model=256, num_heads=4, vocab_size=256, max_seq_len=64)
HELD = ("parameter", "gradient", "optimizer state")
NUM_RANKS = [2**k for k in range(11)]
PRECISIONS = {"BF16 with FP32 master (2 + 2 + 12)": MIXED, "FP32 (4 + 4 + 8)": FP32, "BF16 alone (2 + 2 + 4)": BF16}
GPUS = {find_cluster(name).device.name: name for name in ("dgx-h100", "hgx-h200")}
TOKENS = [2**k for k in range(8, 18)]
REACHED = 0.5  # of the GPU's peak: assumed
_SENDERS = ("all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor")
_PARTS = 150  # of a step, in the picture of all stages


def figure_question() -> go.Figure:
    """Four GPUs as bars, each with the same parameters, gradients and optimizer state."""
    rows, kinds = [f"GPU {rank}" for rank in range(4)], {f"{name}s".replace("states", "state"): name for name in HELD}
    marks = []
    for words, name in kinds.items():
        look: dict[str, Any] = {"orientation": "h", "insidetextanchor": "middle", "textposition": "inside"}
        look |= {"text": [words] * 4, "textfont": MEMORY_LOOKS[name].font()}
        marks.append(bars(MEMORY_LOOKS[name], words, [1] * 4, rows, (), **look))
    across = Axis("memory", look={"showticklabels": False, "showgrid": False, "ticks": ""})
    sentence = "Four GPUs hold the same numbers four times. Which GPU needs which of them, and when?"
    columns = {"held by each GPU": list(kinds)}
    title = "Data parallel training, not to scale"
    return chart(title, Panel(across, ROWS, marks), sentence, columns, pixels=150, barmode="stack", showlegend=False)


def make_replica(stage: int, options: Mapping[str, Any]) -> parallel.Zero:
    """This rank's GPT in a stage; in stage 0 every rank has everything, and averages with all."""
    groups: dict[str, Any] = dict(options)
    if stage == 0:
        mesh = parallel.node_mesh(ranks_per_node=1)
        groups = {"group": mesh.get_group("local"), "replicate_group": mesh.get_group("node")}
    model = GPT(CONFIG, device=torch.get_default_device())
    return parallel.Zero(model, torch.optim.AdamW, max(stage, 1), **groups, param_dtype=torch.bfloat16)


def program(stage: int, options: Mapping[str, Any]) -> list[int]:
    """Two steps, the first one in "setup"; in "rest" ranks wait. Returns the numbers of each unit."""
    with phase("setup"):
        replica = make_replica(stage, options)
        shape = SEQUENCES, CONFIG.max_seq_len
        tokens = torch.zeros(shape, dtype=torch.long, device=torch.get_default_device())
        next_token_loss(replica(tokens), tokens).backward()
        replica.step()
        replica.zero_grad()
    next_token_loss(replica(tokens), tokens).backward()
    with phase("step"):
        replica.step()
    with phase("rest"):
        dist.barrier()
    return [unit.layout.numel for unit in replica.units]


def run_stage(stage: int, ranks: int, cluster: str, **options: Any) -> Run:
    """Run `program` from shapes alone, on one of the ranks of a node, since all ranks do the same."""
    if not 2 <= ranks <= (node := find_cluster(cluster).devices_per_node):
        raise ValueError(f"ranks must be 2 to {node}, the GPUs of one node of {cluster}: got {ranks}.")
    return launch(program, stage, options, ranks=ranks, cluster=cluster, fidelity="shapes", simulate=[0])


def held_at_rest(run: Run) -> dict[str, float]:
    """Bytes of rank 0 from backward to zero_grad, by kind."""
    rest = run.timeline.select(0, phase="rest")[0]
    held = run.memory.at(0, (rest.start_s + rest.end_s) / 2)
    return {name: held[name] for name in HELD}


def table_at_rest(runs: Mapping[str, Run]) -> pd.DataFrame:
    """Bytes per parameter of rank 0 from backward to zero_grad, by kind and together."""
    table = in_rows({name: held_at_rest(run) for name, run in runs.items()}) / NUM_PARAMS
    return table.assign(total=table.sum(axis=1)).map("{:.2f}".format)


def step_of(run: Run) -> Timeline:
    """The timeline of the second step."""
    return run.timeline.without("setup").without("rest")


def _curve(run: Run) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Times when the memory changes during the step, and its bytes by kind."""
    step, (times_s, held) = step_of(run), run.memory.curve(0)
    since_s = times_s - step.origin_s
    first = max(since_s.searchsorted(step.start_s, "right") - 1, 0)  # held as the step begins
    last = since_s.searchsorted(step.end_s, "right")
    return since_s[first:last] - step.start_s, {name: sizes[first:last] for name, sizes in held.items()}


def _total(held: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.sum(list(held.values()), axis=0)


def show_memory(name: str, run: Run) -> None:
    """Show the memory of rank 0 during the step."""
    title = f"Memory of a rank in a step, {name}"
    figure = figure_memory(run.memory, timeline=step_of(run), rank=0, title=title)
    most = format_quantity(_total(_curve(run)[1]).max(), "B")
    show(attach(figure, f"The most in this step: {most}.", figure.layout.meta["table"]))  # pyright: ignore


def table_of_most(runs: Mapping[str, Run]) -> pd.DataFrame:
    """The most bytes of each kind during the step."""
    kinds = (*HELD, "activation")
    most = {name: {kind: _curve(run)[1][kind].max() for kind in kinds} for name, run in runs.items()}
    return in_rows(most).map(lambda size: format_quantity(size, "B"))


def table_of_steps(runs: Mapping[str, Run]) -> pd.DataFrame:
    """Seconds of a step, and its exposed communication."""
    steps = {name: step_of(run) for name, run in runs.items()}
    seconds = {name: {"step": s.makespan_s, "exposed communication": s.exposed_s(0)} for name, s in steps.items()}
    return in_rows(seconds).map(lambda each: format_quantity(each, "s"))


def show_stages(runs: Mapping[str, Run]) -> None:
    """Show the peak memory in each of many equal parts of the step, a line for each stage."""
    curves = {}
    for name, run in runs.items():
        times_s, held = _curve(run)
        sizes, edges_s = _total(held), step_of(run).makespan_s * np.arange(_PARTS + 1) / _PARTS
        first = np.maximum(times_s.searchsorted(edges_s[:-1], "right") - 1, 0)
        last = np.maximum(times_s.searchsorted(edges_s[1:], "right"), first + 1)
        curves[name] = [float(sizes[a:b].max()) for a, b in zip(first, last, strict=True)]
    share = [100 * (part + 0.5) / _PARTS for part in range(_PARTS)]
    axes: dict[str, Any] = {"x_unit": "%", "y_unit": "B", "title": "Memory of a rank in a step, all stages"}
    figure = figure_lines(share, curves, "part of its own step", "memory", **axes)
    most = [f"{name} {format_quantity(max(curve), 'B')}" for name, curve in curves.items()]
    show(attach(figure, f"The most in a step: {', '.join(most)}.", figure.layout.meta["table"]))  # pyright: ignore


def table_of_bytes(runs: Mapping[str, Run], ranks: int) -> pd.DataFrame:
    """Bytes that rank 0 holds at rest and sends in a step, on the simulator and by formula."""
    plain, rows = zero_sent_bytes(0, [NUM_PARAMS], ranks), {}
    for name, run in runs.items():
        stage, numels = int(name[-1]), run.values[0]
        root, numels = (numels[0], numels[1:]) if stage == 3 else (0, numels)  # in stage 3 the first unit is the root
        calls = [transfer for transfer in run.traffic.transfers if transfer.name in _SENDERS]
        sent, held = sum(call.sent_bytes[0] for call in calls) / 2, sum(held_at_rest(run).values())  # of two steps
        held_by_formula = zero_bytes(stage, [numel for numel in (root, *numels) if numel], ranks).total
        found = {"held": held, "held by formula": held_by_formula, "sent": sent}
        found["sent by formula"] = zero_sent_bytes(stage, numels, ranks, root_numel=root)
        rows[name] = {key: format_quantity(size, "B", 4) for key, size in found.items()}
        rows[name] |= {"bytes per parameter": f"{held / NUM_PARAMS:.2f}", "times sent": f"{sent / plain:.2f}"}
    return in_rows(rows)


def first_that_fits(params: float, ranks: int, gpu_bytes: float = 80e9) -> str:
    """The lowest stage with states that fit into a GPU's memory."""
    for stage in range(4):
        if (size := zero_bytes(stage, [int(params)], ranks).total) <= gpu_bytes:
            return f"stage {stage} is the first that fits, with {format_quantity(size, 'B')}"
    return f"no stage fits, stage 3 holds {format_quantity(size, 'B')}"


def show_backward(answer: Callable[..., Any], cluster: str, ranks: int = 4, num_units: int = 5) -> str:
    """Show the timeline of a learner's backward for units of one matrix, at a size that hides its collectives."""
    width, num_tokens = 2048, 8192 if cluster.startswith("pcie") else 1024

    def program() -> None:
        with phase("setup"):
            shards = [torch.empty(width * width // ranks, dtype=torch.bfloat16) for _ in range(num_units)]
            inputs = [torch.empty(num_tokens, width, dtype=torch.bfloat16) for _ in range(num_units)]
            grad = torch.empty_like(inputs[0])
            dist.barrier()

        def backward(i: int, full: torch.Tensor, x: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
            with phase(f"backward {i}"):
                return (x.T @ grad).flatten(), grad @ full.view(width, width).T

        with phase("backward"):  # also of the operators between the units
            answer(shards, inputs, backward, grad)

    step = launch(program, ranks=ranks, cluster=cluster, fidelity="shapes").timeline.without("setup")
    show(step.figure(ranks=[0], title=f"Your backward of {num_units} units"))
    exposed_s = format_quantity(step.exposed_s(0), "s")
    return f"{format_quantity(step.makespan_s, 's')}, of which {exposed_s} are exposed communication"


def explore_states(interactive: bool) -> Any:
    """Bytes of all stages against the number of ranks, with the memory of a GPU."""

    def states(params: float, precision: str, gpu: str) -> dict[str, list[float]]:
        def total(stage: int, n: int) -> float:
            return zero_bytes(stage, [int(params)], n, PRECISIONS[precision]).total

        lines = {f"stage {stage}": [total(stage, n) for n in NUM_RANKS] for stage in range(4)}
        return lines | {"memory of the GPU": [find_cluster(GPUS[gpu]).device.memory_bytes] * len(NUM_RANKS)}

    def draw(lines: Mapping[str, Sequence[float]]) -> go.Figure:
        axes: dict[str, Any] = {"x_unit": "", "y_unit": "B", "log_x": True, "log_y": True}
        return figure_lines(NUM_RANKS, lines, "ranks", "states of a rank", **axes)

    controls = [
        LogSlider("params", "Parameters", 1e8, 1e12, 7e9),
        Choice("precision", "Precision", tuple(PRECISIONS), next(iter(PRECISIONS))),
        Choice("gpu", "GPU", tuple(GPUS), next(iter(GPUS))),
    ]
    examples = [{"params": 7e10}, {"precision": "FP32 (4 + 4 + 8)"}]
    return explore(states, draw, controls, interactive=interactive, examples=examples)


def _zero3(bandwidth: float, num_ranks: int, name: str, grouping: str) -> tuple[Any, int, float]:
    """Seconds of stage 3's transfers, parameters, and FLOP/s of an H100."""
    machine = find_cluster("dgx-h100")
    network = Link("network", machine.inter.latency_s, bandwidth)
    sizes = zero_latency.unit_params(find_transformer(name), grouping)
    time = zero_latency.zero3_time(sizes, machine.replace(inter=network), num_ranks)
    return time, sum(sizes), REACHED * machine.device.peak("bfloat16")


def fewest_tokens(bandwidth: float, num_ranks: int, grouping: str) -> float:
    """The fewest tokens of a rank's batch that hide stage 3 of a GPT-3 with 6.7 billion parameters."""
    return zero_latency.smallest_batch(*_zero3(bandwidth, num_ranks, "gpt3-6.7b", grouping))


def explore_tokens(interactive: bool) -> Any:
    """Exposed share of a step of stage 3 against the tokens of a rank's batch."""

    def exposed_share(bandwidth: float, num_ranks: int, name: str, grouping: str) -> dict[str, list[float]]:
        time, params, flops_per_s = _zero3(bandwidth, num_ranks, name, grouping)
        lines: dict[str, list[float]] = {"overlapped": [], "not overlapped": []}
        for tokens in TOKENS:
            compute_s = 6 * params * tokens / flops_per_s
            for line, overlaps in zip(lines.values(), (True, False), strict=True):
                step_s = zero_latency.step_s(time, params, flops_per_s, tokens, overlaps=overlaps)
                line.append(100 * (1 - compute_s / step_s))
        return lines

    def draw(lines: Mapping[str, Sequence[float]]) -> go.Figure:
        axes: dict[str, Any] = {"x_unit": "", "y_unit": "%", "log_x": True}
        return figure_lines(TOKENS, lines, "tokens of a rank's batch", "exposed share of the step", **axes)

    controls = [
        LogSlider("bandwidth", "Network, each GPU", 1e9, 4e11, 5e10, unit="B/s"),
        IntChoice("num_ranks", "Ranks", (8, 16, 64, 256, 1024), 64),
        Choice("name", "Model", ("gpt3-6.7b", "gpt3-175b"), "gpt3-6.7b"),
        Choice("grouping", "A unit is a", ("layer", "parameter"), "layer"),
    ]
    examples = [{"bandwidth": 1e10}, {"num_ranks": 1024, "grouping": "parameter"}]
    return explore(exposed_share, draw, controls, interactive=interactive, examples=examples)


def reconcile_here(program: Callable[[int], None], ranks: int, backend: str, repeats: int) -> Reconciliation:
    """Predict and run a program on this machine; its argument is the batch, which is larger on a GPU."""
    real = "nccl" if backend == "nccl" else "gloo"
    machine = this_machine(ranks=ranks, backend=real)
    batch = batch_for(machine, 4, 6 * num_parameters(SMALL) * 4 * SMALL.max_seq_len)
    there: dict[str, Any] = {"ranks": ranks, "backend": real, "cluster": machine, "without": "setup"}
    there["fidelity"] = "shapes" if real == "nccl" else "values"  # predict from shapes alone
    return reconcile(program, batch, **there, repeats=repeats)
