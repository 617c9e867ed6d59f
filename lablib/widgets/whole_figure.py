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

from lablib.widgets.parts import LISTEN, LateStart

# plotly's messages are `_py2js_*`: each is set, and set to null right after. It never stops listening to them, so its
# listeners are recorded here. One copy of plotly serves all figures of a page.
_ESM = (
    LISTEN
    + """
const WHOLE = "change:_widget_data change:_widget_layout";
const KINDS = ["addTraces", "deleteTraces", "moveTraces", "restyle", "relayout", "update", "animate",
               "removeLayoutProps", "removeTraceProps"].map(kind => "_py2js_" + kind);

function load(source) {
  const loaded = (globalThis.lablibPlotly ??= new Map());
  if (!loaded.has(source)) {
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    loaded.set(source, import(url).finally(() => URL.revokeObjectURL(url)));
  }
  return loaded.get(source);
}

/** The model with another `on`: what is listened with is also put into `notes`. */
const noting = (model, notes) => ({ ...model, on(event, listener) {
  notes.push([event, listener]);
  model.on(event, listener);
} });
const forget = (model, notes) => { for (const note of notes.splice(0)) model.off(...note); };

/** Hands plotly every message that came while it was loading, but for those before the whole figure. */
async function start(model, notes) {
  const waiting = [], kept = [];
  const early = noting(model, waiting);
  for (const kind of KINDS) early.on(`change:${kind}`, () => {
    if (model.get(kind) !== null) kept.push([kind, model.get(kind)]);
  });
  early.on(WHOLE, () => kept.splice(0));
  listen(model);
  const plotly = (await load(model.get("_plotly_source"))).default();
  forget(model, waiting);
  plotly.initialize({ model: noting(model, notes) });
  notes.splice(0);
  for (const [kind, message] of kept) {
    model.set(kind, message);
    model.set(kind, null);
  }
  return plotly;
}

export default () => {
  const notes = [];  // of the view that is being drawn
  let started, own;
  return {
    initialize({ model }) {
      own = model;
      started = start(model, notes);
    },
    async render({ model, el }) {
      const plotly = await started;
      let heard = [], purge = () => {}, isDue = false, isGone = false;
      const clear = () => { forget(own, heard); purge(); };
      const draw = () => {
        isDue = false;
        if (isGone) return;
        clear();
        purge = plotly.render({ el });
        heard = notes.splice(0);
      };
      draw();
      model.on(WHOLE, () => {
        if (!isDue) queueMicrotask(draw);  // once for traces and layout
        isDue = true;
      });
      return () => { isGone = true; clear(); };
    },
  };
};
"""
)


class WholeFigure(LateStart, go.FigureWidget):
    """A `FigureWidget` that opens with its traces, its layout and plotly's `config`, and loses no change."""

    _esm = _ESM
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
