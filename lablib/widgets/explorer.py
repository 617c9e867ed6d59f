"""Interactive panel of `explore`: controls, and one figure that is redrawn when a control changes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from unicodedata import east_asian_width

import ipywidgets
import numpy as np
import plotly.graph_objects as go

from lablib.errors import LaunchError
from lablib.figures.describe import describe, table
from lablib.figures.show import caption_html, layout_without_subtitle, static_svg, table_html, without_subtitle
from lablib.text.markup import paragraph
from lablib.widgets.controls import Control, Steps
from lablib.widgets.parts import FitWidth, LiveText, Player, view_of
from lablib.widgets.whole_figure import WholeFigure

MOST_IN_A_COLUMN = 7
Props = dict[str, Any]
EMPTY: Props = {"data": [], "layout": {}}


class Explorer:
    """Reads its controls, calls one function and one figure function, and shows the result.

    The notebook handles one change at a time and always reads the current values of all controls; while it is busy, the
    browser keeps only the latest position of a slider. So no picture of an old setting can follow a newer one.

    Attributes:
        controls: name -> ipywidget, in order.
        message: the error of the present setting, empty if there is none.
        caption: the sentence and the table of the figure.
        point: text for the last clicked point; empty before, and after a change.
        panel: all of them, as shown by the notebook.
    """

    def __init__(
        self,
        compute: Callable[..., Any],
        draw: Callable[[Any], go.Figure],
        controls: Sequence[Control],
        on_point: Callable[[Any, float], str] | None = None,
        without_effect: Callable[[Mapping[str, Any]], Collection[str]] | None = None,
    ) -> None:
        self._compute, self._draw, self._on_point, self._without_effect = compute, draw, on_point, without_effect
        self._value: Any = None
        self.controls = {control.name: control.widget() for control in controls}
        self._steps = [control for control in controls if isinstance(control, Steps)]
        self.message, self.caption, self.point = LiveText(is_urgent=True), LiveText(), LiveText()
        self._figure: go.Figure | None = None
        self._place = FitWidth()
        self._grey()
        self._drawn = self._computed() or EMPTY
        self.figure = WholeFigure(go.Figure(self._drawn), {"responsive": True})  # see FitWidth
        parts = [*_in_columns(list(self.controls.values())), self.message, self.figure, self._place]
        self.panel = ipywidgets.VBox([*parts, self.point, self.caption], layout={"width": "100%"})
        _align(list(self.controls.values()), [control.label for control in controls])
        self._listen()
        for widget in self.controls.values():
            widget.observe(self._refresh, names="value")

    @property
    def settings(self) -> dict[str, Any]:
        """The current value of every control."""
        return {name: widget.value for name, widget in self.controls.items()}  # pyright: ignore[reportAttributeAccessIssue]

    def _refresh(self, change: Any = None) -> None:
        """Compute and draw once. A setting that cannot be computed is reported, and the last good figure stays."""
        self._grey()
        drawn = self._computed()
        if drawn is not None:
            redraw(self.figure, self._drawn, drawn)
            self._drawn = drawn
            self.point.text = ""
            self._listen()

    def _grey(self) -> None:
        """Disable the controls without effect at the current values."""
        if self._without_effect is not None:
            idle = set(self._without_effect(self.settings))
            if unknown := idle - set(self.controls):
                raise ValueError(
                    f"without_effect must return names of controls: got {sorted(unknown)}, of {list(self.controls)}."
                )
            for name, widget in self.controls.items():
                widget.disabled = name in idle  # pyright: ignore[reportAttributeAccessIssue]

    def _listen(self) -> None:
        """Listen for clicks on every trace; a redraw may have added some."""
        if self._on_point is not None:
            traces: Any = self.figure.data
            for trace in traces:
                trace.on_click(self._clicked)

    def _clicked(self, trace: Any, points: Any, state: Any) -> None:
        if points.point_inds and self._on_point is not None and isinstance(points.xs[0], (int, float)):
            self.point.text = self._on_point(self._value, points.xs[0])

    def _computed(self) -> Props | None:
        """The figure's new properties, and set its caption; None, with a message, if it cannot be computed."""
        try:
            value = self._compute(**self.settings)
            figure = self._draw(value)
        except (ValueError, LaunchError) as error:
            self.message.text = f"! {error} The figure still shows the last setting that works."
            return None
        except Exception as error:
            self.message.text = f"! {type(error).__name__}: {error}"
            raise
        self.message.text, self._value = "", value
        for control in self._steps:
            self.controls[control.name].set_maximum(control.count(value))  # pyright: ignore[reportAttributeAccessIssue]
        self._figure, self._place.name = figure, describe(figure)
        self.caption.text, self.caption.table_html = describe(figure), table_html(table(figure), is_folded=False)
        # The displayed part of a figure, as plain dictionaries and arrays; its subtitle is in the caption instead.
        traces = [trace.to_plotly_json() for trace in figure.data]  # pyright: ignore[reportAttributeAccessIssue]
        return {"data": traces, "layout": layout_without_subtitle(figure) | {"autosize": True}}

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return view_of(self.panel)

    def _ipython_display_(self) -> None:
        """Show the panel, and before it static output for readers without a kernel: picture, sentence and table.

        A saved notebook keeps no widgets (one figure would be megabytes), so it would be blank without a kernel. In
        JupyterLab the panel hides the two static outputs.
        """
        from IPython.display import HTML, display

        if self._figure is not None:
            bare, words = without_subtitle(self._figure), describe(self._figure)
            display({"image/svg+xml": static_svg(bare), "text/plain": words}, raw=True)
            note = paragraph("The controls of this figure need a running kernel: this is how it begins.")
            display(HTML(f'<div class="lablib-without-kernel">{note}{caption_html(self._figure)}</div>'))
        # Readers without widgets show a widget's repr instead: a short text is clearer.
        display(view_of(self.panel) | {"text/plain": "(controls)"}, raw=True)


