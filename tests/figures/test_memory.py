"""The stack has the bytes of the memory tracker, at any moment and at the peak; its time is the timeline's."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
import json

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import launch
from lablib.figures import describe, figure_memory, table
from lablib.figures.run.memory import MAX_STEPS
from lablib.figures.style import STATES
from lablib.hardware import Device
from lablib.record.memory import CATEGORIES, Allocation, Memory
from lablib.run import Span, Timeline
from tests.figures.examples import scale


def stack(figure: go.Figure) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Category -> seconds and bytes, from the traces."""
    across, up = scale(figure.layout.xaxis), scale(figure.layout.yaxis)
    bands = [trace for trace in figure.data if trace.type == "scatter" and trace.stackgroup]
    return {t.name: (np.array(t.x, float) * across, np.array(t.y, float) * up) for t in bands}


def drawn_at(figure: go.Figure, time_s: float) -> dict[str, float]:
    """Bytes of the figure's steps at a moment, by category."""
    found = {}
    for name, (times_s, size_bytes) in stack(figure).items():
        i = int(np.searchsorted(times_s, time_s + 1e-12, "right")) - 1
        found[name] = float(size_bytes[i]) if i >= 0 else 0.0
    return found


@st.composite
def memories(draw) -> Memory:
    """Up to 30 blocks of two ranks, alive between whole seconds."""
    blocks = []
    for _ in range(draw(st.integers(1, 30))):
        start, life = draw(st.integers(0, 20)), draw(st.integers(1, 10))
        category, rank = draw(st.sampled_from(CATEGORIES)), draw(st.integers(0, 1))
        blocks.append(Allocation(rank, category, draw(st.integers(1, 1000)), float(start), float(start + life)))
    return Memory(tuple(blocks), 2)


@settings(deadline=None, max_examples=30)
@given(memories(), st.integers(0, 1))
def test_the_steps_are_what_the_blocks_that_were_alive_add_up_to(memory, rank):
    figure = figure_memory(memory, rank=rank)
    alive = [b for b in memory.allocations if b.rank == rank]
    for second in range(30):
        expected = dict.fromkeys({b.category for b in alive}, 0)
        for b in alive:
            expected[b.category] += b.size_bytes * (b.start_s <= second + 0.5 < b.end_s)
        if second + 0.5 < max((b.end_s for b in alive), default=0):
            assert drawn_at(figure, second + 0.5) == pytest.approx(expected)


@settings(deadline=None, max_examples=30)
@given(memories(), st.integers(0, 1))
def test_the_table_at_the_peak_is_the_trackers(memory, rank):
    rows = table(figure_memory(memory, rank=rank))
    at_peak = {row["category"]: int(row["at the peak (B)"]) for row in rows.to_dict("records")}
    assert {k: v for k, v in at_peak.items() if v} == {k: v for k, v in memory.at_peak(rank).items() if v}
    assert sum(at_peak.values()) == memory.peak_bytes(rank)


def many_blocks(num: int, seed: int = 0) -> Memory:
    rng = np.random.default_rng(seed)
    starts, lives = rng.random(num), rng.random(num) * 0.01
    sizes = rng.integers(1, 1000, num)
    kinds = rng.integers(0, len(CATEGORIES), num)
    blocks = [
        Allocation(0, CATEGORIES[k], int(size), float(a), float(a + life))
        for k, size, a, life in zip(kinds, sizes, starts, lives, strict=True)
    ]
    return Memory(tuple(blocks), 1)


def test_many_changes_become_steps_at_their_highest_moment():
    memory = many_blocks(20_000)
    figure = figure_memory(memory)
    bands = stack(figure)
    (length,) = {len(times_s) for times_s, _ in bands.values()}
    assert length == MAX_STEPS + 1
    total = np.sum([size_bytes for _, size_bytes in bands.values()], axis=0)
    assert total.max() == pytest.approx(memory.peak_bytes(0))
    times_s, held = memory.curve(0)
    truth = np.sum(list(held.values()), axis=0)
    edges = next(iter(bands.values()))[0]
    for i in range(0, MAX_STEPS, 50):  # each column is the highest moment of its step, and a moment that was
        first = np.searchsorted(times_s, edges[i], "right") - 1
        inside = truth[max(first, 0) : np.searchsorted(times_s, edges[i + 1], "right")]
        assert total[i] == pytest.approx(inside.max())
    assert "40,000 changes are drawn as 1,500 steps, each at its highest moment." in describe(figure)
    assert len(figure.to_json()) < 2e6


def test_the_peak_is_marked_and_the_sentence_says_when_what_and_where(examples):
    figure = figure_memory(examples.some_memory(), device=examples.DEVICE)
    assert describe(figure) == (
        "At its peak (6 ms, in forward) rank 1 held 1.75 kB: 57% parameter, 43% activation. The most from one place, "
        "1 kB of parameter: train.py:3: Linear. That is 87.5% of the 2 kB of toy."
    )
    (mark,) = [note for note in figure.layout.annotations if "peak" in note.text]
    assert mark.text == "peak 1.75 kB" and mark.x == pytest.approx(6.0) and mark.y == pytest.approx(1.75)
    (line,) = figure.layout.shapes
    assert line.y0 == pytest.approx(2.0) and figure.layout.yaxis.range[1] > 2.0
    assert "toy has 2 kB" in {note.text for note in figure.layout.annotations}


