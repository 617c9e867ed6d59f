"""A lab's cells run as on a machine with GPUs: what they launch, on which backend, and what would be refused there."""

from pathlib import Path

import pytest
import torch

from lablib.course.building.master import read_master
from lablib.course.places import Lab
from lablib.course.running.on_gpu import cells_on_gpu

START = """# %% [markdown]
# # Lab 91: On a GPU

# %% tags=["parameters"]
backend: str = "sim"  # sim | gloo | nccl
quick: bool = False  # small sizes

# %%
import torch

from lablib import launch, reconcile
from lablib.calibration import this_machine

outside = torch.ones(2)
assert (backend, quick) == ("nccl", True)


def inside():
    return str((torch.ones(2) + 1).device)


def both():
    return torch.ones(2) + outside

# %%
"""


def refused(folder: Path, cell: str) -> list[str]:
    """What is said of a lab that ends in this cell."""
    lab = Lab("91_gpu", folder)
    lab.master.parent.mkdir(parents=True)
    lab.master.write_text(START + cell + "\n")
    return list(cells_on_gpu(read_master(lab)))


TAKEN = {
    "the simulator": 'assert launch(inside, ranks=2).values == ["cuda:0", "cuda:1"]',
    "the parameter": 'assert launch(inside, ranks=1, backend=backend).backend == "nccl"',
    "a comparison": 'reconcile(inside, ranks=2, backend="gloo", cluster=this_machine(backend="gloo"), repeats=3)',
    "shapes": 'assert launch(inside, ranks=1, fidelity="shapes").values == ["meta"]',
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_program_that_a_gpu_takes_is_not_refused(tmp_path: Path, name: str):
    assert refused(tmp_path, TAKEN[name]) == []


REFUSED = {
    "the simulator": "launch(both, ranks=1)",
    "the parameter": "launch(both, ranks=1, backend=backend)",
    "a comparison on gloo": 'reconcile(both, ranks=1, backend="gloo", cluster=this_machine(), repeats=3)',
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_program_that_a_gpu_refuses_is_told_with_its_cell_and_what_to_do(tmp_path: Path, name: str):
    (told,) = refused(tmp_path, REFUSED[name])
    assert f"lab.py, cell in line {START.count(chr(10))}: RankError: rank 0 raised RuntimeError: Expected all" in told
    assert "In host memory: 'outside', which both() uses." in told


def test_after_a_cell_that_is_refused_the_next_one_runs_and_nothing_stays(tmp_path: Path):
    told = refused(tmp_path, "launch(both, ranks=1)\n\n# %%\nraise ValueError(launch(inside, ranks=1).values)")
    assert len(told) == 2 and told[1].endswith("ValueError: ['cuda:0']")
    assert torch.ones(1).device.type == "cpu"
