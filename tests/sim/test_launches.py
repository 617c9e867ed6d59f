"""A simulated GPU's host launches ahead: a kernel starts when it is launched and its stream is free."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

import lablib
from lablib import find_cluster, launch, phase
from lablib.kernels.launch_overhead import one_by_one

CLUSTER = find_cluster("dgx-h100")
LABLIB = str(Path(lablib.__file__).parent)
LAUNCH_S = CLUSTER.device.launch_s


def spans_of(program, device=CLUSTER.device):
    run = launch(program, ranks=1, cluster=CLUSTER.replace(device=device), fidelity="shapes")
    return [span for span in run.timeline.select(0) if span.phase == "step"]


@settings(max_examples=20, deadline=None)
@given(numels=st.lists(st.integers(1, 1 << 26), min_size=1, max_size=12), launch_us=st.floats(0.1, 60.0))
def test_a_chain_of_kernels_takes_as_long_as_the_queue(numels, launch_us):
    """The simulator and the recurrence end_i = max(end_(i-1), (i + 1) h) + d_i, for any kernels and launches."""
    launch_s = launch_us * 1e-6
    device = replace(CLUSTER.device, launch_s=launch_s, kernel_overhead_s=launch_s + CLUSTER.device.queued_s)

    def program():
        tensors = [torch.empty(numel) for numel in numels]
        with phase("step"):
            for tensor in tensors:
                tensor.mul_(2)

    spans = spans_of(program, device)
    queued = one_by_one([span.duration_s for span in spans], launch_s)
    assert len(spans) == len(numels) and spans[-1].end_s == pytest.approx(queued.step_s)


@pytest.mark.parametrize("wait", [lambda x: x.sum().item(), lambda x: dist.barrier()])
def test_the_host_that_has_waited_launches_only_then(wait):
    def program():
        x = torch.ones(1 << 24)
        wait(x)
        with phase("step"):
            x.view(-1)[:8].mul_(2)

    run = launch(program, ranks=1, cluster="dgx-h100")
    (late,) = [span for span in run.timeline.select(0) if span.phase == "step"]
    before_s = max(span.end_s for span in run.timeline.select(0) if span.phase != "step")
    assert late.start_s - before_s >= 0.99 * LAUNCH_S


def test_without_a_wait_a_small_kernel_follows_a_large_one_at_once():
    def program():
        x = torch.ones(1 << 28)
        with phase("step"):
            x.mul_(2)
            x[:8].mul_(2)

    large, small = spans_of(program)
    assert small.start_s == large.end_s


def test_an_optimizer_that_reads_its_count_of_steps_does_not_wait_for_the_gpu():
    def program():
        large, param = torch.ones(1 << 28), torch.nn.Parameter(torch.ones(3, 4))
        optimizer, param.grad = torch.optim.AdamW([param]), torch.ones(3, 4)
        optimizer.step()  # makes its state
        dist.barrier()
        with phase("step"):
            large.mul_(2)
            optimizer.step()

    large, *rest = spans_of(program)
    assert len(rest) > 5 and rest[-1].end_s - large.end_s == pytest.approx(sum(span.duration_s for span in rest))


@pytest.mark.parametrize("fidelity", ["values", "shapes"])
@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD", "RMSprop", "Adagrad", "NAdam"])
def test_torchs_optimizers_take_lists_on_a_gpu_and_loops_on_a_processor(name, fidelity):
    """As `_default_to_fused_or_foreach` decides by the type of the parameters' device."""

    def program(options):
        params = [torch.nn.Parameter(torch.ones(3, 4)) for _ in range(20)]
        optimizer = getattr(torch.optim, name)(params, lr=0.1, **options)
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()  # makes its state
        with phase("step"):
            optimizer.step()

    def names(cluster, **options):
        run = launch(program, options, ranks=1, cluster=cluster, fidelity=fidelity)
        return [span.name for span in run.timeline.select(0) if span.phase == "step"]

    assert names("dgx-h100") == names("dgx-h100", foreach=True)
    assert names("laptop") == names("laptop", foreach=False)
    assert len(names("dgx-h100")) < len(names("dgx-h100", foreach=False)) / 4


@pytest.mark.parametrize("fidelity", ["values", "shapes"])
def test_a_fused_optimizer_runs_as_one_operator(fidelity):
    def program():
        params = [torch.nn.Parameter(torch.ones(3, 4)) for _ in range(20)]
        optimizer = torch.optim.AdamW(params, fused=True)
        for param in params:
            param.grad = torch.ones_like(param)
        with phase("step"):
            optimizer.step()

    run = launch(program, ranks=1, cluster="dgx-h100", fidelity=fidelity)
    assert "aten._fused_adamw_" in {span.name for span in run.timeline.select(0) if span.phase == "step"}


def test_a_launch_is_little_work_beside_its_program(calls_of):
    """Functions of the library that the launching thread calls: 1,108; reading a hundred loggers once took 600 more."""

    def program():
        dist.all_reduce(torch.ones(4))

    launch(program, ranks=4)  # imports, and what is computed once
    assert calls_of(lambda: launch(program, ranks=4), LABLIB) < 1300
