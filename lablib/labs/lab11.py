"""Lab 11: a slow link, errors of quantized numbers, bytes between nodes, recorded runs of compressed training."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from lablib import parallel
from lablib.batches.schedules import cosine
from lablib.calibration import this_machine
from lablib.compress import (
    Bucket,
    DiLoCo,
    ErrorFeedback,
    Fp8,
    InSequence,
    Int4,
    Int8,
    PowerSGD,
    Rotated,
    Stages,
    StreamingDiLoCo,
    TopK,
    error_growth,
    hierarchical_reduce_scatter,
    layer_fragments,
    level_bytes,
    quantized_all_gather,
    quantized_all_reduce,
    quantized_reduce_scatter,
    two_phase_bytes,
    variance_ratio,
    zero3_bytes,
    zero_plus_plus_bytes,
    zero_plus_plus_options,
    zero_plus_plus_speedup,
)
from lablib.course import checks_for, guess, print_text, recorded_comparison, try_out
from lablib.course.table import in_rows
from lablib.data import Batch, Corpus, batches, load_corpus, train_val_split
from lablib.figures import figure_lines, show
from lablib.figures.chart import PLOT_PIXELS, Axis, Panel, ReferenceLine, chart, line, points
from lablib.hardware import Cluster, Link, find_cluster
from lablib.launch import launch
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.optim.adamw import AdamW
from lablib.reconcile import reconcile
from lablib.record.traffic import Traffic
from lablib.run import Run
from lablib.signature import checked
from lablib.studies import break_even_bandwidth, compressed_step
from lablib.studies.batches import NARROW, SEQ_LEN, held_out, loss_of
from lablib.studies.compression import CompressedRun, recorded_runs, table
from lablib.text.units import format_quantity
from lablib.widgets import compression_calculator

LOSS = Axis("final loss, least to largest seed", "nats per byte")
Runs = Mapping[str, CompressedRun]
CONFIG = GPTConfig(num_layers=4, d_model=256, num_heads=4, vocab_size=256, max_seq_len=64)  # of lab 09
BLOCKS, NUM_RANKS = [64, 256, 1024, 4096, 16384], [2, 4, 8, 16, 32]


@checked
def figure_loss_against_bytes(runs: Runs) -> go.Figure:
    """Every method's final loss against the bytes that leave a rank per step: left and down is better."""
    runs = {name: run for name, run in runs.items() if run.sent_bytes > 0}
    marks = []
    for index, (name, run) in enumerate(runs.items()):
        words = f"<b>{name}</b><br>{format_quantity(run.sent_bytes, 'B')} a step<br>{run.loss:.3f} nats"
        marks.append(points(index, name, [run.sent_bytes], [run.loss], [words], _ends([run])))
    panel = Panel(Axis("sent by each rank in a step", "B", log=True), LOSS, marks, _uncompressed(runs))
    order = sorted(runs.items(), key=lambda item: (-item[1].sent_bytes, item[1].loss))
    said = [f"{name}: {format_quantity(run.sent_bytes, 'B')}, {run.loss:.3f} nats" for name, run in order]
    sentence = f"Bytes of a step and final loss. {'; '.join(said)}."
    return chart("Final loss against bytes sent", panel, sentence, _columns(runs), pixels=PLOT_PIXELS + 130)


@checked
def figure_loss_over_h(runs: Runs) -> go.Figure:
    """Final loss against the steps H between synchronizations, one line for each method, at the mean over seeds.

    `runs`: name -> its recorded run; names with their H at the end ("DiLoCo 16") make lines, others are left out.
    """
    lines: dict[str, list[CompressedRun]] = {}
    for name, run in runs.items():
        method, _, every = name.rpartition(" ")
        if method and every == str(run.every) and method != "stale":
            lines.setdefault(method, []).append(run)
    marks, parts = [], []
    for index, (method, members) in enumerate(lines.items()):
        members.sort(key=lambda run: run.every)
        periods, losses = [run.every for run in members], [run.loss for run in members]
        hover = [f"<b>{method}</b><br>H = {x}<br>{y:.3f} nats" for x, y in zip(periods, losses, strict=True)]
        marks.append(line(index, method, periods, losses, hover, _ends(members)))
        parts.append(f"{method} from {losses[0]:.3f} nats at H = {periods[0]} to {losses[-1]:.3f} at {periods[-1]}")
    shown = {run.name: run for members in lines.values() for run in members}
    ticks = {every: str(every) for every in sorted({run.every for run in shown.values()})}
    across = Axis("H, from one synchronization to the next", "steps", log=True, ticks=ticks)
    panel = Panel(across, LOSS, marks, _uncompressed(runs))
    return chart("Final loss over H", panel, f"Final loss: {'; '.join(parts)}.", _columns(shown))


