"""Measuring a rank on a GPU, with a stand-in for its profiler: what is the program's, and what a run says of it."""

import time

import pytest
import torch

from lablib.real import launch as real_launch
from lablib.real.gpu.kernel_notes import kernel_notes
from lablib.real.gpu.kernels import KernelCount
from lablib.real.measurement import measure as real_measure
from lablib.real.measurement.measure import Measurement, measure
from lablib.real.measurement.profiler import run_warm_up_kernels, warm_up_kernel_count
from tests.gpu_shaped.kineto import LAUNCH, STREAM, Recording

BEFORE_NS = 20_000_000


class StandIn:
    """A profiler whose results are a recording."""

    def __init__(self, recording: Recording | None):
        self.kineto_results, self.is_open = recording, False

    def __enter__(self):
        self.is_open = True

    def __exit__(self, *error):
        self.is_open = False
        torch.cuda.synchronize()


@pytest.fixture
def gpu(monkeypatch):
    """A rank that believes in its GPU. Returns (a recording in real time, the number of warm-up kernels)."""
    recording, spent = Recording(), []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(real_measure, "profiler_of", lambda trace, on_gpu: StandIn(recording))

    def spend(kernels):
        recording.now = time.time_ns() - BEFORE_NS
        spent.append(kernels)
        for _ in range(kernels):
            with recording.operation("aten::add_"):
                recording.launch("elementwise", 100)
        recording.synchronize()

    monkeypatch.setattr(real_measure, "run_warm_up_kernels", spend)
    return recording, spent


def measured(program, warm_up=5):
    return measure(program, lambda: None, trace=True, on_gpu=True, warm_up_kernels=warm_up)[1]


def work(recording, kernels=3, lost=0):
    def program():
        recording.now = time.time_ns()
        for number in range(kernels):
            with recording.operation("aten::mm"):
                recording.launch("gemm", 1_000, is_lost=number < lost)

    return program


# ---- what is measured ----


def test_sacrificed_kernels_are_launched_before_the_program_and_are_none_of_its_spans(gpu):
    recording, spent = gpu
    found = measured(work(recording))
    assert spent == [5]
    assert [span.name for span in found.spans] == ["aten.mm"] * 3
    assert found.kernels == KernelCount(is_recorded=True, kernels=3, launches=3)
    assert all(span.start_ns >= found.start_ns for span in found.spans)


def test_lost_kernels_are_counted_and_one_stamped_by_another_clock_is_lost(gpu):
    recording, _ = gpu

    def program():
        work(recording, kernels=4, lost=2)()
        wrong = recording.raws[-1]
        wrong.start, wrong.end = wrong.start - 10**14, wrong.end - 10**14

    found = measured(program)
    assert found.kernels == KernelCount(is_recorded=True, kernels=1, launches=4, lost=3)
    assert len(found.spans) == 1


def test_a_kernel_that_began_before_its_own_launch_and_one_launched_before_the_program_are_none_of_its(gpu):
    recording, _ = gpu

    def program():
        work(recording, kernels=2)()
        warm_up, wrong = (next(r for r in recording.raws if r.label == name) for name in ("elementwise", "gemm"))
        recording.now += 50_000_000
        with recording.operation("aten::mm"):
            late = recording.launch("gemm", 1_000)
        warm_up.start, warm_up.end = wrong.start + 10, wrong.end + 10  # as another clock may have it
        late.start, late.end = wrong.start + 20, wrong.end + 20

    found = measured(program)
    assert found.kernels == KernelCount(is_recorded=True, kernels=2, launches=3, lost=1)


