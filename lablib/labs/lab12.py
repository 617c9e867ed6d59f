"""Lab 12: matrices side by side with the cuts between ranks; bytes, memory and seconds of a layer that ranks share."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import pandas as pd
import plotly.graph_objects as go
import torch
import torch.distributed as dist
from torch import Tensor

from lablib import parallel
from lablib.calibration import batch_for, this_machine
from lablib.course import checks_for, guess, print_text, recorded_comparison, show_source, try_out
from lablib.course.table import in_rows
from lablib.figures import figure_tensor_times, show
from lablib.figures.chart import Axis, Mark, Panel, ReferenceLine, chart
from lablib.figures.style import INK
from lablib.hardware import find_cluster
from lablib.launch import launch
from lablib.models import GPT, GPTConfig, next_token_loss, num_parameters
from lablib.parallel.tensor.mlp import mlp_sent_bytes
from lablib.parallel.tensor.regions import all_gather_dim, all_reduced, reduce_scatter_single, with_gradient
from lablib.phases import phase
from lablib.reconcile import reconcile
from lablib.run import Run
from lablib.signature import Count, NonEmpty, Range, checked
from lablib.studies import tensor_layer_time, tensor_times
from lablib.text.markup import plain
from lablib.text.units import format_quantity, plural
from lablib.widgets import tensor_calculator

TOKENS, WIDTH, NUM_HEADS, NUM_KV_HEADS, WORDS = 4096, 4096, 16, 2, 128_000
ANSWERS = {"cut": "rows", "calls": [1, 1], "smaller": "width"}  # not visible in the notebook before a guess locks
WIDE = parallel.LayerSizes(batch=1, seq_len=4096, width=8192, heads=64)
PLANS = {"f and g": parallel.GPT_PLAN, "sequence": parallel.GPT_SEQUENCE_PLAN}
TINY = GPTConfig(2, 64, 8, vocab_size=96, max_seq_len=32, tied_head=False)
TINY_TOKENS = (torch.arange(2 * 32).view(2, 32) * 7) % 96
PLOT_PIXELS, MOST = 190, 64
# From light to dark, so that it is legible in grey.
SHADES = [[0.0, "#F7F7F7"], [1.0, "#0B4F8A"]]
EDGE: dict[str, Any] = {"color": "#D55E00", "width": 3, "dash": "solid"}


@checked
def figure_matrices(
    matrices: Annotated[Mapping[str, Tensor], NonEmpty()],
    cuts: Mapping[str, tuple[Annotated[int, Range(ge=0, le=1)], Count]],
    title: str,
    summary: str,
) -> go.Figure:
    """A panel for each matrix, a square for each number: the darker, the larger its size. Lines mark the cuts.

    `cuts`: name -> (0 for rows or 1 for columns, number of ranks); a matrix without one is whole.
    """
    for name, matrix in matrices.items():
        if matrix.ndim != 2 or not matrix.numel() or max(matrix.shape) > MOST or not matrix.isfinite().all():
            raise ValueError(
                f"a matrix must have 1 to {MOST} rows and columns of finite numbers to be drawn: {name!r} has shape "
                f"{tuple(matrix.shape)}; draw a part of it."
            )
    if unknown := cuts.keys() - matrices.keys():
        raise ValueError(f"cuts must name matrices, {list(matrices)}: got {sorted(unknown)}.")
    grids = {name: matrix.abs().double().numpy() for name, matrix in matrices.items()}
    largest = max(float(grid.max()) for grid in grids.values()) or 1.0
    shades = {"zmin": 0, "zmax": largest, "colorscale": SHADES, "showscale": False, "hoverinfo": "all"}
    panels, how = list[Panel](), list[str]()
    for name, grid in grids.items():
        rows, columns = grid.shape
        dim, ranks = cuts.get(name, (0, 1))
        chunk = -(-grid.shape[dim] // ranks)
        edges = [start - 0.5 for start in range(chunk, grid.shape[dim], chunk)]
        rules = [ReferenceLine(x=at, line=EDGE) if dim else ReferenceLine(y=at, line=EDGE) for at in edges]
        look = {"z": grid, "xgap": 1, "ygap": 1, **shades}
        mark = Mark(plain(name), range(columns), range(rows), (), look=look, trace=go.Heatmap)
        is_cut = [name in cuts and dim == side for side in (0, 1)]
        across = _axis("column", (-0.5, columns - 0.5), chunk * is_cut[1])
        down = _axis("row", (rows - 0.5, -0.5), chunk * is_cut[0])
        panels.append(Panel(across, down, [mark], rules, plain(name)))
        how.append(f"{('rows', 'columns')[dim]} on {plural(ranks, 'ranks')}" if name in cuts else "whole")
    shapes = [grid.shape for grid in grids.values()]
    sizes = {"rows": [rows for rows, _ in shapes], "columns": [columns for _, columns in shapes]}
    table = {"matrix": list(grids), **sizes, "cut": how}
    return chart(title, panels, summary, table, pixels=PLOT_PIXELS, showlegend=False)


def _axis(side: str, span: tuple[float, float], chunk: int) -> Axis:
    """The axis along a matrix, with each rank at the middle of its `chunk` numbers; 0 for no cut and no marks."""
    look: dict[str, Any] = {"showgrid": False, "tickfont": {"size": 11, "color": INK}}
    if not chunk:
        return Axis(side, "number", span=span, look=look | {"showticklabels": False, "ticks": ""})
    size = int(max(span) + 0.5)
    parts = [(start, min(start + chunk, size)) for start in range(0, size, chunk)]
    return Axis(
        side, "rank", span=span, look=look, ticks={(a + b - 1) / 2: str(rank) for rank, (a, b) in enumerate(parts)}
    )


def factors(ranks: int) -> tuple[Tensor, Tensor]:
    """X [6, 8] and W [8, 16], random numbers."""
    if ranks not in (2, 4, 8):
        raise ValueError(f"ranks must be 2, 4 or 8: got {ranks}.")
    numbers = torch.Generator("cpu").manual_seed(0)
    like: dict[str, Any] = {"generator": numbers, "dtype": torch.float64, "device": "cpu"}
    return torch.randn(6, 8, **like), torch.randn(8, 16, **like) / 3


def figure_question() -> go.Figure:
    """The factors of a product, and the product."""
    x, w = factors(2)
    said = "GPUs share this product. How would you cut the matrices, and what must the GPUs then send?"
    return figure_matrices({"X": x, "W": w, "Y": x @ w}, {}, "One matrix product: Y = X W", said)


def show_cut(way: str, x: Tensor, w: Tensor, ranks: int) -> None:
    """Show the product with W cut by "columns" or by "rows"."""
    matrices, across = {"X": x, "W": w, "Y": x @ w}, (1, ranks)
    if way == "columns":
        said = "W by columns: each rank needs all of X, and has some columns of Y."
        show(figure_matrices(matrices, {"W": across, "Y": across}, "By columns", said))
        return
    said = "W by rows: each rank needs some columns of X, and has a partial sum, as large as Y."
    show(figure_matrices(matrices, {"X": across, "W": (0, ranks)}, "By rows", said))


def same(x: Tensor) -> Tensor:
    """The input, as another tensor."""
    return x.view_as(x)


def gathered(x: Tensor) -> Tensor:
    """All ranks' rows, in the order of the ranks."""
    return all_gather_dim(x, 0, dist.get_world_size() * len(x))


