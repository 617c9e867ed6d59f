"""`draw("figure_timeline", timeline)`: a figure of lablib/figures by name, imported on demand.

Records and plans are below figures in the order of imports. So a method such as `timeline.figure()` uses only the
figure's name, and plotly is imported only when a figure is drawn.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go


def draw(name: str, *data: Any, **options: Any) -> "go.Figure":
    """Draw the figure of that name from these data."""
    return getattr(import_module("lablib.figures"), name)(*data, **options)
