"""Every lab runs as on a machine with GPUs: its cells, solved, with backend="nccl", on a stand-in for them.

(`lab prove`, in test_checks.py, tries every check's solution there.)
"""

import pytest

from lablib.course.master import read_master
from lablib.course.on_gpu import cells_on_gpu
from lablib.course.places import Lab

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.timeout(900)
def test_no_cell_of_a_lab_does_what_a_gpu_refuses(lab: Lab):
    refused = list(cells_on_gpu(read_master(lab)))
    assert not refused, "\n\n".join(refused)
