"""Every lab runs as on a machine with GPUs: its cells, solved, with backend="nccl" and 2 ranks, on a stand-in for them.

(`lab prove`, in test_checks.py, tries every check's solution there.) As a notebook's, its process is its own: nobody
checks the shapes of arguments there, as these tests do. Each is forked from one that has imported what labs import, and
has run nothing: that takes four seconds, once for all labs.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lablib.course.places import Lab

# A line of its input is a lab, a file for what stands on stderr, and the environment; a line of its output is how the
# lab's process ended.
FORKS = """
import gc, json, os, sys
import pandas, plotly.graph_objects, torch, torch._dynamo  # torch imports the last with the first optimizer
import lablib.script.stand_in
from lablib.course.building.master import read_master
from lablib.course.running.on_gpu import cells_on_gpu
from lablib.course.places import find_labs, find_labs_folder

gc.freeze()  # a collection would touch every page, and so copy it
for line in sys.stdin:
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    name, errors, environment = json.loads(line)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    os.dup2(2, 1)
    os.environ.clear()
    os.environ.update(environment)
    lab = next(lab for lab in find_labs(find_labs_folder()) if lab.name == name)
    refused = list(cells_on_gpu(read_master(lab), ranks=2))  # not the number that most labs choose
    sys.exit("\\n\\n".join(refused) or 0)
"""


@pytest.fixture(scope="module")
def refused_on_gpu() -> Iterator[Callable[[Lab, Path], str]]:
    """Runs the cells of a lab in a process of its own: what is refused there, or "" where nothing is."""
    command = [sys.executable, "-c", FORKS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        assert process.stdin and process.stdout

        def run(lab: Lab, errors: Path) -> str:
            assert process.stdin and process.stdout
            print(json.dumps([lab.name, str(errors), dict(os.environ)]), file=process.stdin, flush=True)
            status = process.stdout.readline().strip()
            return "" if status == "0" else f"ended with {status or 'the process that forks it'}: {errors.read_text()}"

        try:
            yield run
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # with the cells of a lab whose time was up


@pytest.mark.timeout(900)
def test_no_cell_of_a_lab_does_what_a_gpu_refuses(lab: Lab, refused_on_gpu: Callable[[Lab, Path], str], tmp_path: Path):
    refused = refused_on_gpu(lab, tmp_path / "errors")
    assert not refused, refused[-5000:]
