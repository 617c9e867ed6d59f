"""Lab 09: parts of a batch, the cost of one all-reduce per gradient, times of a step by formula and simulator."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib import parallel
from lablib.calibration import batch_for, this_machine
from lablib.cost import GroupNetwork, collective_cost
from lablib.course import checks_for, guess, print_text, recorded_comparison, show_source, try_out
from lablib.course.table import in_rows
from lablib.data import Batch, batches, load_corpus, train_val_split
from lablib.figures import figure_lines, figure_memory, figure_scaling, show
from lablib.figures.chart import ROWS, Axis, Panel, bars, chart
from lablib.figures.style import LOOKS
from lablib.hardware import find_cluster
from lablib.models import GPT, GPTConfig, model_config, next_token_loss, num_parameters
from lablib.phases import phase
from lablib.reconcile import Reconciliation, reconcile
from lablib.record.timeline import Timeline
from lablib.studies import StepProfile, predict_step, profile_step, scaling_efficiency
from lablib.studies.data_parallel_scaling import METHODS, Method
from lablib.text.units import format_quantity
from lablib.widgets import Choice, IntChoice, LogSlider, explore

SEQUENCES, SEQ_LEN = 4, 64  # of one rank's part of the batch
CONFIG = GPTConfig(num_layers=4, d_model=256, num_heads=4, vocab_size=256, max_seq_len=SEQ_LEN)
MODELS = {"this lab's (3.2M)": CONFIG, "GPT-2 (124M)": model_config("gpt2", max_seq_len=256)}
GPT2 = "GPT-2 (124M)"
NUM_RANKS = [1, 2, 4, 8, 16, 32, 64]
BUCKETS = [10.0 ** (exponent / 4) for exponent in range(16, 37)]  # bytes
_CLUSTER = Choice("machine", "Cluster", ("pcie-a100", "dgx-a100", "dgx-h100"), "pcie-a100")
_SEQUENCES = (1, 2, 4, 8, 16, 32)


def figure_question() -> go.Figure:
    """A step of two GPUs as bars: forward, backward, then an exchange of gradients."""
    rows, parts = ["GPU 0", "GPU 1"], {"forward": 2, "backward": 4, "communication": 4}  # made up
    look = {"orientation": "h", "textposition": "inside", "insidetextanchor": "middle"}
    marks = [
        bars(kind := LOOKS[name], kind.title, [length] * 2, rows, (), text=[name] * 2, textfont=kind.font(), **look)
        for name, length in parts.items()
    ]
    across = Axis("time", look={"showticklabels": False, "showgrid": False, "ticks": ""})
    sentence = "Two GPUs compute gradients, then they exchange them and compute nothing. Must they wait?"
    panel, columns = Panel(across, ROWS, marks), {"part of the step": list(parts)}
    return chart("A step of two GPUs, not to scale", panel, sentence, columns, pixels=100, barmode="stack")


def parts_of_batch(ranks: int, cluster: str) -> list[Batch]:
    """The first batch of the corpus, cut into a part for each rank of one node."""
    if not 2 <= ranks <= (node := find_cluster(cluster).devices_per_node):
        raise ValueError(f"ranks must be 2 to {node}, the GPUs of one node of {cluster}: got {ranks}.")
    text, _ = train_val_split(load_corpus())
    each = partial(batches, text, ranks * SEQUENCES, SEQ_LEN, seed=0, world_size=ranks)
    return [next(each(rank=rank)) for rank in range(ranks)]


def prepare(parts: Sequence[Batch]) -> tuple[GPT, Tensor, Tensor]:
    """This rank's replica, and its inputs and targets, on its device."""
    with phase("setup"):
        device = torch.get_default_device()
        part = parts[dist.get_rank()]
        return GPT(CONFIG, seed=0).to(device), part.inputs.to(device), part.targets.to(device)


def _one_number(replica: GPT) -> str:
    gradient = replica.final_norm.weight.grad
    assert gradient is not None
    return f"{gradient[0].item():+.6f}"


def before_and_after(average: Callable[[nn.Module], Any], parts: Sequence[Batch]) -> str:
    """One number of the gradient, before and after a learner's average."""
    replica, inputs, targets = prepare(parts)
    next_token_loss(replica(inputs), targets).backward()
    before = _one_number(replica)
    average(replica)
    return f"{before} before, {_one_number(replica)} after"


