"""Would a lab run on GPUs? Its programs on a stand-in for one, which refuses what CUDA refuses.

A lab is written and proven on CPUs, where any tensor meets any other. On a GPU a tensor left on the CPU, a generator of
the CPU or a `.numpy()` ends the program. The stand-in (lablib/script/stand_in.py) says so without a GPU:

    try_on_gpu       one exercise's solution, by its check: what `lab prove` does
    cells_on_gpu     every code cell of the master, in order, with the solutions in place

Real backends are left as they are: only launches on the simulator are moved.
"""

import contextlib
import io
from collections.abc import Iterator
from typing import Any

from lablib.course.master import Cell, Master
from lablib.course.proof import SETTINGS, execute, try_answer
from lablib.course.result import Result


def try_on_gpu(master: Master, exercise: Cell, check: Cell, seed: int | None = 0) -> Result:
    """The check's result for the master's solution, when all that the check launches runs on the stand-in."""
    from lablib.script.stand_in import cuda_by_default  # here: most commands do without the seconds of importing torch

    with cuda_by_default():
        return try_answer(master, exercise, check, exercise.source, seed)


def cells_on_gpu(master: Master) -> Iterator[str]:
    """What the stand-in refuses in the cells of a lab, an error a cell. After a cell that fails the next one runs."""
    from lablib.script.stand_in import cuda_by_default

    namespace: dict[str, Any] = {"__name__": f"lab_{master.lab.number}", "display": lambda *shown, **options: None}
    with contextlib.chdir(master.lab.labs), contextlib.redirect_stdout(io.StringIO()), cuda_by_default():
        for cell in master.cells:
            if cell.kind != "code":
                continue
            try:
                execute(master, cell, cell.source, namespace)
            except Exception as error:
                yield f"{master.lab.master}, cell in line {cell.line}: {type(error).__name__}: {error}"
            if cell.tagged("parameters"):
                namespace.update(SETTINGS)
