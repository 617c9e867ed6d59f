"""Two timelines on one figure: lanes aligned, axes honest, errors computed as the text says."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
import pytest

from lablib.figures import describe, figure_reconcile, table
from lablib.figures.style import STATES
from lablib.run import Span, Timeline


def one_op(seconds: float) -> Timeline:
    return Timeline.of([Span(0, "compute", "mm", "forward", 0.0, seconds)], 1)


def extents(figure, axis):
    return [(b, b + w) for t in figure.data if t.type == "bar" and t.xaxis == axis and t.legendgroup not in STATES
            for b, w in zip(t.base, t.x, strict=True)]  # fmt: skip


def test_each_panel_holds_its_own_spans_on_one_scale(examples):
    predicted, measured = examples.ddp_step(), examples.ddp_step(slow=1.5, seed=2)
    figure = figure_reconcile(predicted, measured)
    for axis, timeline in (("x", predicted), ("x2", measured)):
        drawn = sorted(extents(figure, axis))
        spans = sorted((s.start_s * 1e3, s.end_s * 1e3) for s in timeline)
        assert drawn == pytest.approx(spans) if not drawn else True
        assert [v for pair in drawn for v in pair] == pytest.approx([v for pair in spans for v in pair])
    assert figure.layout.xaxis2.matches == "x"
    assert figure.layout.xaxis.range == figure.layout.xaxis2.range


def test_lanes_are_the_same_in_both_panels_even_if_a_stream_is_missing_in_one(examples):
    quiet = Timeline.of([s for s in examples.ddp_step() if not s.is_communication], 4)
    layout = figure_reconcile(quiet, examples.ddp_step()).layout
    assert layout.yaxis.tickvals == layout.yaxis2.tickvals and layout.yaxis.ticktext == layout.yaxis2.ticktext
    assert sum("world" in label for label in layout.yaxis.ticktext) == 4


def test_normalized_panels_end_at_100_percent(examples):
    figure = figure_reconcile(one_op(1e-4), one_op(2.0), normalize=True)
    for axis in ("x", "x2"):
        assert extents(figure, axis) == [pytest.approx((0.0, 100.0))]
    assert "share of the makespan (%)" == figure.layout.xaxis2.title.text


def test_the_error_is_relative_to_the_measurement():
    figure = figure_reconcile(one_op(0.011), one_op(0.010))
    row = table(figure).set_index("part").loc["makespan"]
    assert row["ratio"] == pytest.approx(1.1) and row["error (%)"] == pytest.approx(10.0)
    assert "error +10.0%" in figure.layout.title.text and "ratio 1.1" in describe(figure)


def test_the_table_has_every_part_with_its_seconds(examples):
    predicted, measured = examples.ddp_step(), examples.ddp_step(slow=1.5, seed=2)
    rows = table(figure_reconcile(predicted, measured, labels=("sim", "gloo"))).set_index("part")
    for name, timeline in (("sim (s)", predicted), ("gloo (s)", measured)):
        ranks = range(timeline.num_ranks)
        exposed_s = sum(timeline.exposed_s(r) for r in ranks) / 4
        assert rows.loc["makespan", name] == timeline.makespan_s
        assert rows.loc["exposed communication", name] == pytest.approx(exposed_s)
        assert rows[name].get("idle", 0.0) == pytest.approx(sum(timeline.idle_s(r) for r in ranks) / 4)
        assert rows[name].get("waiting", 0.0) == pytest.approx(sum(timeline.waiting_s(r) for r in ranks) / 4)
        parts = rows.loc[["forward", "backward", "optimizer"], name].sum()
        assert parts == pytest.approx(sum(timeline.busy_s(r) for r in ranks) / 4)


def test_the_summary_names_the_part_that_is_furthest_off(examples):
    text = describe(figure_reconcile(examples.ddp_step(), examples.ddp_step(slow=2.0)))
    assert "largest difference is in communication" in text and "less than measured" in text


def test_one_legend_entry_for_each_kind(examples):
    figure = figure_reconcile(examples.ddp_step(), examples.ddp_step(slow=2.0))
    entries = [trace.legendgroup for trace in figure.data if trace.showlegend]
    assert len(entries) == len(set(entries)) == 5


def test_different_numbers_of_ranks_are_refused(examples):
    with pytest.raises(ValueError, match="same number of ranks: got 4 .simulated. and 2"):
        figure_reconcile(examples.ddp_step(4), examples.ddp_step(2))


def test_an_empty_measurement_is_said_not_divided_by(examples):
    figure = figure_reconcile(examples.ddp_step(2), Timeline((), 2))
    assert "measured timeline has no spans" in describe(figure)
