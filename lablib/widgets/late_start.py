"""Widgets that receive every change, even if a busy browser starts them late.

anywidget gives the JavaScript of a widget 2 s to start. Earlier messages wait; after 2 s, the waiting and all later
messages are dropped, although the widget starts and is shown: it never changes again. A browser that loads plotly
(5 MB) on a busy machine is that late. So a widget here, when it starts, takes its messages from the channel itself, and
notifies the kernel; the kernel answers with all traits that may have changed since the channel opened.

Source: anywidget 0.11, packages/anywidget/src/runtime.ts and widget.ts (`ready`, `_handle_comm_msg`); issue 803 there,
"Early comm messages to widget are lost".
"""

from __future__ import annotations

from typing import Any

import ipywidgets
import traitlets

# The first lines of the JavaScript of such a widget: call `listen(model)` when it starts.
LISTEN = """
function listen(model) {
  let itself;  // a listener is told the model itself; anywidget shows a part of it
  const told = one => { itself = one; };
  model.on("change:_started", told);
  model.set("_started", Math.random());
  model.off("change:_started", told);
  const direct = Object.getPrototypeOf(itself.constructor.prototype)._handle_comm_msg;
  if (direct && itself.comm) itself.comm.on_msg(message => direct.call(itself, message));
  model.save_changes();
}
"""


class LateStart(ipywidgets.Widget):
    """Mixin for a widget with JavaScript that calls `listen`.

    Attributes:
        changing: names of the traits to send again after a browser has started the widget.
    """

    changing: tuple[str, ...] = ()
    _started = traitlets.Float(0.0).tag(sync=True)  # a new number each time that a browser starts it

    @traitlets.observe("_started")
    def _answer(self, change: Any) -> None:
        self.send_state(self.changing)
