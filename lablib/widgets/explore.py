"""Turn a formula or a simulation into something to play with: controls, one function, one figure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from lablib.signature import checked
from lablib.widgets.controls import Control
from lablib.widgets.static import Pictures, static_pictures

if TYPE_CHECKING:
    from lablib.widgets.explorer import Explorer


@checked
def explore(
    compute: Callable[..., Any],
    draw: Callable[[Any], go.Figure],
    controls: Sequence[Control],
    interactive: bool = True,
    examples: Sequence[Mapping[str, Any]] = (),
    on_point: Callable[[Any, float], str] | None = None,
    without_effect: Callable[[Mapping[str, Any]], Collection[str]] | None = None,
) -> Explorer | Pictures:
    """Controls and a figure that follows them; without widgets, the figure at a few settings.

        explore(step_time, figure_timeline, [IntChoice("ranks", "Ranks", (2, 4, 8), 4)])

    Args:
        compute: a pure function, called as `compute(**{control.name: value})` once for every change. A `ValueError`
            or `LaunchError` it raises is shown as a message, and the last good figure stays.
        draw: a figure function, called with what `compute` returned.
        controls: records of `lablib.widgets.controls`, top to bottom.
        interactive: False shows static figures: the defaults, then the examples.
        examples: settings to show when not interactive, as far as they differ from the defaults. None given: the
            first control at its two ends.
        on_point: called with what `compute` returned and the x of a point that was clicked; its text is shown.
        without_effect: called with the value of every control: the names of those that change nothing now. They are
            greyed.

    Returns:
        A value to end a cell with.

    Raises:
        ValueError: if two controls share a name.
    """
    names = [control.name for control in controls]
    if len(set(names)) < len(names):
        raise ValueError(f"each control must have a name of its own: got {names}.")
    if not interactive:
        return static_pictures(compute, draw, controls, examples)
    # Without widgets, ipywidgets and its JavaScript are not even loaded.
    from lablib.widgets.explorer import Explorer

    return Explorer(compute, draw, controls, on_point, without_effect)
