"""A line of text that a screen reader reads aloud when it changes.

A screen reader follows an element marked `aria-live` only if the element stays and its text changes. The HTML widget of
ipywidgets replaces its content, so this small widget keeps one paragraph (and one foldable table) permanently.
"""

from __future__ import annotations

import anywidget
import traitlets

from lablib.widgets.late_start import LISTEN, LateStart

_ESM = (
    LISTEN
    + """
function render({ model, el }) {
  const line = document.createElement("p");
  const isUrgent = model.get("is_urgent");
  line.setAttribute("role", isUrgent ? "alert" : "status");
  line.setAttribute("aria-live", isUrgent ? "assertive" : "polite");
  line.style.cssText = "max-width:62em;margin:.2em 0;line-height:1.5;white-space:pre-line;" +
    (isUrgent ? "background:#b00020;color:#ffffff;font-weight:600;padding:4px 12px" : "");
  const fold = document.createElement("details");
  const title = document.createElement("summary");
  title.textContent = "Numbers of this figure";
  title.style.cursor = "pointer";
  const numbers = document.createElement("div");
  numbers.className = "jp-RenderedHTMLCommon";
  fold.append(title, numbers);
  el.append(line, fold);
  const write = () => {
    line.textContent = model.get("text");
    line.style.display = model.get("text") ? "block" : "none";
    numbers.innerHTML = model.get("table_html");
    fold.style.display = model.get("table_html") ? "block" : "none";
  };
  model.on("change:text", write);
  model.on("change:table_html", write);
  write();
}
export default { initialize: ({ model }) => listen(model), render };
"""
)


class LiveText(LateStart, anywidget.AnyWidget):
    """One sentence, and below it a table that opens on demand and stays open.

    Attributes:
        text: shown as plain text, not as markup; hidden while empty.
        table_html: a table made by this package.
        is_urgent: True for an error, which a screen reader reads at once.
    """

    _esm = _ESM
    changing = ("text", "table_html")
    text = traitlets.Unicode("").tag(sync=True)
    table_html = traitlets.Unicode("").tag(sync=True)
    is_urgent = traitlets.Bool(False).tag(sync=True)
