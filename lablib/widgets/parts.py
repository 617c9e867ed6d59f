"""Widgets that receive every change, even if a busy browser starts them late: a live text, a fitted figure, a player.

anywidget gives the JavaScript of a widget 2 s to start. Earlier messages wait; after 2 s, the waiting and all later
messages are dropped, although the widget starts and is shown: it never changes again. A browser that loads plotly
(5 MB) on a busy machine is that late. So a widget here, when it starts, takes its messages from the channel itself, and
notifies the kernel; the kernel answers with all traits that may have changed since the channel opened.

Source: anywidget 0.11, packages/anywidget/src/runtime.ts and widget.ts (`ready`, `_handle_comm_msg`); issue 803 there,
"Early comm messages to widget are lost".
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import traitlets

from lablib.figures.theme import THEME_CSS

MS_PER_STEP = 250
VIEW = "application/vnd.jupyter.widget-view+json"


def late_script(name: str) -> str:
    """The JavaScript of a widget (js/NAME.js) after the function `listen` that it calls when it starts."""
    return "".join((Path(__file__).parent / "js" / f"{one}.js").read_text("utf-8") for one in ("listen", name))


def view_of(widget: ipywidgets.Widget) -> dict[str, Any]:
    """The MIME bundle that shows a widget, on ipywidgets 7, too.

    Colab has ipywidgets 7, and shows widgets of other packages (the figure's) once it is asked to.
    """
    if "google.colab" in sys.modules:
        import_module("google.colab.output").enable_custom_widget_manager()
    if not hasattr(widget, "_repr_mimebundle_"):
        return {VIEW: {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}}
    bundle: Any = widget._repr_mimebundle_()
    return dict(bundle[0] if isinstance(bundle, tuple) else bundle)


class LateStart(ipywidgets.Widget):
    """Mixin for a widget with JavaScript that calls `listen`.

    `changing`: names of the traits to send again after a browser has started the widget.
    """

    changing: tuple[str, ...] = ()
    _started = traitlets.Float(0.0).tag(sync=True)  # a new number each time that a browser starts it

    @traitlets.observe("_started")
    def _answer(self, change: Any) -> None:
        self.send_state(self.changing)


class LiveText(LateStart, anywidget.AnyWidget):
    """A sentence that a screen reader reads aloud when it changes, and below it a table that opens on demand.

    A screen reader follows an element marked `aria-live` only if the element stays and its text changes. The HTML
    widget of ipywidgets replaces its content, so this small widget keeps one paragraph and one table permanently.

    Attributes:
        text: shown as plain text, not as markup; hidden while empty.
        table_html: a table made by this package.
        is_urgent: True for an error, which a screen reader reads at once.
    """

    _esm = late_script("live_text")
    changing = ("text", "table_html")
    text = traitlets.Unicode("").tag(sync=True)
    table_html = traitlets.Unicode("").tag(sync=True)
    is_urgent = traitlets.Bool(False).tag(sync=True)


class FitWidth(LateStart, anywidget.AnyWidget):
    """An invisible widget in the box of a plotly widget with `responsive` in its config: it fits its width.

    A `FigureWidget` draws itself before it is on the page, so it assumes 700 pixels, and it checks again only when the
    browser window is resized. This widget watches the width of its place and announces a change as such a resize. It
    also names the figure for a screen reader, and hides the two outputs before the widget: the static picture and its
    text, which a saved notebook shows without a kernel (explorer.py). `name`: a description of the figure in one
    sentence.
    """

    _esm = late_script("fit_width")
    changing = ("name",)
    _css = THEME_CSS
    name = traitlets.Unicode("figure").tag(sync=True)


class Player(ipywidgets.HBox):
    """Play, pause and stop next to a slider; both show one `value`.

    The slider takes the arrow keys: one press, one moment. During play, the browser asks for the next moment after
    `MS_PER_STEP`. `value`: the moment, 0 to `maximum`.
    """

    value = traitlets.Int(0)

    def __init__(self, label: str) -> None:
        # Two labels, read aloud: the visible one belongs to the slider.
        self.slider = ipywidgets.IntSlider(0, 0, 0, description=label, layout={"width": "auto", "flex": "1 1 auto"})
        self.play = ipywidgets.Play(0, min=0, max=0, interval=MS_PER_STEP, show_repeat=False)
        # As wide as its two buttons: the slider needs the room.
        self.play.layout.flex, self.play.layout.width, self.play.layout.height = "0 0 auto", "6.5em", "2em"
        super().__init__([self.slider, self.play])
        traitlets.link((self.slider, "value"), (self, "value"))
        ipywidgets.jslink((self.play, "value"), (self.slider, "value"))

    @property
    def style(self) -> Any:
        return self.slider.style

    @property
    def description(self) -> str:
        return self.slider.description

    def set_maximum(self, maximum: int) -> None:
        """Set the number of moments after the first."""
        self.slider.max = self.play.max = maximum
