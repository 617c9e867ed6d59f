"""Recording calls as on NCCL: batches have numbers and a mark in the profile, and what is not complete can be told."""

import pytest
import torch
import torch.distributed as dist
from torch.autograd.profiler import profile
from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

from lablib.real.gpu.batches import BATCH_MARK
from lablib.real.gpu.under_way import CallsUnderWay
from lablib.real.measurement.calls import CallRecorder
from lablib.real.measurement.events import read_events
from lablib.torch_compat import current, end_coalescing, start_coalescing


class Work(dist.Work):
    """A work that is complete when it is told so; it may be asked on a GPU that has failed."""

    def __init__(self, done=False, broken=False):
        super().__init__()
        self.done, self.broken = done, broken

    def is_completed(self):
        if self.broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return self.done


@pytest.fixture
def world():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


def coalesced(size: int):
    """As batch_isend_irecv does where the backend can batch, which the fake one says of itself only for GPUs."""
    from torch.distributed.distributed_c10d import _coalescing_manager

    with _coalescing_manager(None, torch.device("cpu"), async_ops=True):
        dist.isend(torch.ones(size), 1)
        dist.irecv(torch.ones(size), 3)


def test_calls_of_a_batch_have_its_number_and_its_end_is_marked_in_the_profile(world):
    recorder = CallRecorder(on_gpu=True)
    profiler = profile(use_kineto=True)
    with recorder.recording(), profiler:
        dist.all_reduce(torch.ones(2))
        coalesced(4)
        dist.send(torch.ones(1), 2)
        coalesced(8)
    assert [(call.name, call.batch) for call in recorder.calls] == [
        ("all_reduce", 0),
        ("send", 1),
        ("recv", 1),
        ("send", 0),
        ("send", 2),
        ("recv", 2),
    ]
    marks = [e for e in read_events(profiler.kineto_results) if e.name.startswith(BATCH_MARK)]
    assert [mark.name for mark in marks] == [f"{BATCH_MARK}1", f"{BATCH_MARK}2"]
    assert all(mark.id and mark.is_operation for mark in marks), "kernels are linked to operations"


def test_torchs_coalescing_is_its_own_again_after_a_recording_also_after_an_error(world):
    with pytest.raises(ValueError), CallRecorder(on_gpu=True).recording():
        assert current("start_coalescing") is not start_coalescing
        raise ValueError
    assert current("start_coalescing") is start_coalescing and current("end_coalescing") is end_coalescing


def test_a_call_on_a_gpu_knows_the_line_of_the_program(world):
    recorder = CallRecorder(on_gpu=True)
    with recorder.recording():
        dist.all_reduce(torch.ones(2))
    (call,) = recorder.calls
    assert call.line.rpartition(":")[0] == __file__


def test_what_is_not_complete_is_told_with_group_bytes_and_line(world):
    recorder, under_way = CallRecorder(on_gpu=True), CallsUnderWay()
    with recorder.recording():
        dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(4))
        dist.isend(torch.ones(8), 2)
        dist.all_reduce(torch.ones(16))
    first, second, send, third = recorder.calls
    works = [Work(done=True), Work(), Work(), Work()]
    for call, work in zip((first, second, send, third), works, strict=True):
        under_way.add(call, work)
    lines = under_way.text().splitlines()
    assert [line.split(" bytes")[0] for line in lines] == [
        "  all_reduce #1 of group world, 16",
        "  send to 2 #0 of group world, 32",
        "  all_reduce #2 of group world, 64",
    ]
    assert all(f"({__file__}:" in line for line in lines)
    for work in works:
        work.done = True
    assert under_way.text() == ""


def test_works_that_are_complete_are_not_kept_and_a_failed_gpu_says_nothing_of_them(world):
    recorder, under_way = CallRecorder(on_gpu=True), CallsUnderWay()
    with recorder.recording():
        for _ in range(20):
            dist.all_reduce(torch.ones(2))
    kept = [Work(done=True) for _ in range(20)]
    for call, work in zip(recorder.calls, kept, strict=True):
        under_way.add(call, work)
    assert sum(len(works) for works in under_way._works.values()) == 1
    for nothing in (None, object()):  # inside a batch a call has no work
        under_way.add(recorder.calls[0], nothing)
    assert under_way.text() == ""
    for call in recorder.calls:
        under_way.add(call, Work(broken=True))
    assert "12 more" in under_way.text()


def test_the_recorder_asks_the_works_of_calls_and_of_batches(world, monkeypatch):
    asked = []
    monkeypatch.setattr(CallsUnderWay, "add", lambda self, call, work: asked.append((call.name, work is not None)))
    recorder = CallRecorder(on_gpu=True)
    with recorder.recording():
        dist.all_reduce(torch.ones(2))
        coalesced(4)
    assert ("all_reduce", True) in asked
    assert {name for name, _ in asked[-2:]} == {"send", "recv"}, "the end of the batch has the work of its calls"
