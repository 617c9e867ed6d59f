// Figures as tables with bars, so that a screen reader reads the numbers; and the timeline of a pipeline as SVG.

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function scaled(value, units, step = 1000) {
  let unit = 0;
  while (Math.abs(value) >= step && unit < units.length - 1) [value, unit] = [value / step, unit + 1];
  return `${value.toLocaleString("en", { maximumSignificantDigits: 3 })} ${units[unit]}`;
}
export const bytes = (value) => scaled(value, ["B", "kB", "MB", "GB", "TB", "PB"]);
export const seconds = (value) => (value ? scaled(value * 1e9, ["ns", "us", "ms", "s"]) : "0 s");
export const count = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4 });
const plural = (number, word) => `${number} ${word}${number === 1 ? "" : word.endsWith("ch") ? "es" : "s"}`;
export const percent = (value) => `${(100 * value).toFixed(1)}%`;

// A table in a box of its own that scrolls. A cell is a text, a node, or {node, class}.
export function table(caption, heads, rows, classes = []) {
  const cell = (value, k) => element(k ? "td" : "th", { ...(k ? {} : { scope: "row" }), ...(classes[k] ? { class: classes[k] } : {}) }, value);
  const head = element("tr", {}, ...heads.map((text, k) => element("th", { scope: "col", ...(k && !classes[k] ? {} : { class: "text" }) }, text)));
  const body = rows.map((row) => element("tr", {}, ...row.map(cell)));
  const made = element("table", {}, element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, ...body));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, made);
}

export function details(summary, ...content) {
  return element("details", {}, element("summary", {}, summary), ...content);
}

const color = (name) => `var(--${name.replaceAll(" ", "-")})`;
export function legend(names) {
  const items = names.map(([name, text]) => element("li", {}, element("i", { style: `background:${color(name)}` }), text));
  return element("ul", { class: "legend", "aria-hidden": "true" }, ...items);
}

// Pieces: [color, from, to, title] as shares of the track; limit: a share.
function track(pieces, limit) {
  const made = element("div", { class: "track", "aria-hidden": "true" });
  for (const [name, from, to, title] of pieces) {
    const [left, right] = [Math.min(from, to), Math.max(from, to)];
    made.append(element("span", { class: "piece", title, style: `left:${100 * left}%;width:${100 * (right - left)}%;background:${color(name)}` }));
  }
  if (limit !== undefined) made.append(element("span", { class: "limit", style: `left:${100 * limit}%` }));
  return made;
}

const KINDS = { recomputation: "recompute", optimizer: "optimizer", "bubble and messages": "bubble", "host link": "communication", packing: "communication" };
const kindOf = (part) => KINDS[part] ?? (part.endsWith(" axis") ? "communication" : "compute");

export function stepFigure(answer) {
  const total = answer.step_time_s;
  let sum = 0;
  const rows = Object.entries(answer.parts).map(([name, time]) => {
    const bar = track([[kindOf(name), sum / total, (sum + time) / total, `${name}: ${seconds(time)}`]]);
    sum += time;
    return [name, bar, seconds(time), percent(time / total)];
  });
  rows.push(["step", track([["X", 0, 1, `step: ${seconds(total)}`]]), seconds(total), percent(1)]);
  const hidden = Object.entries(answer.communication).map(([axis, [all, exposed]]) => [axis, seconds(all), seconds(exposed)]);
  return [
    legend([["compute", "compute"], ["recompute", "recomputation"], ["communication", "exposed communication"], ["bubble", "bubble"], ["optimizer", "optimizer"]]),
    table("Seconds of the busiest stage", ["part", "", "time", "share"], rows, ["", "bar"]),
    details("Communication of each axis", table("Seconds per rank and step", ["axis", "all", "exposed"], hidden)),
  ];
}

