"""Lab 13: stages of a model, pictures of a plan, bubble of each pipeline schedule against the memory of a rank."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated, Any

import pandas as pd
import plotly.graph_objects as go
import torch
import torch.distributed as dist
from torch.profiler import record_function

from lablib.calibration import batch_for, this_machine
from lablib.course import checks_for, guess, print_text, recorded_comparison, try_out
from lablib.course.table import in_rows
from lablib.figures import figure_pipeline_simulation, show
from lablib.figures.chart import ROWS, Axis, Panel, bars, chart, line
from lablib.figures.style import LOOKS
from lablib.launch import launch
from lablib.models import GPT, GPTConfig, next_token_loss, num_parameters
from lablib.phases import phase
from lablib.pipeline import (
    Plan,
    equal_memory,
    executed,
    leader_board,
    measured_costs,
    pairs_bubble_s,
    read_plan,
    replay_pairs,
    simulate,
)
from lablib.pipeline.equal_memory import Afforded
from lablib.pipeline.executor import Pipeline, cut, cut_at, flops_of, units_of
from lablib.pipeline.plan import Action
from lablib.reconcile import reconcile
from lablib.run import Run
from lablib.signature import Range, checked
from lablib.text.units import format_quantity, plural
from lablib.widgets import bubble_simulator

CONFIG = GPTConfig(num_layers=15, d_model=2048, num_heads=16, vocab_size=32_000, max_seq_len=1024)
TINY = GPTConfig(num_layers=2, d_model=32, num_heads=2, vocab_size=64, max_seq_len=16)
MEMORY = Axis("activations a rank can hold", "micro-batches")


def figure_question() -> go.Figure:
    """A model of 16 layers, cut for four GPUs, as a staircase."""
    rows = [f"GPU {gpu}" for gpu in range(4)]
    words = [f"layers {4 * gpu + 1} to {4 * gpu + 4}" for gpu in range(4)]
    look: dict[str, Any] = {"orientation": "h", "text": words, "textposition": "inside", "insidetextanchor": "middle"}
    look |= {"base": [4 * gpu for gpu in range(4)], "textfont": LOOKS["forward"].font()}
    across = Axis("layers of the model, from input to output", look={"showticklabels": False, "ticks": ""})
    panel = Panel(across, ROWS, [bars(LOOKS["forward"], "layers", [4] * 4, rows, (), **look)])
    sentence = "Each GPU needs the output of the GPU above. What does it do before that arrives?"
    columns = {"GPU": rows, "holds": words}
    return chart("A model that four GPUs hold together", panel, sentence, columns, pixels=150, showlegend=False)


def meta_model() -> GPT:
    """The lab's model, with shapes and no values."""
    return GPT(CONFIG, device="meta", dtype=torch.bfloat16)


def run_plan(plan: Plan, cluster: str) -> Run:
    """A step of the lab's model by the executor, with shapes instead of values."""
    tokens = [torch.zeros(1, CONFIG.max_seq_len, dtype=torch.long)] * plan.num_microbatches

    def step() -> None:
        with phase("setup"):
            pipeline = Pipeline(plan, cut(meta_model(), plan.num_pieces), next_token_loss)
        pipeline.step(tokens, tokens)

    return launch(step, ranks=plan.num_stages, cluster=cluster, fidelity="shapes")


@checked
def table_of_stages(ranks: Annotated[int, Range(ge=2, le=8)], microbatches: Annotated[int, Range(ge=1, le=32)]) -> Any:
    """Layers, parameters and FLOPs of each stage; checks the lab's parameters."""
    rows = {}
    for number, piece in enumerate(cut(meta_model(), ranks)):
        rows[f"stage {number}"] = {
            "holds": ", ".join(dict.fromkeys(type(unit).__name__ for unit in piece)),
            "layers": len(piece),
            "parameters": f"{sum(param.numel() for param in piece.parameters()) / 1e6:.0f} million",
            "FLOPs per token, forward": format_quantity(flops_of(piece, CONFIG.max_seq_len), "FLOP"),
        }
    return in_rows(rows)


def picture(plan: Any, costs: Any = None, title: str | None = None, limit: Any = None) -> go.Figure:
    """A plan, and the micro-batches that each stage holds."""
    return figure_pipeline_simulation(simulate(plan, costs, limit), title=title)


def seconds_and_held(text: Any) -> str:
    """Show a learner's plan; its seconds, and the micro-batches that each stage holds."""
    if text is ...:
        return "not attempted yet"
    mine = simulate(read_plan(text), max_in_flight=(3, 2, 2))
    show(figure_pipeline_simulation(mine, title="My plan"))
    return f"{mine.replay.makespan_s:g} s, held by each stage: {mine.replay.in_flight}"


def run_rows(run_row: Callable[..., Any], plan: Plan, cluster: str) -> str:
    """Run a plan with a learner's `run_row`: compare the gradients of a small GPT, and show the lab's GPT as it ran."""
    small = replace(TINY, num_layers=plan.num_stages, tied_head=False)  # a tied matrix would need a sum of gradients
    off = launch(_row_of_rank, run_row, plan, small, torch.float64, "cpu", ranks=plan.num_stages).values
    options = {"ranks": plan.num_stages, "cluster": cluster, "fidelity": "shapes"}
    run = launch(_row_of_rank, run_row, plan, CONFIG, torch.bfloat16, "meta", **options)
    happened = executed(run.timeline, plan)
    show(happened.figure(title=f"Your run_row: {plan.name} as it ran"))
    step, peak = format_quantity(happened.makespan_s, "s"), format_quantity(run.memory.peak_bytes(0), "B")
    return f"gradients off by {max(off):.0e}; a step of {step}; peak of stage 0 {peak}"


