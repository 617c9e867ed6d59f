"""`explore`: one change, one computation, one redrawn figure; a bad setting leaves the last good figure."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOptionalMemberAccess=false
from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ipywidgets.widgets import widget as widget_module

from lablib.figures import describe, figure_lines, figure_plan_memory, figure_waterfall
from lablib.plan import Parallel, Prediction, predict
from lablib.widgets import Choice, IntChoice, LogSlider, Toggle, explore
from lablib.widgets.explorer import Explorer

CONTROLS = (
    IntChoice("ranks", "Ranks", (2, 4, 8), 4),
    IntChoice("buckets", "Number of buckets", range(1, 9), 4),
    LogSlider("bandwidth", "Bandwidth", 1e8, 1e10, 1e9, "B/s"),
    Choice("algorithm", "Algorithm", ("ring", "tree"), "ring"),
    Toggle("overlap", "Overlap communication with backward", True),
)


class Counted:
    """A pure function that remembers how it was called."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def __call__(self, **settings: Any) -> dict[str, list[float]]:
        self.calls.append(settings)
        if settings["buckets"] == 3:
            raise ValueError("buckets must divide 8 layers: got 3; try 4.")
        names = ["a", "b", "c"][: 3 if settings["algorithm"] == "tree" else 2]
        return {name: [float(settings["ranks"]), settings["bandwidth"] / 1e9] for name in names}


def draw(series: dict[str, list[float]]):
    return figure_lines([0, 1], series, "step", "value", y_unit="units")


def explorer_of(compute: Any) -> Explorer:
    explorer = explore(compute, draw, CONTROLS)
    assert isinstance(explorer, Explorer)
    return explorer


@given(ranks=st.sampled_from((2, 4, 8)), algorithm=st.sampled_from(("ring", "tree")), is_named=st.booleans())
def test_static_figures_say_in_their_title_what_differs(ranks: int, algorithm: str, is_named: bool):
    def draw_titled(series: dict[str, list[float]]):
        return draw(series).update_layout(title_text=f"{len(series)} lines" if is_named else "Steps")

    setting = {"ranks": ranks, "algorithm": algorithm}
    pictures = explore(Counted(), draw_titled, CONTROLS, interactive=False, examples=[setting])
    first, other = (picture.figure.layout.title.text for picture in pictures.pictures)
    words = [f"Ranks: {ranks}"] * (ranks != 4) + ["Algorithm: tree"] * (algorithm == "tree")
    own = "3 lines" if is_named and algorithm == "tree" else first
    assert first == ("2 lines" if is_named else "Steps")
    assert other == (f"{own}. {', '.join(words)}" if words and own == first else own)


def test_the_first_figure_shows_the_defaults():
    compute = Counted()
    explorer = explorer_of(compute)
    assert compute.calls == [{"ranks": 4, "buckets": 4, "bandwidth": 1e9, "algorithm": "ring", "overlap": True}]
    assert list(explorer.figure.data[0].y) == [4, 1]
    assert explorer.caption.text == describe(draw(compute(**compute.calls[0])))
    assert "<table" in explorer.caption.table_html


def test_a_browser_gets_the_first_traces_with_the_widget(monkeypatch):
    """Plotly sends them in separate messages, which a browser loses while it loads plotly."""
    opened, create = [], widget_module.comm.create_comm

    def noted(*args: Any, **options: Any) -> Any:
        opened.append(options["data"]["state"])
        return create(*args, **options)

    monkeypatch.setattr(widget_module.comm, "create_comm", noted)
    figure = explorer_of(Counted()).figure
    (state,) = [state for state in opened if "_widget_data" in state]
    assert figure.data and [trace["name"] for trace in state["_widget_data"]] == [trace.name for trace in figure.data]
    assert "xaxis" in state["_widget_layout"] and state["_config"]["responsive"]


def test_a_browser_that_starts_a_widget_late_is_sent_all_that_may_have_changed(monkeypatch):
    """It says so by `_started`; the messages before may be lost."""
    explorer = explorer_of(Counted())
    explorer.controls["ranks"].value = 8
    explorer.controls["algorithm"].value = "tree"
    for widget in (explorer.figure, explorer.caption, explorer._place):
        sent: list[dict[str, Any]] = []
        monkeypatch.setattr(type(widget), "_send", lambda self, message, buffers=None, sent=sent: sent.append(message))
        widget.set_state({"_started": 0.5})
        states = [message["state"] for message in sent if message["method"] == "update"]
        (state,) = [state for state in states if set(widget.changing) <= set(state)]
        if widget is explorer.figure:
            assert [trace["name"] for trace in state["_widget_data"]] == ["a", "b", "c"]
            assert list(state["_widget_data"][0]["y"]) == [8, 1]
            assert state["_widget_layout"]["xaxis"] == explorer.figure.layout.to_plotly_json()["xaxis"]
        else:
            assert all(state[name] == getattr(widget, name) for name in widget.changing)