def two_steps(overlap: Callable[[nn.Module], Callable[[], Any]], parts: Sequence[Batch]) -> str:
    """One number of the gradient after each of two backward passes with a learner's hooks."""
    replica, inputs, targets = prepare(parts)
    finish, after = overlap(replica), []
    for _ in range(2):
        replica.zero_grad()
        next_token_loss(replica(inputs), targets).backward()
        finish()
        after.append(_one_number(replica))
    return " and ".join(after)


def report(name: str, step: Timeline, alone: Timeline) -> None:
    """Print the number of all-reduces, the exposed communication, and the efficiency of a step."""
    calls, exposed = step.select(rank=0, stream="comm"), format_quantity(step.exposed_s(0), "s")
    kind = "all-reduces" if all("reduce" in each.name for each in calls) else "sends and receives"  # of a ring by hand
    print(f"{name}: {len(calls)} {kind}, {exposed} of exposed communication")
    seconds, efficiency = format_quantity(step.makespan_s, "s"), alone.makespan_s / step.makespan_s
    print(f"a step takes {seconds}, efficiency {efficiency:.0%}")


def _calls(model: nn.Module, cluster: str, ranks: int) -> dict[int, tuple[int, float, float]]:
    """Bytes of a gradient -> number of such gradients, seconds of one all-reduce, and of its bytes alone."""
    machine, counts = find_cluster(cluster), Counter(param.nbytes for param in model.parameters())
    network, share = GroupNetwork(machine, range(ranks)), 2 * (ranks - 1) / ranks
    bytes_s = {size: share * size / machine.intra.bandwidth_bytes_per_s for size in counts}
    one_s = {size: collective_cost("all_reduce", size, network).time_s for size in counts}
    return {size: (counts[size], one_s[size], bytes_s[size]) for size in sorted(counts)}


def table_of_calls(model: nn.Module, cluster: str, ranks: int) -> pd.DataFrame:
    """Gradients by size: seconds of one all-reduce, of its bytes alone, and of all gradients of the size."""
    rows = {}
    for size, (count, one_s, bytes_s) in _calls(model, cluster, ranks).items():
        seconds = {"one all-reduce": one_s, "its bytes alone": bytes_s, "all of this size": count * one_s}
        rows[format_quantity(size, "B")] = {"how many": count} | _in_words(seconds)
    return in_rows(rows).rename_axis("gradient of")


def share_of_latency(model: nn.Module, cluster: str, ranks: int) -> float:
    """Share of the gradients with an all-reduce that takes at least twice the time of its bytes."""
    calls = _calls(model, cluster, ranks).values()
    return sum(count for count, one_s, bytes_s in calls if one_s >= 2 * bytes_s) / sum(count for count, *_ in calls)


def table_of_steps(steps: Mapping[str, Timeline], alone: Timeline) -> pd.DataFrame:
    """Step, communication, its exposed part and efficiency of each way."""
    rows = {}
    for name, step in steps.items():
        sent_s = sum(span.end_s - span.start_s for span in step.select(rank=0, stream="comm"))
        rows[name] = _in_words({"step": step.makespan_s, "communication": sent_s, "exposed": step.exposed_s(0)})
        rows[name]["efficiency"] = f"{alone.makespan_s / step.makespan_s:.0%}"
    return in_rows(rows)


def late_calls(step: Timeline) -> int:
    """All-reduces of rank 0 that end after its last kernel of backward."""
    backward = max(span.end_s for span in step.select(rank=0) if span.is_compute)
    return sum(span.end_s > backward for span in step.select(rank=0, stream="comm"))


def table_of_formulas(
    model: nn.Module, part: Batch, cluster: str, ranks: int, bucket_bytes: int, steps: Mapping[Method, Timeline]
) -> pd.DataFrame:
    """Seconds of each way by formula, on the simulator, and the error of the formula."""
    machine = find_cluster(cluster)
    profile = profile_step(model, lambda module: next_token_loss(module(part.inputs), part.targets), machine.device)
    rows = {}
    for method, step in steps.items():
        predicted_s = predict_step(profile, machine, ranks, bucket_bytes, method).step_s
        seconds = {"formula": predicted_s, "simulator": step.makespan_s}
        rows[method] = {name: format_quantity(value, "s", 4) for name, value in seconds.items()}
        rows[method]["error"] = f"{predicted_s / step.makespan_s - 1:+.2%}"
    return in_rows(rows)