def test_a_captured_graph_launches_once_and_none_of_its_kernels_is_lost(gpu):
    recording, _ = gpu

    def program():
        recording.now = time.time_ns()
        recording.launch("", 0, call="cudaStreamBeginCapture_v10000", is_lost=True)
        with recording.operation("aten::mm"):
            recording.launch("gemm", 1_000, is_lost=True)
        recording.launch("", 0, call="cudaStreamEndCapture_v10000", is_lost=True)
        first = recording.launch("gemm", 1_000, call="cudaGraphLaunch_v10000")
        again = recording.launch("gemm", 1_000, call="")  # of the same launch
        recording.raws.remove(next(raw for raw in recording.raws if not raw.label))
        again.number = first.number

    found = measured(program)
    assert found.kernels == KernelCount(is_recorded=True, kernels=2, launches=0)
    assert [span.name for span in found.spans] == ["gemm", "gemm"]


def test_the_error_of_a_program_is_raised_though_the_profiler_cannot_end_either(gpu, monkeypatch):
    def fail(device=None):
        raise RuntimeError("CUDA error: device-side assert triggered")

    def program():
        monkeypatch.setattr(torch.cuda, "synchronize", fail)
        raise ValueError("of the program")

    with pytest.raises(ValueError, match="of the program"):
        measured(program)


# ---- warm-up kernels ----


def test_each_session_of_a_process_spends_more_kernels_than_it_can_lose():
    spent = [warm_up_kernel_count(session) for session in range(1, 3000)]
    assert all(kernels > session for session, kernels in enumerate(spent[:2000], 1))
    assert max(spent) <= 4096


def test_a_sacrifice_is_so_many_kernels_on_the_gpu_and_ends_with_waiting(monkeypatch):
    done = []

    class Number:
        def add_(self, one):
            done.append("kernel")

    monkeypatch.setattr(torch, "zeros", lambda *size, device: Number() if device == "cuda" else pytest.fail(device))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("wait"))
    run_warm_up_kernels(4)
    assert done == ["kernel"] * 4 + ["wait"]


# ---- what the run says ----


@pytest.fixture
def run_on_gpus(monkeypatch, run_of):
    monkeypatch.setattr(real_launch, "require_gpus", lambda ranks, share_gpus: None)
    monkeypatch.setattr(real_launch, "sharing_note", lambda backend, ranks: "")
    monkeypatch.setattr(real_launch, "gpus_text", lambda: "GPUs")
    return run_of


def test_a_run_whose_profiler_records_no_kernel_has_no_compute_and_says_why(gpu, run_on_gpus):
    recording, _ = gpu

    def program():
        work(recording, kernels=2)()
        recording.raws[:] = [raw for raw in recording.raws if raw.thread != STREAM and raw.label != LAUNCH]

    run = run_on_gpus([measured(program)] * 2)
    assert len(run.timeline) == 0, "no host times as GPU times"
    (note,) = run.notes
    assert note.startswith("the profiler recorded no kernel of any GPU work on ranks 0,1") and "CUPTI" in note


def test_a_run_without_kernels_whose_profiler_works_says_that_the_program_launched_none(gpu, run_on_gpus):
    run = run_on_gpus([measured(int)])
    assert run.notes == ("the program launched no kernel on rank 0: its timeline has none of the GPU",)


def test_a_run_that_lost_kernels_says_how_many(gpu, run_on_gpus):
    recording, _ = gpu
    run = run_on_gpus([measured(work(recording, kernels=3, lost=2))])
    (note,) = run.notes
    assert "lost 2 of 3 kernels that rank 0 launched" in note and len(run.timeline) == 1


def test_a_run_with_all_kernels_says_nothing_and_one_without_a_trace_neither(gpu, run_on_gpus):
    recording, _ = gpu
    assert run_on_gpus([measured(work(recording))]).notes == ()
    untimed = measure(int, lambda: None, trace=False, on_gpu=True)[1]
    assert untimed.kernels is None and kernel_notes([untimed, Measurement()]) == []


def test_kernels_of_nccl_that_nobody_called_are_a_note():
    (note,) = kernel_notes([Measurement(kernels=KernelCount(True, 5, 5, 0, strays=2))])
    assert note.startswith("2 kernels of NCCL on rank 0 belong to no recorded call")