def _row_of_rank(run_row: Callable[..., Any], plan: Plan, config: GPTConfig, dtype: torch.dtype, device: str) -> float:
    """Run this rank's row. Returns the largest difference from the gradients of one device, relative to the largest."""
    rank, count, length = dist.get_rank(), plan.num_microbatches, config.max_seq_len
    first_of, last_of = {"F": 0, "B": plan.num_stages - 1}, {"F": plan.num_stages - 1, "B": 0}  # of a message's way
    with record_function("setup"):
        piece = cut(GPT(config, seed=0, device=device, dtype=dtype), plan.num_stages)[rank]
        texts = (torch.arange(count * (length + 1)) * 7 % config.vocab_size).view(count, 1, length + 1)
    sent, unsent = list[Any](), list[str]()
    mark = ExitStack()  # names the computation of an action, from its receive to the next action

    def every_action_sent() -> None:
        if unsent:
            raise ValueError(
                f"every action must end with a send, but B on stage 0: got none after {unsent[0]} on stage {rank}; "
                "is there a gradient, x.grad? The received x must require one."
            )

    def recv(action: str) -> torch.Tensor | None:
        every_action_sent()
        mark.close()
        unsent.extend([] if (rank, action[0]) == (0, "B") else [action])
        x = texts[int(action[1:]), :, :-1] if action[0] == "F" else None
        if rank != first_of[action[0]]:
            x = torch.empty(1, length, config.d_model, dtype=dtype)
            dist.recv(x, rank - 1 if action[0] == "F" else rank + 1, tag=int(action[1:]))
        parsed = Action.parse(f"{rank}{action}")
        mark.enter_context(record_function(f"{parsed.kind.phase} {parsed}"))
        return x

    def stage(action: str, x: torch.Tensor) -> torch.Tensor:
        is_last = rank == last_of["F"]
        return next_token_loss(piece(x), texts[int(action[1:]), :, 1:]) / count if is_last else piece(x)

    def send(action: str, x: torch.Tensor) -> None:
        if (rank, action[0]) == (0, "B"):
            raise ValueError(f"stage 0 must send nothing after a B (tokens have no gradient): got {action!r}.")
        unsent.clear()
        if rank != last_of[action[0]]:
            sent.append(dist.isend(x, rank + 1 if action[0] == "F" else rank - 1, tag=int(action[1:])))

    run_row([str(action).lstrip("0123456789") for action in plan.actions[rank]], stage, send, recv)
    every_action_sent()
    mark.close()
    for work in sent:
        work.wait()
    if device == "meta":
        return 0.0
    whole = cut(GPT(config, seed=0, dtype=dtype), plan.num_stages)
    next_token_loss(torch.nn.Sequential(*whole)(texts[:, 0, :-1]), texts[:, 0, 1:]).backward()
    grads = [(a.grad, b.grad) for a, b in zip(piece.parameters(), whole[rank].parameters(), strict=True)]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in grads if a is not None and b is not None)


@checked
def figure_equal_memory(afforded: Mapping[float, Sequence[Afforded]], title: str) -> go.Figure:
    """One line for each schedule, over the memory in which it fits.

    `afforded`: memory -> result of `lablib.pipeline.equal_memory`, ascending.
    """
    best = {memory: {one.schedule: one for one in found} for memory, found in afforded.items()}
    names = list(dict.fromkeys(name for found in reversed(best.values()) for name in found))
    marks, columns = [], dict[str, list[float | None]]({f"{MEMORY.label} ({MEMORY.unit})": list(best)})
    for index, name in enumerate(names):
        fits = {memory: found[name] for memory, found in best.items() if name in found}
        shares = {memory: 100 * one.bubble_fraction for memory, one in fits.items()}
        hover = [
            f"<b>{one.schedule}</b> with memory for {format_quantity(memory, MEMORY.unit)}<br>"
            f"bubble {one.bubble_fraction:.1%}, holds {one.in_flight:.3g}<br>"
            f"{plural(one.num_flushes, 'parts')} of {plural(one.num_microbatches, 'micro-batches')}, "
            f"{plural(one.num_chunks, 'pieces')} a rank"
            for memory, one in fits.items()
        ]
        marks.append(line(index, name, list(shares), list(shares.values()), hover))
        columns[f"{name}: bubble (%)"] = [shares.get(memory) for memory in best]
    parts = []
    for memory in dict.fromkeys([*list(best)[:1], *list(best)[-1:]]):
        least = min(best[memory].values(), key=lambda one: one.bubble_fraction, default=None)
        words = f"{least.schedule} has the least bubble, {least.bubble_fraction:.1%}" if least else "nothing fits"
        parts.append(f"with memory for {format_quantity(memory, MEMORY.unit)} {words}")
    sentence = "; ".join(parts)
    panel = Panel(MEMORY, Axis("bubble", "%", from_zero=True), marks)
    return chart(title, panel, f"{sentence[:1].upper()}{sentence[1:]}.", columns)
