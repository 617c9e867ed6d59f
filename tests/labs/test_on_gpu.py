"""Every lab runs as on a machine with GPUs: its cells, solved, with backend="nccl" and 2 ranks, on a stand-in for them.

(`lab prove`, in test_checks.py, tries every check's solution there.) Each lab has a process of its own, as a notebook
has: shapes of arguments are not checked there, which these tests do.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lablib.course.places import Lab
from tests.labs.forks import Forks, forks


@pytest.fixture(scope="module")
def processes() -> Iterator[Forks]:
    # torch imports its compiler with the first optimizer.
    with forks("torch._dynamo", "pandas", "plotly.graph_objects", "lablib.course.running.on_gpu") as one:
        yield one


@pytest.mark.each_lab
@pytest.mark.timeout(900)
def test_no_cell_of_a_lab_does_what_a_gpu_refuses(lab: Lab, processes: Forks, tmp_path: Path):
    refused = processes.run("run_on_gpu", lab.name, output=tmp_path / "errors")
    assert not refused, refused[-5000:]
