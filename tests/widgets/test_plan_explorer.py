"""The planner behind sliders: one change, one prediction, one waterfall; an impossible split keeps the last picture."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
from __future__ import annotations

import pytest

from lablib.figures import describe, figure_plan_memory, figure_waterfall
from lablib.plan import Parallel, Prediction, predict
from lablib.widgets import Choice, IntChoice, explore
from lablib.widgets.explorer import Explorer

GPUS, BATCH = 512, 1536
POWERS = (1, 2, 4, 8, 16, 32, 64)
CONTROLS = (
    IntChoice("tensor", "Tensor", POWERS, 8),
    IntChoice("pipeline", "Pipeline", POWERS, 8),
    IntChoice("micro_batch", "Micro-batch", (1, 2, 4, 8), 1, "sequences"),
    IntChoice("zero_stage", "ZeRO stage", range(4), 0),
    Choice("recompute", "Recompute", ("none", "selective", "full"), "full"),
)


def plan(tensor: int, pipeline: int, micro_batch: int, zero_stage: int, recompute: str) -> Prediction:
    """GPT-3 175B on 512 A100s: what tensor and pipeline leave over is data parallel."""
    if tensor * pipeline > GPUS:
        raise ValueError(f"tensor * pipeline must be at most {GPUS} GPUs: got {tensor * pipeline}; try less of one.")
    split = Parallel(data=GPUS // tensor // pipeline, tensor=tensor, pipeline=pipeline, zero_stage=zero_stage)
    return predict("gpt3-175b", "dgx-a100", split, BATCH, micro_batch=micro_batch, recompute=recompute)


def explorer_of(draw=figure_waterfall) -> Explorer:
    explorer = explore(plan, draw, CONTROLS)
    assert isinstance(explorer, Explorer)
    return explorer


@pytest.mark.parametrize("draw", [figure_waterfall, figure_plan_memory])
@pytest.mark.parametrize("change", [{"tensor": 4}, {"pipeline": 1}, {"zero_stage": 3}, {"recompute": "none"}])
def test_a_moved_slider_shows_what_a_fresh_figure_shows(draw, change):
    explorer = explorer_of(draw)
    for name, value in change.items():
        explorer.controls[name].value = value
    fresh = draw(plan(**explorer.settings))
    assert explorer.caption.text == describe(fresh)
    for shown, expected in zip(explorer.figure.data, fresh.data, strict=True):
        assert (shown.name, list(shown.x), list(shown.y)) == (expected.name, list(expected.x), list(expected.y))


def test_a_change_within_the_same_parts_redraws_in_place():
    explorer = explorer_of()
    first = explorer.figure.data[0]
    explorer.controls["micro_batch"].value = 2
    assert explorer.figure.data[0] is first


def test_an_impossible_split_says_why_and_the_last_picture_stays():
    explorer = explorer_of()
    before = explorer.figure.to_json()
    explorer.controls["tensor"].value = 64
    assert "tensor * pipeline" not in explorer.message.text  # 64 * 8 = 512 is possible: GPT-3 has 96 heads
    assert "num_heads: got 64 and 96" in explorer.message.text
    assert explorer.figure.to_json() == before
    explorer.controls["tensor"].value = 8
    assert not explorer.message.text


def test_without_widgets_the_plans_are_pictures():
    pictures = explore(plan, figure_waterfall, CONTROLS, interactive=False, examples=[{"zero_stage": 1}])
    assert len(pictures) == 2
