"""One look everywhere: units on every axis, one colour and pattern for a kind of work, words and numbers in each."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
import itertools
import json
import re

import plotly.graph_objects as go
import plotly.io as pio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.figures import LOOKS, describe, kind_of_phase, table
from lablib.figures.style import BUBBLE, COMPUTE, FONT, MEMORY_LOOKS, STATES, base_layout, font_for, series_look
from lablib.figures.svg.picture import figure_svg
from lablib.figures.theme import AREAS, LINES, PAGE, TEXTS
from lablib.record.memory import CATEGORIES
from lablib.text.units import format_quantity, unit_for
from tests.contrast import contrast, luminance

# Their y axes name ranks or parts, not quantities.
PIPELINES = ("pipeline", "pipeline simulation", "pipeline deadlock")
LANES = {"timeline", "reconcile", "reconcile normalized", *PIPELINES}
LANES |= {"waterfall", "communication of a plan", "loading", "placements", "question"}
# Panels of lanes that share the axis below or above them.
ABOVE = {name: ("xaxis2", "yaxis2") for name in ("memory under timeline", *PIPELINES)}
ABOVE |= {"metrics": ("xaxis",), "exponents": ("xaxis", "yaxis2"), "schedules": ("xaxis",), "staircase": ("xaxis",)}
WITHOUT_UNIT = {
    "GPUs",
    "block",
    "columns N",
    "place of a singular value, largest first",
    "prefetch",
    "rank of the projection",
}
WITHOUT_UNIT |= {"ranks", "step", "steps to the loss", "tensor-parallel ranks"}


def visible_axes(name: str, figure: go.Figure) -> list:
    layout = figure.to_plotly_json()["layout"]
    return [
        axis
        for key, axis in layout.items()
        if re.fullmatch(r"[xy]axis\d*", key)
        and axis.get("visible", True)
        and not (key[0] == "y" and name in LANES)
        and key not in ABOVE.get(name, ())
        and not axis.get("matches") == "y"  # shares the labels of the panel at its left
    ]


def test_every_axis_has_a_unit(all_figures):
    checked = 0
    for name, figure in all_figures.items():
        for axis in visible_axes(name, figure):
            assert re.search(r"\w \(\S+.*\)$", title := axis["title"]["text"]) or title in WITHOUT_UNIT, (name, title)
            checked += 1
    assert checked >= 15


def test_every_figure_has_a_sentence_and_a_table(all_figures):
    for name, figure in all_figures.items():
        assert describe(figure).rstrip().endswith("."), name
        assert "nan" not in describe(figure).lower(), name
        assert len(table(figure)) > 0, name
        # The sentence is under the title too, broken into lines.
        assert figure.layout.title.subtitle.text.replace("<br>", " ") == describe(figure)


def test_every_figure_survives_json(all_figures):
    """A saved notebook keeps the sentence and the table."""
    for name, figure in all_figures.items():
        again = go.Figure(json.loads(figure.to_json()))
        assert describe(again) == describe(figure), name
        assert table(again).equals(table(figure)), name


def test_a_kind_of_work_looks_the_same_in_every_figure(all_figures):
    seen = set()
    for figure in all_figures.values():
        for trace in figure.data:
            if trace.type == "bar" and trace.legendgroup in LOOKS:
                look = LOOKS[trace.legendgroup]
                assert (trace.marker.color, trace.marker.pattern.shape) == (look.color, look.pattern)
                assert trace.name == f"{look.letter}  {look.name}"
                seen.add(look.name)
    assert {"forward", "backward", "optimizer", "communication"} <= seen


@pytest.mark.parametrize("looks", [LOOKS, MEMORY_LOOKS])
def test_kinds_of_work_and_of_memory_differ_in_color_in_letter_and_in_pattern(looks):
    assert sorted(MEMORY_LOOKS) == sorted(CATEGORIES)
    named = [look for name, look in looks.items() if name != "idle"]
    for aspect in ("color", "letter", "pattern"):
        assert len({getattr(look, aspect) for look in named}) == len(named), aspect


def test_what_a_model_holds_has_no_colour_of_a_phase_and_is_told_apart_in_grey():
    shared = {look.color for look in MEMORY_LOOKS.values()} & {look.color for look in LOOKS.values()}
    assert shared == {MEMORY_LOOKS[name].color for name in ("communication", "other")}
    colors = [MEMORY_LOOKS[name].color for name in ("parameter", "optimizer state", "gradient", "activation")]
    assert colors == sorted(colors, key=luminance)
    for lower, upper in itertools.pairwise(colors):
        assert contrast(lower, upper) >= 1.5


def test_letters_can_be_read_on_their_color_in_either_theme():
    for look in (*LOOKS.values(), *STATES.values(), *MEMORY_LOOKS.values(), COMPUTE, BUBBLE):
        assert contrast(look.color, look.ink) >= 4.5, look.name
        assert contrast(AREAS.get(look.color, look.color), TEXTS.get(look.ink, look.ink)) >= 4.5, look.name


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        ("forward", "forward"),
        ("DistributedDataParallel.forward", "forward"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("backward: weight gradient", "weight gradient"),
        ("B", "backward"),
        ("recompute", "recompute"),
        ("recompute: forward", "recompute"),
        ("I", "input gradient"),
        ("load the batch", "other compute"),
        ("compute", "other compute"),
        ("", "other compute"),
    ],
)
def test_phases_are_recognised(phase, kind):
    assert kind_of_phase(phase) == kind


@pytest.mark.parametrize(
    ("value", "base", "words"),
    [
        (0.0, "s", "0 s"),
        (1e-3, "s", "1 ms"),
        (999e-6, "s", "999 \N{MICRO SIGN}s"),
        (3.2e-9, "s", "3.2 ns"),
        (25e6, "B", "25 MB"),
        (1.5, "B", "1.5 B"),
        (450e9, "B/s", "450 GB/s"),
        (0.25, "nats", "0.25 nats"),
        (7, "count", "7"),
        (27_200, "samples/s", "27,200 samples/s"),
        (1e12, "B", "1 TB"),
        (5e-10, "s", "0.5 ns"),
        (989, "FLOP/s", "989 FLOP/s"),
        (1.1e12, "FLOP/J", "1.1 TFLOP/J"),
        (3, "sends", "3 sends"),
        (-2e-3, "s", "-2 ms"),
        (1e300, "", "1e+300"),
        (float("nan"), "s", "nan s"),
    ],
)
def test_a_number_is_written_with_the_unit_that_suits_it(value, base, words):
    assert format_quantity(value, base) == words


@given(time_s=st.floats(1e-9, 0.9), size_bytes=st.floats(1, 9e17))
def test_times_and_bytes_read_as_numbers_from_1_to_1000(time_s, size_bytes):
    for value, base in ((time_s, "s"), (size_bytes, "B")):
        assert 0.999 <= unit_for(value, base).of(value) < 1000.001


def test_drawing_changes_no_global_style(all_figures):
    assert pio.templates.default == "plotly"


@pytest.mark.parametrize("number", range(8))
def test_every_series_can_be_seen_on_a_page_of_either_theme(number):
    """Marks and lines need 3 to 1 (WCAG 2.1, 1.4.11); on white the orange and the light blue have less."""
    color = series_look(number).color
    assert contrast(color, "#FFFFFF") >= 2
    assert contrast(AREAS.get(color, color), PAGE) >= 3 and contrast(LINES.get(color, color), PAGE) >= 3


def test_fonts_with_chinese_characters_are_listed_where_a_title_or_the_reader_needs_them(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv("LAB_LANG", raising=False)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert font_for("One step") == FONT == base_layout("One step", 100)["font"]["family"]
    chinese = base_layout("训练步的时间线", 100)["font"]["family"]
    assert chinese.startswith("Open Sans, ") and "Noto Sans CJK SC, " in chinese and chinese.endswith(", sans-serif")
    assert figure_svg(go.Figure(layout=base_layout("时间线", 100))).count("Noto Sans CJK SC") == 1
    monkeypatch.setenv("LAB_LANG", "zh")
    assert font_for("One step") == chinese
