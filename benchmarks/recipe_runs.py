"""The same run on real text in every recipe of linear layers: writes lablib/studies/precision.json.

python benchmarks/recipe_runs.py                 all, about 8 minutes of one core
python benchmarks/recipe_runs.py mxfp8 nvfp4     only these; the others stay as they are
"""

import argparse
import datetime
import json
import platform
import time

import torch

from lablib.data import load_corpus
from lablib.studies.precision import CONFIG, RECIPE_NAMES, RECORDED, recipe_losses

ABOUT = {
    "command": "python benchmarks/recipe_runs.py",
    "model": f"GPT, {CONFIG.num_layers} layers, width {CONFIG.d_model}, {CONFIG.num_heads} heads, bytes, 64 a sequence",
    "run": "8 sequences a step, AdamW, learning rate 0.001, corpus python-stdlib, seed 0",
    "corpus_sha256": load_corpus().sha256,
    "python": platform.python_version(),
    "torch": torch.__version__,
    "machine": f"{platform.machine()}, one thread",
}


def record(recipe: str, num_steps: int) -> None:
    """Run one recipe and put its losses into the file."""
    began_s = time.process_time()
    losses = [round(loss, 4) for loss in recipe_losses(recipe, num_steps)]
    cpu_s = time.process_time() - began_s
    saved = json.loads(RECORDED.read_text("utf-8")) if RECORDED.exists() else {"losses": {}, "about": {}}
    runs = saved["losses"] | {recipe: losses}
    cpu = saved["about"].get("cpu_s", {}) | {recipe: round(cpu_s, 1)}
    about = ABOUT | {"date": datetime.date.today().isoformat(), "cpu_s": {n: cpu[n] for n in RECIPE_NAMES if n in cpu}}
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(runs[name])}" for name in RECIPE_NAMES if name in runs)
    RECORDED.write_text(f'{{"about": {json.dumps(about)},\n "losses": {{\n{rows}\n}}}}\n', "utf-8")
    print(f"{recipe:14} {cpu_s:6.1f} s of CPU; last 20 losses {sum(losses[-20:]) / 20:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", choices=[*RECIPE_NAMES, []], help="which; all by default")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for recipe in options.recipes or RECIPE_NAMES:
        record(recipe, options.steps)


if __name__ == "__main__":
    main()
