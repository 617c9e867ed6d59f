"""The roofline: points are at FLOP per byte and FLOP per second, each under its lower roof."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.figures import describe, figure_roofline, table
from lablib.hardware import Device
from lablib.hardware.device import FREE
from lablib.run import Span, Timeline

# A ridge at 10 FLOP/B in float32 and at 40 in bfloat16.
DEVICE = Device("toy", {"float32": 1e13, "bfloat16": 4e13}, 1e9, 1e12, matmul_efficiency=0.5, memory_efficiency=0.9)


def op(name: str, seconds: float, flops: float, size: float, dtype: str = "float32", start_s: float = 0.0) -> Span:
    return Span(0, "compute", name, "forward", start_s, start_s + seconds, flops, size, dtype)


def drawn(figure) -> dict[str, tuple[str, float, float]]:
    """Operation -> legend, intensity, FLOP/s."""
    found = {}
    for trace in figure.data:
        for x, y, text in zip(trace.x, trace.y, trace.hovertext or [], strict=False):
            found[text.split("</b>")[0].removeprefix("<b>")] = (trace.name, x, y)
    return found


SPANS = [
    op("aten.mm", 1.0, 5e12, 1e11),  # 50 FLOP/B: above float32's ridge, half of its roof
    op("aten.bmm", 0.5, 5e12, 2.5e11, "bfloat16"),  # 20 FLOP/B: below bfloat16's ridge
    op("aten.add", 0.25, 0.0, 1e11, ""),  # 4e11 B/s of 1e12
    op("aten.view", 0.25, 0.0, 0.0, ""),
    Span(0, "comm:world", "all_reduce", "backward", 0.0, 9.0, 0.0, 1e9),
]


def test_each_operation_stands_at_its_intensity_and_speed():
    points = drawn(figure_roofline(Timeline.of(SPANS, 1), DEVICE))
    assert points["aten.mm"] == ("under the roof of float32", pytest.approx(50), pytest.approx(5e12))
    assert points["aten.bmm"] == ("under the roof of memory", pytest.approx(20), pytest.approx(1e13))
    assert set(points) == {"aten.mm", "aten.bmm", "aten.add"}


def test_an_operation_without_flops_is_as_far_below_the_slope_as_its_bandwidth():
    roof, x, y = drawn(figure_roofline(Timeline.of(SPANS, 1), DEVICE))["aten.add"]
    assert roof == "under the roof of memory" and y / (1e12 * x) == pytest.approx(0.4)


def test_the_roofs_are_those_of_the_device():
    figure = figure_roofline(Timeline.of(SPANS, 1), DEVICE)
    roofs = [t for t in figure.data if t.name == "roof"]
    assert [(t.x[1], t.y[1], t.y[2]) for t in roofs] == [(40, 4e13, 4e13), (10, 1e13, 1e13)]
    assert all(t.y[0] == pytest.approx(1e12 * t.x[0]) for t in roofs)
    reached = [t for t in figure.data if t.name == "reached by large kernels"]
    assert [t.y[2] for t in reached] == [2e13, 5e12] and all(t.y[0] == pytest.approx(9e11 * t.x[0]) for t in reached)
    assert {"bfloat16 40 TFLOP/s", "float32 10 TFLOP/s", "memory 1 TB/s"} <= {
        word.strip() for t in figure.data for word in t.text or [] if word
    }


def test_the_sentence_and_the_table_share_out_all_of_the_compute_time():
    figure = figure_roofline(Timeline.of(SPANS, 1), DEVICE)
    assert describe(figure) == (
        "Of 2 s of compute on all ranks, 50% under the roof of float32, 38% under the roof of memory; 12% of the "
        "compute time is in operations without counted FLOPs and bytes. mm in float32 takes longest, 50%, at 50% "
        "of its roof. Operations without FLOPs are at the left, and only their distance to the roof says something."
    )
    rows = table(figure).set_index("operation")
    assert rows["share of compute (%)"].sum() == pytest.approx(100)
    assert rows["of its roof"].to_dict() == {"aten.mm": "50%", "aten.bmm": "50%", "aten.add": "40%", "aten.view": ""}


def test_operations_without_flops_stand_left_of_a_line_and_all_others_right_of_it():
    spans = [*SPANS, *(op(f"aten.{name}", 0.1, 0.0, 1e10, "") for name in "abcdef")]
    figure = figure_roofline(Timeline.of(spans, 1), DEVICE)
    (edge,) = {x for t in figure.data if t.name == "left of it: no FLOPs" for x in t.x}
    points = drawn(figure)
    assert max(points[f"aten.{name}"][1] for name in "abcdef") < edge < points["aten.mm"][1]
    # The axis says so there, and its numbers begin right of the line.
    assert figure.layout.xaxis.ticktext[0] == "no FLOPs" and figure.layout.xaxis.tickvals[0] < edge
    assert all(tick > edge for tick in figure.layout.xaxis.tickvals[1:])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=20))
def test_calls_of_one_operation_are_one_point_with_their_sums(calls):
    spans = [op(name, 0.5, 1e9 * flops, 1e9 * size) for name, size, flops in calls]
    rows = table(figure_roofline(Timeline.of(spans, 1), DEVICE))
    # Spans without FLOPs or with: both say float32, so each name is one row.
    assert sorted(rows["operation"]) == sorted({name for name, *_ in calls})
    for row in rows.to_dict("records"):
        own = [(size, flops) for name, size, flops in calls if name == row["operation"]]
        assert row["calls"] == len(own) and row["seconds (s)"] == pytest.approx(0.5 * len(own))
        assert row["bytes (B)"] == pytest.approx(1e9 * sum(size for size, _ in own))
        assert row["FLOPs (FLOP)"] == pytest.approx(1e9 * sum(flops for _, flops in own))


def test_a_real_run_without_bytes_stands_at_the_right_edge():
    figure = figure_roofline(Timeline.of([op("aten.mm", 1.0, 2e12, 0.0, "")], 1), DEVICE)
    roof, x, y = drawn(figure)["aten.mm"]
    edge = max(v for t in figure.data if t.name == "roof" for v in t.x)
    assert (roof, x, y) == ("under the roof of float32", edge, 2e12)
    assert "no bytes counted" in figure.data[-1].hovertext[0] and "20% of its roof" in describe(figure)


def test_what_hardly_does_anything_is_drawn_at_a_thousandth_of_its_roof_and_named():
    spans = [op("aten.mm", 1.0, 5e12, 1e11), op("aten.step", 0.5, 0.0, 4.0, "")]
    figure = figure_roofline(Timeline.of(spans, 1), DEVICE)
    _, x, y = drawn(figure)["aten.step"]
    assert y == pytest.approx(1e-3 * 1e12 * x)
    assert describe(figure).endswith(" Drawn at 0.1% of the roof, and still lower: step.")


def test_no_compute_is_said_and_a_free_device_refused():
    assert describe(figure_roofline(Timeline((), 2), DEVICE)) == (
        "No compute was recorded, so nothing is under the roofs."
    )
    with pytest.raises(ValueError, match="a roof must be finite: 'free' computes or reads in no time"):
        figure_roofline(Timeline.of(SPANS, 1), FREE)
