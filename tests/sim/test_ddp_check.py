"""DDP's check that all ranks hold the same parameters: what it finds, and how much it makes and sends."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from lablib import LaunchError, launch


def model(rank_matters_for: str = "") -> nn.Module:
    rank = dist.get_rank()
    if rank_matters_for == "count":
        return nn.Linear(2, 3, bias=rank == 0)
    linear = nn.Linear(2, 3 + rank * (rank_matters_for == "shape"))
    if rank_matters_for == "strides" and rank:
        linear.weight = nn.Parameter(torch.randn(2, 3).t())
    return linear


@pytest.mark.parametrize("fidelity", ["values", "shapes"])
@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("count", r"rank 1 has 1 parameters, rank 0 has 2|rank 0 has 2 parameters, rank 1 has 1"),
        ("shape", r"parameter 0 has shape \[4, 2\] and strides \[2, 1\] on rank 1, on rank 0 shape \[3, 2\]"),
        ("strides", r"parameter 0 has shape \[3, 2\] and strides \[1, 3\] on rank 1, .* and strides \[2, 1\]"),
    ],
)
def test_ranks_with_different_models_are_told_which_parameter(what, text, fidelity):
    with pytest.raises(LaunchError, match=text):
        launch(lambda: DDP(model(what)), ranks=2, fidelity=fidelity)


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_it_sends_one_number_from_each_rank_and_the_sizes_of_rank_0(ranks):
    gather, sizes, *_ = launch(lambda: DDP(model()), ranks=ranks).traffic.transfers
    assert (gather.name, gather.tensor_bytes) == ("all_gather_into_tensor", 8 * ranks)
    assert (sizes.name, sizes.tensor_bytes) == ("broadcast", 8 * (4 + 2))  # a matrix and a vector: sizes and strides


def test_the_blocks_of_a_rank_do_not_grow_with_the_number_of_ranks():
    few, many = (len(launch(lambda: DDP(model()) and None, ranks=n).memory) / n for n in (4, 32))
    assert many == few


def test_torchs_own_check_is_back_after_a_run():
    before = dist._verify_params_across_processes  # pyright: ignore[reportPrivateImportUsage]
    launch(lambda: DDP(model()) and None, ranks=2)
    assert dist._verify_params_across_processes is before  # pyright: ignore[reportPrivateImportUsage]
