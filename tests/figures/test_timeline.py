"""The bars are the spans: extents, lanes, kinds, and nothing lost when many spans become few bars."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import CLUSTERS, launch
from lablib.errors import RankKilledError
from lablib.faults import KillRank
from lablib.figures import describe, figure_timeline, table
from lablib.figures.run.bars import HEIGHTS, KINDS, MANY_SPANS, MAX_BARS, picture_of
from lablib.figures.style import LOOKS, STATES, kind_of_span
from lablib.parallel import ring_all_reduce
from lablib.run import Span, Timeline
from lablib.text.units import format_quantity
from tests.figures.examples import scale as scale_of

WORK = LOOKS.keys() - STATES.keys()


def bars_drawn(figure, scale, kinds=WORK):
    """(lane label, kind, start, end) of every bar of these kinds, read back from the traces."""
    labels = dict(zip(figure.layout.yaxis.tickvals, figure.layout.yaxis.ticktext, strict=True))
    bars = []
    for trace in figure.data:
        if trace.type == "bar" and trace.legendgroup in kinds:
            for y, base, width in zip(trace.y, trace.base, trace.x, strict=True):
                bars.append((labels[y], trace.legendgroup, float(base) * scale, float(base + width) * scale))
    return bars


def test_bars_cover_exactly_the_extents_of_the_spans(examples):
    timeline = examples.ddp_step(num_ranks=3, seed=3)
    bars = sorted(bars_drawn(figure_timeline(timeline), 1e-3), key=lambda b: (b[2], b[3], b[1]))
    spans = sorted(((kind_of_span(s), s.start_s, s.end_s) for s in timeline), key=lambda s: (s[1], s[2], s[0]))
    assert len(bars) == len(spans)
    assert [b[1] for b in bars] == [s[0] for s in spans]
    np.testing.assert_allclose([b[2:] for b in bars], [s[1:] for s in spans], atol=1e-12)


def test_bars_stand_on_the_lane_of_their_rank_and_stream():
    spans = [Span(0, "compute", "a", "forward", 0, 1), Span(1, "comm:dp", "b", "forward", 1, 2)]
    spans += [Span(1, "comm:pp:send", "send", "forward", 0, 1)]
    lanes = {(label, kind) for label, kind, *_ in bars_drawn(figure_timeline(Timeline.of(spans, 2)), 1.0)}
    assert ("<b>rank 0</b>", "forward") in lanes
    assert {label.split(">")[1].split("<")[0] for label, kind in lanes if kind == "communication"} == {"dp", "pp send"}


def test_compute_stands_above_its_communication_and_ranks_from_top_to_bottom(examples):
    axis = figure_timeline(examples.ddp_step(num_ranks=3)).layout.yaxis
    assert axis.range[0] > axis.range[1]  # y grows downwards
    assert list(axis.tickvals) == sorted(axis.tickvals)
    assert [label for label in axis.ticktext if "rank" in label] == [f"<b>rank {r}</b>" for r in range(3)]
    assert "rank" in axis.ticktext[0] and "world" in axis.ticktext[1]


def waits_and_dies() -> Timeline:
    """Rank 0 computes, waits, communicates and is idle; rank 1 computes, communicates, and dies."""
    spans = [
        Span(0, "compute", "mm", "forward", 0.0, 1.0),
        Span(0, "wait:world", "all_reduce", "forward", 1.0, 4.0),
        Span(0, "comm:world", "all_reduce", "forward", 4.0, 6.0),
        Span(1, "compute", "mm", "forward", 0.0, 4.0),
        Span(1, "comm:world", "all_reduce", "forward", 4.0, 6.0),
        Span(1, "compute", "mm", "forward", 6.0, 7.0),
        Span(2, "compute", "mm", "forward", 0.0, 8.0),
    ]
    return Timeline.of(spans, 3, deaths=[(1, 7.0)])


def test_what_a_rank_does_where_it_does_not_compute_is_drawn_on_its_compute_lane():
    figure = figure_timeline(waits_and_dies())
    assert sorted(bars_drawn(figure, 1.0, STATES)) == [
        ("<b>rank 0</b>", "exposed", 4.0, 6.0),
        ("<b>rank 0</b>", "idle", 6.0, 8.0),
        ("<b>rank 0</b>", "waiting", 1.0, 4.0),
        ("<b>rank 1</b>", "exposed", 4.0, 6.0),  # and nothing after its death
    ]
    assert [label for label in figure.layout.yaxis.ticktext if "wait" in label] == []


@given(st.lists(st.tuples(st.floats(0.0, 0.01), st.floats(1e-18, 1e-3)), max_size=30))
def test_what_is_left_out_of_a_state_could_not_be_seen(gaps):
    """Work of 1 s, with stretches of nothing to do in it."""
    spans, end_s = [Span(0, "compute", "aten.mm", "forward", 0.0, 1.0)], 1.0
    for work_s, gap_s in gaps:
        start_s = end_s + gap_s
        end_s = start_s + work_s
        spans.append(Span(0, "compute", "aten.mm", "forward", start_s, end_s))
    timeline = Timeline.of(spans, 1)
    drawn = [end - start for _, _, start, end in bars_drawn(figure_timeline(timeline), 1.0, ["idle"])]
    assert timeline.idle_s(0) - sum(drawn) < timeline.makespan_s / 1000 + 1e-9
    few = timeline.idle_s(0) < timeline.makespan_s / 1000
    assert not few or not drawn or min(drawn) > timeline.makespan_s / 5001


def test_uneven_chunks_of_a_ring_show_no_waiting_and_say_none():
    node = CLUSTERS["dgx-h100"]  # its adds take no launch during a message
    run = launch(_ring_of_250_floats, ranks=8, cluster=node.replace(device=replace(node.device, launch_s=0.0)))
    figure = figure_timeline(run.timeline, ranks=[0, 1])
    assert max(map(run.timeline.waiting_s, (0, 1))) > 0
    assert not bars_drawn(figure, 1.0, ["waiting", "idle"]) and "waits" not in describe(figure)


def _ring_of_250_floats() -> None:
    ring_all_reduce(torch.ones(250))


def test_waiting_is_hatched_and_has_its_word():
    (waiting,) = [t for t in figure_timeline(waits_and_dies()).data if t.legendgroup == "waiting"]
    assert waiting.name == "...  waiting" and waiting.marker.pattern.shape == "/"
    assert waiting.marker.color == "#FFFFFF" and waiting.marker.pattern.fgcolor == STATES["waiting"].hatch
    assert waiting.hovertext[0].startswith("<b>rank 0 is waiting</b><br>in all_reduce, for another rank")
    without_death = Timeline.of(waits_and_dies(), 3)
    assert "waits for others 12% of the time" in describe(figure_timeline(without_death))


def test_a_death_is_marked_where_and_when_it_happened():
    figure = figure_timeline(waits_and_dies())
    (mark,) = [trace for trace in figure.data if trace.name == "died"]
    lane = dict(zip(figure.layout.yaxis.ticktext, figure.layout.yaxis.tickvals, strict=True))["<b>rank 1</b>"]
    assert (mark.x, mark.y, mark.text) == ((7.0,), (lane,), ("<b>died</b>",))
    assert describe(figure) == "3 ranks: the run stopped; the last work ended at 8 s. Rank 1 died at 7 s."
    assert not [t for t in figure_timeline(waits_and_dies(), ranks=[0]).data if t.name == "died"]
    part = figure_timeline(waits_and_dies().between(0.0, 5.0))
    assert "died" not in describe(part) and not [t for t in part.data if t.name == "died"]


def test_after_a_death_the_others_wait_to_the_edge_of_the_picture_and_no_rank_communicates():
    def program() -> None:
        x = torch.ones(100, 100)
        dist.all_reduce((x @ x) if dist.get_rank() else x)

    with pytest.raises(RankKilledError) as caught:
        launch(program, ranks=4, faults=[KillRank(1, at_s=1e-6)])
    assert caught.value.run is not None
    timeline = caught.value.run.timeline
    figure = figure_timeline(timeline)
    named = [f"<b>rank {rank}</b>" for rank in range(4)]
    assert figure.layout.yaxis.ticktext == (named[0], WORLD, named[1], named[2], WORLD, named[3], WORLD)
    waits = {bar[0] for bar in bars_drawn(figure, 1.0, STATES) if bar[1] == "waiting"}
    assert waits == {named[0], named[2], named[3]} and [t.name for t in figure.data if t.name == "died"]
    assert not [t for t in figure.data if t.legendgroup == "communication"]
    assert "communicates" not in describe(figure)
    assert figure.layout.xaxis.range[1] == pytest.approx(1e6 * timeline.end_s)
    assert describe(figure).endswith(" Ranks 0, 2, 3 wait in all_reduce and cannot go on.")
    one = describe(figure_timeline(timeline, ranks=[1, 3]))
    assert one.endswith("Rank 1 died at 1 \N{MICRO SIGN}s. Rank 3 waits in all_reduce and cannot go on.")


WORLD = "<span style='font-size:11px;color:#5A5A5A'>world</span>"


@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_a_late_rank_is_waited_for_on_every_backend(backend):
    run = launch(_late, ranks=2, backend=backend)
    figure = figure_timeline(run.timeline)
    waits = [bar for bar in bars_drawn(figure, 1.0, STATES) if bar[1] == "waiting"]
    assert "<b>rank 0</b>" in {bar[0] for bar in waits}
    seconds = [run.timeline.waiting_s(rank) for rank in (0, 1)]
    assert seconds[0] > 3 * seconds[1] and seconds[0] > run.timeline.busy_s(0, "comm")
    assert run.summary().waiting_s == pytest.approx(seconds, rel=1e-6, abs=1e-9)


def _late() -> None:
    x = torch.ones(600, 600)
    for _ in range(200 if dist.get_rank() == 1 else 1):
        y = x @ x
    dist.all_reduce(y[:1, :1].contiguous())


@pytest.mark.parametrize(("share", "is_named"), [(0.05, False), (0.3, True)])
def test_a_communication_says_its_name_where_there_is_room(share: float, is_named: bool):
    spans = [
        Span(0, "comm:world", "all_reduce", "forward", 0.0, share),
        Span(0, "compute", "mm", "forward", share, 1.0),
    ]
    (text,) = [t for t in figure_timeline(Timeline.of(spans, 1)).data if getattr(t, "mode", None) == "text"]
    said = [word for word in text.text if "C" in word]
    assert said == ["<b>C  all_reduce</b>" if is_named else "<b>C</b>"]


@given(st.floats(0.0, 1e3), st.floats(1e-6, 1e3))
def test_the_axis_ends_little_beyond_the_run(start_s: float, time_s: float):
    figure = figure_timeline(Timeline.of([Span(0, "compute", "mm", "forward", start_s, start_s + time_s)], 1))
    (bar,) = [t for t in figure.data if t.legendgroup == "forward"]
    end = bar.base[0] + bar.x[0]
    first, last = figure.layout.xaxis.range
    assert -0.01 * end <= first <= 0 and end <= last <= 1.02 * end


def test_hover_names_the_operation_phase_start_duration_flops_bytes_dtype_and_line():
    line = "train.py:12: loss = (lambda: model(x) < 1)()"
    span = Span(0, "compute", "aten.mm", "forward", 1e-3, 3e-3, 2e9, 5e6, "bfloat16", line)
    figure = figure_timeline(Timeline.of([span], 1))
    (text,) = next(t for t in figure.data if t.legendgroup == "forward").hovertext
    for part in ("aten.mm", "forward", "starts at 1 ms", "takes 2 ms", "2 GFLOP", "5 MB", "bfloat16"):
        assert part in text
    assert "train.py:12: loss = (lambda: model(x) &lt; 1)()" in text  # plotly reads a hover as HTML


def test_work_done_again_for_backward_is_recompute_whatever_its_phase():
    spans = [Span(0, "compute", "aten.mm", "backward", 0.0, 1.0, is_recompute=True)]
    spans += [Span(0, "compute", "aten.mm", "backward", 1.0, 2.0), Span(0, "compute", "mm", "recompute", 2.0, 3.0)]
    bars = sorted(bars_drawn(figure_timeline(Timeline.of(spans, 1)), 1.0), key=lambda bar: bar[2])
    assert [kind for _, kind, *_ in bars] == ["recompute", "backward", "recompute"]


def test_the_summary_tells_the_truth(examples):
    timeline = examples.ddp_step()
    text = describe(figure_timeline(timeline))
    ranks = range(timeline.num_ranks)
    busy = np.mean([timeline.busy_s(r) for r in ranks]) / timeline.makespan_s
    communication = np.mean([timeline.busy_s(r, "comm") for r in ranks])
    hidden = 1 - np.mean([timeline.exposed_s(r) for r in ranks]) / communication
    assert f"makespan {format_quantity(timeline.makespan_s, 's')}" in text
    assert (
        f"computes {busy:.0%}" in text
        and f"for {format_quantity(communication, 's')}" in text
        and f"{hidden:.0%}" in text
    )


@given(last_work_s=st.floats(1.0, 5.0), wait_s=st.floats(0.0, 5.0), died_s=st.floats(0.1, 5.0))
def test_of_a_run_that_stopped_the_end_of_the_last_work_is_told_and_no_share(last_work_s, wait_s, died_s):
    """How long the others are drawn waiting is a choice of the drawing."""
    spans = [
        Span(0, "compute", "mm", "forward", 0.0, last_work_s),
        Span(0, "wait:world", "all_reduce", "forward", last_work_s, last_work_s + wait_s),
    ]
    text = describe(figure_timeline(Timeline.of(spans, 2, deaths=[(1, died_s)])))
    assert f"the last work ended at {format_quantity(last_work_s, 's')}." in text
    assert f"Rank 1 died at {format_quantity(died_s, 's')}." in text
    assert "%" not in text and "makespan" not in text


def test_a_mean_says_over_which_ranks_it_is():
    spans = [Span(rank, "compute", "mm", "forward", 0.0, 1.0 + rank) for rank in range(4)]
    timeline = Timeline.of(spans, 4)
    assert "computes 62% of it (mean over ranks)." in describe(figure_timeline(timeline))  # 1, 2, 3, 4 of 4
    assert "computes 38% of it (mean over the 2 ranks drawn)." in describe(figure_timeline(timeline, ranks=[0, 1]))
    assert "mean" not in describe(figure_timeline(timeline, ranks=[3]))


def test_the_table_is_the_timeline(examples):
    timeline = examples.ddp_step(seed=5)
    rows = table(figure_timeline(timeline))
    assert rows["spans"].sum() == len(timeline)
    assert rows["flops"].sum() == pytest.approx(sum(s.flops for s in timeline))
    for rank in range(timeline.num_ranks):
        here = rows[(rows["rank"] == rank) & (rows["stream"] == "compute")]
        assert here["busy_s"].sum() == pytest.approx(timeline.busy_s(rank))
    assert rows["last_end_s"].max() == timeline.makespan_s


def ranks_drawn(figure) -> list[int]:
    labels = [label for label in figure.layout.yaxis.ticktext if "rank" in label]
    return [int(label.removeprefix("<b>rank ").removesuffix("</b>")) for label in labels]


def test_more_than_16_ranks_show_the_first_and_last_4_and_say_so(examples):
    figure = figure_timeline(examples.ddp_step(num_ranks=20, ops=1))
    assert ranks_drawn(figure) == [0, 1, 2, 3, 16, 17, 18, 19]
    assert describe(figure).startswith("Ranks 0 to 3, 16 to 19 of 20, makespan")


def test_of_more_than_64_chosen_ranks_both_ends_are_drawn_and_the_sentence_says_which():
    timeline = Timeline.of([Span(rank, "compute", "aten.mm", "forward", 0.0, 1.0) for rank in range(1000)], 1000)
    figure = figure_timeline(timeline, ranks=(rank for rank in range(1000) if rank % 2 == 0 or rank < 10))
    assert ranks_drawn(figure) == [*range(10), *range(10, 54, 2), *range(936, 1000, 2)]
    assert "of 1000 (64 of the 505 chosen), makespan" in describe(figure)
    assert "chosen" not in describe(figure_timeline(timeline, ranks=range(64)))


def test_chosen_ranks_of_a_part_of_the_run(examples):
    figure = figure_timeline(examples.ddp_step().between(0.010, 0.012), ranks=[2], title="Two milliseconds")
    assert [label for label in figure.layout.yaxis.ticktext if "rank" in label] == ["<b>rank 2</b>"]
    assert list(figure.layout.xaxis.range) == pytest.approx([10, 12])
    assert "Rank 2 of 4" in describe(figure) and "10 ms to 12 ms" in describe(figure)
    assert figure.layout.title.text == "Two milliseconds"
    assert all(start <= 0.012 and end >= 0.010 for *_, start, end in bars_drawn(figure, 1e-3))


@pytest.mark.parametrize("options", [{"ranks": [4]}, {"ranks": []}, {"ranks": [-1]}])
def test_impossible_choices_are_refused(examples, options):
    with pytest.raises(ValueError, match="must be"):
        figure_timeline(examples.ddp_step(), **options)


def test_an_empty_timeline_is_drawn_and_says_that_it_is_empty():
    assert "No spans" in describe(figure_timeline(Timeline((), 2)))


def test_few_spans_are_drawn_one_by_one(examples):
    timeline = examples.many_tiny_spans(MANY_SPANS)
    assert len(bars_drawn(figure_timeline(timeline), 1e-3)) == len(timeline)
    assert "joined" not in describe(figure_timeline(timeline))


def kind_sums(bars, lane):
    """Busy seconds, count, operations and bytes of each kind on one lane."""
    found = {}
    for kind in np.unique(bars.kind[bars.lane == lane]):
        here = (bars.lane == lane) & (bars.kind == kind)
        found[KINDS[kind]] = [float(v[here].sum()) for v in (bars.busy_s, bars.count, bars.flops, bars.size_bytes)]
    return found


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), num_spans=st.integers(2100, 30_000))
def test_joining_keeps_each_lane_and_kind_with_its_busy_area_operations_and_extent(examples, seed, num_spans):
    timeline = examples.many_tiny_spans(num_spans, seed)
    lanes = examples.lanes_of(timeline)
    bars = picture_of(timeline.spans, lanes, timeline.makespan_s).bars
    assert len(bars) <= MAX_BARS
    for (rank, stream), lane in lanes.items():
        by_kind = {}
        for s in timeline.select(rank, stream):  # spans of one lane do not overlap here
            sums = by_kind.setdefault(kind_of_span(s), [0.0] * 4)
            for i, value in enumerate((s.duration_s, 1, s.flops, s.size_bytes)):
                sums[i] += value
        assert kind_sums(bars, lane) == {kind: pytest.approx(sums) for kind, sums in by_kind.items()}
        here = bars.lane == lane
        spans = timeline.select(rank, stream)
        assert bars.start_s[here].min() == min(s.start_s for s in spans)
        assert bars.end_s[here].max() == max(s.end_s for s in spans)
        order = np.argsort(bars.start_s[here])  # bars of one lane do not overlap
        assert (bars.end_s[here][order][:-1] <= bars.start_s[here][order][1:] + 1e-12).all()
    np.testing.assert_allclose((bars.end_s - bars.start_s) * bars.height, bars.busy_s, rtol=1e-9, atol=1e-15)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_no_work_moves_further_than_its_cell(examples, seed):
    """Until any moment, each kind has done as much in the picture as in truth, to two steps."""
    timeline = examples.many_tiny_spans(20_000, seed)
    picture = picture_of(timeline.spans, examples.lanes_of(timeline), timeline.makespan_s)
    bars, truth = picture.bars, picture_of(timeline.spans, examples.lanes_of(timeline), 0.0).bars
    assert len(truth) == len(timeline) and len(bars) < len(truth)

    def done_s(some, kind, until_s):
        here = (some.lane == 0) & (some.kind == kind)
        length_s = np.clip(until_s, some.start_s[here], some.end_s[here]) - some.start_s[here]
        return float((length_s * some.height[here]).sum())

    joined_by_height_s = timeline.makespan_s / HEIGHTS / 2  # what rounding heights to eighths may hide, at most
    for until_s in np.linspace(0, timeline.makespan_s, 40):
        for kind in np.unique(truth.kind):
            error_s = abs(done_s(bars, kind, until_s) - done_s(truth, kind, until_s))
            assert error_s <= 2 * picture.step_s + joined_by_height_s


def test_kinds_that_alternate_too_fast_to_see_stand_side_by_side_in_proportion():
    """A forward of 3 microseconds, a backward of 1, a gap of 1, over and over: 3 to 1 in length, and 4/5 high."""
    spans, now_s = [], 0.0
    for _ in range(4000):
        spans.append(Span(0, "compute", "a", "forward", now_s, now_s + 3e-6))
        spans.append(Span(0, "compute", "b", "backward", now_s + 3e-6, now_s + 4e-6))
        now_s += 5e-6
    timeline = Timeline.of(spans, 1)
    picture = picture_of(timeline.spans, {(0, "compute"): 0}, timeline.makespan_s)
    assert picture.step_s > 0 and len(picture.bars) <= MAX_BARS
    sums = kind_sums(picture.bars, 0)
    assert sums["forward"][0] == pytest.approx(12e-3) and sums["backward"][0] == pytest.approx(4e-3)
    inner = slice(2, -2)  # a cell at the edge need not end with a gap
    np.testing.assert_allclose(picture.bars.height[inner], 0.8, atol=0.08)
    figure = figure_timeline(timeline)
    assert f"8,000 spans are drawn as {len(picture.bars):,} bars" in describe(figure)
    assert "timeline.between" in describe(figure)


def test_a_part_of_a_run_is_drawn_in_detail_from_its_start_to_its_end(examples):
    timeline = examples.many_tiny_spans(8000)
    a, b = 0.4 * timeline.makespan_s, 0.5 * timeline.makespan_s
    part = timeline.between(a, b)
    figure = figure_timeline(part)
    scale = scale_of(figure.layout.xaxis)
    bars = bars_drawn(figure, scale)
    assert len(bars) == len(part) < 2000
    assert min(start for *_, start, _ in bars) >= a - 1e-12 and max(end for *_, end in bars) <= b + 1e-12
    assert [edge * scale for edge in figure.layout.xaxis.range] == pytest.approx([a, b])
    states = bars_drawn(figure, scale, STATES)
    assert min(start for *_, start, _ in states) >= a - 1e-12 and max(end for *_, end in states) <= b + 1e-12
    assert f"{format_quantity(b - a, 's')} of the run" in describe(figure)
    assert f"Shown: {format_quantity(a, 's')} to {format_quantity(b, 's')}." in describe(figure)


def test_joining_closes_no_gap_that_could_be_seen():
    """Ten visible gaps among thousands of touching spans stay gaps."""
    spans, now_s = [], 0.0
    for block in range(11):
        for _ in range(400):
            spans.append(Span(0, "compute", "op", "forward", now_s, now_s + 1e-6))
            now_s += 1e-6
        now_s += 0.05e-3 if block < 10 else 0.0
    figure = figure_timeline(Timeline.of(spans, 1))
    bars = sorted(bars_drawn(figure, scale_of(figure.layout.xaxis)), key=lambda b: b[2])
    assert len(bars) == 11
    gaps = [later[2] - earlier[3] for earlier, later in zip(bars, bars[1:], strict=False)]
    assert gaps == pytest.approx([0.05e-3] * 10)
    assert "4,400 spans are drawn as 11 bars" in describe(figure)


def test_100_000_spans_take_bounded_work_and_make_a_figure_of_bounded_size(examples, calls_of):
    timeline, figures = examples.many_tiny_spans(100_000), []
    assert calls_of(lambda: figures.append(figure_timeline(timeline))) < 40 * 100_000
    figure = figures[0]
    assert len(bars_drawn(figure, 1e-3)) <= MAX_BARS
    assert len(figure.to_json()) < 4e6


def test_overlapping_spans_of_one_lane_count_once_as_busy():
    spans = [Span(0, "comm:dp", "all_reduce", "", 0.0, 2.0), Span(0, "comm:dp", "all_reduce", "", 1.0, 3.0)]
    rows = table(figure_timeline(Timeline.of(spans, 1)))
    assert rows["busy_s"].sum() == 3.0 and rows["spans"].sum() == 2


@pytest.mark.parametrize("num_bars", [2, 3, 4, 6])
def test_no_line_between_bars_crosses_a_letter(num_bars):
    spans = [Span(0, "compute", "op", "forward", i * 1e-3, (i + 1) * 1e-3) for i in range(num_bars)]
    figure = figure_timeline(Timeline.of(spans, 1))
    (letter_ms,) = [float(x) for trace in figure.data if trace.type == "scatter" for x in trace.x]
    assert min(abs(letter_ms - line) for line in range(num_bars + 1)) == pytest.approx(0.5)


def test_letters_of_collectives_that_overlap_do_not_collide():
    """gloo runs two collectives of a group side by side; one label each would be written over the other."""
    spans = [Span(0, "comm:world", "all_reduce", "backward", start, start + 4.0) for start in (0.0, 1.0, 4.0, 7.0)]
    figure = figure_timeline(Timeline.of([*spans, Span(0, "compute", "aten.mm", "backward", 0.0, 11.0)], 1))
    (text,) = [trace for trace in figure.data if trace.type == "scatter"]
    assert sorted(text.x) == [2.0, 5.5, 6.0]  # of the first and third collective, and of the compute


def test_ranks_that_are_no_range_are_listed():
    spans = [Span(rank, "compute", "aten.mm", "forward", 0.0, 1.0) for rank in range(6)]
    timeline = Timeline.of(spans, 6)
    assert "Ranks 0, 4 of 6" in describe(figure_timeline(timeline, ranks=[0, 4]))
    assert "Ranks 2 to 4 of 6" in describe(figure_timeline(timeline, ranks=[2, 3, 4]))
