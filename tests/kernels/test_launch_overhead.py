"""Seconds of a step that the host may limit: closed forms, a replay by another formula, the simulator, the blog."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from lablib import launch
from lablib.hardware import DEVICES, find_cluster
from lablib.kernels.launch_overhead import cuda_graph, mega_kernel, one_by_one

times = st.floats(0.0, 1e-3)
steps = st.lists(times, min_size=1, max_size=30)


@given(kernels_s=steps, launch_s=times, gap_s=times)
def test_any_kernels_are_the_longest_path(kernels_s, launch_s, gap_s):
    """Up to some kernel the host was the limit, from there on the device: the worst of those paths."""
    n = len(kernels_s)
    paths = [(i + 1) * launch_s + sum(kernels_s[i:]) + (n - 1 - i) * gap_s for i in range(n)]
    assert one_by_one(kernels_s, launch_s, gap_s).step_s == pytest.approx(max(paths), rel=1e-9, abs=1e-15)


@given(kernels_s=steps, launch_s=times, gap_s=times, tail=st.floats(0, 0.9))
def test_one_launch_is_never_slower(kernels_s, launch_s, gap_s, tail):
    single, graph = one_by_one(kernels_s, launch_s, gap_s), cuda_graph(kernels_s, launch_s, gap_s)
    mega = mega_kernel(kernels_s, launch_s, tail)
    assert mega.step_s <= graph.step_s * (1 + 1e-9) + 1e-15
    assert graph.step_s <= single.step_s * (1 + 1e-9) + 1e-15
    assert all(-1e-9 <= step.idle_share <= 1 for step in (single, graph, mega))


@pytest.mark.parametrize("cluster", ["dgx-a100", "dgx-h100"])
@pytest.mark.parametrize("numel", [8, 1 << 24])
def test_the_simulator_launches_ahead(cluster, numel):
    def program():
        x = torch.ones(numel)
        dist.barrier()
        with torch.profiler.record_function("step"):
            for _ in range(20):
                x = x * 2

    device = find_cluster(cluster).device
    timeline = launch(program, ranks=1, cluster=cluster, fidelity="shapes").timeline
    spans = [span for span in timeline.spans if span.phase == "step"]
    own_s = [max(0.0, span.duration_s - device.queued_s) for span in spans if span.is_compute]
    queued = one_by_one(own_s, device.launch_s, device.queued_s)
    simulated_s = spans[-1].end_s - spans[0].start_s + device.launch_s
    assert simulated_s == pytest.approx(queued.step_s, rel=0.01, abs=2 * device.queued_s)
    # Tiny kernels: the host is all there is. Large ones: the queue hides all launches but the first.
    assert queued.idle_share > 0.9 if numel == 8 else queued.idle_share < 0.05


def test_the_megakernel_of_llama_1b():
    """The blog: 78% of an H100's bandwidth, under 1 ms a forward pass, over 1.5 times those that reach 50%."""
    weights_bytes, bandwidth = 2 * 1.236e9, DEVICES["H100-80GB-SXM"].memory_bandwidth_bytes_per_s
    mega_s, others_s = weights_bytes / (0.78 * bandwidth), weights_bytes / (0.5 * bandwidth)
    assert mega_s < 1e-3 and others_s / mega_s > 1.5
    # A hundred kernels of a CUDA graph: the gaps alone are an eighth of a millisecond.
    kernels_s = [weights_bytes / bandwidth / 100] * 100
    assert cuda_graph(kernels_s, 0.0).step_s - mega_kernel(kernels_s, 0.0).step_s == pytest.approx(99 * 1.3e-6)