def test_a_category_is_named_in_its_band_where_that_is_thick_for_long():
    long, short = Allocation(0, "parameter", 600, 0.0, 10.0), Allocation(0, "activation", 400, 4.0, 8.0)
    thin, brief = Allocation(0, "gradient", 10, 0.0, 10.0), Allocation(0, "other", 500, 9.0, 9.1)
    figure = figure_memory(Memory((long, short, thin, brief), 1), Timeline.of([Span(0, "compute", "a", "", 0, 10)], 1))
    names = {note.text: (note.x, note.y) for note in figure.layout.annotations if note.text.startswith("<b>")}
    up = scale(figure.layout.yaxis)
    assert {"<b>parameter</b>", "<b>activation</b>"} <= names.keys()
    assert not {"<b>gradient</b>", "<b>other</b>"} & names.keys()
    bands = stack(figure)
    for word, (time, height) in names.items():
        name = word[3:-4]
        if name in bands:
            held, below = drawn_at(figure, time), list(bands)[: list(bands).index(name)]
            floor = sum(held[other] for other in below)
            assert floor < height * up < floor + held[name]


def test_a_capacity_far_above_the_peak_is_said_and_not_drawn(examples):
    large = Device("large", {"float32": 1e12}, 80e9, 1e12)
    figure = figure_memory(examples.some_memory(), device=large)
    assert not figure.layout.shapes and describe(figure).endswith("of the 80 GB of large.")


def test_under_a_timeline_both_panels_have_one_time(examples):
    timeline = examples.ddp_step()
    figure = figure_memory(examples.some_memory(), timeline, rank=0)
    layout = figure.layout
    assert layout.xaxis2.matches == "x"
    assert [edge * scale(layout.xaxis) for edge in layout.xaxis.range] == pytest.approx([0.0, timeline.end_s])
    assert layout.yaxis.domain[1] < layout.yaxis2.domain[0]
    above = [t for t in figure.data if t.xaxis == "x2" and t.type == "bar" and t.legendgroup not in STATES]
    assert sum(len(t.x) for t in above) == len(timeline.select(0))


def test_memory_moves_with_a_timeline_whose_setup_was_left_out():
    spans = [Span(0, "compute", "a", "setup", 0.0, 2.0), Span(0, "compute", "b", "forward", 2.0, 6.0)]
    blocks = (Allocation(0, "parameter", 10, 1.0, 6.0), Allocation(0, "activation", 5, 3.0, 5.0, phase="forward"))
    timeline = Timeline.of(spans, 1).without("setup")
    figure = figure_memory(Memory(blocks, 1), timeline)
    assert [drawn_at(figure, t) for t in (0.5, 1.5, 3.5)] == [
        {"parameter": 10, "activation": 0},
        {"parameter": 10, "activation": 5},
        {"parameter": 10, "activation": 0},
    ]
    assert describe(figure).startswith("At its peak (1 s, in forward) rank 0 held 15 B")


def test_a_part_of_a_run_begins_with_what_was_held_before_it():
    spans = [Span(0, "compute", "b", "forward", 0.0, 6.0)]
    blocks = (Allocation(0, "parameter", 10, 1.0, 6.0), Allocation(0, "activation", 5, 5.0, 5.5))
    figure = figure_memory(Memory(blocks, 1), Timeline.of(spans, 1).between(2.0, 4.0))
    assert drawn_at(figure, 2.0) == drawn_at(figure, 3.9) == {"parameter": 10}
    assert figure.layout.xaxis.range == (2.0, 4.0)
    assert describe(figure).endswith("Shown: 2 s to 4 s, in which it held at most 10 B.")


def test_nothing_recorded_is_said():
    for figure in (figure_memory(Memory()), figure_memory(Memory((), 2), rank=1)):
        assert describe(figure).startswith("No memory was recorded: only the simulator counts it")
        assert json.loads(figure.to_json())["data"] == []


def test_a_timeline_without_memory_keeps_its_time_axis(examples):
    """A real run, without counted memory."""
    timeline = examples.ddp_step()
    figure = figure_memory(Memory(), timeline)
    assert describe(figure).startswith("No memory was recorded")
    assert figure.layout.xaxis.range == pytest.approx((0.0, timeline.end_s * 1e3))
    assert figure.layout.xaxis.showticklabels is None and not stack(figure)


def test_axes_have_numbers_where_something_is_drawn(examples):
    figure = figure_memory(examples.some_memory())
    assert figure.layout.xaxis.showticklabels is None and figure.layout.yaxis.showticklabels is None


def test_a_rank_that_does_not_exist_is_refused(examples):
    with pytest.raises(ValueError, match="rank must be between 0 and 1: got 2"):
        figure_memory(examples.some_memory(), rank=2)


def _step() -> None:
    import torch

    model = torch.nn.Linear(64, 64)
    model(torch.ones(32, 64)).sum().backward()


def test_a_run_draws_its_memory_under_its_timeline():
    run = launch(_step, ranks=2)
    figure = run.memory.figure(run.timeline, device=run.device, rank=1)
    assert {"parameter", "gradient"} <= set(stack(figure)) and figure.layout.xaxis2.matches == "x"
    total = sum(size_bytes.max() for _, size_bytes in stack(figure).values())
    assert total >= run.memory.peak_bytes(1) > 2 * 4 * 64 * 64