def reconcile_here(parts: Sequence[Batch], bucket_bytes: int, ranks: int, backend: str, repeats: int) -> Reconciliation:
    """Predict and run an overlapped step on this machine, after a first step; on a GPU a part is repeated."""

    def warm_step(times: int) -> None:
        with phase("setup"):
            gpt, inputs, targets = prepare(parts)
            inputs, targets = inputs.repeat(times, 1), targets.repeat(times, 1)
            replica = parallel.DataParallel(gpt, bucket_bytes=bucket_bytes)
            next_token_loss(replica(inputs), targets).backward()
            dist.barrier()
        next_token_loss(replica(inputs), targets).backward()

    real = "nccl" if backend == "nccl" else "gloo"
    machine = this_machine(ranks=ranks, backend=real)
    times = batch_for(machine, 1, 6 * num_parameters(CONFIG) * SEQUENCES * SEQ_LEN)
    there: dict[str, Any] = {"ranks": ranks, "backend": real, "cluster": machine, "without": "setup"}
    there["fidelity"] = "shapes" if real == "nccl" else "values"
    return reconcile(warm_step, times, **there, repeats=repeats)


@cache
def profile_of(name: str, sequences: int, machine: str) -> StepProfile:
    """A step of one GPU of a cluster, from shapes alone."""
    config = MODELS[name]
    tokens = torch.zeros(sequences, config.max_seq_len, dtype=torch.long, device="meta")
    shape = GPT(config, device="meta")
    return profile_step(shape, lambda gpt: next_token_loss(gpt(tokens), tokens), find_cluster(machine).device)


def _efficiencies(bucket: float, sequences: int, name: str, machine: str) -> dict[str, list[float]]:
    one, where = profile_of(name, sequences, machine), find_cluster(machine)
    efficiency = partial(scaling_efficiency, one, where, bucket_bytes=int(bucket))
    return {way: [efficiency(n, method=way) for n in NUM_RANKS] for way in METHODS}


def explore_scaling(interactive: bool) -> Any:
    """Efficiency against the number of ranks."""
    controls = [
        LogSlider("bucket", "Bucket", 1e4, 1e9, 2e7, unit="B"),
        IntChoice("sequences", "Sequences per rank", _SEQUENCES, 8),
        Choice("name", "Model", tuple(MODELS), GPT2),
        _CLUSTER,
    ]
    examples = [{"bucket": 1e9}, {"name": "this lab's (3.2M)"}]
    draw = partial(figure_scaling, NUM_RANKS)
    return explore(_efficiencies, draw, controls, interactive=interactive, examples=examples)


def _step_times(num_ranks: int, sequences: int, name: str, machine: str) -> dict[str, list[float]]:
    one = profile_of(name, sequences, machine)
    predict = partial(predict_step, one, find_cluster(machine), num_ranks)
    times = {way: [predict(int(bucket), way).step_s for bucket in BUCKETS] for way in METHODS[1:]}
    return times | {"one GPU": [one.step_s] * len(BUCKETS)}


def explore_buckets(interactive: bool) -> Any:
    """Step against the size of a bucket."""

    def draw(series: Mapping[str, Sequence[float]]) -> go.Figure:
        return figure_lines(BUCKETS, series, "bucket", "step", x_unit="B", y_unit="s", log_x=True)

    controls = [
        IntChoice("num_ranks", "Ranks", (2, 4, 8, 16, 32, 64), 8),
        IntChoice("sequences", "Sequences per rank", _SEQUENCES, 4),
        Choice("name", "Model", tuple(MODELS), "this lab's (3.2M)"),
        _CLUSTER,
    ]
    examples = [{"num_ranks": 2}, {"name": GPT2, "sequences": 8}]
    return explore(_step_times, draw, controls, interactive=interactive, examples=examples)


def _in_words(seconds: Mapping[str, float]) -> dict[str, str]:
    return {name: format_quantity(value, "s") for name, value in seconds.items()}
