"""Lab 00: possible messages between ranks, launches that may fail, and the other names of its notebook."""

from itertools import combinations
from math import cos, pi, sin
from typing import Annotated, Any

import pandas as pd
import plotly.graph_objects as go

from lablib.calibration import batch_for, this_machine
from lablib.course import checks_for, guess, print_error, print_text, recorded_comparison, try_out
from lablib.course.translation import say_for
from lablib.errors import LaunchError
from lablib.faults import CorruptGradient, KillRank, SlowRank
from lablib.figures import figure_memory, figure_timeline, figure_waits, table
from lablib.figures.chart import Axis, Mark, Panel, chart, points
from lablib.figures.style import FAINT_INK
from lablib.hardware import find_cluster
from lablib.hardware.cluster import Cluster
from lablib.labs.translated import explore, show, translated_columns
from lablib.launch import launch
from lablib.reconcile import Reconciliation
from lablib.run import Run
from lablib.signature import Range, checked
from lablib.text.units import format_quantity
from lablib.widgets import Choice, IntChoice


@checked
def figure_question(ranks: Annotated[int, Range(ge=2, le=16)] = 8) -> go.Figure:
    """The ranks of a program in a circle, with a line between each two: the messages that are possible."""
    turns = [2 * pi * rank / ranks for rank in range(ranks)]
    places = [(sin(turn), cos(turn)) for turn in turns]  # rank 0 at the top
    xs, ys = [], []
    for (x0, y0), (x1, y1) in combinations(places, 2):
        xs += [x0, x1, None]  # None: a gap between two lines
        ys += [y0, y1, None]
    look = {"mode": "lines", "line": {"color": FAINT_INK, "width": 0.8}}
    messages = Mark("possible messages", xs, ys, (), look=look)
    names = [f"rank {rank}" for rank in range(ranks)]
    x, y = [x for x, _ in places], [y for _, y in places]
    copies = points(0, "copies of the program", x, y, [f"<b>{name}</b>" for name in names])
    words = {"mode": "markers+text", "text": list(range(ranks)), "textfont": {"color": "#FFFFFF", "size": 14}}
    copies = copies.styled(**words, marker={"size": 34, "color": "#0072B2"})
    hidden = {"visible": False}
    across, up = Axis("", span=(-3.2, 3.2), look=hidden), Axis("", span=(-1.25, 1.25), look=hidden)
    sentence = f"{ranks} copies of one program, numbered from 0. Who sends what to whom, and who waits?"
    columns = {"copy": names, "could send to": [f"{ranks - 1} others" for _ in names]}
    title = "What does a distributed program look like?"
    return chart(title, Panel(across, up, [messages, copies]), sentence, columns, pixels=260)


def launch_or_error(program: Any, *args: Any, **options: Any) -> Run | LaunchError:
    """`launch`, which prints the error of a run that fails and returns it."""
    try:
        return launch(program, *args, **options)
    except LaunchError as error:
        print_error(error)
        return error


def seconds_table(run: Run) -> pd.DataFrame:
    """Seconds of the first two ranks and of all: busy, exposed, waiting, idle."""
    seconds = run.summary().table()[["busy_s", "exposed_s", "waiting_s", "idle_s"]]
    seconds.columns = seconds.columns.str.removesuffix("_s")
    return translated_columns(seconds.iloc[[0, 1, -1]].map(lambda value: format_quantity(value, "s")))


def show_timeline(run: Run, title: str) -> None:
    """Timeline of the first four ranks at most."""
    show(run.timeline.figure(ranks=range(min(run.timeline.num_ranks, 4)), title=title))


def beside_the_recorded(here: Reconciliation) -> pd.DataFrame:
    """Errors and noise of this comparison and of the recorded one in percent, by part of the program."""
    recorded = recorded_comparison("00")
    print_text(recorded.sentence())
    print_text(recorded.reading)
    return translated_columns(here.beside(recorded).map("{:.0f}".format, na_action="ignore"))


def speeds(cluster: Cluster) -> dict[str, str]:
    """Rates and latencies of a cluster in words."""
    device = cluster.device
    rates: dict[str, tuple[float | None, str]] = {
        "matrix products": (device.peak("float32"), "FLOP/s"),
        "memory": (device.memory_bandwidth_bytes_per_s, "B/s"),
        "the smallest operation": (device.kernel_overhead_s, "s"),
        "the call of a collective": (cluster.collective_overhead_s, "s"),
        "one hop of a collective": (cluster.intra.latency_s, "s"),
    }
    say = say_for()
    return {
        say(name): format_quantity(rate, unit) if rate else say("not known") for name, (rate, unit) in rates.items()
    }
