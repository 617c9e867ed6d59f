"""The planner needs no torch, and a single plan no numpy: packages import, and answers are equal to the bit."""

import json
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
    "models": ("gpt", "llama", "drawing"),
    "pipeline": ("executor",),
    "plan": (),
    "signature": (),
    "text": (),
    "validation": (),
}
WITHOUT = "import sys; sys.modules['torch'] = None\n"


# Neither numpy nor torch can be imported, and both were not.
REFUSED = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "torch"):
            raise ImportError(f"{name} is refused")
sys.meta_path.insert(0, Refuse())
"""
ANSWERS = """
from lablib.pipeline import Costs, simulate
from lablib.pipeline.schedules import SCHEDULES, make
from lablib.plan import Parallel, predict

def lists(values):
    return [float(value) for value in values]

def predictions():
    plain, experts = ("gpt3-175b", "llama-3-70b"), ("mixtral-8x7b", "deepseek-v3")
    for model, expert in ((name, 1 + 7 * (name in experts)) for name in plain + experts):
        for stack in ("megatron-core", "fsdp-flash", "torch-megatron", "torch"):
            for pipeline, zero, recompute, schedule in (
                (1, 3, "none", "1f1b"), (2, 1, "full", "zb-h1"), (6, 1, "none", "1f1b"), (8, 0, "selective", "zb-v"),
            ):
                chunks = 2 if schedule == "zb-v" else 1
                split = dict(data=8, tensor=2, pipeline=pipeline, expert=expert, zero_stage=zero, chunks=chunks)
                try:
                    found = predict(
                        model, "dgx-h100", Parallel(**split), 256, seq_len=2048, recompute=recompute,
                        schedule=schedule, stack=stack,
                    )
                    yield [found.step_time_s, found.mfu, found.parts, found.memory, found.communication]
                except ValueError as refusal:
                    yield str(refusal)

def replays():
    costs = Costs(forward_s=1.1, backward_s=2.3, send_s=0.07, overlap=False, static_bytes=3.3)
    for name in SCHEDULES:
        found = simulate(make(name, 4, 8, 2 if name not in ("gpipe", "1f1b", "zb-h1", "zb-h2") else 1), costs)
        replay = found.replay
        yield [
            name, replay.makespan_s, replay.bubble_fraction, replay.in_flight, replay.peak_bytes, replay.busy_s,
            list(map(lists, replay.start_s)), [list(map(lists, rank)) for rank in replay.memory],
            lists(found.moments_s), [str(each) for each in found.critical_path], list(map(str, found.at(9.0))),
            replay.timeline.makespan_s,
        ]

answers = [list(predictions()), list(replays())]
"""


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


def test_one_plan_and_a_replay_need_no_numpy_and_are_equal_to_the_bit():
    printed = "import json\nprint(json.dumps(answers))"
    without, found = json.loads(run(REFUSED + ANSWERS + printed)), {}
    exec("import numpy\n" + ANSWERS, found)
    assert without == json.loads(json.dumps(found["answers"]))
    predictions, replays = without
    assert len(replays) >= 9 and sum(not isinstance(each, str) for each in predictions) > 40
