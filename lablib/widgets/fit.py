"""Keep a plotly widget as wide as the notebook.

A `FigureWidget` draws itself before it is on the page, so it assumes 700 pixels, and it looks again only when the
browser window is resized. This empty widget watches the width of its place and announces a change as such a resize.
"""

from __future__ import annotations

import anywidget

_ESM = """
function render({ el }) {
  el.style.cssText = "height:0;width:100%";
  let width = 0;
  const watch = new ResizeObserver(() => {
    if (el.offsetWidth !== width) {
      width = el.offsetWidth;
      requestAnimationFrame(() => window.dispatchEvent(new Event("resize")));
    }
  });
  watch.observe(el);
  return () => watch.disconnect();
}
export default { render };
"""


class FitWidth(anywidget.AnyWidget):
    """Nothing to see; stands in the same box as the figure, whose config must be `responsive`."""

    _esm = _ESM
