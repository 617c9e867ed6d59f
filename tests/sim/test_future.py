# pyright: reportOptionalMemberAccess=false, reportPrivateImportUsage=false
"""What is chained to the future of a communication runs after it, beside the compute stream."""

from collections.abc import Callable
from math import isclose
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lablib import Cluster, Run, launch
from lablib.record.timeline import CALLBACKS
from tests.sim.toy import DEVICE, WIRE, about, compute

TOY = Cluster("toy", DEVICE, devices_per_node=8, intra=WIRE, inter=WIRE)


def end_of(run: Run, stream: str) -> float:
    return run.timeline.select(0, stream)[-1].end_s


# ---- when it runs ----


@settings(max_examples=25)
@given(size=st.integers(1, 5000), chained=st.integers(1, 20_000), work=st.integers(1, 50_000))
def test_a_callback_follows_its_communication_and_the_compute_stream_goes_on_until_it_waits(size, chained, work):
    def program() -> None:
        future = dist.all_reduce(torch.empty(size), async_op=True).get_future()
        result = future.then(lambda _: compute(chained))
        compute(work)
        result.wait()
        compute(7)

    run = launch(program, ranks=2, cluster=TOY)
    (transfer,) = run.timeline.select(0, "comm")
    (callback,) = run.timeline.select(0, CALLBACKS)
    free, joined = run.timeline.select(0, "compute")
    assert callback.start_s == transfer.end_s and callback.duration_s == about(chained * 1e-9)
    assert free.start_s == 0.0 and free.duration_s == about(work * 1e-9)
    assert joined.start_s == about(max(free.end_s, callback.end_s))


def test_an_operation_that_touches_what_a_callback_wrote_or_returned_waits_for_it():
    def program(touches_result: bool) -> None:
        x = torch.empty(1000)
        result = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0].mul_(2.0).double())
        compute(10)
        (result.value() if touches_result else x).add_(1.0)

    for touches_result in (False, True):
        run = launch(program, touches_result, ranks=2, cluster=TOY)
        free, touching = run.timeline.select(0, "compute")
        assert free.start_s == 0.0 and touching.start_s == end_of(run, CALLBACKS) > end_of(run, "comm")


def test_wait_of_the_future_itself_joins_the_communication():
    def program() -> None:
        dist.all_reduce(torch.empty(1000), async_op=True).get_future().wait()
        compute(10)

    run = launch(program, ranks=2, cluster=TOY)
    assert run.timeline.select(0, "compute")[0].start_s == end_of(run, "comm")


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=5))
@settings(max_examples=15)
def test_a_chain_runs_in_order_and_callbacks_of_two_futures_follow_each_other(sizes):
    def program() -> None:
        futures = [dist.all_reduce(torch.empty(100), async_op=True).get_future() for _ in range(2)]
        for future in futures:
            for size in sizes:
                future = future.then(lambda _, size=size: compute(size))

    run = launch(program, ranks=2, cluster=TOY)
    first, second = run.timeline.select(0, "comm")
    spans = run.timeline.select(0, CALLBACKS)
    assert [span.duration_s for span in spans] == [about(size * 1e-9) for size in sizes * 2]
    assert spans[0].start_s == first.end_s
    assert spans[len(sizes)].start_s == about(max(second.end_s, spans[len(sizes) - 1].end_s))
    assert all(a.end_s <= b.start_s for a, b in zip(spans, spans[1:], strict=False))
    assert run.timeline.busy_s(0) == 0.0


