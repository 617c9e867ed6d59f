"""The labs executed as they are handed out: exercises without answers, without widgets, every answer of a guess open.

`lab run` runs each lab in a separate process, some at once. A folder can keep the notebooks: a lab with a notebook of
the same version in it is not run again.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import nbformat

from lablib.course.building.notebook import read_notebook
from lablib.course.errors import CourseFailure
from lablib.course.places import Lab
from lablib.course.work import handed_out
from lablib.text.files import read_text, write_text


def executed_labs(labs: Sequence[Lab], kept: Path, jobs: int) -> list[nbformat.NotebookNode]:
    """The executed notebooks, in order; new ones are written to the folder `kept`.

    Raises CourseFailure: a lab failed.
    """
    kept.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(partial(_executed, kept=kept), labs))


def _executed(lab: Lab, kept: Path) -> nbformat.NotebookNode:
    path, version = kept / f"{lab.name}.ipynb", handed_out(lab).metadata["lablib"]["digest"]
    if path.is_file() and (earlier := read_notebook(path)).metadata.get("lablib", {}).get("digest") == version:
        return earlier
    with tempfile.TemporaryDirectory() as folder:
        # A learner's copy, progress and settings have no part in it.
        mine = {"LAB_WORK": f"{folder}/work", "LAB_PROGRESS": "off", "LAB_LABS": str(lab.labs), "LAB_PICTURES": "all"}
        command = [sys.executable, "-m", "lablib.cli", "run", lab.number, "--out", folder]
        done = subprocess.run(command, env=os.environ | mine, capture_output=True, text=True)
        notebooks = list(Path(folder).glob("*.ipynb"))
        if done.returncode or not notebooks:
            raise CourseFailure(f"{lab.name} cannot be executed: {done.stderr.strip() or done.stdout.strip()}")
        write_text(path, read_text(notebooks[0]))
    return read_notebook(path)
