"""Fit a plotly widget into a notebook: full width, an accessible name, and no static copy.

A `FigureWidget` draws itself before it is on the page, so it assumes 700 pixels, and it checks again only when the
browser window is resized. This empty widget watches the width of its place and announces a change as such a resize.

It also names the figure for a screen reader, and hides the two outputs before the widget: the static picture and its
text, which a saved notebook shows without a kernel (explorer.py).
"""

from __future__ import annotations

import anywidget
import traitlets

from lablib.figures.theme import THEME_CSS
from lablib.widgets.late_start import LISTEN, LateStart

_ESM = (
    LISTEN
    + """
function render({ model, el }) {
  el.style.cssText = "height:0;width:100%";
  let width = 0;
  const watch = new ResizeObserver(() => {
    if (el.offsetWidth !== width) {
      width = el.offsetWidth;
      requestAnimationFrame(() => window.dispatchEvent(new Event("resize")));
    }
  });
  watch.observe(el);
  const name = () => {
    const plot = el.parentElement?.querySelector(".js-plotly-plot");
    if (!plot) return requestAnimationFrame(name);
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", model.get("name"));
  };
  model.on("change:name", name);
  requestAnimationFrame(name);
  const hide = () => {
    const words = el.closest(".jp-OutputArea-child")?.previousElementSibling;
    if (!words?.querySelector(".lablib-without-kernel")) return;
    for (const output of [words, words.previousElementSibling]) output.style.display = "none";
  };
  requestAnimationFrame(hide);
  return () => watch.disconnect();
}
export default { initialize: ({ model }) => listen(model), render };
"""
)


class FitWidth(LateStart, anywidget.AnyWidget):
    """An invisible widget in the same box as the figure; the figure's config must be `responsive`.

    Attributes:
        name: a description of the figure in one sentence.
    """

    _esm = _ESM
    changing = ("name",)
    _css = THEME_CSS
    name = traitlets.Unicode("figure").tag(sync=True)
