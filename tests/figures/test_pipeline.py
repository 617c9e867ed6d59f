"""The picture of a replay: a bar for each action, and under it the memory of each rank at every moment."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
import json

import numpy as np
import plotly.graph_objects as go
import pytest

from lablib.figures import describe, figure_pipeline, figure_pipeline_simulation, table
from lablib.pipeline import Costs, Plan, Replay, read_plan, replay, simulate
from lablib.pipeline.schedules import make


def one_f_one_b(p: int, m: int, costs: Costs | None = None) -> Replay:
    rows = []
    for rank in range(p):
        ahead = min(p - 1 - rank, m)
        row = [f"{rank}F{j}" for j in range(ahead)]
        row += [action for j in range(m - ahead) for action in (f"{rank}F{ahead + j}", f"{rank}B{j}")]
        rows.append(" ".join(row + [f"{rank}B{j}" for j in range(m - ahead, m)]))
    return replay(Plan.parse("1f1b", rows), costs)


def bars(figure: go.Figure) -> list[tuple[str, str, float, float]]:
    """(lane, kind, start, end) of every bar of work."""
    names = dict(zip(figure.layout.yaxis2.tickvals, figure.layout.yaxis2.ticktext, strict=True))
    return sorted(
        (names[y], trace.legendgroup, float(base), float(base + width))
        for trace in figure.data
        if trace.type == "bar" and trace.legendgroup != "bubble"
        for y, base, width in zip(trace.y, trace.base, trace.x, strict=True)
    )


def labels(figure: go.Figure) -> dict[tuple[float, float], str]:
    (text,) = [trace for trace in figure.data if trace.type == "scatter" and trace.mode == "text"]
    return dict(zip(zip(text.x, text.y, strict=True), text.text, strict=True))


def strips(figure: go.Figure) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each rank, the corners of its strip: seconds, and height above its own floor."""
    (trace,) = [t for t in figure.data if t.type == "scatter" and t.fill == "toself" and t.name != "over the limit"]
    found, x, y = [], [], []
    for a, b in zip(trace.x, trace.y, strict=True):
        if np.isnan(a):  # a gap
            found.append((np.array(x), y[0] - np.array(y)))
            x, y = [], []
        else:
            x.append(a)
            y.append(b)
    return found


def test_every_action_is_a_bar_where_and_when_it_ran():
    found = one_f_one_b(3, 4)
    kinds = {"F": "forward", "B": "backward"}
    expected = sorted(
        (f"<b>rank {rank}</b>", kinds[action.kind], float(start), float(end))
        for rank, row in enumerate(found.plan)
        for action, start, end in zip(row, found.start_s[rank], found.end_s[rank], strict=True)
    )
    assert bars(figure_pipeline(found)) == expected


def test_a_label_names_kind_and_micro_batch_in_the_middle_of_its_bar():
    figure = figure_pipeline(one_f_one_b(2, 3))
    top, bottom = figure.layout.yaxis2.tickvals
    found = labels(figure)
    assert found[0.5, top] == "F0" and found[1.5, bottom] == "F0" and found[3.0, bottom] == "B0"
    assert len(found) == 12


def test_the_pieces_of_a_rank_are_told_apart_by_letters():
    plan = Plan.parse("vee", ["0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0"], rank_of=[0, 1, 1, 0])
    assert set(labels(figure_pipeline(replay(plan))).values()) == {"F0a", "F0b", "B0a", "B0b"}


def test_a_bar_too_short_for_its_label_beside_longer_ones_has_its_letter():
    found = one_f_one_b(4, 8, Costs(forward_s=0.4, backward_s=2.0))
    assert set(labels(figure_pipeline(found)).values()) == {"F"} | {f"B{j}" for j in range(8)}


def test_bars_too_short_for_labels_have_the_letter_of_their_stretch():
    figure = figure_pipeline(one_f_one_b(8, 64))
    assert set(labels(figure).values()) <= {"<b>F</b>", "<b>B</b>"}
    assert len(json.dumps(figure.to_plotly_json(), default=str)) < 2e6