def test_a_callback_may_communicate_and_chain_and_its_own_stream_waits():
    def program() -> float:
        x, y = torch.ones(1000), torch.ones(500)

        def again(_: Any) -> torch.Tensor:
            dist.all_reduce(y)
            compute(40)
            dist.all_reduce(y, async_op=True).get_future().then(lambda f: f.value()[0].add_(1.0)).wait()
            return y

        future = dist.all_reduce(x, async_op=True).get_future().then(again)
        compute(5)
        return future.value().sum().item()

    run = launch(program, ranks=2, cluster=TOY)
    assert run.values == [500 * 5.0] * 2  # 1 + 1, doubled, and one more
    first, second, third = run.timeline.select(0, "comm")
    between, addition = run.timeline.select(0, CALLBACKS)
    assert second.start_s == first.end_s and between.start_s == second.end_s
    assert third.start_s == about(between.end_s) and addition.start_s == third.end_s
    assert run.timeline.select(0, "compute")[0].start_s == 0.0


# ---- what it gives ----


def test_what_a_callback_raises_is_raised_by_the_wait_of_its_own_future():
    def program() -> str:
        def fail(_: Any) -> None:
            raise KeyError("of the callback")

        future = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(fail)
        compute(1)
        try:
            future.wait()
        except KeyError as error:
            return str(error)
        return ""

    run = launch(program, ranks=2, cluster=TOY)
    assert run.values == ["'of the callback'"] * 2
    assert run.timeline.select(0, "compute")[0].start_s == 0.0


def test_a_done_callback_gets_the_future_and_runs_on_the_same_stream():
    def program() -> list[float]:
        seen: list[float] = []
        future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
        future.add_done_callback(lambda f: seen.append(f.value()[0].clone().sum().item()))
        compute(1)
        return seen

    run = launch(program, ranks=2, cluster=TOY)
    assert run.values == [[6.0]] * 2
    assert {span.name for span in run.timeline.select(0, CALLBACKS)} >= {"aten.clone", "aten.sum"}
    assert run.timeline.select(0, "compute")[0].start_s == 0.0


def test_torchs_own_collection_of_futures_takes_them():
    def program() -> list[float]:
        futures = [dist.all_reduce(torch.full((2,), k), async_op=True).get_future() for k in (1.0, 2.0)]
        done = torch.futures.wait_all([future.then(lambda f: f.value()[0] + 1) for future in futures])
        return [x.sum().item() for x in done]

    assert launch(program, ranks=2, cluster=TOY).values == [[6.0, 10.0]] * 2


# ---- DDP ----

Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]


def averaged_after(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda f: f.value()[0].div_(dist.get_world_size()))


def plain_sum(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])


def backward(hook: Hook) -> list[torch.Tensor | None]:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.02)
    wrapped.register_comm_hook(None, hook)
    for _ in range(2):  # the first step has one bucket, the second several
        wrapped.zero_grad()
        wrapped(torch.ones(8, 64) * (1 + dist.get_rank())).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def test_a_hook_that_divides_afterwards_holds_up_no_backward():
    with_callback, without = (launch(backward, hook, ranks=2, cluster=TOY) for hook in (averaged_after, plain_sum))
    for divided, summed in zip(with_callback.values[0], without.values[0], strict=True):
        assert torch.allclose(2 * divided, summed)
    divisions = with_callback.timeline.select(0, CALLBACKS)
    assert len(divisions) > 3 and {span.name for span in divisions} == {"aten.div_"}
    transfers = with_callback.timeline.select(0, "comm")
    during = [
        span
        for span in with_callback.timeline.select(0, "compute", "backward")
        if any(t.start_s < span.start_s and span.end_s < t.end_s for t in transfers)
    ]
    assert during  # backward went on under communication


def test_the_seconds_of_a_rank_add_up_with_callbacks_too():
    run = launch(backward, averaged_after, ranks=2, cluster=TOY)
    parts = run.summary().table().iloc[0]
    total_s = sum(parts[name] for name in ("busy_s", "exposed_s", "waiting_s", "idle_s"))
    assert isclose(total_s, run.timeline.makespan_s, rel_tol=1e-9)
    callbacks_s, compute_s = run.timeline.busy_s(0, CALLBACKS), run.timeline.busy_s(0)
    assert callbacks_s > 0 and max(callbacks_s, compute_s) <= parts["busy_s"] <= callbacks_s + compute_s
