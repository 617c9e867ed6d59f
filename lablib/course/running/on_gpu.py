"""Test a lab for GPUs without one: run it on a stand-in that refuses the same operations as CUDA.

A lab is written and proven on CPUs, where any tensor can be combined with any other. On a GPU a tensor left on the CPU,
a generator of the CPU or a `.numpy()` ends the program. The stand-in (lablib/script/stand_in.py) finds these errors:

    try_on_gpu       one exercise's solution, by its check; used by `lab prove`
    cells_on_gpu     every code cell of the master, in order, with the solutions, as with backend="nccl"

Programs for the simulator and for "nccl" run on the stand-in; programs for gloo run on gloo, on CPUs.
Simplified: nothing is measured. `reconcile` compares a run with itself, and a calibration is a record of the catalogue,
so numbers that a cell prints as measured mean nothing here.
"""

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import lablib
from lablib import calibration, real
from lablib.course.building.master import Cell, Master
from lablib.course.checks.proof import SETTINGS, execute, try_answer
from lablib.course.checks.result import Result
from lablib.hardware import find_cluster
from lablib.launch import launch
from lablib.process.replaced import replaced
from lablib.reconcile import Reconciliation
from lablib.run import Run
from lablib.script.stand_in import cuda_by_default, run_on_cuda

_MACHINE = "dgx-h100"
_ON_THE_SIMULATOR = {"fidelity": "values", "faults": (), "simulate": None}
_OF_PROCESSES = ("backend", "share_gpus")  # options that the simulator does not take


def try_on_gpu(master: Master, exercise: Cell, check: Cell, seed: int | None = 0) -> Result:
    """The check's result for the master's solution, with all launches of the check on the stand-in."""
    with cuda_by_default():
        return try_answer(master, exercise, check, exercise.source, seed)


def cells_on_gpu(master: Master, **settings: Any) -> Iterator[str]:
    """Errors that the stand-in finds in the cells of a lab, one per cell. A failing cell does not stop the others.

    Cells that check an answer are left out: `try_on_gpu` runs them. `settings` are values for parameters that the lab
    has, such as `ranks=2`.
    """
    namespace: dict[str, Any] = {"__name__": f"lab_{master.lab.number}", "display": lambda *shown, **options: None}
    with contextlib.chdir(master.lab.labs), contextlib.redirect_stdout(io.StringIO()), _gpus_for_everything():
        for cell in master.cells:
            if cell.kind != "code" or cell.tagged("check"):
                continue
            try:
                execute(master, cell, cell.source, namespace)
            except Exception as error:
                yield f"{master.lab.master}, cell in line {cell.line}: {type(error).__name__}: {error}"
            if cell.tagged("parameters"):
                namespace.update(SETTINGS | {"backend": "nccl"} | {n: v for n, v in settings.items() if n in namespace})


@contextlib.contextmanager
def _gpus_for_everything() -> Iterator[None]:
    """A machine with GPUs, as a lab sees it: launches on nccl run on the stand-in, without measurements."""
    machine = find_cluster(_MACHINE).replace(profile={"date": "no day"})
    run_real = real.run_real

    def reconcile_with_itself(fn: Callable[..., Any], *args: Any, ranks: int = 2, without: str = "", **_: Any) -> Any:
        # A lab that looks for GPUs finds none here, and chooses gloo.
        one = launch(fn, *args, ranks=ranks, cluster=machine, backend="nccl")
        return Reconciliation.of(one, [one], without)

    def run(fn: Callable[..., Any], args: tuple = (), kwargs: dict[str, Any] | None = None, **options: Any) -> Run:
        if options["backend"] != "nccl":
            return run_real(fn, args, kwargs, **options)
        options = _ON_THE_SIMULATOR | {name: value for name, value in options.items() if name not in _OF_PROCESSES}
        return replace(run_on_cuda(partial(fn, **(kwargs or {})), args, cluster=machine, **options), backend="nccl")

    answers = ((real, "run_real", run), (calibration, "this_machine", lambda *asked, **given: machine))
    answers += ((calibration, "batch_for", lambda cluster, batch, flops: batch),)  # computed on a CPU
    owners = lablib, import_module("lablib.reconcile")  # lablib.labs imports it from its module
    answers += tuple((owner, "reconcile", reconcile_with_itself) for owner in owners)
    with cuda_by_default(), replaced(*answers):
        yield
