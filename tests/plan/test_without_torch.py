"""The planner needs no torch: its packages import without it, `lab plan` answers, and a figure can be drawn."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# A folder, and what of it needs torch: the models themselves and the pipelines that run them.
TORCH_FREE = {
    "cost": (),
    "engine": (),
    "hardware": (),
    "models": ("gpt", "drawing"),
    "pipeline": ("executor",),
    "plan": (),
    "signature": (),
    "text": (),
    "validation": (),
}
WITHOUT = "import sys; sys.modules['torch'] = None\n"


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + program], cwd=ROOT, capture_output=True, text=True, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_packages_import_without_torch():
    modules = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for folder, needs in TORCH_FREE.items()
        for file in sorted((ROOT / "lablib" / folder).rglob("*.py"))
        if file.relative_to(ROOT / "lablib" / folder).parts[0].removesuffix(".py") not in needs
    ]
    assert len(modules) > 150
    run(f"import importlib\nfor name in {modules}: importlib.import_module(name)")


def test_the_command_answers_without_torch():
    words = "plan --model gpt2 --cluster dgx-a100 --gpus 1 --batch 8 --top 1".split()
    out = run(f"from lablib.cli.main import main\nsys.exit(main({words}))")
    assert out.startswith("gpt2 on 1 GPU")


def test_a_search_is_drawn_without_torch():
    program = (
        "from lablib.plan import search\nfrom lablib.figures.plans.plans import figure_predictions\n"
        "print(len(figure_predictions(search('gpt2', 'dgx-a100', gpus=2, batch=8).plans).data))"
    )
    assert int(run(program)) > 0
