"""Every program of every lab runs on a stand-in for a GPU. (`lab prove`, in test_checks.py, does so for the checks.)"""

import pytest

from lablib.course.master import read_master
from lablib.course.on_gpu import cells_on_gpu
from lablib.course.places import Lab

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.thorough]


@pytest.mark.timeout(900)
def test_no_cell_of_a_lab_does_what_a_gpu_refuses(lab: Lab):
    refused = list(cells_on_gpu(read_master(lab)))
    assert not refused, "\n\n".join(refused)
