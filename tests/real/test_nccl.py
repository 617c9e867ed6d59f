"""NCCL: what is said without GPUs, and, where there is a GPU, real runs. (tests/gpu_shaped: all that needs none.)"""

import pytest
import torch
import torch.distributed as dist

from lablib.errors import WorkerError
from lablib.real import run_real


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing on a machine without GPUs")
def test_without_gpus_one_sentence_says_what_was_found_and_what_is_needed():
    with pytest.raises(WorkerError, match="needs .*4 NVIDIA GPUs for 4 ranks.*: found .*; use backend='gloo'"):
        run_real(int, ranks=4, backend="nccl")


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [1, 2])
def test_on_gpus_the_same_program_gives_the_same_values_on_the_cpu(ranks):
    def program():
        x = torch.full((1000,), float(dist.get_rank() + 1))
        w = torch.ones(512, 512)
        work = dist.all_reduce(x, async_op=True)
        y = w @ w
        assert work is not None
        work.wait()
        return x, y, x.device.type

    run = run_real(program, ranks=ranks, backend="nccl", share_gpus=True)
    again = run_real(program, ranks=ranks, backend="nccl", share_gpus=True)
    print(f"{ranks} ranks: first {run.wall_s:.3f} s, second {again.wall_s:.3f} s, notes {run.notes}")
    for x, y, device in run.values:
        assert (x.device.type, device) == ("cpu", "cuda")
        assert torch.equal(x, torch.full((1000,), ranks * (ranks + 1) / 2)) and y[0, 0] == 512
    assert bool(run.notes) == (torch.cuda.device_count() < ranks)
    for rank in range(ranks):
        assert "aten.mm" in {s.name for s in run.timeline.select(rank, "compute")}
    if ranks > 1:
        assert run.traffic.count("all_reduce") == 1 and run.timeline.select(0, "comm:world")


@pytest.mark.gpu
def test_on_gpus_an_exception_ends_the_pool_and_the_next_launch_works():
    def broken():
        raise ValueError("broken")

    with pytest.raises(RuntimeError, match="rank 0 raised ValueError: broken"):
        run_real(broken, ranks=1, backend="nccl")
    assert run_real(lambda: torch.ones(2).sum(), ranks=1, backend="nccl").values[0].item() == 2
