"""A launch on real processes: values, ranks, output, and workers that stay warm and yet look new."""

import os
import random
import subprocess
import threading
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from lablib.process.rank_state import seed_rank
from lablib.real import run_real


@dataclass
class Report:
    """What a program may return: a class that no worker can import."""

    rank: int
    tensors: dict[str, list[torch.Tensor]]


def test_each_rank_computes_its_own_value_in_one_world():
    def program(base, *, step):
        x = torch.full((3,), base + step * dist.get_rank())
        dist.all_reduce(x)
        where = {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
        return x, dist.get_backend(), where

    run = run_real(program, (1.0,), {"step": 10.0}, ranks=2, backend="gloo")
    assert (run.ranks, run.backend) == (2, "gloo")
    for rank, (x, backend, where) in enumerate(run.values):
        assert torch.equal(x, torch.full((3,), 12.0)) and backend == "gloo"
        assert (where["RANK"], where["LOCAL_RANK"], where["WORLD_SIZE"]) == (str(rank), str(rank), "2")
        assert where["MASTER_ADDR"] == "127.0.0.1" and where["MASTER_PORT"].isdigit()


def test_the_workers_of_a_size_serve_one_launch_after_another():
    first = run_real(os.getpid, ranks=2, backend="gloo")
    second = run_real(os.getpid, ranks=2, backend="gloo", trace=False)
    print(f"first launch {first.wall_s:.3f} s, second {second.wall_s:.3f} s")
    assert first.values == second.values and len(set(first.values)) == 2
    assert len(second.timeline) == 0


def test_values_come_back_whole_with_their_classes_gradients_and_shared_memory():
    def program():
        w = nn.Parameter(torch.ones(2, 2))
        loss = (w * 3).sum()
        loss.backward()
        big = torch.arange(1_000_000)
        x = torch.ones(4, dtype=torch.complex64).conj()
        values = {"leaf": [w], "loss": [loss], "view": [big[5:7]], "twins": [x, x.view(2, 2)], "none": [torch.empty(0)]}
        return Report(dist.get_rank(), values), np.arange(3), torch.ones(2, dtype=torch.bfloat16)

    report, array, half = run_real(program, ranks=2, backend="gloo").values[1]
    assert type(report) is Report and report.rank == 1
    (w,), (loss,), (view,), twins, (empty,) = report.tensors.values()
    assert isinstance(w, nn.Parameter) and w.requires_grad and w.grad is not None
    assert torch.equal(w.grad, torch.full((2, 2), 3.0))
    assert loss.item() == 12.0 and not loss.requires_grad
    assert view.tolist() == [5, 6] and view.untyped_storage().nbytes() == 16
    assert torch.equal(twins[0], twins[1].flatten()) and empty.numel() == 0
    assert array.tolist() == [0, 1, 2] and half.dtype == torch.bfloat16


def test_a_model_with_tied_weights_stays_tied_on_the_rank():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(7, 3), nn.Linear(3, 7, bias=False)
            self.head.weight = self.embedding.weight

    def program(model, x, y):
        x.add_(1)
        return model.head.weight is model.embedding.weight, y

    x = torch.zeros(4)
    for tied, y in run_real(program, (Tied(), x, x.view(2, 2)), ranks=2, backend="gloo").values:
        assert tied and torch.equal(y, torch.ones(2, 2))
    assert torch.equal(x, torch.zeros(4)), "each rank has its own copy"


def test_every_rank_has_its_own_output_also_that_of_child_processes():
    def program():
        rank = dist.get_rank()
        print("rank", rank)
        os.write(1, f"descriptor {rank}\n".encode())
        subprocess.run(["echo", f"child {rank}"], check=True)
        if rank == 1:
            print("only one")

    run = run_real(program, ranks=2, backend="gloo")
    assert run.stdout == ["rank 0\ndescriptor 0\nchild 0\n", "rank 1\ndescriptor 1\nchild 1\nonly one\n"]
    assert run_real(lambda: None, ranks=2, backend="gloo").stdout == ["", ""]


def test_what_ranks_write_to_stderr_is_passed_on_with_their_names(capsys):
    def program():
        warnings.warn("the same everywhere", stacklevel=1)

    run_real(program, ranks=2, backend="gloo")
    lines = capsys.readouterr().err.splitlines()
    assert sum("UserWarning" in line for line in lines) == 1 and lines[0].startswith("[ranks 0, 1] ")


def test_random_numbers_are_those_of_the_rank_and_the_same_in_every_launch():
    def program():
        return torch.rand(3), random.random(), float(np.random.rand())

    first, second = (run_real(program, ranks=2, backend="gloo").values for _ in range(2))
    saved = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        for rank, (drawn, again) in enumerate(zip(first, second, strict=True)):
            seed_rank(rank)
            assert torch.equal(drawn[0], again[0]) and torch.equal(drawn[0], torch.rand(3))
            assert drawn[1:] == again[1:] == (random.random(), float(np.random.rand()))
    finally:
        torch.set_rng_state(saved[0])
        random.setstate(saved[1])
        np.random.set_state(saved[2])
    assert not torch.equal(first[0][0], first[1][0])


def test_nothing_a_program_leaves_behind_reaches_the_next(tmp_path):
    def untidy(directory):
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_grad_enabled(False)
        torch.set_num_threads(7)
        os.environ["LEFT_BEHIND"] = "1"
        os.chdir(directory)
        dist.new_group([0, 1], group_desc="left")
        if dist.get_rank() == 0:
            dist.isend(torch.ones(2, device="cpu"), 1)  # nobody receives it

    def tidy():
        x = torch.empty(2)
        if dist.get_rank() == 0:
            dist.send(torch.full((2,), 5.0), 1)
        else:
            dist.recv(x, 0)
        state = x.dtype, x.device.type, torch.is_grad_enabled(), os.environ.get("LEFT_BEHIND"), os.getcwd()
        groups = len(dist.distributed_c10d._world.pg_map)
        return state, torch.get_num_threads(), groups, x

    before = run_real(tidy, ranks=2, backend="gloo").values
    run_real(untidy, (str(tmp_path),), ranks=2, backend="gloo")
    after = run_real(tidy, ranks=2, backend="gloo").values
    assert [value[:3] for value in before] == [value[:3] for value in after]
    assert after[1][0] == (torch.float32, "cpu", True, None, os.getcwd()) and after[1][2] == 1
    assert after[1][3].tolist() == [5.0, 5.0]


def test_launches_from_several_threads_take_turns():
    values = {}
    threads = [
        threading.Thread(target=lambda i=i: values.update({i: run_real(int, (i,), ranks=2, backend="gloo").values}))
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == {i: [i, i] for i in range(3)}


@pytest.mark.parametrize(("ranks", "backend"), [(0, "gloo"), (2, "mpi")])
def test_a_wrong_size_or_backend_is_refused_before_anything_starts(ranks, backend):
    with pytest.raises(ValueError, match=r"got (0|'mpi')"):
        run_real(int, ranks=ranks, backend=backend)


def test_functions_whose_default_group_is_the_world_find_that_of_their_own_run():
    def program():
        import torch.distributed.nn.functional as dnn  # its defaults are what `group.WORLD` is at the moment

        x = torch.ones(2, requires_grad=True)
        torch.cat(dnn.all_gather(x)).sum().backward()
        return x.grad

    for _ in range(2):  # the same workers
        for gradient in run_real(program, ranks=2, backend="gloo").values:
            assert torch.equal(gradient, torch.full((2,), 2.0))
