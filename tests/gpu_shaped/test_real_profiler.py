"""A rank on a GPU is profiled by kineto with the activities of CUDA; where it cannot be, by host events alone."""

import pytest
import torch
from torch._C._profiler import ProfilerActivity, ProfilerState
from torch.autograd import profiler as torch_profiler

from lablib.real.measurement.profiler import profiler_of

CPU, CUDA = ProfilerActivity.CPU, ProfilerActivity.CUDA


@pytest.fixture
def has_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch_profiler, "_supported_activities", lambda: {CPU, CUDA})


def test_on_a_gpu_kineto_records_kernels_and_no_cuda_events_bracket_operators(has_gpu):
    profiler = profiler_of(trace=True, on_gpu=True)
    assert profiler.profiler_kind == ProfilerState.KINETO
    assert profiler.kineto_activities == {CPU, CUDA} and profiler.use_device == "cuda"
    assert profiler.with_flops


def test_where_cupti_is_not_built_in_the_host_alone_is_recorded(has_gpu, monkeypatch):
    monkeypatch.setattr(torch_profiler, "_supported_activities", lambda: {CPU})
    profiler = profiler_of(trace=True, on_gpu=True)
    assert profiler.profiler_kind == ProfilerState.KINETO, "the fall-back brackets operators with CUDA events"
    assert profiler.kineto_activities == {CPU} and profiler.use_device is None


def test_on_the_cpu_and_without_a_trace_no_gpu_is_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("nobody needs CUDA here"))
    profiler = profiler_of(trace=True, on_gpu=False)
    assert (profiler.profiler_kind, profiler.kineto_activities) == (ProfilerState.KINETO, {CPU})
    assert not profiler_of(trace=False, on_gpu=True).enabled
