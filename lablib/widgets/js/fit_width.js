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
