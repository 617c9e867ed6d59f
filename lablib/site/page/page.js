// The page: settings from controls and the link, questions to the worker, answers as figures.
import { bytes, count, element, memoryFigure, percent, pipelineFigure, seconds, stepFigure, table } from "./figures.js";
import { translatePage } from "./language.js";

const $ = (id) => document.getElementById(id);
await translatePage("zh.json");
const setup = await (await fetch("choices.json")).json();
const controls = [...document.querySelectorAll("form [name]")];

// ---- settings: controls <-> link ----

for (const control of controls.filter((each) => each.tagName === "SELECT")) {
  for (const value of setup.choices[control.name]) control.append(element("option", { value }, value || "the usual one today"));
}
const read = () => Object.fromEntries(controls.map((each) => [each.name, each.type === "checkbox" ? (each.checked ? "yes" : "no") : each.value]));
function write(settings) {
  for (const each of controls) {
    if (each.type === "checkbox") each.checked = settings[each.name] === "yes";
    else each.value = settings[each.name];
  }
}
const ofLink = () => ({ ...setup.defaults, ...Object.fromEntries([...new URLSearchParams(location.hash.slice(1))].filter(([name]) => name in setup.defaults)) });
function toLink(settings) {
  const changed = Object.entries(settings).filter(([name, value]) => value !== setup.defaults[name]);
  history.replaceState(null, "", changed.length ? `#${new URLSearchParams(changed)}` : location.pathname + location.search);
}
function show(settings) {
  for (const part of document.querySelectorAll("[data-show]")) part.hidden = settings[part.dataset.show] !== part.dataset.value;
  $("free").hidden = settings.follow === "yes";
}

// ---- questions: one at a time, the newest next ----

const worker = new Worker("worker.js", { type: "module" });
let asked = 0, answered = 0, searches = 0, isReady = false;
function ask() {
  const settings = read();
  toLink(settings);
  show(settings);
  $("answer").classList.add("old");
  if (isReady && asked === answered) worker.postMessage({ kind: "ask", id: ++asked, settings });
  else waiting = true;
}
let waiting = false;

worker.onerror = (event) => verdict("bad", "The page cannot start", event.message ?? "its worker did not load");
worker.onmessage = ({ data }) => {
  if (data.kind === "status") verdict("", "", data.text);
  if (data.kind === "failed") verdict("bad", "The page cannot start", data.text);
  if (data.kind === "ready") (isReady = true), ask();
  if (data.kind === "searched" && data.id === searches) showSearch(data);
  if (data.kind === "answer") {
    answered = data.id;
    if (waiting) (waiting = false), ask();
    else $("answer").classList.remove("old"), showPrediction(data.prediction), showPipeline(data.pipeline);
  }
};

// ---- answers ----

function verdict(state, title, text) {
  $("verdict").dataset.state = state;
  $("verdict").replaceChildren(...(title ? [element("strong", {}, title)] : []), text);
  $("short").textContent = title;
}

function showPrediction(answer) {
  $("prediction").hidden = "refusal" in answer;
  if ("refusal" in answer) return verdict("bad", "This plan is not possible", answer.refusal);
  const title = answer.is_tight ? "It fits, tight" : answer.fits ? "It fits" : "It does not fit";
  verdict(answer.fits ? "good" : "bad", title, answer.sentence);
  $("short").textContent = `${title}: ${seconds(answer.step_time_s)}, ${count(answer.tokens_per_s)} tokens/s`;
  const { days, gpu_hours, energy_j, price } = answer.training;
  const tiles = [
    ["Step", "step_time_s", answer.step_time_s, seconds],
    ["Tokens per second", "tokens_per_s", answer.tokens_per_s, count],
    ["MFU", "mfu", answer.mfu, percent],
    ["GPUs", "gpus", answer.gpus, count],
    ["Days", "days", days, count],
    ["GPU hours", "gpu_hours", gpu_hours, count],
    ["Energy", "energy_j", energy_j, (value) => (value === null ? "unknown" : `${count(value / 3.6e9)} MWh`)],
    ["Price", "price", price, count],
  ];
  $("tiles").replaceChildren(...tiles.map(([name, id, value, text]) => element("div", {}, element("dt", {}, name), element("dd", { id, "data-value": value }, text(value)))));
  $("remarks").textContent = answer.remarks.join(" ");
  $("memory").replaceChildren(...memoryFigure(answer));
  $("step").replaceChildren(...stepFigure(answer));
}

