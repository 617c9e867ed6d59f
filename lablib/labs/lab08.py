"""Lab 08: tensors before and after an all-reduce, the crossing of two formulas, the fit of a link to measurements."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import torch
from torch import Tensor

from lablib import parallel
from lablib.course import checks_for, guess, print_text, recorded_comparison, show_source, try_out
from lablib.figures import (
    figure_collective_cost,
    figure_network,
    figure_timeline,
    figure_traffic,
    figure_traffic_matrix,
    show,
)
from lablib.figures.chart import Axis, Panel, bars, chart
from lablib.figures.style import Look
from lablib.hardware import LINKS, Cluster, Dragonfly, FatTree, Link, Torus, find_cluster
from lablib.launch import launch
from lablib.phases import phase
from lablib.text.units import format_quantity
from lablib.widgets import IntChoice, LogSlider, explore
from lablib.widgets.explore import Exploration

Seconds = Callable[[float], float]  # time by size in bytes
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")


def figure_question() -> go.Figure:
    """The number of each rank before an all-reduce, and the sum of all on each rank after it."""
    numbers = (3, 1, 4, 2)
    ranks = [f"rank {rank}" for rank in range(len(numbers))]
    before, after = [], []
    for rank, number in enumerate(numbers):
        look = Look(
            f"from {ranks[rank]}", "", COLORS[rank % len(COLORS)], ("", "/", ".", "x")[rank % 4], edge="#FFFFFF"
        )
        before.append(bars(look, look.name, [ranks[rank]], [number]))
        after.append(bars(look, look.name, ranks, [number] * len(ranks)))
    across, up = Axis("", look={"type": "category", "categoryarray": ranks}), Axis("number", span=(0, sum(numbers) + 1))
    sentence = "Every rank needs the sum of all. Who sends what to whom, and how long does it take?"
    columns = {"rank": ranks, "before": list(numbers), "after": [sum(numbers)] * len(ranks)}
    panels = [Panel(across, up, before, title="before"), Panel(across, up, after, title="after")]
    return chart("An all-reduce of four ranks", panels, sentence, columns, pixels=200, barmode="stack")


def summed(all_reduce: Callable[[Tensor], Any], num_floats: int) -> tuple[Tensor, Tensor]:
    """The random numbers that this rank contributes, and its result."""
    x = torch.randn(num_floats)
    before = x.clone()
    all_reduce(x)
    return before, x


def holds_the_sum(values: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Does every rank hold the sum? values: (before, after) of each rank."""
    total = torch.stack([before for before, _ in values]).sum(0)
    return all(torch.allclose(after, total, atol=1e-4) for _, after in values)


# ---- two formulas ----


def show_message_cost(message_s: Callable[[Link, float], float], *links: Link) -> None:
    """Show the time of a message against its size, and for each link the size at which half of it is latency."""
    sizes_bytes = [2.0**k for k in range(4, 31)]
    curves = {link.name: [message_s(link, size) for size in sizes_bytes] for link in links}
    halves = {f"α/β of {link.name}": link.latency_s * link.bandwidth_bytes_per_s for link in links}
    show(figure_collective_cost(sizes_bytes, curves, halves, title="One message against its size"))


def table_of_times(
    ways: Mapping[str, tuple[Callable[..., Any], Callable[[int, Link, float], float]]],
    cluster: Cluster,
    num_ranks: Iterable[int],
) -> pd.DataFrame:
    """Simulated seconds of all-reduces of a small and a large tensor; fails unless their formulas agree to 9 digits."""
    rows = []
    for n, num_floats in ((n, floats * n) for n in num_ranks for floats in (10, 100_000)):
        row = {"ranks": str(n), "tensor": format_quantity(4 * num_floats, "B")}
        for name, (all_reduce, formula) in ways.items():
            run = launch(summed, all_reduce, num_floats, ranks=n, cluster=cluster)
            seconds, formula_s = run.timeline.makespan_s, formula(n, cluster.intra, 4 * num_floats)
            assert abs(seconds / formula_s - 1) < 1e-9, f"{name} on {n} ranks: {seconds} s, by formula {formula_s} s"
            row[name] = format_quantity(seconds, "s", 4)
        rows.append(row)
    return pd.DataFrame(rows).set_index(["ranks", "tensor"])


def crossing_bytes(ring: Seconds, tree: Seconds) -> float:
    """Size at which these two functions of a size are equal; 0 if the tree never wins."""
    low, high = 1.0, 1e12
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if tree(middle) < ring(middle) else (low, middle)
    return low if low > 1.0 else 0.0


def cost_curves(ring: Seconds, tree: Seconds) -> tuple[list[float], dict[str, list[float]], dict[str, float]]:
    """Sizes, seconds of both, and the crossing: the arguments of `figure_collective_cost`."""
    sizes_bytes, crossing = [4.0 * 10 ** (k / 4) for k in range(33)], crossing_bytes(ring, tree)
    curves = {"ring": list(map(ring, sizes_bytes)), "tree": list(map(tree, sizes_bytes))}
    return sizes_bytes, curves, {"tree = ring": crossing} if crossing else {}


def explore_network(
    ring_s: Callable[[int, Link, float], float], tree_s: Callable[[int, Link, float], float], interactive: bool
) -> Exploration:
    """Ring and tree on a network with the learner's settings."""

    def network(num_ranks: int, latency_s: float, bandwidth: float) -> Any:
        link = Link("yours", latency_s, bandwidth)
        return cost_curves(lambda size: ring_s(num_ranks, link, size), lambda size: tree_s(num_ranks, link, size))

    def drawn(found: Any) -> go.Figure:  # every network on the same axes, so that changes can be seen
        return figure_collective_cost(*found, title="All-reduce on your network", time_range_s=(1e-6, 1))

    controls = [
        IntChoice("num_ranks", "Ranks", (2, 4, 8, 16, 32, 64), 16),
        LogSlider("latency_s", "Latency α", 1e-6, 1e-3, 4e-6, "s"),
        LogSlider("bandwidth", "Bandwidth 1/β", 1e9, 1e12, 50e9, "B/s"),
    ]
    return explore(network, drawn, controls, interactive, examples=[{"latency_s": 4e-5}, {"num_ranks": 64}])


# ---- this machine ----


def three_times(all_reduce: Callable[[Tensor], Any], num_floats: int) -> None:
    """Three all-reduces, after a first one in the phase "setup"."""
    with phase("setup"):
        x = torch.ones(num_floats)
        all_reduce(x)
    for _ in range(3):
        all_reduce(x)


def step_s(floats_each: int, repeats: int, ranks: int, backend: str) -> float:
    """Seconds of one step of a ring with messages of `floats_each` floats: the median of several runs."""
    program = three_times, parallel.ring_all_reduce, floats_each * ranks
    runs = [launch(*program, ranks=ranks, backend=backend) for _ in range(repeats)]
    return median(run.timeline.without("setup").makespan_s for run in runs) / (6 * (ranks - 1))


def machine_of(latency_s: float, bandwidth: float, backend: str, cluster: str) -> Cluster:
    """This machine with one kind of link, of measured latency and bandwidth in bytes/s."""
    link = Link("your link", latency_s, bandwidth)
    return find_cluster("laptop" if backend == "gloo" else cluster).replace(name="your fit", intra=link, inter=link)
