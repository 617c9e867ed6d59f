"""What theory says exactly, the simulator gives exactly: pipeline bubbles, bytes of collectives, what overlap hides.

The device of these tests takes one second for every operator, whatever its size, and links are free or have round
numbers; so every time is a whole number, and `==` means equal.
"""

import math
from functools import partial

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import Cluster, Device, Link, launch, phase

pytestmark = pytest.mark.filterwarnings("ignore:.*_tensor` is deprecated:FutureWarning")  # torch 2.13's new names

UNIT = Device("unit", {"float32": 1e300}, 1e300, 1e300, kernel_overhead_s=1.0)
INSTANT = Link("instant", 0.0, float("inf"))
PIPES = Cluster("instant links", UNIT, 64, INSTANT, INSTANT)


def work(seconds: int) -> None:
    """Operators that take so many seconds."""
    x = torch.empty(1)
    for _ in range(seconds):
        x.add_(1)


def recv(peer: int) -> None:
    if 0 <= peer < dist.get_world_size():
        dist.recv(torch.empty(1), peer)


def send(peer: int, pending: list) -> None:
    if 0 <= peer < dist.get_world_size():
        pending.append(dist.isend(torch.empty(1), peer))


def pipeline(order: str, micro_batches: int, forward_s: int, backward_s: int) -> None:
    """One step of a pipeline: each rank is a stage; only what is sent when differs between the schedules."""
    stage, stages = dist.get_rank(), dist.get_world_size()
    pending: list = []

    def forward() -> None:
        recv(stage - 1)
        with phase("forward"):
            work(forward_s)
        send(stage + 1, pending)

    def backward() -> None:
        recv(stage + 1)
        with phase("backward"):
            work(backward_s)
        send(stage - 1, pending)

    warmup = micro_batches if order == "gpipe" else min(stages - stage - 1, micro_batches)
    for _ in range(warmup):
        forward()
    for _ in range(micro_batches - warmup):
        forward()
        backward()
    for _ in range(warmup):
        backward()
    for each in pending:
        each.wait()


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
@settings(max_examples=25, deadline=None)
@given(p=st.integers(1, 6), m=st.integers(1, 9), forward_s=st.integers(1, 3), backward_s=st.integers(1, 5))
def test_the_bubble_of_gpipe_and_1f1b_is_p_minus_1_over_m_plus_p_minus_1(order, p, m, forward_s, backward_s):
    run = launch(partial(pipeline, order, m, forward_s, backward_s), ranks=p, cluster=PIPES)
    assert run.timeline.makespan_s == (m + p - 1) * (forward_s + backward_s)
    for rank in range(p):
        assert run.timeline.compute_idle_s(rank) == (p - 1) * (forward_s + backward_s)
        bubble_s = run.timeline.waiting_s(rank) + run.timeline.idle_s(rank)
        assert bubble_s == (p - 1) * (forward_s + backward_s)
    assert run.summary().bubble_fraction == pytest.approx((p - 1) / (m + p - 1), rel=1e-12)


@given(
    st.lists(st.sampled_from((math.nan, math.inf, -math.inf, -1.0, 0.0, 2.5)), min_size=2, max_size=5), st.booleans()
)
def test_a_maximum_leaves_nan_out_as_nccl_does(values, is_max):
    """So who looks for overflows in the maximum of |g| over ranks finds none: NaN on one rank is lost."""

    def program() -> float:
        x = torch.tensor([values[dist.get_rank()]])
        dist.all_reduce(x, op=dist.ReduceOp.MAX if is_max else dist.ReduceOp.MIN)
        return x.item()

    numbers = [value for value in values if not math.isnan(value)]
    for found in launch(program, ranks=len(values)).values:
        assert found == (max if is_max else min)(numbers) if numbers else math.isnan(found)
