"""A control that changes nothing is greyed, and one that is not greyed changes something: in every widget."""

# pyright: reportAttributeAccessIssue=false
from typing import Any

import ipywidgets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import widgets
from lablib.figures import figure_lines
from lablib.widgets import IntChoice, Toggle, explore
from lablib.widgets.explorer import Explorer

MAKERS = [getattr(widgets, name) for name in dir(widgets) if name.endswith(("_calculator", "_simulator"))]


def values_of(widget: Any) -> list[Any]:
    """The values of a slider, a list or a check box; none for a field and for the moments of a plan."""
    if isinstance(widget, ipywidgets.Checkbox):
        return [False, True]
    if isinstance(widget, ipywidgets.IntSlider):
        return list(range(widget.min, widget.max + 1, widget.step))
    return [option[1] if isinstance(option, tuple) else option for option in getattr(widget, "options", ())]


def shown(explorer: Explorer, setting: dict[str, Any]) -> str:
    """The figure at a setting, or why there is none."""
    try:
        return str(explorer._draw(explorer._compute(**setting)).to_json())
    except ValueError as error:
        return str(error)


def test_there_are_widgets():
    assert len(MAKERS) >= 7


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_at_first_each_control_changes_the_figure_or_is_greyed(make):
    explorer = make()
    first, begin = dict(explorer.settings), shown(explorer, explorer.settings)
    for name, widget in explorer.controls.items():
        others = [value for value in values_of(widget) if value != first[name]]
        changes = any(shown(explorer, first | {name: value}) != begin for value in [*others[:5], *others[-2:]])
        if others:
            assert changes != widget.disabled, f"{name} of {make.__name__}"


@pytest.mark.parametrize("make", [widgets.bubble_simulator, widgets.memory_calculator], ids=lambda make: make.__name__)
def test_what_is_greyed_changes_nothing_whatever_the_others_say(make):
    explorer = make()
    choices = {name: values for name, widget in explorer.controls.items() if (values := values_of(widget)[:24])}

    @settings(max_examples=15)
    @given(data=st.data())
    def hold(data):
        setting = explorer.settings | {name: data.draw(st.sampled_from(choices[name]), name) for name in choices}
        for name in explorer._without_effect(setting):
            other = data.draw(st.sampled_from(choices[name])) if name in choices else "rank 0: F0 B0"
            assert shown(explorer, setting) == shown(explorer, setting | {name: other}), name

    hold()


def test_controls_are_greyed_and_come_back_as_others_change():
    explorer: Any = widgets.bubble_simulator()
    greyed = lambda: {name for name, widget in explorer.controls.items() if getattr(widget, "disabled", False)}  # noqa: E731
    assert greyed() == {"chunks", "own", "overlap"}
    explorer.controls["schedule"].value = "interleaved"
    explorer.controls["send_percent"].value = 10
    assert greyed() == {"own"}
    explorer.controls["schedule"].value = "your own plan"
    assert greyed() == {"chunks", "stages", "microbatches"}


def test_names_that_no_control_has_are_an_error():
    controls = [IntChoice("ranks", "Ranks", (2, 4), 4), Toggle("overlap", "Overlap", True)]
    with pytest.raises(ValueError, match=r"without_effect must return names of controls: got \['rank'\], of .*'ranks'"):
        explore(
            lambda **setting: setting["ranks"],
            lambda n: figure_lines([0, 1], {"a": [n, n]}, "x", "y"),
            controls,
            without_effect=lambda setting: {"rank"} if setting["overlap"] else set(),
        )
