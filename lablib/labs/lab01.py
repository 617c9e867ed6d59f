"""Lab 01: memory over a step, the rule of six FLOPs, and tables of the parts of a step; the names of its notebook."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lablib.calibration import batch_for, this_machine
from lablib.course import checks_for, guess, print_text, recorded_comparison, show_source, try_out
from lablib.figures import figure_lines, figure_memory, figure_roofline, show
from lablib.figures.chart import Axis, Panel, ReferenceLine, chart, line
from lablib.figures.style import FAINT_INK
from lablib.hardware import find_cluster
from lablib.hardware.device import Device
from lablib.models import GPTConfig, find_transformer, model_config, num_parameters
from lablib.models.training_compute import over_six_n_d, six_n_d, training_days
from lablib.models.transformer_flops import forward_flops, recompute_flops, step_flops
from lablib.record.timeline import Span, Timeline
from lablib.run import Run
from lablib.signature import Count, checked
from lablib.studies.step_memory import memory_of_step
from lablib.text.units import format_quantity
from lablib.widgets import memory_calculator

GPT2 = replace(model_config("gpt2"), vocab_size=50304)  # padded to a multiple of 64, which GPUs multiply faster


def figure_question() -> go.Figure:
    """Memory of a GPU over one step: a made-up shape without numbers."""
    times, held = [0.0, 0.08, 0.46, 0.84, 0.86, 0.97, 1.0], [0.25, 0.25, 0.85, 0.3, 0.4, 0.4, 0.25]
    look = {"showticklabels": False, "ticks": "", "showgrid": False}
    mark = line(0, "memory in use", times, held, ()).styled(mode="lines", fill="tozeroy")
    limit = ReferenceLine(y=1.0, text="memory of the GPU", place="bottom right", line={"color": FAINT_INK})
    panel = Panel(Axis("time", span=(0, 1), look=look), Axis("memory", span=(0, 1.1), look=look), [mark], [limit])
    sentence = "What fills the memory, which work takes the time, and does the step fit?"
    columns = {"moment": ["begins", "highest", "ends"], "memory": ["low", "high", "low"]}
    return chart("One step of training on one GPU (sketch, not to scale)", panel, sentence, columns, pixels=190)


def facts(config: GPTConfig, device: Device, tokens: int) -> str:
    """The model, its batch and the GPU in words."""
    peak = format_quantity(device.peak("bfloat16"), "FLOP/s")
    size, rate = ((device.memory_bytes, "B"), (device.memory_bandwidth_bytes_per_s, "B/s"))
    return (
        f"{config}\n{num_parameters(config):,} parameters; a batch has {tokens:,} tokens\n"
        f"{device.name}: peak {peak} in bfloat16 (2-byte numbers); {format_quantity(*size)} of memory, which it reads "
        f"or writes at {format_quantity(*rate)}, its bandwidth"
    )


def update(model: nn.Module, masters: Sequence[Tensor], optimizer: Optimizer) -> None:
    """A step of the optimizer on the master parameters, and their copy into the model; gradients are freed."""
    for param, master in zip(model.parameters(), masters, strict=True):
        master.grad = torch.zeros_like(master) if param.grad is None else param.grad.float()
    optimizer.step()
    with torch.no_grad():
        for param, master in zip(model.parameters(), masters, strict=True):
            param.copy_(master)
            param.grad = master.grad = None  # as zero_grad: the next step makes new ones


def shares(step: Timeline) -> dict[str, float]:
    """Share of the step's time by phase."""
    busy_s = {name: 0.0 for name in ("forward", "backward", "optimizer")}
    for span in step.select(0):
        busy_s[span.phase] += span.duration_s
    return {name: seconds / step.makespan_s for name, seconds in busy_s.items()}


def limits(spans: Sequence[Span], device: Device) -> dict[str, float]:
    """Seconds of operations by arithmetic alone, by memory alone, and as simulated."""
    flops, size_bytes = sum(span.flops for span in spans), sum(span.size_bytes for span in spans)
    return {
        "calls": len(spans),
        "FLOPs / peak": flops / device.peak("bfloat16"),
        "bytes / bandwidth": size_bytes / device.memory_bandwidth_bytes_per_s,
        "simulated": sum(span.duration_s for span in spans),
    }


def flops_by_phase(step: Timeline) -> dict[str, float]:
    """FLOPs that the simulator counted."""
    flops = {"forward": 0.0, "backward": 0.0, "optimizer": 0.0}
    for span in step.select(0):
        flops[span.phase] += span.flops
    return flops


def in_table(rows: Mapping[str, Mapping[str, float]], unit: str, digits: int = 3, index: str = "") -> pd.DataFrame:
    """Name -> values as a table, a row for each name; whole numbers are kept."""

    def words(value: Any) -> Any:
        return format_quantity(value, unit, digits) if isinstance(value, float) else value

    columns = list(next(iter(rows.values())))
    table = {column: [words(row[column]) for row in rows.values()] for column in columns}
    return pd.DataFrame(table, index=list(rows)).rename_axis(index or None)


@checked
def figure_over_rule(models: Sequence[str], lengths: Sequence[Count]) -> go.Figure:
    """FLOPs of a token over the rule's 6 N, by length of the sequence."""
    found = [find_transformer(model) for model in models]
    ratios = {f"{one.name}, width {one.d_model}": over_six_n_d(one, np.array(lengths)).tolist() for one in found}
    title = "FLOPs of a token, over the rule's FLOPs"
    return figure_lines(lengths, ratios, "sequence", "FLOPs over 6 N", "tokens", title=title, log_x=True, log_y=True)


def over_rule(model: str, length: int) -> float:
    """FLOPs of a token over the rule's 6 N."""
    return float(over_six_n_d(find_transformer(model), length))


def held_after_backward(run: Run) -> Mapping[str, int]:
    """Bytes by category just before the optimizer begins."""
    ends_s = [span.end_s for span in run.timeline.select(0) if span.phase == "backward"]
    return run.memory.at(0, max(ends_s) - 1e-9)


def largest_at_peak(run: Run, number: int = 6) -> pd.DataFrame:
    """The largest allocations at the peak."""
    largest = run.memory.allocations_at_peak(0)[:number]
    rows = [{"by": each.name, "category": each.category, "bytes": each.size_bytes} for each in largest]
    return pd.DataFrame(rows).assign(bytes=[format_quantity(row["bytes"], "B") for row in rows])
