"""A program that uses CUDA where ranks have none: the error names what gives each rank a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lablib import launch
from lablib.errors import RankError

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")

USES: dict[str, Callable[[], Any]] = {
    "Tensor.cuda": lambda: torch.ones(1).cuda(),
    "Tensor.to": lambda: torch.ones(1).to("cuda"),
    "Tensor.type": lambda: torch.ones(1).type("torch.cuda.FloatTensor"),
    "Tensor.pin_memory": lambda: torch.ones(1).pin_memory(),
    "Module.cuda": lambda: nn.Linear(1, 1).cuda(),
    "Module.to": lambda: nn.Linear(1, 1).to("cuda"),
    "a factory": lambda: torch.ones(1, device="cuda:0"),
    "a generator": lambda: torch.Generator("cuda"),
    "set_default_device": lambda: torch.set_default_device("cuda") or torch.ones(1),
    "torch.cuda.set_device": lambda: torch.cuda.set_device(0),
    "torch.cuda.current_device": lambda: torch.cuda.current_device(),
    "torch.cuda.synchronize": lambda: torch.cuda.synchronize(),
    "torch.cuda.Stream": lambda: torch.cuda.Stream(),
    "torch.cuda.Event": lambda: torch.cuda.Event().record(),
    "torch.cuda.get_device_properties": lambda: torch.cuda.get_device_properties(0),
    "torch.cuda.reset_peak_memory_stats": lambda: torch.cuda.reset_peak_memory_stats(),
}


@pytest.mark.parametrize("use", USES)
def test_it_names_the_device_that_gives_each_rank_a_gpu(use: str):
    with pytest.raises(RankError, match='launch\\(..., device="cuda"\\) gives each rank one'):
        launch(USES[use], ranks=1)


def test_real_processes_name_the_backend_as_well():
    with pytest.raises(RankError, match='launch\\(..., backend="sim", device="cuda"\\) gives each rank one'):
        launch(USES["Tensor.cuda"], ranks=1, backend="gloo")


@pytest.mark.parametrize("use", ["Tensor.cuda", "Module.cuda", "torch.cuda.synchronize"])
def test_the_remedy_works(use: str):
    launch(USES[use], ranks=1, device="cuda")


def test_other_errors_are_left_alone():
    with pytest.raises(RankError) as raised:
        launch(lambda: [][1], ranks=1)
    assert "CUDA" not in str(raised.value)
