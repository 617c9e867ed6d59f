"""A plotly widget that reaches the browser whole.

A `FigureWidget` opens its channel to the browser empty, and sends traces and layout right after. A browser that is
still loading plotly (5 MB, seconds on a busy machine) may lose those messages: what it then shows, for good, are empty
axes. So the channel is opened when the widget has everything, and what opens it carries all.
"""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go


class WholeFigure(go.FigureWidget):
    """A `FigureWidget` whose first message has its traces, its layout and plotly's `config`."""

    _is_whole = False

    def __init__(self, figure: go.Figure, config: dict[str, Any]) -> None:
        super().__init__(figure)
        self._config = self._config | config
        self._is_whole = True
        self.open()

    def open(self) -> None:
        if self._is_whole:
            super().open()
