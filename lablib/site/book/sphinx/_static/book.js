// Figures are SVG until a reader points at one or moves a control; plotly.js is then loaded once, from this folder.
(() => {
  const plotlyAddress = new URL("plotly.min.js", document.currentScript.src);
  let loading;
  const plotly = () => (loading ??= new Promise((done, failed) => {
    const script = Object.assign(document.createElement("script"), { src: plotlyAddress, onload: () => done(window.Plotly), onerror: failed });
    document.head.append(script);
  }));

  async function draw(figure, drawn) {
    const still = figure.querySelector(".lablib-static"), svg = still.querySelector("svg");
    // The size of the SVG, so that nothing below it moves.
    figure.width ??= Math.round(svg ? svg.getBoundingClientRect().width : Math.max(640, figure.clientWidth));
    const scale = svg ? figure.width / svg.width.baseVal.value : 1;
    const Plotly = await plotly();
    let live = figure.querySelector(".lablib-live");
    if (!live) figure.append(live = Object.assign(document.createElement("div"), { className: "lablib-live" }));
    const height = Math.round((drawn.layout.height ?? 450) * scale);
    still.hidden = true;
    await Plotly.react(live, drawn.data, { ...drawn.layout, width: figure.width, height, autosize: false },
      { displaylogo: false, displayModeBar: "hover" });
  }

  // A list of {figure, caption} or {message}, compressed.
  const load = async address =>
    new Response((await fetch(address)).body.pipeThrough(new DecompressionStream("gzip"))).json();

  function explore(explorer) {
    const controls = [...explorer.querySelectorAll(".lablib-controls :is(input, select)")];
    const figure = explorer.querySelector(".lablib-figure"), message = explorer.querySelector(".lablib-message");
    let pictures, isBusy = false;
    explorer.querySelector(".lablib-controls").hidden = false;

    function read() {
      let place = 0;
      for (const control of controls) {
        const values = control.dataset.values && JSON.parse(control.dataset.values);
        const at = values ? Number(control.value) : control.selectedIndex;
        place = place * (values ?? control.options).length + at;
        if (values) {
          control.nextElementSibling.textContent = values[at];
          control.setAttribute("aria-valuetext", values[at]);
        }
      }
      return String(place);
    }

    async function show(picture) {
      message.textContent = picture.message ?? "";
      if (!picture.figure) return;
      const caption = explorer.querySelector(".lablib-caption-of");
      caption.innerHTML = picture.caption;
      figure.setAttribute("aria-label", caption.querySelector("p")?.textContent ?? "figure");
      await draw(figure, picture.figure);
    }

    // One picture at a time; then the newest setting.
    async function follow() {
      let place = read();
      if (isBusy) return;
      isBusy = true;
      try {
        pictures ??= await load(explorer.dataset.source);
        do await show(pictures[explorer.dataset.place = place]); while (place !== (place = read()));
      } catch {
        message.textContent = "The figures are loaded from a server: python -m http.server gives one.";
      }
      isBusy = false;
    }
    for (const control of controls) control.addEventListener("input", follow);
  }

  // figures.css follows JupyterLab's mark of a dark theme.
  function mark() {
    const theme = document.body.dataset.theme;
    const dark = theme === "dark" || (theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
    document.documentElement.dataset.jpThemeLight = String(!dark);
  }

  addEventListener("DOMContentLoaded", () => {
    mark();
    new MutationObserver(mark).observe(document.body, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", mark);
    for (const figure of document.querySelectorAll(".lablib-figure:not(.lablib-gallery *, .lablib-explorer *)")) {
      const start = async () => {
        if (figure.isStarted) return;
        figure.isStarted = true;
        await load(figure.dataset.source).then(([drawn]) => draw(figure, drawn.figure), () => {});  // else the SVG stays
      };
      figure.addEventListener("pointerenter", start, { once: true });
      if ("late" in figure.dataset)
        new IntersectionObserver((seen, self) => { if (seen[0].isIntersecting) { self.disconnect(); start(); } }).observe(figure);
    }
    document.querySelectorAll(".lablib-explorer").forEach(explore);
    // A link to an optional section opens it. What scrolls sideways is reached with Tab, also what was folded before.
    const unfold = () => document.getElementById(decodeURIComponent(location.hash.slice(1)))
      ?.querySelectorAll(":scope > details.lablib-further").forEach(fold => fold.open = true);
    const reach = () => {
      for (const box of document.querySelectorAll(".lablib-figure, .cell_output .output, .highlight pre, .table-wrapper, pre"))
        if (box.scrollWidth > box.clientWidth + 1) box.tabIndex = 0;
    };
    unfold();
    reach();
    addEventListener("hashchange", unfold);
    document.addEventListener("toggle", reach, true);
  });
})();
