"""Records what the labs show beside a learner's own measurement.

    python benchmarks/record_labs.py 06 07 12 [--repeats 7]

    06      the chain of four element-wise operators, unfused (eager) and fused (inductor), predicted from its bytes
    07      loops of 200 batches with torch's DataLoader, predicted by the simulated loop
    others  the lab's own `comparison`: its cells run, solved and at full size, up to the one that calls `reconcile`

In 06 and 07, which `reconcile` does not run, each setting takes its turn in every repeat; the middle repeat is kept,
and how far the others lie from it. Writes `labs/masters/NN_*/recorded.json`, with machine, versions and load: run it on
a quiet machine, after removing the profiles in ~/.config/lablib that were measured on a busy one.
"""

import argparse
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

from lablib.calibration import this_machine
from lablib.calibration.machine import machine_text, versions
from lablib.course.building.master import read_master
from lablib.course.building.notebook import Version, make_notebook
from lablib.course.places import Lab, find_labs, find_labs_folder
from lablib.data.loading.loader_timeline import run_loop
from lablib.data.loading.measured_loop import measure_loop
from lablib.kernels.elementwise_chain import chain_time_s, fused_cost, unfused_cost
from lablib.labs.lab07 import loop_settings
from lablib.process.host_load import busiest, host_load
from lablib.record.comparison import RecordedReconciliation

NUMEL, BATCHES, STEP_S = 2**22, 200, 0.01
COMPARES = re.compile(r"^comparison = (lab\d\d\.)?reconcile", re.MULTILINE)  # a lab's own comparison
Setting = tuple[str, float, Callable[[], float]]  # its name, predicted seconds, how it is measured


def four(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The chain of lab 06."""
    return torch.abs(torch.relu(x) * 2 + y)


def chain() -> tuple[str, str, int, list[Setting]]:
    names, device = ["relu", "double", "add", "abs"], this_machine(ranks=2, backend="gloo").device
    x, y = torch.randn(NUMEL), torch.randn(NUMEL)
    settings: list[Setting] = []
    for name, cost, run in (("unfused", unfused_cost, four), ("fused", fused_cost, torch.compile(four))):
        run(x, y)  # the first call compiles
        settings.append((name, chain_time_s(cost(names, NUMEL, 4), device), lambda run=run: seconds_of(run, x, y)))
    return f"Four operators on {NUMEL:,} numbers in eager and inductor", "torch on the CPU", 1, settings


def seconds_of(run: Callable, *args: torch.Tensor) -> float:
    """The middle one of seven calls."""
    taken = []
    for _ in range(7):
        began = time.perf_counter()
        run(*args)
        taken.append(time.perf_counter() - began)
    return median(taken)


def loops() -> tuple[str, str, int, list[Setting]]:
    steps_s = [STEP_S] * BATCHES
    settings: list[Setting] = [
        (name, run_loop(*way, steps_s).step_time_s, lambda way=way: measure_loop(*way, steps_s).step_time_s)
        for name, way in loop_settings(BATCHES).items()
    ]
    return f"Loops of {BATCHES} batches with torch's DataLoader", "torch's DataLoader", BATCHES, settings


def recorded(what: str, backend: str, calls: int, settings: list[Setting], repeats: int) -> RecordedReconciliation:
    loads = [host_load()]
    measured = [[measure() for _, _, measure in settings] for _ in range(repeats)]
    loads.append(host_load())
    rows = []
    for (name, predicted_s, _), taken in zip(settings, zip(*measured, strict=True), strict=True):
        middle = median(taken)
        row = {"kind": "loop", "name": name, "group": "", "size_bytes": 0.0}
        row |= {"predicted_calls": calls, "measured_calls": calls, "predicted_s": predicted_s, "measured_s": middle}
        row |= {"error_pct": 100 * (predicted_s / middle - 1), "share_pct": None}
        rows.append(row | {"noise_pct": 100 * max(abs(one / middle - 1) for one in taken)})
    errors, noise_pct = [row["error_pct"] for row in rows], max(row["noise_pct"] for row in rows)
    said = f"{what}: predictions are off by {min(errors):+.1f}% to {max(errors):+.1f}%."
    load = str(busiest(loads))
    reading = f"{load.capitalize()}; {repeats} runs of a setting lie within {noise_pct:.0f}% of their middle one."
    about = {"machine": machine_text(False), **versions(), "backend": backend, "ranks": "1", "load": load}
    return RecordedReconciliation(about, said, reading, [rounded(row) for row in rows])


def rounded(row: dict) -> dict:
    return {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in row.items()}


def record_comparison(lab: Lab, path: Path) -> RecordedReconciliation:
    """What a lab's own cells compare."""
    notebook = make_notebook(read_master(lab), Version.INSTRUCTOR)
    last = next(place for place, cell in enumerate(notebook.cells) if COMPARES.search(cell.source))
    first = next(place for place, cell in enumerate(notebook.cells) if "quick: bool" in cell.source)
    cells = notebook.cells[: last + 1]
    cells.insert(first + 1, new_code_cell("quick = interactive = False"))
    notebook.cells = [*cells, new_code_cell(f"comparison.save({str(path.absolute())!r})")]
    os.environ |= {"LAB_LABS": str(lab.labs), "LAB_PROGRESS": "off"}
    NotebookClient(notebook, timeout=1200).execute()
    return RecordedReconciliation.load(path)


LABS = {"06": chain, "07": loops}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = find_labs(find_labs_folder())
    parser.add_argument("labs", nargs="+", choices=[lab.number for lab in known])
    parser.add_argument("--repeats", type=int, default=7, help="of 06 and 07; the others have their own number")
    parser.add_argument("--out", type=Path, help="another folder than the labs' own")
    options = parser.parse_args()
    for lab in (lab for lab in known if lab.number in options.labs):
        path = (options.out or lab.folder) / "recorded.json"
        if lab.number in LABS:
            found = recorded(*LABS[lab.number](), options.repeats)
            found.save(path)
        else:
            found = record_comparison(lab, path)
        print(f"{lab.name}\n{found}", flush=True)
        print(found.table()[["name", "predicted_s", "measured_s", "error_pct", "noise_pct"]].to_string(index=False))


if __name__ == "__main__":
    main()