@pytest.mark.parametrize("in_bytes", [False, True])
def test_a_strip_stands_as_high_as_what_its_rank_holds(in_bytes):
    found = one_f_one_b(3, 5, Costs(activation_bytes=[4, 8, 16], static_bytes=[1, 2, 3]))
    figure = figure_pipeline(found, in_bytes=in_bytes)
    courses = found.memory if in_bytes else [found.held(rank) for rank in range(3)]
    top = max(held.max() for _, held in courses)
    for (x, height), (times_s, held) in zip(strips(figure), courses, strict=True):
        for moment in np.arange(0.5, found.makespan_s):
            truth = held[np.searchsorted(times_s, moment, "right") - 1]
            drawn = height[np.flatnonzero(x <= moment)[-1]]
            assert drawn == pytest.approx(truth / top)


def test_both_panels_have_one_time_and_the_lanes_one_order():
    layout = figure_pipeline(one_f_one_b(4, 8)).layout
    assert layout.xaxis2.matches == "x" and layout.yaxis.domain[1] < layout.yaxis2.domain[0]
    assert [text.split("<b>")[1] for text in layout.yaxis.ticktext] == [f"rank {rank}</b>" for rank in range(4)]
    assert list(layout.yaxis.tickvals) == list(layout.yaxis2.tickvals)
    assert "at most 4<" in layout.yaxis.ticktext[0] and "at most 1<" in layout.yaxis.ticktext[3]


def test_the_sentence_and_the_table_have_the_numbers_of_the_replay():
    found = one_f_one_b(4, 8)
    figure = found.figure()
    assert describe(figure) == (
        "1f1b takes 33 s, of which 27.3% is bubble; rank 0 holds the most, 4 micro-batches at once."
    )
    rows = table(figure)
    assert list(rows["busy (s)"]) == [24] * 4 and list(rows["bubble (s)"]) == [9] * 4
    assert list(rows["peak micro-batches"]) == [4, 3, 2, 1]
    heavy = figure_pipeline(one_f_one_b(4, 8, Costs(activation_bytes=1e9, static_bytes=[0, 0, 0, 9e9])))
    assert describe(heavy).endswith("4 micro-batches at once, and 10 GB is the highest peak (rank 3).")


def test_of_many_ranks_the_first_and_the_last_are_shown_and_said():
    figure = figure_pipeline(one_f_one_b(20, 4))
    assert len(figure.layout.yaxis2.tickvals) == 8
    assert describe(figure).endswith("Shown: ranks 0 to 3, 16 to 19 of 20.")
    with pytest.raises(ValueError, match="ranks must be between 0 and 19: got \\[20\\]"):
        figure_pipeline(one_f_one_b(20, 4), ranks=[20])


def named(figure: go.Figure, name: str):
    [found] = [trace for trace in figure.data if (trace.name or "").startswith(name)]
    return found


def test_the_critical_path_is_drawn_from_action_to_action():
    simulation = simulate(make("1f1b", 3, 4), Costs(send_s=0.5))
    line = named(figure_pipeline_simulation(simulation), "critical path")
    path = simulation.critical_path
    assert line.x.tolist() == [time for each in path for time in (each.start_s, each.end_s)]
    lanes = sorted(set(line.y.tolist()))
    assert [lanes.index(y) for y in line.y[::2]] == [each.rank for each in path]
    bare = figure_pipeline_simulation(simulation, shows_critical_path=False)
    assert "critical path" not in [trace.name for trace in bare.data]


