"""Figures of predictions: the parts of a step add up to it, bars of memory stack to the peak, times are as given."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import figures
from lablib.figures.plans.plan_memory import TOO_MUCH
from lablib.figures.plans.waterfall import kind_of_part
from lablib.figures.style import LOOKS, MEMORY_LOOKS, OTHER
from lablib.plan.memory import CATEGORIES
from tests.figures.examples import scale


def bars(figure) -> dict[str, list[tuple[float, float]]]:
    """Row's name -> (beginning, seconds) of each of its bars, from the left."""
    unit = scale(figure.layout.xaxis)
    names = dict(zip(figure.layout.yaxis.tickvals, figure.layout.yaxis.ticktext, strict=True))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names.values()}
    for trace in figure.data:
        if trace.type == "bar":
            for row, start, length in zip(trace.y, trace.base, trace.x, strict=True):
                found[names[row]].append((start * unit, length * unit))
    return {name: sorted(each) for name, each in found.items()}


@settings(deadline=None, max_examples=40)
@given(seconds=st.lists(st.floats(0, 1e3), min_size=9, max_size=9).filter(lambda s: sum(s) > 1e-6))
def test_each_part_begins_where_the_one_before_it_ends_and_a_part_of_nothing_is_left_out(examples, seconds):
    names = examples.some_prediction().parts
    prediction = examples.some_prediction(
        parts=dict(zip(names, seconds, strict=True)), step_time_s=sum(seconds), model_flops=1.0, hardware_flops=1.0
    )
    drawn = bars(figures.figure_waterfall(prediction))
    kinds = drawn.pop("<b>step</b>")
    assert sum(length for _, length in kinds) == pytest.approx(sum(seconds))
    assert list(drawn) == [n for n, s in zip(names, seconds, strict=True) if s > 1e-9 * sum(seconds)]
    begin_s = 0.0
    for name, [(start, length)] in drawn.items():
        expected = seconds[list(names).index(name)]
        assert (start, length) == pytest.approx((begin_s, expected), rel=1e-6, abs=1e-6 * sum(seconds))
        begin_s = start + length
    assert begin_s == pytest.approx(sum(seconds))


def test_axes_look_like_communication_and_the_bubble_like_idle_time(examples):
    figure = figures.figure_waterfall(examples.some_prediction())
    names = dict(zip(figure.layout.yaxis.tickvals, figure.layout.yaxis.ticktext, strict=True))
    rows = {t.legendgroup: [names[row] for row in t.y] for t in figure.data if t.type == "bar"}
    assert rows["communication"] == ["tensor axis", "data axis", "<b>step</b>"]
    assert rows["idle"] == ["bubble and messages", "<b>step</b>"]
    kinds = [(0.0, 6.0), (6.0, 2.3), (8.3, 1.0), (9.3, 0.4), (9.7, 0.3)]  # compute, communication, idle, ...
    assert bars(figure)["<b>step</b>"] == [pytest.approx(each) for each in kinds]
    colors = {t.legendgroup: t.marker.color for t in figure.data if t.type == "bar"}
    assert all(colors[name] == LOOKS[name].color for name in ("communication", "idle", "optimizer"))
    assert colors["other"] == OTHER.color
    assert len(set(colors.values())) == 5


def test_the_sentence_has_the_shares_and_what_does_not_fit(examples):
    assert figures.describe(figures.figure_waterfall(examples.some_prediction())) == (
        "A step on 16 GPUs of toy-cluster (data 4, tensor 2, pipeline 2) takes 10 s: 60.0% compute, 23.0% exposed "
        "communication, 10.0% bubble, 4.0% optimizer, 3.0% launches and the rest; MFU 40.0%."
    )
    small = figures.describe(
        figures.figure_waterfall(examples.some_prediction(memory_limit_bytes=40e9, hardware_flops=8e15))
    )
    assert "(HFU 50.0% with what is computed again)" in small and small.endswith("it needs 60 GB of 40 GB a GPU.")


def test_labels_say_seconds_and_percent_and_stay_beside_their_bars(examples):
    figure = figures.figure_waterfall(examples.some_prediction())
    (labels,) = [t for t in figure.data if getattr(t, "mode", None) == "text"]
    texts = [text.strip("\N{NO-BREAK SPACE}") for text in labels.text]
    assert texts[:4] == ["5 s, 50%", "1 s, 10%", "200 ms, 2.0%", "2 s, 20%"]
    # Inside where there is room, at the left where the bar begins far from the left edge.
    assert labels.textposition[:4] == ("middle center", "middle left", "middle left", "middle center")
    assert labels.x[:3] == pytest.approx((2.5, 5.0, 6.0))