def _ends(runs: Sequence[CompressedRun]) -> tuple[list[float], list[float]]:
    """Least and largest loss over the seeds of each run."""
    return [min(run.losses.values()) for run in runs], [max(run.losses.values()) for run in runs]


def _uncompressed(runs: Runs) -> list[ReferenceLine]:
    return [ReferenceLine(y=runs["none"].loss, line={"width": 1, "dash": "dot"})] if "none" in runs else []


def _columns(runs: Runs) -> dict[str, Sequence[object]]:
    return {
        "method": list(runs),
        "H": [run.every for run in runs.values()],
        "sent (B/step)": [round(run.sent_bytes) for run in runs.values()],
        "loss (nats)": [round(run.loss, 4) for run in runs.values()],
        "learning rate": [run.lr for run in runs.values()],
    }


def figure_question() -> go.Figure:
    """Random numbers, and the same numbers rounded to 7 levels."""
    generator = random.Random(2)
    numbers = [generator.gauss(0, 1) for _ in range(48)]
    level = max(map(abs, numbers)) / 3
    rounded = [level * round(number / level) for number in numbers]
    places = list(range(len(numbers)))
    marks = [
        points(0, "32 bits", places, numbers, size=8),
        line(1, "3 bits", places, rounded).styled(mode="lines", line_shape="hvh", line_dash="solid"),
    ]
    sentence = (
        "The same numbers in 32 bits, and rounded to one of 7 levels, in 3 bits. Is that enough to train a model?"
    )
    return chart("Random numbers, as in a gradient", Panel(Axis("number"), Axis("value"), marks), sentence, pixels=170)


def slow_link(nodes: int, local: int, gbits: float) -> Cluster:
    """Nodes with PCIe inside and Ethernet between them."""
    if not (2 <= nodes <= 4 and 2 <= local <= 8):
        raise ValueError(f"nodes must be 2 to 4, of 2 to 8 ranks each: got {nodes} and {local}.")
    ethernet = Link(f"Ethernet, {gbits:g} Gbit/s", 20e-6, gbits * 1e9 / 8)
    return find_cluster("pcie-a100").replace(name="slow link", devices_per_node=local, inter=ethernet)


def training_text() -> Corpus:
    """The corpus without its held-out part."""
    return train_val_split(load_corpus())[0]


def parts_of_batch(ranks: int) -> list[Batch]:
    """A batch of 4 sequences for each rank."""
    each = partial(batches, training_text(), 4 * ranks, CONFIG.max_seq_len, seed=0, world_size=ranks)
    return [next(each(rank=rank)) for rank in range(ranks)]


def there_and_back(quantizer: Any, x: Tensor) -> Tensor:
    """The numbers that a receiver of quantized numbers has."""
    return quantizer.dequantize(quantizer.quantize(x))


def relative_error(found: Tensor, x: Tensor) -> float:
    """Norm of the error over the norm of x."""
    return float((found - x).norm() / x.norm())


def show_blocks(series: Mapping[str, Tensor]) -> None:
    """Show the relative error of 4 bits against the size of a block, with and without a rotation."""
    errors = {}
    for name, x in series.items():
        ints = [Int4(block=block) for block in BLOCKS]
        errors[name] = [relative_error(there_and_back(one, x), x) for one in ints]
        turned = [Rotated(quantizer=one, size=64) for one in ints]
        errors[f"{name}, rotated"] = [relative_error(there_and_back(one, x), x) for one in turned]
    show(figure_lines(BLOCKS, errors, "numbers in a block", "relative error, 4 bits", log_x=True))


