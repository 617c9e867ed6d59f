"""Every lab runs as on a machine with GPUs: its cells, solved, with backend="nccl" and 2 ranks, on a stand-in for them.

(`lab prove`, in test_checks.py, tries every check's solution there.) As a notebook's, its process is its own: nobody
checks the shapes of arguments there, as these tests do.
"""

import subprocess
import sys

import pytest

from lablib.course.places import Lab

CELLS = """
import sys
from lablib.course.master import read_master
from lablib.course.on_gpu import cells_on_gpu
from lablib.course.places import find_labs, find_labs_folder

lab = next(lab for lab in find_labs(find_labs_folder()) if lab.name == sys.argv[1])
refused = list(cells_on_gpu(read_master(lab), ranks=2))  # not the number that most labs choose
sys.exit("\\n\\n".join(refused) or 0)
"""


@pytest.mark.timeout(900)
def test_no_cell_of_a_lab_does_what_a_gpu_refuses(lab: Lab):
    done = subprocess.run([sys.executable, "-c", CELLS, lab.name], cwd=lab.labs, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
