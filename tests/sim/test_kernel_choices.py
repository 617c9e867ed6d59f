"""cuDNN's settings on the simulator: accepted, kept per rank, and explained in a note."""

import pytest
import torch

from lablib import launch


def train(benchmark_on: tuple[int, ...], deterministic: bool) -> tuple[bool, float]:
    torch.backends.cudnn.benchmark = torch.distributed.get_rank() in benchmark_on
    torch.backends.cudnn.deterministic = deterministic
    torch.manual_seed(0)
    y = torch.nn.functional.conv2d(torch.randn(1, 2, 8, 8), torch.randn(2, 2, 3, 3))
    return torch.backends.cudnn.benchmark, y.sum().item()


@pytest.mark.parametrize("device", [None, "cuda"])
def test_each_setting_is_noted_with_its_ranks_and_changes_neither_values_nor_times(device):
    without = launch(train, (), False, ranks=4, device=device)
    assert not any("cudnn" in note for note in without.notes)
    run = launch(train, (0, 2), True, ranks=4, device=device)
    assert [value[0] for value in run.values] == [True, False, True, False]
    assert [value[1] for value in run.values] == [value[1] for value in without.values]
    assert run.timeline.makespan_s == without.timeline.makespan_s
    benchmark, deterministic = (note for note in run.notes if "cudnn" in note)
    assert benchmark.startswith("torch.backends.cudnn.benchmark is on, without effect on the simulator (ranks: 0, 2): ")
    assert "deterministic is on" in deterministic and "(ranks: 0 to 3)" in deterministic
    assert not torch.backends.cudnn.benchmark and not torch.backends.cudnn.deterministic