export function memoryFigure(answer) {
  const totals = answer.memory.map((stage) => stage.reduce((a, b) => a + b, 0));
  const widest = Math.max(answer.limit_bytes, ...totals) * 1.02;
  const rows = answer.memory.map((stage, k) => {
    let sum = 0;
    const pieces = stage.map((size, c) => [answer.categories[c], sum / widest, (sum += size) / widest, `${answer.categories[c]}: ${bytes(size)}`]);
    const fits = totals[k] <= answer.limit_bytes;
    return [`${k}`, track(pieces, answer.limit_bytes / widest), element("span", { class: fits ? "" : "over" }, bytes(totals[k])), fits ? "fits" : "too much"];
  });
  const numbers = answer.memory.map((stage, k) => [`${k}`, ...stage.map(bytes), bytes(totals[k])]);
  return [
    legend(answer.categories.map((name) => [name, name])),
    table(`Bytes of a GPU at the peak of its stage; the dashed line is the limit, ${bytes(answer.limit_bytes)}`, ["stage", "", "peak", ""], rows, ["", "bar"]),
    details("Bytes by category", table("Bytes by category", ["stage", ...answer.categories, "sum"], numbers)),
  ];
}

function svg(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const ROW = 24, LEFT = 52, WIDTH = 1000;
export function pipelineFigure(answer) {
  const length = answer.makespan_s || 1, height = ROW * answer.stages;
  const x = (time) => LEFT + ((WIDTH - LEFT - 4) * time) / length;
  const summary = `${answer.name}: ${plural(answer.stages, "stage")}, ${plural(answer.microbatches, "micro-batch")}, ${seconds(answer.makespan_s)}, bubble ${percent(answer.bubble)}`;
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${height + 24}`, role: "img", "aria-label": summary });
  const critical = new Set(answer.critical.map(([rank, index]) => `${rank} ${index}`));
  answer.actions.forEach((row, rank) => {
    const y = rank * ROW;
    picture.append(svg("text", { x: 0, y: y + 16 }, `rank ${rank}`), svg("rect", { class: "idle", x: LEFT, y: y + 2, width: WIDTH - LEFT - 4, height: ROW - 4 }));
    row.forEach(([name, kind, start, end], index) => {
      const width = Math.max(x(end) - x(start) - 0.6, 0.2);
      const box = svg("rect", { x: x(start), y: y + 2, width, height: ROW - 4, fill: `var(--${kind})` });
      box.append(svg("title", {}, `${name}: ${seconds(start)} to ${seconds(end)}`));
      picture.append(box);
      if (critical.has(`${rank} ${index}`)) picture.append(svg("rect", { class: "critical", x: x(start), y: y + ROW - 4, width, height: 3 }));
      const label = name.split(/[FBIW]/)[1];
      if (width > 7 * label.length + 3) picture.append(svg("text", { x: x(start) + width / 2, y: y + 16, "text-anchor": "middle", style: `fill:var(--${kind}-ink)`, "aria-hidden": "true" }, label));
    });
  });
  for (let k = 0; k <= 4; k++) {
    picture.append(svg("text", { x: x((length * k) / 4), y: height + 16, "text-anchor": ["start", "middle", "middle", "middle", "end"][k] }, seconds((length * k) / 4)));
  }
  const ranks = answer.actions.map((row, rank) => [`${rank}`, seconds(answer.busy_s[rank]), percent(1 - answer.busy_s[rank] / length), count(answer.in_flight[rank]), row.map(([name]) => name).join(" ")]);
  const every = details("Every action");
  every.addEventListener("toggle", () => {
    if (every.open && every.children.length === 1) every.append(table("Actions", ["action", "rank", "start", "end"], answer.actions.flatMap((row, rank) => row.map(([name, , start, end]) => [name, `${rank}`, seconds(start), seconds(end)]))));
  });
  return [
    element("p", {}, summary + (answer.circle.length ? `. Deadlock: ${answer.circle.join("; ")}` : "")),
    legend([["F", "F forward"], ["B", "B backward"], ["I", "I for the input"], ["W", "W for the weights"], ["idle", "idle"], ["ink", "on the critical path (line below)"]]),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Timeline" }, picture),
    details("Each rank", table("Each rank", ["rank", "busy", "idle", "micro-batches held", "actions"], ranks, ["", "", "", "", "text"])),
    every,
  ];
}