def test_a_page_that_is_loaded_again_gets_the_figure_of_today():
    explorer = explorer_of(Counted())
    explorer.controls["ranks"].value = 2
    state = explorer.figure.get_state()
    assert list(state["_widget_data"][0]["y"]) == [2, 1] and "newPlot" in state["_plotly_source"]
    assert explorer.figure.get_state("_config") == {"_config": explorer.figure._config}


@pytest.mark.parametrize(("name", "value"), [("ranks", 8), ("bandwidth", 2e9), ("buckets", 5), ("overlap", False)])
def test_one_change_computes_once_with_all_present_settings(name, value):
    compute = Counted()
    explorer = explorer_of(compute)
    explorer.controls[name].value = value
    assert len(compute.calls) == 2
    assert compute.calls[1] == compute.calls[0] | {name: value}


def test_a_change_redraws_the_traces_in_place_and_the_words():
    explorer = explorer_of(Counted())
    trace, words = explorer.figure.data[0], explorer.caption.text
    explorer.controls["ranks"].value = 8
    assert explorer.figure.data[0] is trace
    assert list(trace.y) == [8, 1]
    assert explorer.caption.text != words


def test_a_change_of_structure_replaces_the_traces():
    explorer = explorer_of(Counted())
    explorer.controls["algorithm"].value = "tree"
    assert [t.name for t in explorer.figure.data] == ["a", "b", "c"]
    explorer.controls["algorithm"].value = "ring"
    assert [t.name for t in explorer.figure.data] == ["a", "b"]
    assert list(explorer.figure.data[1].y) == [4, 1]


def test_the_widget_shows_exactly_what_the_figure_function_drew():
    explorer = explorer_of(Counted())
    for name, value in (("ranks", 8), ("algorithm", "tree"), ("bandwidth", 5e9), ("algorithm", "ring"), ("ranks", 2)):
        explorer.controls[name].value = value
        fresh = explorer_of(Counted())
        for other, setting in explorer.settings.items():
            fresh.controls[other].value = setting
        assert [t.to_plotly_json()["y"] for t in explorer.figure.data] == [
            t.to_plotly_json()["y"] for t in fresh.figure.data
        ]
        assert explorer.figure.layout.yaxis == fresh.figure.layout.yaxis


