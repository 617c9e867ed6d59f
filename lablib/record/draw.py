"""`draw("figure_timeline", timeline)`: a figure by its name in lablib/figures.

Records and plans come before figures in the order of imports, and are used where nothing is drawn. So a method such as
`timeline.figure()` knows only its figure's name; plotly is imported when somebody looks.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go


def draw(name: str, *data: Any, **options: Any) -> "go.Figure":
    """The figure of that name, of these data."""
    return getattr(import_module("lablib.figures"), name)(*data, **options)
