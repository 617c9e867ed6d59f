"""Interactive exploration of a formula or a simulation: controls, one function, one figure.

Without widgets (papermill, print, CI), the figure at a few settings; for `lab site` at many (all_pictures.py).
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import plotly.graph_objects as go

from lablib.errors import LaunchError
from lablib.figures.show import show
from lablib.signature import checked
from lablib.text.markup import paragraph
from lablib.widgets.all_pictures import AllPictures, all_pictures
from lablib.widgets.controls import Control

if TYPE_CHECKING:
    from lablib.widgets.explorer import Explorer


@dataclass(frozen=True)
class Picture:
    """The figure of one setting, or the error message."""

    setting: str
    figure: go.Figure | None
    message: str = ""


@dataclass(frozen=True, repr=False)
class Pictures:
    """Figures of a few settings, one under the other. Displays as the value of a cell."""

    pictures: tuple[Picture, ...]

    def _ipython_display_(self) -> None:
        from IPython.display import HTML, display

        for picture in self.pictures:
            display(HTML(paragraph(picture.setting, "font-weight:bold")))
            if picture.figure is not None:
                show(picture.figure)
            else:
                display(HTML(paragraph(picture.message)))

    def __repr__(self) -> str:
        return f"Pictures of {len(self)} settings: " + "; ".join(picture.setting for picture in self.pictures)

    def __len__(self) -> int:
        return len(self.pictures)


Exploration: TypeAlias = "Explorer | Pictures | AllPictures"  # the value that a cell ends in


@checked
def explore(
    compute: Callable[..., Any],
    draw: Callable[[Any], go.Figure],
    controls: Sequence[Control],
    interactive: bool = True,
    examples: Sequence[Mapping[str, Any]] = (),
    on_point: Callable[[Any, float], str] | None = None,
    without_effect: Callable[[Mapping[str, Any]], Collection[str]] | None = None,
) -> Exploration:
    """Controls and a figure that follows them; without widgets, the figure at a few settings.

        explore(step_time, figure_timeline, [IntChoice("ranks", "Ranks", (2, 4, 8), 4)])

    Args:
        compute: a pure function, called as `compute(**{control.name: value})` once for every change. Its `ValueError`
            or `LaunchError` is shown as a message, and the last good figure stays.
        draw: a figure function, called with the result of `compute`.
        controls: records of `lablib.widgets.controls`, top to bottom.
        interactive: False shows static figures: the defaults, then the examples.
        examples: settings to show when not interactive, as differences from the defaults. None given: the first control
            at its two ends.
        on_point: called with the result of `compute` and the x of a clicked point; returns the text to show.
        without_effect: called with the value of every control; returns the names of controls without effect, which are
            greyed.

    Returns a value to show at the end of a cell. Raises ValueError: two controls have the same name.
    """
    names = [control.name for control in controls]
    if len(set(names)) < len(names):
        raise ValueError(f"each control must have a different name: got {names}.")
    if not interactive and os.environ.get("LAB_PICTURES") == "all":
        return all_pictures(compute, draw, controls, examples)
    if not interactive:
        return static_pictures(compute, draw, controls, examples)
    # Without widgets, ipywidgets and its JavaScript are not loaded.
    from lablib.widgets.explorer import Explorer

    return Explorer(compute, draw, controls, on_point, without_effect)


def static_pictures(
    compute: Callable[..., Any],
    draw: Callable[[Any], go.Figure],
    controls: Sequence[Control],
    examples: Sequence[Mapping[str, Any]] = (),
) -> Pictures:
    """The figure at the default of every control, then one for each example.

    `examples`: settings that differ from the defaults. None given: the first control at its two ends. Raises
    ValueError: the defaults cannot be computed, or an example names an unknown control.
    """
    defaults = {control.name: control.default for control in controls}
    unknown = [name for example in examples for name in example if name not in defaults]
    if unknown:
        raise ValueError(f"an example may only set the controls {list(defaults)}: got {unknown}.")
    if not examples and controls:
        first = controls[0]
        ends = dict.fromkeys((first.values[0], first.values[-1]))
        examples = [{first.name: end} for end in ends if end != first.default]
    first = draw(compute(**defaults))
    pictures = [Picture(_in_words(controls, defaults), first)]
    for example in examples:
        setting = defaults | dict(example)
        words = _in_words(controls, setting)
        try:
            figure = draw(compute(**setting))
            pictures.append(Picture(words, _titled(figure, first, _in_words(controls, setting, defaults))))
        except (ValueError, LaunchError) as error:
            pictures.append(Picture(words, None, str(error)))
    return Pictures(tuple(pictures))


def _titled(figure: go.Figure, first: go.Figure, difference: str) -> go.Figure:
    """The figure with its difference from the first in its title, if the titles would be equal."""
    title = figure.layout.title  # pyright: ignore[reportAttributeAccessIssue]
    if title.text and title.text == first.layout.title.text:  # pyright: ignore[reportAttributeAccessIssue]
        title.text = f"{title.text}. {difference}" if difference else title.text
    return figure


def _in_words(controls: Sequence[Control], setting: Mapping[str, Any], besides: Mapping[str, Any] | None = None) -> str:
    """The setting as text, "Ranks: 8, bucket: 25 MB"; only controls that differ from `besides`."""
    return ", ".join(
        f"{control.label}: {control.format_value(setting[control.name])}"
        for control in controls
        if besides is None or setting[control.name] != besides[control.name]
    )
