"""Memory of a plan: the bars of a stage stack to its peak, in the colours of the memory tracker's categories."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
from __future__ import annotations

import pytest

from lablib.figures import describe, figure_plan_memory, table
from lablib.figures.plans.plan_memory import TOO_MUCH
from lablib.figures.style import MEMORY_LOOKS
from lablib.plan.memory import CATEGORIES


def stack(figure) -> dict[str, list[float]]:
    return {t.name: list(t.y) for t in figure.data if t.type == "bar"}


def texts(figure) -> list[str]:
    return [text for t in figure.data if getattr(t, "mode", None) == "text" for text in t.text]


def test_the_bars_of_each_stage_stack_to_its_peak(examples):
    figure = figure_plan_memory(examples.some_prediction())
    assert figure.layout.yaxis.title.text == "memory (GB)"
    assert stack(figure) == {
        "parameter": [4, 4],
        "optimizer state": [24, 24],
        "gradient": [8, 8],
        "activation": [20, 10],
        "communication": [1, 1],
        "other": [3, 3],
    }
    assert texts(figure) == ["<b>60 GB</b>", "<b>50 GB</b>"]
    assert list(table(figure)["peak (B)"]) == [60e9, 50e9]


def test_categories_look_as_in_the_memory_of_a_run(examples):
    assert {"communication buffer", *MEMORY_LOOKS} - {"communication"} == set(CATEGORIES)
    for trace in figure_plan_memory(examples.some_prediction()).data:
        if trace.type == "bar":
            look = MEMORY_LOOKS[trace.name]
            assert (trace.marker.color, trace.marker.pattern.shape) == (look.color, look.pattern)


def test_the_limit_is_a_line_where_it_is_near_and_in_the_sentence_in_any_case(examples):
    figure = figure_plan_memory(examples.some_prediction())
    (line,) = [t for t in figure.data if t.name == "limit"]
    assert list(line.y) == [80, 80] and list(line.x) == list(figure.layout.xaxis.range)
    assert figure.layout.yaxis.range[1] > 80
    assert describe(figure) == (
        "Stage 0, the fullest of 2, keeps 60 GB at its peak: 40% optimizer state, 33% activation, 13% gradient, "
        "7% parameter, 5% other, 2% communication; that fits into the 80 GB of a GPU, with 20 GB to spare."
    )
    roomy = figure_plan_memory(examples.some_prediction(memory_limit_bytes=1e12))
    assert "limit" not in [t.name for t in roomy.data]
    assert "1 TB of a GPU" in describe(roomy) and roomy.layout.yaxis.range[1] < 80


def test_a_stage_that_does_not_fit_is_marked_and_counted(examples):
    figure = figure_plan_memory(examples.some_prediction(memory_limit_bytes=55e9))
    (sums,) = [t for t in figure.data if getattr(t, "mode", None) == "text"]
    assert sums.textfont.color[0] == TOO_MUCH != sums.textfont.color[1]
    assert describe(figure).endswith("that is 1.09 times the 55 GB of a GPU; 1 of 2 stages do not fit.")


@pytest.mark.parametrize(("stages", "ticks"), [(1, [0]), (8, list(range(8))), (64, list(range(0, 64, 8)))])
def test_one_eight_and_64_stages_can_be_read(examples, stages, ticks):
    memory = tuple({"parameter": 1e9 * (i + 1)} for i in range(stages))
    figure = figure_plan_memory(examples.some_prediction(memory=memory))
    assert list(figure.layout.xaxis.tickvals) == ticks
    assert len(texts(figure)) == (stages if stages <= 16 else 0)  # sums that would run into each other are left out
    low, high = figure.layout.xaxis.range
    assert low < 0 and high > stages - 1 and high - low >= 4  # one bar is not as wide as the figure
    assert len(table(figure)) == stages