def test_the_hover_of_an_axis_tells_what_is_hidden(examples):
    figure = figures.figure_waterfall(examples.some_prediction())
    hovers = [text for t in figure.data if t.type == "bar" for text in t.hovertext]
    (tensor,) = [text for text in hovers if "tensor axis" in text]
    assert "2 s of 10 s, 20.00%" in tensor and "1 s are hidden" in tensor


def test_every_part_of_the_planner_has_a_kind_of_its_own_name():
    kinds = {part: kind_of_part(part) for part in ("products", "attention", "embedding, head, loss", "launches")}
    assert kinds == dict.fromkeys(("products", "attention", "embedding, head, loss"), "compute") | {"launches": "other"}


def test_communication_draws_exposed_and_hidden_seconds_that_add_up(examples):
    figure = figures.figure_communication(examples.some_prediction())
    exposed, hidden = (t for t in figure.data if t.type == "bar")
    assert list(exposed.y) == ["tensor", "data", "pipeline"]  # the context axis is not used
    assert list(exposed.x) == pytest.approx([2.0, 0.3, 0.0]) and list(hidden.x) == pytest.approx([1.0, 0.0, 0.2])
    assert figure.layout.barmode == "stack"  # the hidden part begins where the exposed part ends
    assert exposed.marker.color == LOOKS["communication"].color and hidden.marker.pattern.shape == "/"
    (labels,) = [t for t in figure.data if getattr(t, "mode", None) == "text"]
    assert [text.strip("\N{NO-BREAK SPACE}") for text in labels.text] == [
        "3 s, 1 s hidden",
        "300 ms, none hidden",
        "200 ms, hidden or within the bubble",
    ]
    assert figures.describe(figure) == (
        "A rank communicates for 3.5 s of a step of 10 s; 2.3 s of it (23.0% of the step) are not hidden, most of that "
        "on the tensor axis (2 s). What a stage waits for messages counts as bubble."
    )
    assert list(figures.table(figure)["exposed (s)"]) == [2.0, 0.0, 0.3, 0.0]


def test_a_plan_on_one_gpu_does_not_communicate(examples):
    figure = figures.figure_communication(examples.some_prediction(communication={"tensor": (0.0, 0.0)}))
    assert figures.describe(figure) == "The ranks of this plan do not communicate."
    assert not [t for t in figure.data if len(t.x or ())]


# --- Memory ---


def stack(figure) -> dict[str, list[float]]:
    return {t.name: list(t.y) for t in figure.data if t.type == "bar"}


def sums(figure) -> list[str]:
    return [text for t in figure.data if getattr(t, "mode", None) == "text" for text in t.text]


def test_the_bars_of_each_stage_stack_to_its_peak(examples):
    figure = figures.figure_plan_memory(examples.some_prediction())
    assert figure.layout.yaxis.title.text == "memory (GB)"
    assert stack(figure) == {
        "parameter": [4, 4],
        "optimizer state": [24, 24],
        "gradient": [8, 8],
        "activation": [20, 10],
        "communication": [1, 1],
        "other": [3, 3],
    }
    assert sums(figure) == ["<b>60 GB</b>", "<b>50 GB</b>"]
    assert list(figures.table(figure)["peak (B)"]) == [60e9, 50e9]


def test_categories_look_as_in_the_memory_of_a_run(examples):
    assert {"communication buffer", *MEMORY_LOOKS} - {"communication"} == set(CATEGORIES)
    for trace in figures.figure_plan_memory(examples.some_prediction()).data:
        if trace.type == "bar":
            look = MEMORY_LOOKS[trace.name]
            assert (trace.marker.color, trace.marker.pattern.shape) == (look.color, look.pattern)


def test_the_limit_is_a_line_where_it_is_near_and_in_the_sentence_in_any_case(examples):
    figure = figures.figure_plan_memory(examples.some_prediction())
    (line,) = [t for t in figure.data if t.name == "limit"]
    assert list(line.y) == [80, 80] and list(line.x) == list(figure.layout.xaxis.range)
    assert figure.layout.yaxis.range[1] > 80
    assert figures.describe(figure) == (
        "Stage 0, the fullest of 2, keeps 60 GB at its peak: 40% optimizer state, 33% activation, 13% gradient, "
        "7% parameter, 5% other, 2% communication; that fits into the 80 GB of a GPU, with 20 GB to spare."
    )
    roomy = figures.figure_plan_memory(examples.some_prediction(memory_limit_bytes=1e12))
    assert "limit" not in [t.name for t in roomy.data]
    assert "1 TB of a GPU" in figures.describe(roomy) and roomy.layout.yaxis.range[1] < 80


