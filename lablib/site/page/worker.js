// Python in a thread of its own: the page stays responsive. Messages: {kind, id, settings} in, {kind, ...} out.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const PLACE = "/planner";
const PROGRAM = `
import json, sys
sys.path.insert(0, "${PLACE}")
from lablib.site.answers import answered, prediction
from lablib.site.pipelines import pipeline
from lablib.site.searches import Search

def ask(question, text):
    return json.dumps(answered(question, json.loads(text)))

def predicted(text):
    return ask(prediction, text)

def simulated(text):
    return ask(pipeline, text)

class Searching:
    def __init__(self, text):
        self.search = Search(json.loads(text))

    def go_on(self, seconds):
        return json.dumps(self.search.go_on(seconds))

def searching(text):
    try:
        return Searching(text)
    except ValueError as error:
        return str(error)
`;

async function start() {
  postMessage({ kind: "status", text: "Loading Python: about 14 MB, kept by the browser for the next visit ..." });
  const { packages } = await (await fetch("choices.json")).json();
  const python = await loadPyodide({ indexURL: new URL("pyodide/", location.href).href });
  if (packages.length) await python.loadPackage(packages);
  postMessage({ kind: "status", text: "Loading the planner ..." });
  python.unpackArchive(await (await fetch("planner.zip")).arrayBuffer(), "zip", { extractDir: PLACE });
  python.runPython(packages.map((name) => `import ${name}\n`).join("") + PROGRAM);
  const [predicted, simulated, searching] = ["predicted", "simulated", "searching"].map((name) => python.globals.get(name));
  return { predicted, simulated, searching };
}

let current = 0; // the search that goes on
async function search(python, id, text) {
  const found = python.searching(text);
  if (typeof found === "string") return postMessage({ kind: "searched", id, refusal: found });
  current = id;
  for (let answer = { done: 0, total: 1 }; current === id && answer.done < answer.total; ) {
    answer = JSON.parse(found.go_on(0.05));
    postMessage({ kind: "searched", id, ...answer });
    await new Promise((resolve) => setTimeout(resolve)); // other messages come in between
  }
  found.destroy();
}

const started = start();
started.then(
  () => postMessage({ kind: "ready" }),
  (error) => postMessage({ kind: "failed", text: `Python cannot start in this browser: ${error}` }),
);
onmessage = async ({ data: { kind, id, settings } }) => {
  if (kind === "cancel") return (current = 0);
  const python = await started;
  const text = JSON.stringify(settings);
  if (kind === "search") return search(python, id, text);
  postMessage({ kind: "answer", id, prediction: JSON.parse(python.predicted(text)), pipeline: JSON.parse(python.simulated(text)) });
};