def table_of_means(x: Tensor) -> pd.DataFrame:
    """Relative error of the mean of many roundings of the same numbers, to nearest and stochastic."""
    rows: dict[int, dict[str, str]] = {num: {} for num in (1, 4, 16, 64)}
    for num, row in rows.items():
        for rounding in ("nearest", "stochastic"):
            quantizer = Int4(rounding=rounding, generator=torch.Generator().manual_seed(0))
            mean = torch.stack([there_and_back(quantizer, x) for _ in range(num)]).mean(0)
            row[rounding] = f"{relative_error(mean, x):.3f}"
    return in_rows(rows).rename_axis("ranks that round the same")


def show_growth() -> list[float]:
    """Show the relative error of the mean against the number of ranks; returns its growth in a ring, in two phases."""
    errors = error_growth(NUM_RANKS, Int4())
    show(figure_lines(NUM_RANKS, errors, "ranks", "relative error of the mean", log_x=True))
    return [errors[way][-1] / errors[way][0] for way in ("ring", "two-phase")]


def crossing_bytes(run: Run, local: int) -> float:
    """Bytes that a rank sends to other nodes in a step, on average, without setup."""
    calls = [transfer for transfer in run.traffic.transfers if transfer.name != "broadcast"]
    pairs = [pair for call in calls for pair in call.routes.items()]
    return sum(size for (a, b), size in pairs if a // local != b // local) / len(run.values)


def four_ranks(answer: Callable[..., Tensor]) -> Tensor:
    """Result of a learner's two-level reduce-scatter with exact messages; rank r has r + 1 times 0 to 7."""

    def pack(rows: Tensor) -> Tensor:
        return rows.contiguous().view(torch.uint8)

    def unpack(messages: Tensor) -> Tensor:
        return messages.view(torch.float32)

    mesh = parallel.node_mesh(2)
    full = torch.arange(8.0) * (dist.get_rank() + 1)
    return answer(full, mesh.get_group("local"), mesh.get_group("node"), pack, unpack)


def table_of_levels(nodes: int, local: int, machine: Cluster, piece: int = 4096) -> pd.DataFrame:
    """Bytes that a rank sends in a reduce-scatter, inside a node and across: simulated, and by formula."""
    ranks, message = nodes * local, Int4().message_bytes(piece)

    def scatter(is_two_level: bool) -> None:
        full, shard = torch.ones(ranks * piece), torch.empty(piece)
        if is_two_level:
            hierarchical_reduce_scatter(full, shard, parallel.node_mesh(local), Int4()).wait()
        else:
            quantized_reduce_scatter(full, shard, quantizer=Int4()).wait()

    rows = {}
    for name, is_two_level in {"one all-to-all": False, "two levels": True}.items():
        sent = level_bytes(launch(scatter, is_two_level, ranks=ranks, cluster=machine).traffic, local)
        across = (nodes - 1) * message * (1 if is_two_level else local)
        inside = (local - 1) * message * (nodes if is_two_level else 1)
        rows[name] = {"inside": f"{sent.inside / ranks:,.0f}", "formula inside": f"{inside:,}"}
        rows[name] |= {"across": f"{sent.across / ranks:,.0f}", "formula across": f"{across:,}"}
    return in_rows(rows).rename_axis("bytes sent per rank")


def two_levels(local: int) -> InSequence:
    """An average of gradients in 4 bits: reduce-scatter on two levels, then an all-gather of codes."""
    mesh = parallel.node_mesh(local)

    def stages(buffer: Tensor, group: Any) -> Iterator[Any]:
        ranks = dist.get_world_size()
        piece = -(-buffer.numel() // ranks)
        full = F.pad(buffer, (0, ranks * piece - buffer.numel()))
        shard = full.new_empty(piece)
        yield hierarchical_reduce_scatter(full, shard, mesh, Int4())
        yield quantized_all_gather(shard, full, group, Int4())
        buffer.copy_(full[: buffer.numel()])

    return InSequence(lambda buffer, group=None: Stages(stages(buffer, group)))


def table_of_steps(runs: Mapping[str, Run], local: int) -> pd.DataFrame:
    """Seconds and bytes between nodes of each step, next to the first one."""
    rows, first = {}, next(iter(runs.values()))
    for name, run in runs.items():
        timeline, sent = run.timeline.without("setup"), crossing_bytes(run, local)
        seconds = {"step": timeline.makespan_s, "exposed": timeline.exposed_s(0)}
        rows[name] = {column: format_quantity(value, "s") for column, value in seconds.items()}
        rows[name] |= {"to other nodes": format_quantity(sent, "B")}
        rows[name]["times fewer"] = f"{crossing_bytes(first, local) / sent:.1f}"
        rows[name]["times faster"] = f"{first.timeline.without('setup').makespan_s / timeline.makespan_s:.1f}"
    return in_rows(rows)


def keep_largest(x: Tensor) -> Tensor:
    """x where its size is the largest, otherwise 0."""
    return torch.where(x.abs() == x.abs().max(), x, torch.zeros_like(x))


def five_steps(error_feedback: Callable[..., Any]) -> list[Any]:
    """Messages that a learner's error feedback sends in five steps of one gradient."""
    send = error_feedback(keep_largest)
    return [send("w", torch.tensor([2.5, 1.0, 0.0, 0.4])).tolist() for _ in range(5)]


def train(make_reduce: Callable[[], Any], num_steps: int, lr: float = 0.2, every: int = 20) -> list[float]:
    """Held-out losses of a small GPT with SGD and momentum, on four ranks."""
    rank, model = dist.get_rank(), GPT(NARROW, seed=1)
    replica = parallel.DataParallel(model, reduce=make_reduce())
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    factor = partial(cosine, num_steps=num_steps, num_warmup=num_steps // 5, final=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    text, losses = batches(training_text(), 8, SEQ_LEN, 1, rank=rank, world_size=4), []
    for number, (inputs, targets) in enumerate(islice(text, num_steps), 1):
        optimizer.zero_grad()
        next_token_loss(replica(inputs), targets).backward()
        optimizer.step()
        schedule.step()
        if rank == 0 and number % every == 0:
            losses.append(loss_of(model, held_out(32)))
    return losses


def show_training(losses: Mapping[str, Sequence[float]], every: int = 20) -> None:
    """Show the held-out loss of each way against the step."""
    steps = [every * (1 + number) for number in range(len(next(iter(losses.values()))))]
    show(figure_lines(steps, losses, "step", "held-out loss (nats per byte)", title="SGD, 1% of the gradient"))


def gradient_runs(runs: Runs) -> Runs:
    """Those recorded runs of AdamW that send a gradient in every step."""
    others = ("stale", "DiLoCo", "local", "1-bit", "SGD")
    return {name: run for name, run in runs.items() if run.every == 1 and not name.startswith(others)}


def print_feedback(runs: Runs) -> None:
    """Print the losses of top-k with and without feedback, seed by seed."""
    for optimizer, method in {"AdamW": "top-k", "SGD": "SGD, top-k"}.items():
        for seed, loss in runs[method].losses.items():
            without = runs[f"{method}, no feedback"].losses[seed]
            print(f"{optimizer:5s} seed {seed}: {loss:.3f} with feedback, {without:.3f} without")


def squares_of(num_steps: int, every: int = 20) -> list[Tensor]:
    """Adam's mean squares, all in one tensor, every so many steps of a training on one rank."""
    model, sums = GPT(NARROW, seed=1), []
    optimizer = AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95))
    text = islice(batches(training_text(), 8, SEQ_LEN, 1), num_steps)
    for number, (inputs, targets) in enumerate(text, 1):
        optimizer.zero_grad()
        next_token_loss(model(inputs), targets).backward()
        optimizer.step()
        if number % every == 0:
            sums.append(torch.cat([state["exp_avg_sq"].flatten() for state in optimizer.state.values()]))
    return sums