def test_a_stage_that_does_not_fit_is_marked_and_counted(examples):
    figure = figures.figure_plan_memory(examples.some_prediction(memory_limit_bytes=55e9))
    (sums,) = [t for t in figure.data if getattr(t, "mode", None) == "text"]
    assert sums.textfont.color[0] == TOO_MUCH != sums.textfont.color[1]
    assert figures.describe(figure).endswith("that is 1.09 times the 55 GB of a GPU; 1 of 2 stages do not fit.")


@pytest.mark.parametrize(("stages", "ticks"), [(1, [0]), (8, list(range(8))), (64, list(range(0, 64, 8)))])
def test_one_eight_and_64_stages_can_be_read(examples, stages, ticks):
    memory = tuple({"parameter": 1e9 * (i + 1)} for i in range(stages))
    figure = figures.figure_plan_memory(examples.some_prediction(memory=memory))
    assert list(figure.layout.xaxis.tickvals) == ticks
    assert len(sums(figure)) == (stages if stages <= 16 else 0)  # sums that would run into each other are left out
    low, high = figure.layout.xaxis.range
    assert low < 0 and high > stages - 1 and high - low >= 4  # one bar is not as wide as the figure
    assert len(figures.table(figure)) == stages


# --- Splits of a batch ---


def test_splits_of_a_batch_are_bars_of_memory_and_time(examples):
    few, many = (
        examples.some_prediction(micro_batch=m, num_microbatches=8 // m, step_time_s=t)
        for m, t in ((1, 10.0), (2, 9.0))
    )
    figure = figures.figure_batch_splits([few, many], 1)
    times = figure.data[-1]
    assert (list(times.x), list(times.y)) == (["1 x 8", "<b>2 x 4</b>"], [10.0, 9.0])
    held = [sum(bar.y[0] for bar in figure.data[:-1] if bar.type == "bar")]
    assert held == [pytest.approx(60.0)]
    assert (
        "Micro-batch 2 x 4 accumulations x 4 data ranks = 32 sequences, 32,000 tokens a step: 9 s"
        in figures.describe(figure)
    )


@pytest.mark.parametrize(("batches", "chosen", "message"), [([], 0, "at least one"), ([8], 1, "of 1 split: got 1")])
def test_splits_that_cannot_be_drawn_are_one_clear_error(examples, batches, chosen, message):
    with pytest.raises(ValueError, match=message):
        figures.figure_batch_splits([examples.some_prediction(batch=batch) for batch in batches], chosen)


# --- Tensor-parallel ranks ---


def test_bars_stand_on_each_other_and_the_node_has_an_end(examples):
    figure: Any = figures.figure_tensor_times(
        examples.layer_times([1, 8, 16], [8e-3, 1e-3, 5e-4], [0.0, 1e-3, 1.5e-3]), 8
    )
    compute, exposed, ideal = figure.data
    assert list(compute.y) == [8.0, 1.0, 0.5] and list(exposed.y) == [0.0, 1.0, 1.5]
    assert list(ideal.y) == [8.0, 1.0, 0.5]
    assert [shape.x0 for shape in figure.layout.shapes] == [1.5]
    assert "16 ranks 2 ms, 75% of it exposed" in figures.describe(figure) and "A node has 8 ranks." in figures.describe(
        figure
    )
    assert list(figures.table(figure)["speedup"]) == [1.0, 4.0, 4.0]


@pytest.mark.parametrize("ranks_per_node", [2, 64])
def test_no_line_is_drawn_where_no_node_ends_between_bars(examples, ranks_per_node: int):
    figure: Any = figures.figure_tensor_times(examples.layer_times([4, 8], [1.0, 0.5], [0.1, 0.2]), ranks_per_node)
    assert not figure.layout.shapes


@pytest.mark.parametrize("ranks", [[], [2, 1]])
def test_ranks_that_do_not_ascend_are_refused(examples, ranks: list[int]):
    with pytest.raises(ValueError, match="on one number of ranks or more, ascending: got"):
        figures.figure_tensor_times(examples.layer_times(ranks, [1.0] * len(ranks), [1.0] * len(ranks)), 8)