@pytest.mark.parametrize("draw", [figure_waterfall, figure_plan_memory])
@pytest.mark.parametrize("change", [{"tensor": 4}, {"pipeline": 1}, {"zero_stage": 3}, {"recompute": "none"}])
def test_a_moved_slider_of_a_plan_shows_what_a_fresh_figure_shows(draw, change):
    def plan(tensor: int, pipeline: int, zero_stage: int, recompute: str) -> Prediction:
        split = Parallel(data=512 // tensor // pipeline, tensor=tensor, pipeline=pipeline, zero_stage=zero_stage)
        return predict("gpt3-175b", "dgx-a100", split, 1536, micro_batch=1, recompute=recompute)

    controls = [IntChoice("tensor", "Tensor", (1, 2, 4, 8), 8), IntChoice("pipeline", "Pipeline", (1, 2, 4, 8), 8)]
    controls += [IntChoice("zero_stage", "ZeRO stage", range(4), 0)]
    explorer: Any = explore(plan, draw, [*controls, Choice("recompute", "Recompute", ("none", "full"), "full")])
    for name, value in change.items():
        explorer.controls[name].value = value
    fresh = draw(plan(**explorer.settings))
    assert explorer.caption.text == describe(fresh)
    for shown, expected in zip(explorer.figure.data, fresh.data, strict=True):
        assert (shown.name, list(shown.x), list(shown.y)) == (expected.name, list(expected.x), list(expected.y))


def test_an_impossible_setting_is_said_and_keeps_the_last_good_figure():
    explorer = explorer_of(Counted())
    explorer.controls["ranks"].value = 8
    before, words = explorer.figure.to_json(), explorer.caption.text
    explorer.controls["buckets"].value = 3
    assert "buckets must divide 8 layers: got 3; try 4." in explorer.message.text
    assert (explorer.figure.to_json(), explorer.caption.text) == (before, words)
    explorer.controls["buckets"].value = 4
    assert explorer.message.text == ""


def test_a_bug_in_the_function_is_shown_and_raised():
    def broken(**settings: Any):
        if settings["ranks"] == 8:
            raise KeyError("layer")
        return {"a": [1.0, 2.0]}

    explorer = explorer_of(broken)
    with pytest.raises(KeyError):
        explorer.controls["ranks"].value = 8
    assert "KeyError" in explorer.message.text


def test_labels_are_whole_and_sliders_say_their_unit():
    explorer = explorer_of(Counted())
    for control in CONTROLS:
        widget = explorer.controls[control.name]
        assert control.label in widget.description
    widths = {widget.style.description_width for widget in explorer.controls.values()}
    longest = max(len(control.label) for control in CONTROLS if not isinstance(control, Toggle))
    assert len(widths) == 1 and float(widths.pop().removesuffix("em")) > 0.5 * longest
    assert explorer.controls["bandwidth"].label == "1 GB/s"


def test_the_notebook_gets_the_panel():
    explorer = explorer_of(Counted())
    data = explorer._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in (data[0] if isinstance(data, tuple) else data)


def test_a_saved_notebook_has_picture_sentence_and_table_before_the_panel(monkeypatch):
    outputs: list[dict[str, Any]] = []

    def display(value, raw=False):
        outputs.append(value if raw else {"text/html": value.data})

    monkeypatch.setattr("IPython.display.display", display)
    explorer = explorer_of(Counted())
    explorer.controls["ranks"].value = 8
    explorer._ipython_display_()
    picture, words, panel = outputs
    assert picture["image/svg+xml"].startswith("<svg") and "<script" not in picture["image/svg+xml"]
    assert picture["text/plain"] == explorer.caption.text == explorer._place.name
    assert explorer.caption.text in words["text/html"] and "<table" in words["text/html"]
    assert "need a running kernel" in words["text/html"] and "<script" not in words["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in panel
    assert sum(len(text) for output in outputs[:2] for text in output.values()) < 100_000


def test_a_redraw_is_the_work_of_one_figure(calls_of):
    explorer = explorer_of(Counted())
    explorer.controls["ranks"].value = 2  # the first move imports and caches
    drawn = calls_of(lambda: draw({"a": [8.0, 1.0], "b": [8.0, 1.0]}))
    assert drawn < calls_of(partial(setattr, explorer.controls["ranks"], "value", 8)) < 6 * drawn


def test_not_interactive_shows_pictures_and_no_widget(monkeypatch):
    outputs: list[dict[str, Any]] = []

    def display(value, raw=False):
        outputs.append(value if raw else {"text/html": value.data})

    monkeypatch.setattr("IPython.display.display", display)
    compute = Counted()
    pictures = explore(compute, draw, CONTROLS, interactive=False)
    # The defaults, then the first control at its two ends.
    assert [call["ranks"] for call in compute.calls] == [4, 2, 8]
    pictures._ipython_display_()
    kinds = [kind for output in outputs for kind in output]
    assert "application/vnd.plotly.v1+json" in kinds
    assert not [kind for kind in kinds if "widget" in kind]
    said = " ".join(output["text/html"] for output in outputs)
    assert "Ranks: 8, Number of buckets: 4, Bandwidth: 1 GB/s, Algorithm: ring" in said


def test_not_interactive_takes_examples_and_says_which_cannot_be():
    pictures = explore(Counted(), draw, CONTROLS, interactive=False, examples=[{"buckets": 3}, {"ranks": 8}])
    assert [p.figure is None for p in pictures.pictures] == [False, True, False]
    assert "got 3; try 4" in pictures.pictures[1].message
    with pytest.raises(ValueError, match="got .'nodes'."):
        explore(Counted(), draw, CONTROLS, interactive=False, examples=[{"nodes": 2}])


def test_log_slider_steps_by_1_2_5_and_holds_its_ends_and_default():
    slider = LogSlider("n", "Size", 3e3, 1e6, 25_000, "B")
    assert slider.values == (3e3, 5e3, 1e4, 2e4, 25e3, 5e4, 1e5, 2e5, 5e5, 1e6)
    assert slider.widget().value == 25_000


@pytest.mark.parametrize(
    "make",
    [
        lambda: IntChoice("n", "Ranks", (2, 4), 3),
        lambda: Choice("n", "Algorithm", ("ring",), "tree"),
        lambda: LogSlider("n", "Size", 1e3, 1e6, 1e9),
        lambda: LogSlider("n", "Size", 0, 1e6, 1e3),
        lambda: explore(Counted(), draw, [Toggle("a", "A"), Toggle("a", "B")]),
    ],
)
def test_impossible_controls_are_refused(make):
    with pytest.raises(ValueError, match="must"):
        make()