function showPipeline(answer) {
  const said = $("prediction").hidden && read().follow === "yes"; // the refusal of the plan above
  const refusal = () => element("p", { class: "over" }, said ? "There is no plan to follow." : answer.refusal);
  $("pipeline").replaceChildren(...("refusal" in answer ? [refusal()] : pipelineFigure(answer)));
}

// ---- search ----

const COLUMNS = ["data", "tensor", "pipeline", "context", "expert", "chunks", "schedule", "micro_batch", "zero_stage", "recompute"];
function use(row) {
  const settings = { ...read(), ...Object.fromEntries(COLUMNS.map((name) => [name, String(row[name])])) };
  settings.expert_tensor = row.expert_tensor === row.tensor ? "" : String(row.expert_tensor);
  write(settings);
  ask();
  $("answer").focus();
}
let began = 0, drawn = "", counts = ""; // of the present search: its start, the rows in the table, the plans so far
function left(answer) {
  const past_s = (performance.now() - began) / 1000, left_s = past_s * (answer.total / answer.done - 1);
  return past_s < 2 ? "" : left_s > 90 ? `, ${Math.round(left_s / 60)} minutes left` : `, ${Math.ceil(left_s)} s left`;
}
function showSearch(answer) {
  if ("refusal" in answer) return endSearch(answer.refusal);
  $("progress").max = answer.total;
  $("progress").value = answer.done;
  const [done, total, possible, fit] = ["done", "total", "possible", "fit"].map((name) => answer[name].toLocaleString("en"));
  counts = `${done} of ${total} plans, ${possible} possible, ${fit} fit`;
  if (drawn !== (drawn = JSON.stringify(answer.rows))) showPlans(answer.rows);
  if (answer.done === answer.total) endSearch(counts);
  else $("found").textContent = counts + left(answer);
}
function showPlans(found) {
  const rows = found.map((row, k) => {
    const button = element("button", { type: "button", "aria-label": `Use plan ${k + 1}` }, "Use");
    button.addEventListener("click", () => use(row));
    return [row.parallel, button, row.schedule, `${row.micro_batch}`, row.recompute, seconds(row.step_time_s), percent(row.mfu), bytes(row.peak_memory_bytes), row.bound_by];
  });
  $("plans").replaceChildren(...(rows.length ? [table("The fastest plans that fit", ["plan", "", "schedule", "micro-batch", "recompute", "step", "MFU", "memory", "time goes to"], rows, ["", "", "text", "", "text", "", "", "", "text"])] : []));
}
function endSearch(text) {
  searches++;
  worker.postMessage({ kind: "cancel" });
  $("found").setAttribute("aria-live", "polite");
  $("found").textContent = text;
  $("cancel").disabled = true;
  $("search").disabled = false;
}
$("search").addEventListener("click", () => {
  worker.postMessage({ kind: "search", id: ++searches, settings: read() });
  [began, drawn, counts] = [performance.now(), "", "no plan predicted"];
  $("plans").replaceChildren();
  $("found").setAttribute("aria-live", "off"); // not every step is read aloud, only the end
  $("found").textContent = "Searching ...";
  $("cancel").disabled = false;
  $("search").disabled = true;
  $("cancel").focus();
});
$("cancel").addEventListener("click", () => {
  endSearch(`Ended: ${counts}`);
  $("search").focus();
});

// ---- the rest of the page ----

const theme = $("theme");
function paint() {
  document.documentElement.dataset.theme = theme.value;
  localStorage.setItem("theme", theme.value);
}
theme.value = localStorage.getItem("theme") ?? "";
theme.addEventListener("change", paint);
paint();
$("versions").textContent = `lablib ${setup.lablib}, on Pyodide ${setup.pyodide} (MPL-2.0).`;
$("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText(location.href);
  $("copy").textContent = "Copied";
});
for (const link of document.querySelectorAll('a[href="#answer"]')) { // a jump without a change of the link
  link.addEventListener("click", (event) => (event.preventDefault(), $("answer").focus(), $("answer").scrollIntoView()));
}
for (const form of document.forms) {
  form.addEventListener("input", ask);
  form.addEventListener("submit", (event) => event.preventDefault());
}
document.forms[0].addEventListener("reset", (event) => (event.preventDefault(), write(setup.defaults), ask()));
addEventListener("hashchange", () => (write(ofLink()), ask()));
write(ofLink());
show(read());
