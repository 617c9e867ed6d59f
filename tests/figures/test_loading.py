"""The picture of a loop fed by a loader: every batch is drawn where it was, and the words are those of the run."""

# plotly makes its properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
import pytest

from lablib.data.loading.loaded_run import Cause
from lablib.data.loading.loader import Copy, Loader
from lablib.data.loading.loader_timeline import run_loop
from lablib.figures import describe, figure_idle_shares, table
from lablib.labs.lab07 import figure_loading


def run_of(workers=2, **settings):
    return run_loop(Loader(workers, batch_bytes=1.0, copy_bytes_per_s=2.0, **settings), [3.0] * 20, [1.0] * 20)


def test_every_batch_has_its_bars_and_every_gap_its_cause():
    run = run_of(start_s=2.0)
    figure = figure_loading(run, batches=20)
    bars = {trace.name: trace for trace in figure.data}
    assert [float(x) for x in bars["F+B  compute"].x] == [1.0] * 20
    assert list(bars["load"].base) == [batch.load_start_s for batch in run.batches]
    assert list(bars["copy"].text) == [str(number) for number in range(20)]
    for cause in Cause:
        bar = bars[f"waits: {cause.value}"]
        drawn = [x for x, lane in zip(bar.x, bar.y, strict=True) if not lane]  # that of the device
        assert sum(drawn) == pytest.approx(run.idle_s(cause))


def test_the_sentence_and_the_table_are_of_the_whole_run():
    run = run_of(copy=Copy.OWN_STREAM)
    figure = figure_loading(run, batches=3)
    assert f"Over 20 batches in {run.makespan_s:.3g} s the device waits {run.idle_share:.0%}" in describe(figure)
    found = table(figure)
    assert found["time (s)"].sum() == pytest.approx(run.makespan_s) and found["share (%)"].sum() == pytest.approx(100)


def test_without_workers_the_loop_loads():
    figure = figure_loading(run_of(workers=0), 12)
    assert list(figure.layout.yaxis.ticktext) == ["<b>device</b>", "copy", "loop loads"]
    assert "No workers" in figure.layout.title.text


def test_idle_shares_are_drawn_in_percent():
    figure = figure_idle_shares([1, 2], {"a": [0.5, 0.25]})
    assert list(figure.data[0].y) == [50, 25] and "%" in figure.layout.yaxis.title.text