def scattered(x: Tensor) -> Tensor:
    """This rank's rows of the sum over ranks."""
    rows = x.new_empty(len(x) // dist.get_world_size(), *x.shape[1:])
    reduce_scatter_single(rows, x.contiguous())
    return rows


def _of_shapes(program: Any, *args: Any, ranks: int, cluster: str) -> Run:
    return launch(program, *args, ranks=ranks, cluster=cluster, fidelity="shapes", simulate=[0])


def table_of_mlp(ranks: int, cluster: str) -> pd.DataFrame:
    """Bytes and calls of an MLP on n ranks: naive, and by columns and rows."""

    def one_mlp(is_naive: bool) -> None:
        made: dict[str, Any] = {"dtype": torch.bfloat16, "requires_grad": True}
        shapes: list[tuple[int, ...]] = [(4 * WIDTH, WIDTH), (4 * WIDTH,), (WIDTH, 4 * WIDTH), (WIDTH,)]
        whole = parallel.MLPShard(*(torch.zeros(shape, **made) for shape in shapes))
        x = torch.zeros(1, TOKENS, WIDTH, **made)
        mlp = parallel.naive_tensor_mlp if is_naive else parallel.tensor_mlp
        y = mlp(x, whole if is_naive else parallel.shard_mlp(whole))
        y.backward(torch.zeros_like(y))

    table = {}
    for name, is_naive in {"naive": True, "columns, then rows": False}.items():
        run = _of_shapes(one_mlp, is_naive, ranks=ranks, cluster=cluster)
        spans = [span for span in run.timeline.select(0) if span.is_communication]
        calls = Counter((span.name, span.phase) for span in spans)
        formula = mlp_sent_bytes(TOKENS, WIDTH, 4 * WIDTH, ranks, 2, naive=is_naive)
        sent = {"sent": run.traffic.sent_bytes(0), "sent by formula": formula}
        table[name] = {key: format_quantity(value, "B", 4) for key, value in sent.items()}
        for part in ("forward", "backward"):
            found = {call: n for (call, of), n in calls.items() if of == part}
            table[name][part] = ", ".join(f"{n} {call}" for call, n in found.items())
    return in_rows(table)


def table_of_heads(ranks: int) -> pd.DataFrame:
    """Heads of queries, and of keys and values, on each rank."""
    held = {}
    for rank in range(ranks):
        queries = range(*parallel.shard_range(NUM_HEADS, rank, ranks))
        keys = parallel.key_value_heads_of(rank, NUM_KV_HEADS, ranks)
        held[f"rank {rank}"] = {"query heads": f"{queries[0]} to {queries[-1]}"}
        held[f"rank {rank}"]["key-value heads"] = ", ".join(map(str, keys))
    return in_rows(held)


def attention_norms(tensor_attention: Callable[..., Tensor]) -> str:
    """One text through a learner's `tensor_attention`, 4 query heads and 2 of keys: norms of gradients on this rank."""
    drawn, rank, n = torch.Generator().manual_seed(0), dist.get_rank(), dist.get_world_size()
    shapes = {"query": (8, 8), "key": (8, 4), "value": (8, 4), "out": (8, 8)}
    weights = {name: torch.randn(shape, generator=drawn) for name, shape in shapes.items()}
    x = torch.randn(5, 8, generator=drawn).requires_grad_()
    lists = [range(n), *([each] for each in range(n)), *(range(i, i + 2) for i in range(0, n - 1, 2))]
    groups = {tuple(ranks): dist.new_group(list(ranks)) for ranks in lists}
    taken: dict[str, tuple[list[int], Tensor]] = {}

    def take(name: str, heads: Sequence[int]) -> Tensor:
        if name not in weights or not isinstance(heads, Sequence) or not heads:
            raise ValueError(f"take must get one of {[*weights]} and a range of heads: got {name!r} and {heads!r}.")
        own = range(2 * heads[0], 2 * heads[-1] + 2)
        part = weights[name][own] if name == "out" else weights[name][:, own]
        taken[name] = [*heads], part.clone().requires_grad_()
        return taken[name][1]

    def group_of(ranks: Sequence[int]) -> Any:
        if rank not in ranks or tuple(sorted(ranks)) not in groups:
            raise ValueError(f"group_of on rank {rank} must get the ranks with the same head of keys: got {[*ranks]}.")
        return groups[tuple(sorted(ranks))]

    tensor_attention(x, 4, 2, take, group_of).square().sum().backward()
    (kv_heads, key), of_x = taken["key"], x.grad
    norms = [] if key.grad is None else key.grad.view(8, -1, 2).norm(dim=(0, 2)).tolist()
    of_heads = ", ".join(f"{norm:.3f} of head {head}" for head, norm in zip(kv_heads, norms, strict=False))
    of_x_norm = "none" if of_x is None else f"{float(of_x.norm()):.3f}"
    return f"query heads {taken['query'][0]}; gradients: keys {of_heads or 'none'}; x {of_x_norm}"


def _kept_after(num_layers: int, plan: Any, ranks: int, cluster: str) -> float:
    """Bytes that a rank keeps after forward of some layers."""

    def forward_of() -> None:
        with phase("setup"):
            sizes = GPTConfig(num_layers, WIDTH, 32, vocab_size=64, max_seq_len=TOKENS)
            model = parallel.parallelize(GPT(sizes, dtype=torch.bfloat16), plan=plan)
        logits = model(torch.zeros(1, TOKENS, dtype=torch.long, device=torch.get_default_device()))
        with phase("rest"):
            dist.barrier()
        del logits

    run = _of_shapes(forward_of, ranks=ranks, cluster=cluster)
    rest = run.timeline.select(0, phase="rest")[0]
    held = run.memory.at(0, (rest.start_s + rest.end_s) / 2)
    return held["activation"] + held["communication"]


def table_of_kept(ranks: int, cluster: str) -> pd.DataFrame:
    """Bytes that a rank keeps of a layer for backward: by formula, and in the memory tracker."""
    layer, kept = parallel.LayerSizes(batch=1, seq_len=TOKENS, width=WIDTH, heads=32), {}
    for way, plan in PLANS.items():
        parts = parallel.kept_by_layer(layer, ranks, sequence=way == "sequence")
        kept[way] = {part.name: part.size_bytes for part in parts}
        kept[way] |= {"SUM": sum(part.size_bytes for part in parts)}
        kept[way] |= {"SUM, tracked": _kept_after(2, plan, ranks, cluster) - _kept_after(1, plan, ranks, cluster)}
    table = pd.DataFrame(kept).map(lambda size: format_quantity(size, "B", 4))
    return table.rename_axis(f"kept by each of {ranks} ranks, {TOKENS} tokens of width {WIDTH}")


def table_of_losses(ranks: int, cluster: str) -> pd.DataFrame:
    """Memory, bytes and seconds of a loss of gathered and of cut logits."""

    def loss_of(is_gathered: bool) -> None:
        own = torch.zeros(1, TOKENS, WORDS // ranks, dtype=torch.bfloat16, requires_grad=True)
        loss = parallel.gathered_loss if is_gathered else parallel.vocabulary_parallel_loss
        loss(own, torch.zeros(1, TOKENS, dtype=torch.long), WORDS).backward()

    table = {}
    for name, is_gathered in {"logits gathered": True, "cut": False}.items():
        run = _of_shapes(loss_of, is_gathered, ranks=ranks, cluster=cluster)
        found = {"most memory": run.memory.peak_bytes(0), "sent": run.traffic.sent_bytes(0)}
        table[name] = {key: format_quantity(value, "B") for key, value in found.items()}
        table[name]["takes"] = format_quantity(run.timeline.makespan_s, "s")
    return in_rows(table)


def print_links(cluster: str) -> None:
    """Print the links inside a node and between nodes."""
    machine = find_cluster(cluster)
    for where, link in {"inside": machine.intra, "between nodes": machine.inter}.items():
        print(f"{where}: {link.name}, {format_quantity(link.bandwidth_bytes_per_s, 'B/s')} for each GPU")


def show_times(cluster: str) -> dict[int, float]:
    """Show the compute and exposed communication of a wide layer against the number of ranks; returns the speed-ups."""
    machine = find_cluster(cluster)
    times = tensor_times(WIDE, machine, [1, 2, 4, 8, 16, 32])
    show(figure_tensor_times(times, machine.devices_per_node, title=f"A layer on {cluster}"))
    return {time.ranks: times[0].layer_s / time.layer_s for time in times[1:]}


def _seconds_of(num_layers: int, ranks: int, cluster: str) -> dict[str, float]:
    """Simulated seconds of a step of some wide layers."""

    def step_of() -> None:
        with phase("setup"):
            sizes = GPTConfig(num_layers, WIDE.width, WIDE.heads, vocab_size=64, max_seq_len=WIDE.seq_len)
            model = parallel.parallelize(GPT(sizes, dtype=torch.bfloat16))
            tokens = torch.zeros(1, WIDE.seq_len, dtype=torch.long, device=torch.get_default_device())
            dist.barrier()
        parallel.vocabulary_parallel_loss(model(tokens), tokens, 64).backward()

    step = _of_shapes(step_of, ranks=ranks, cluster=cluster).timeline.without("setup")
    return {"layer": step.makespan_s, "exposed": step.exposed_s(0)}


def table_of_layer(cluster: str) -> pd.DataFrame:
    """Seconds of a wide layer on 8 and 16 ranks: by formula, and on the simulator as two layers less one."""
    table = {}
    for time in tensor_times(WIDE, find_cluster(cluster), [1, 8, 16])[1:]:
        one, two = (_seconds_of(num, time.ranks, cluster) for num in (1, 2))
        for name, seconds in {"layer": time.layer_s, "exposed": time.exposed_s}.items():
            table[f"{time.ranks} ranks, {name}"] = {"formula": seconds, "simulated": two[name] - one[name]}
    return in_rows(table).map(lambda seconds: format_quantity(seconds, "s"))


def gradients(plan: Any) -> tuple[float, dict[str, Tensor]]:
    """Loss and whole gradients of a small GPT, cut by a plan, or on one device."""
    model = GPT(TINY, seed=0, dtype=torch.float64).to(torch.get_default_device())
    tokens = TINY_TOKENS.to(torch.get_default_device())
    if plan is None:
        loss = next_token_loss(model(tokens), tokens)
    else:
        parallel.parallelize(model, plan=plan)
        loss = parallel.vocabulary_parallel_loss(model(tokens), tokens, TINY.vocab_size)
    loss.backward()
    return loss.item(), parallel.full_gradients(model)
