"""A plotly widget that always shows the latest figure, even if the browser loads plotly late.

A `FigureWidget` sends each change in one message, and some messages were lost for good:

    the channel opens empty     traces and layout came in later messages; here the channel opens with all of them
    plotly takes 2 s to load    it is 5 MB, and anywidget drops the messages of a late widget (parts.py); here a
                                short script starts, stores messages, and passes them on when plotly is loaded
    the script is late, too     then the kernel sends the whole figure again, and it is drawn again
    the page is loaded again    the browser asks for the state, and plotly kept the first one; here it is the latest

Source: plotly 7.1, basewidget.py and package_data/widgetbundle.js (`_py2js_*`, `_widget_data`, `_widget_layout`).
"""

from collections.abc import Iterable
from typing import Any

import plotly.graph_objects as go
import traitlets

from lablib.widgets.parts import LateStart, late_script


class WholeFigure(LateStart, go.FigureWidget):
    """A `FigureWidget` that opens with its traces, its layout and plotly's `config`, and loses no change."""

    _esm = late_script("whole_figure")
    changing = ("_widget_data", "_widget_layout")
    _plotly_source = traitlets.Unicode("").tag(sync=True)  # plotly's JavaScript for a widget
    _is_whole = False

    def __init__(self, figure: go.Figure, config: dict[str, Any]) -> None:
        super().__init__(figure)
        self._config = self._config | config
        self._plotly_source = str(go.FigureWidget._esm)
        self._is_whole = True
        self.open()

    def open(self) -> None:
        if self._is_whole:
            super().open()

    def get_state(self, key: str | Iterable[str] | None = None, drop_defaults: bool = False) -> dict[str, Any]:
        """The state sent to a browser on request: with the current traces and layout."""
        asked = self.keys if key is None else [key] if isinstance(key, str) else list(key)
        state = super().get_state(asked, drop_defaults)
        if self._is_whole:
            for name, now in (("_widget_data", self._data), ("_widget_layout", self.layout.to_plotly_json())):
                if name in asked:
                    state[name] = self.trait_metadata(name, "to_json")(now, self)
        return state
