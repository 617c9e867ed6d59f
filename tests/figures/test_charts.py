"""Charts: the values drawn are the values given, in the unit on the axis."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
import math

import pytest

from lablib import figures
from lablib.errors import DeadlockError, Wait
from lablib.figures.chart import NOTHING, Axis, Panel, ReferenceLine, chart, line, points
from lablib.run import Traffic

SIZES = [1e3, 1e6, 1e9]
CURVES = {"ring": [1e-4, 1.1e-3, 1e-1], "tree": [1e-5, 1e-3, 4e-1]}


def test_prefixes_hover_texts_and_table_of_a_chart_follow_from_its_data():
    marks = [line(0, "a", [1e6, 2e6], [2e-3, 4e-3]), points(1, "b", [1e6], [3e-3], (), ([1e-3], [4e-3]))]
    figure = chart(
        "", Panel(Axis("size", "B"), Axis("time", "s"), marks, [ReferenceLine(y=1e-3, text="least")]), "One."
    )
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("size (MB)", "time (ms)")
    assert list(figure.data[0].y) == [2, 4] and figure.data[0].hovertext[0] == "<b>a</b><br>size 1 MB<br>time 2 ms"
    assert list(figure.data[1].error_y.array) == [1] and list(figure.data[1].error_y.arrayminus) == [2]
    assert figure.layout.shapes[0].y0 == 1 and figure.layout.annotations[0].text == "least"
    assert figures.table(figure).to_dict("list") == {"size (B)": [1e6, 2e6], "a (s)": [2e-3, 4e-3]}


def test_panels_with_the_same_axis_share_its_prefix_and_one_legend():
    x, y = Axis("step", "count"), Axis("memory", "B")
    figure = chart("", [Panel(x, y, [line(0, "a", [1], [size])], title=str(size)) for size in (5e3, 2e6)], "Two.")
    assert [trace.y[0] for trace in figure.data] == [0.005, 2]
    assert [trace.showlegend for trace in figure.data] == [True, False]
    assert figure.layout.yaxis2.matches == "y" and not figure.layout.yaxis2.title.text


def test_a_chart_without_data_has_axes_without_numbers():
    figure = chart("", Panel(Axis("step", "count"), Axis("loss", "nats"), []), "")
    assert figures.describe(figure) == NOTHING and figure.layout.xaxis.showticklabels is False


def test_collective_costs_can_be_drawn_on_the_same_time_axis():
    slower = {name: [100 * s for s in seconds] for name, seconds in CURVES.items()}
    pair = [figures.figure_collective_cost(SIZES, curves, time_range_s=(1e-6, 10.0)) for curves in (CURVES, slower)]
    assert [tuple(one.layout.yaxis.range) for one in pair] == [(-6.0, 1.0)] * 2
    assert pair[0].layout.yaxis.tickvals == pair[1].layout.yaxis.tickvals
    for wrong in ((0.0, 1.0), (1.0, 1.0), (2.0, 1.0)):
        with pytest.raises(ValueError, match="time_range_s"):
            figures.figure_collective_cost(SIZES, CURVES, time_range_s=wrong)


def test_collective_cost_draws_its_curves_on_logarithmic_axes_and_marks_crossings():
    figure = figures.figure_collective_cost(SIZES, CURVES, {"tree = ring": 2e6})
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert {t.name: list(t.y) for t in figure.data} == CURVES
    (note,) = figure.layout.annotations
    assert note.x == pytest.approx(math.log10(2e6)) and note.text == "tree = ring at 2 MB"
    assert figure.layout.shapes[0].x0 == 2e6
    assert (
        "At 1 kB the fastest is tree (10 \N{MICRO SIGN}s), at 1 GB ring (100 ms); tree = ring at 2 MB."
        == figures.describe(figure)
    )
    assert list(figures.table(figure)["ring (s)"]) == CURVES["ring"]


def test_scaling_shows_percent_and_the_ideal():
    figure = figures.figure_scaling([1, 2, 4], {"ddp": [1.0, 0.9, 0.75]})
    lines = {t.name: list(t.y) for t in figure.data}
    assert lines["ideal"] == [100, 100, 100] and lines["ddp"] == pytest.approx([100, 90, 75])
    assert "On 4 ranks the scaling efficiency is: ddp 75.0%." == figures.describe(figure)


def test_traffic_bars_add_up_to_what_each_rank_sent(examples):
    traffic = examples.some_traffic()
    figure = figures.figure_traffic(traffic, 4)
    assert figure.layout.yaxis.title.text == "bytes sent (MB)"
    for rank in range(4):
        assert sum(trace.y[rank] for trace in figure.data) * 1e6 == pytest.approx(traffic.sent_bytes(rank))
    assert list(figures.table(figure)["total (B)"]) == [traffic.sent_bytes(r) for r in range(4)]
    assert "7 communications send 36 MB in all" in figures.describe(figure) and "11.5 MB (rank 1)" in figures.describe(
        figure
    )


def test_no_traffic_is_said(examples):
    assert figures.describe(figures.figure_traffic(Traffic(), 3)) == "Nothing was sent between the 3 ranks."
    with pytest.raises(ValueError, match="num_ranks must cover"):
        figures.figure_traffic(examples.some_traffic(), 2)


def test_waits_draw_an_arrow_from_the_waiting_rank_to_the_one_it_names():
    cycle = [
        Wait(0, "waits in recv from rank 1", "a.py:1", for_ranks=(1,)),
        Wait(1, "waits in recv from rank 2", for_ranks=(2,)),
        Wait(2, "waits in recv from rank 0", for_ranks=(0,)),
    ]
    figure = figures.figure_waits(DeadlockError("no rank can go on", cycle))
    arrows = [trace for trace in figure.data if trace.mode == "lines+markers"]
    assert sorted((round(t.y[0]), round(t.y[-1])) for t in arrows) == [(0, 1), (1, 2), (2, 0)]
    (texts,) = [trace for trace in figure.data if trace.mode == "text"]
    assert "rank 0" in texts.text[0] and "waits in recv from rank 1" in texts.text[0] and "a.py:1" in texts.text[0]
    assert list(figures.table(figure)["for ranks"]) == ["1", "2", "0"]


def test_arrows_of_waits_are_all_alike_and_explained_and_do_not_cover_each_other():
    both = [Wait(0, "waits in recv from rank 1", for_ranks=(1,)), Wait(1, "waits in recv", for_ranks=(0,))]
    figure = figures.figure_waits(DeadlockError("no rank can go on", both))
    down, up = sorted((t for t in figure.data if t.mode == "lines+markers"), key=lambda t: min(t.x))
    assert down.line.dash is None and up.line.dash is None
    assert min(up.x) - min(down.x) > 0.2
    (note,) = figure.layout.annotations
    assert note.text == "An arrow leads to the rank that is waited for."


def test_a_ratio_has_no_unit():
    figure = figures.figure_lines([1, 2], {"a": [1.0, 2.0]}, "size", "time of ring / time of tree", "B", log_y=True)
    assert figure.layout.yaxis.title.text == "time of ring / time of tree"
    assert list(figures.table(figure)) == ["size (B)", "a"]


def test_ranks_that_wait_for_the_same_share_a_row():
    waits = [Wait(0, "waits in broadcast #7")] + [Wait(r, "waits in all_reduce #7") for r in (1, 2, 3, 6)]
    figure = figures.figure_waits(DeadlockError("stuck", waits))
    (texts,) = [trace for trace in figure.data if trace.mode == "text"]
    assert len(texts.text) == 2 and "ranks 1-3, 6" in texts.text[1]
    assert "ranks 1-3, 6 wait in all_reduce #7" in figures.describe(figure)
    assert len(figures.table(figure)) == 5


def test_a_deadlock_of_hundreds_of_ranks_can_be_drawn():
    waits = [Wait(r, f"waits in recv from rank {(r + 1) % 300}", for_ranks=((r + 1) % 300,)) for r in range(300)]
    assert "first 24 of 300" in figures.describe(figures.figure_waits(DeadlockError("stuck", waits)))


def test_lines_pick_units_and_refuse_lengths_that_differ():
    figure = figures.figure_lines([1e6, 2e6], {"step": [2e-3, 4e-3]}, "bucket size", "step time", "B", "s")
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("bucket size (MB)", "step time (ms)")
    assert list(figure.data[0].x) == [1, 2] and list(figure.data[0].y) == pytest.approx([2, 4])
    assert "from 2 ms to 4 ms" in figures.describe(figure)
    with pytest.raises(ValueError, match="'step' must have one value for each of the 3 positions: got 1"):
        figures.figure_lines([1, 2, 3], {"step": [1.0]}, "x", "y")


def test_lines_of_one_figure_differ_in_color_dash_and_symbol():
    figure = figures.figure_lines([0, 1], {f"run {i}": [0.0, i] for i in range(6)}, "step", "loss", y_unit="nats")
    for aspect in (lambda t: t.line.color, lambda t: t.line.dash, lambda t: t.marker.symbol):
        assert len({aspect(t) for t in figure.data}) == 6


def test_a_logarithmic_axis_of_powers_of_two_says_them():
    few = figures.figure_lines(
        [1, 2, 4], {"a": [1.0, 2.0, 3.0]}, "batch", "share", "sequences", log_x=True
    ).layout.xaxis
    assert list(few.tickvals) == [1, 2, 4] and list(few.ticktext) == ["1 sequence", "2 sequences", "4 sequences"]
    lengths = [2**e for e in range(7, 18)]
    many = figures.figure_lines(lengths, {"a": [1.0] * 11}, "sequence", "share", "tokens", log_x=True).layout.xaxis
    assert list(many.tickvals) == lengths[::2]
    for x, unit in (([1.0, 2.0, 5.0], "tokens"), ([1024.0, 2048.0], "B"), ([], "tokens")):
        axis = figures.figure_lines(x, {"a": [1.0] * len(x)}, "size", "share", unit, log_x=True).layout.xaxis
        assert all(math.log10(tick).is_integer() for tick in axis.tickvals)


def test_topology_draws_every_node_and_link():
    nodes = [figures.Node("g0", 0, 0), figures.Node("g1", 1, 0), figures.Node("g2", 2, 0)]
    ends = [("g0", "s", "NVLink"), ("g1", "s", "NVLink"), ("g0", "g2", "ring")]
    links = [figures.DrawnLink(*each) for each in ends]
    figure = figures.figure_topology([*nodes, figures.Node("s", 1, 1, "switch")], links, "A ring", "Two links.")
    by_name = {trace.name: trace for trace in figure.data}
    assert list(by_name["gpu"].x) == [0, 1, 2] and list(by_name["switch"].y) == [1]
    assert list(by_name["NVLink"].x) == [0, 1, None, 1, 1, None]
    # The link from g0 to g2 would run through g1, so it is bent around it.
    assert len(by_name["ring"].x) > 3 and max(abs(y) for y in by_name["ring"].y[:-1]) > 0.1
    assert figures.describe(figure) == "Two links."
    assert list(figures.table(figure)["to"]) == ["s", "s", "g2"]


def test_topology_refuses_unknown_ends_and_names_used_twice():
    with pytest.raises(ValueError, match="'b', which is none of"):
        figures.figure_topology([figures.Node("a", 0, 0)], [figures.DrawnLink("a", "b")], "", "")
    with pytest.raises(ValueError, match="a different name"):
        figures.figure_topology([figures.Node("a", 0, 0), figures.Node("a", 1, 0)], [], "", "")


def test_idle_shares_are_drawn_in_percent():
    figure = figures.figure_idle_shares([1, 2], {"a": [0.5, 0.25]})
    assert list(figure.data[0].y) == [50, 25] and "%" in figure.layout.yaxis.title.text