def test_each_rank_has_the_line_of_its_own_limit():
    def lines(limit) -> np.ndarray:
        return named(figure_pipeline_simulation(simulate(make("1f1b", 4, 8), None, limit)), "limit: ").y[::3]

    one = lines(3.0) - lines(4.0)  # how far apart the lines of one micro-batch more are
    assert lines((4, 2, 3, 1)) == pytest.approx(lines(4.0) + one * [0, 2, 1, 3])
    figure = figure_pipeline_simulation(simulate(make("1f1b", 4, 8), None, (4, 2, 3, 1)))
    assert named(figure, "limit: 4, 2, 3, 1 micro-batches") and "rank 1 holds more" in describe(figure)
    many = figure_pipeline_simulation(simulate(make("1f1b", 9, 9), None, range(9, 0, -1)))
    assert named(many, "limit: 9, 8, 7, ..., 3, 2, 1 micro-batches")


def test_what_is_held_above_the_limit_is_red_and_no_more():
    simulation = simulate(make("1f1b", 4, 8), None, 3.0)
    figure = figure_pipeline_simulation(simulation)
    red, line = named(figure, "over the limit"), named(figure, "limit: 3")
    assert simulation.ranks_over == (0,) and "rank 0 holds more" in describe(figure)
    ends = red.x[~np.isnan(red.x)]
    assert (ends.min(), ends.max()) == (0, simulation.replay.makespan_s)
    # The red area is the micro-batch seconds above the limit; a strip of full height, 1, is 4 micro-batches.
    x, y = red.x[:-1], line.y[0] - red.y[:-1]
    times_s, held = simulation.replay.held(0)
    seconds = np.diff(np.append(times_s, simulation.replay.makespan_s))
    assert np.sum(np.diff(x) * y[:-1]) == pytest.approx(np.sum(seconds * np.maximum(held - 3, 0)) / 4)
    assert "over the limit" not in [
        t.name for t in figure_pipeline_simulation(simulate(make("1f1b", 4, 8), None, 4)).data
    ]


def test_a_moment_is_a_line_and_a_sentence():
    simulation = simulate(make("1f1b", 2, 2))
    figure = figure_pipeline_simulation(simulation, 4.5)
    sheet, line = figure.layout.shapes
    assert (sheet.x0, sheet.x1, line.x0, line.x1) == (4.5, 9, 4.5, 4.5)
    assert "At 4.5 s: rank 0 0B0, rank 1 1F1." in describe(figure)
    assert table(figure)["at 4.5 s"].tolist() == ["0B0", "1F1"]
    assert figure_pipeline_simulation(simulation, 1e9).layout.shapes[1].x0 == 9


def test_a_deadlock_is_a_circle_of_arrows():
    simulation = simulate(read_plan("F0 B0 F1 B1\nF0 F1 B0 B1\nF0 B0 F1 B1"))
    figure = figure_pipeline_simulation(simulation)
    waits = named(figure, "waits for ever")
    circle = [wait.rank for wait in simulation.circle]
    y_of = {
        name.removeprefix("<b>rank ")[0]: y
        for name, y in zip(figure.layout.yaxis2.ticktext, figure.layout.yaxis2.tickvals, strict=True)
    }
    assert list(waits.y) == [y_of[str(rank)] for rank in circle]
    assert list(waits.base) == [simulation.replay.end_s[rank][-1] for rank in circle]
    arrows = [trace for trace in figure.data if trace.type == "scatter" and trace.mode == "lines+markers"]
    for arrow, wait in zip(arrows, simulation.circle, strict=True):
        assert arrow.y[0] == y_of[str(wait.rank)] and abs(arrow.y[1] - y_of[str(wait.on_rank)]) < 0.5
        assert arrow.x[0] == arrow.x[1] > simulation.replay.makespan_s
    assert len({arrow.x[0] for arrow in arrows}) == len(arrows)
    assert "deadlocks after" in describe(figure) and "waits for" in table(figure)


def test_the_table_has_bytes_only_where_bytes_are_counted():
    for in_bytes, costs in ((False, Costs()), (True, Costs(activation_bytes=1e6)), (True, Costs(static_bytes=1e6))):
        columns = figure_pipeline(one_f_one_b(3, 4, costs)).layout.meta["table"]
        assert ("peak memory (B)" in columns) is in_bytes
