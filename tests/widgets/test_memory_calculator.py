"""The memory calculator: its figure says what `memory_of_step` says; a click names the operator and its line."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from lablib.figures import describe, figure_step_memory, table
from lablib.studies.step_memory import memory_of_step
from lablib.widgets import memory_calculator
from lablib.widgets.explorer import Explorer
from lablib.widgets.memory_calculator import OWN


@pytest.fixture
def calculator() -> Explorer:
    shown = memory_calculator(model="gpt2")
    assert isinstance(shown, Explorer)
    return shown


def trace(figure, name: str, kind: str):
    [found] = [trace for trace in figure.data if (trace.name, trace.type) == (name, kind)]
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {"micro_batch": 8, "num_microbatches": 2},
        {"model": "llama-2-7b", "recompute": "every 4", "device": "B300-SXM"},
        {"model": "gpt3-175b", "precision": "float32", "optimizer": "sgd"},
    ],
)
def test_bars_and_bands_are_the_bytes_of_the_step(settings):
    step = memory_of_step(**({"model": "gpt2", "micro_batch": 4, "seq_len": 1024} | settings))
    figure = figure_step_memory(step)
    scale = step.peak_bytes / sum(trace(figure, name, "bar").y[0] for name, size in step.at_peak.items() if size)
    assert np.isclose(np.log10(scale), round(np.log10(scale)))  # a unit: GB, TB
    for name, size in step.at_peak.items():
        if step.held[name].any():
            assert trace(figure, name, "bar").y[0] * scale == pytest.approx(size)
            assert max(trace(figure, name, "scatter").y) * scale <= step.held[name].max() * (1 + 1e-12)
    outline = trace(figure, "operators", "scatter")
    assert max(outline.y) * scale == pytest.approx(step.peak_bytes)  # of thousands of operators no peak is lost
    assert len(outline.x) <= 404 and (np.diff(outline.x) >= 0).all()
    numbers = table(figure)
    assert sum(numbers["at the peak (B)"].tolist()) == step.peak_bytes
    assert ("fits into" in describe(figure)) == step.fits == ("does not fit" not in figure.layout.title.text)


def test_a_moved_slider_redraws_and_says_whether_it_fits(calculator):
    assert "it fits into the 78.7 GB" in calculator.caption.text
    calculator.controls["micro_batch"].value = 128
    assert "it does not fit into the 78.7 GB" in calculator.caption.text
    step = memory_of_step("gpt2", 1024, 128)
    assert calculator.caption.text == describe(figure_step_memory(step))
    assert f"the largest micro-batch that fits is {step.largest_micro_batch}." in calculator.caption.text


def test_own_sizes_have_their_own_sliders(calculator):
    for name, value in {"layers": 4, "d_model": 2048, "model": OWN}.items():
        calculator.controls[name].value = value
    [parameters] = [t for t in calculator.figure.data if (t.name, t.type) == ("parameter", "bar")]
    d = 2048
    numbers = 50257 * d + 1024 * d + 4 * (12 * d * d + 13 * d) + 2 * d
    assert parameters.y[0] == pytest.approx(2 * numbers / 1e9)


def test_too_long_a_sequence_is_said_and_the_last_picture_stays(calculator):
    before = calculator.caption.text
    calculator.controls["seq_len"].value = 4096
    assert "gpt2 has 1,024 learned positions" in calculator.message.text
    assert calculator.caption.text == before


def click(calculator: Explorer, name: str, kind: str = "scatter") -> str:
    """A click on the first point of a trace, as plotly reports it."""
    target = trace(calculator.figure, name, kind)
    point = SimpleNamespace(point_inds=[0], xs=[target.x[0]])
    for heard in target._click_callbacks:
        heard(target, point, None)
    return calculator.point.text


@pytest.mark.parametrize("change", [{}, {"micro_batch": 8}, {"optimizer": "sgd"}], ids=["at first", "redrawn", "new"])
def test_a_click_on_the_peak_names_its_operator_and_its_line(calculator, change):
    for name, value in change.items():
        calculator.controls[name].value = value
    assert calculator.point.text == ""
    text = click(calculator, "peak")
    assert "aten._log_softmax_backward_data" in text
    assert "loss.backward()" in text and "return F.cross_entropy(" in text
    assert click(calculator, "operators").endswith(
        "positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)"
    )
    calculator.controls["recompute"].value = "full"
    assert calculator.point.text == ""  # the clicked operator is gone


def test_a_click_on_the_bar_is_no_moment(calculator):
    assert click(calculator, "activation", "bar") == ""


def test_a_redraw_is_as_much_work_for_96_layers_as_for_12(calls_of):
    """benchmarks/redraw_speed.py has the seconds."""
    calls = {}
    for model in ("gpt2", "gpt3-175b"):
        slider = memory_calculator(model=model).controls["micro_batch"]
        slider.value = 2  # the first move imports and caches
        calls[model] = calls_of(partial(setattr, slider, "value", 3))
    assert calls["gpt3-175b"] < 1.2 * calls["gpt2"] < 300_000, calls
