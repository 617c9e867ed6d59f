"""NCCL: what is said without GPUs, how its kernels would be read, and, where there is a GPU, real runs."""

import pytest
import torch
import torch.distributed as dist
from torch.cuda import nccl

from lablib.errors import WorkerError
from lablib.real import run_real
from lablib.real.gpu.found import require_gpus
from lablib.real.gpu.sharing import environments, sharing_note
from lablib.real.measurement.calls import Call
from lablib.real.measurement.events import Event
from lablib.real.measurement.spans import spans_of


def call(op: str, name: str) -> Call:
    return Call(op, name, "world", "0", (0, 1), 0, 0, 1, 0, 64.0, 64.0, thread=1)


def host(name: str, start: int, end: int, event_id: int, operation: bool = False) -> Event:
    return Event(name, start, end, thread=1, id=event_id, is_operation=operation)


def kernel(name: str, start: int, end: int, launched_by: int) -> Event:
    return Event(name, start, end, thread=7, launched_by=launched_by, on_device=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing on a machine without GPUs")
def test_without_gpus_one_sentence_says_what_was_found_and_what_is_needed():
    with pytest.raises(WorkerError, match="needs .*4 NVIDIA GPUs for 4 ranks.*: found .*; use backend='gloo'"):
        run_real(int, ranks=4, backend="nccl")


def test_more_ranks_than_gpus_share_them_by_nccls_own_ways_and_the_run_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(nccl, "version", lambda: (2, 30, 3))
    require_gpus(3)
    (hosts,) = environments("nccl", 3)  # the switch is for two ranks a GPU
    assert len({one["NCCL_HOSTID"] for one in hosts}) == 3 and all(one["NCCL_NET"] == "Socket" for one in hosts)
    first, switch = environments("nccl", 2)
    assert first == hosts[:2] and all(one["NCCL_MULTI_RANK_GPU_ENABLE"] == "1" for one in switch)
    assert sharing_note("nccl", 3) == "3 ranks shared 1 GPU: values are right, times mean nothing"
    monkeypatch.setattr(nccl, "version", lambda: (2, 28, 9))
    assert environments("nccl", 3) == [hosts], "this version has no such switch"
    assert environments("nccl", 1) == [[{}]] and sharing_note("nccl", 1) == ""


def test_gpu_spans_are_the_times_of_kernels_and_batched_sends_share_one():
    events = [
        host("aten::addmm", 0, 10, 1, operation=True),
        host("cudaLaunchKernel", 3, 4, 0),
        host("aten::empty", 11, 12, 2, operation=True),
        host("c10d::allreduce_", 20, 30, 3, operation=True),
        host("record_param_comms", 22, 28, 4),
        host("c10d::send", 40, 42, 5, operation=True),
        host("c10d::recv_", 43, 45, 6, operation=True),
        kernel("gemm", 100, 200, launched_by=1),
        kernel("split_k", 200, 210, launched_by=1),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 150, 400, launched_by=4),
        host("lablib::batch 1", 46, 50, 99, operation=True),
        kernel("ncclDevKernel_SendRecv", 60_000, 61_000, launched_by=99),
        kernel("triton_fused", 500, 600, launched_by=0),
    ]
    calls = [call("allreduce_", "all_reduce"), call("send", "send"), call("recv_", "recv")]
    for one in calls[1:]:
        one.batch = 1
    spans = {(s.stream, s.name): (s.start_ns, s.end_ns) for s in spans_of(events, calls, main_thread=1, on_gpu=True)}
    assert spans == {
        ("compute", "aten.addmm"): (100, 210),
        ("compute", "triton_fused"): (500, 600),
        ("comm:world", "all_reduce"): (150, 400),
        ("comm:world:send", "send to 1"): (60_000, 61_000),
        ("comm:world:recv", "recv from 0"): (60_000, 61_000),
    }


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
