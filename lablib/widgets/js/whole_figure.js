// plotly's messages are `_py2js_*`: each is set, and set to null right after. It never stops listening to them, so its
// listeners are recorded here. One copy of plotly serves all figures of a page.
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
