"""Interactive exploration of a formula or a simulation: controls, one function, one figure."""

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

    Returns:
        A value to show at the end of a cell.

    Raises:
        ValueError: two controls have the same name.
    """
    names = [control.name for control in controls]
    if len(set(names)) < len(names):
        raise ValueError(f"controls must have different names: got {names}.")
    if not interactive:
        return static_pictures(compute, draw, controls, examples)
    # Without widgets, ipywidgets and its JavaScript are not loaded.
    from lablib.widgets.explorer import Explorer

    return Explorer(compute, draw, controls, on_point, without_effect)
