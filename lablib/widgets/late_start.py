"""Widgets that follow every change, also where the browser was too busy to start them in time.

anywidget gives the JavaScript of a widget 2 s to start. A message that comes earlier waits; where the 2 s pass, those
that wait and all that follow are dropped, although the widget starts and is shown: it stays as it was, for good. A
browser that loads plotly (5 MB) on a machine with other work is that late. So a widget here, when it starts, takes its
messages from the channel itself, and says so; the kernel answers with what may have changed since the channel opened.

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
    """Mixed into a widget whose JavaScript calls `listen`.

    Attributes:
        changing: the names of the traits that are sent again when a browser has started the widget.
    """

    changing: tuple[str, ...] = ()
    _started = traitlets.Float(0.0).tag(sync=True)  # another number each time that a browser starts it

    @traitlets.observe("_started")
    def _answer(self, change: Any) -> None:
        self.send_state(self.changing)