def _in_columns(widgets: list[Any]) -> list[Any]:
    """Place many controls in columns if there is room, so that the figure stays visible."""
    if len(widgets) <= MOST_IN_A_COLUMN:
        return widgets
    columns = "repeat(auto-fill, minmax(min(31em, 100%), 1fr))"
    return [ipywidgets.GridBox(widgets, layout={"grid_template_columns": columns, "padding": "0 6px 0 0"})]


def _align(widgets: Sequence[Any], labels: Sequence[str]) -> None:
    """Give all labels the width of the longest: no label is cut off and the sliders are aligned.

    A check box has its label at its right, and needs no such room. A player or a text of several lines is as wide as
    the figure.
    """
    shown = [n for n, w in zip(labels, widgets, strict=True) if not isinstance(w, ipywidgets.Checkbox)]
    longest = max((sum(1 + (east_asian_width(c) in "WF") for c in label) for label in shown), default=0)
    label_em = 0.58 * longest + 1.5
    for widget in widgets:
        widget.style.description_width = f"{label_em:.1f}em"
        widget.layout.width = f"min({label_em + 26:.1f}em, 100%)"
        if isinstance(widget, ipywidgets.Textarea | Player):
            # ipywidgets sets an empty grid_area last, which removes a grid_column.
            widget.layout.width, widget.layout.grid_area = "100%", "auto / 1 / auto / -1"


def redraw(widget: go.FigureWidget, before: Props, after: Props) -> None:
    """Change `widget`, which shows `before`, to show `after`; both as plain properties.

    Traces are changed in place where both figures have the same ones (number, type, axes); otherwise all are replaced.
    """
    is_same_shape = [_shape(t) for t in before["data"]] == [_shape(t) for t in after["data"]]
    if not is_same_shape:
        widget.data = []
    with widget.batch_update():
        _assign(widget.layout, before["layout"], after["layout"])
        if is_same_shape:
            for trace, was, becomes in zip(widget.data, before["data"], after["data"], strict=True):
                _assign(trace, was, becomes)
    if not is_same_shape:
        widget.add_traces(after["data"])


def _shape(trace: dict[str, Any]) -> tuple[Any, ...]:
    """Properties that must be equal to turn one trace into another."""
    return trace["type"], trace.get("xaxis"), trace.get("yaxis"), trace.get("name"), trace.get("mode")


def _assign(target: Any, was: dict[str, Any], becomes: dict[str, Any]) -> None:
    """Set every property that differs; unset removed ones."""
    for key in was.keys() | becomes.keys():
        if key not in ("type", "uid") and not _equal(was.get(key), becomes.get(key)):
            target[key] = becomes.get(key)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and np.array_equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return type(a) is type(b) and a == b
