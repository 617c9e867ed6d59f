"""Checks of lab 09: data parallel. All run on the simulator, in float64, and not with two ranks alone."""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import record_function

from lablib import Cluster, Device, Link, Run, find_cluster, launch
from lablib.course import Expect, exercise
from lablib.parallel import DataParallel
from lablib.parallel import average_gradients as naive_average

SAMPLES = 4  # of one rank


def _mlp(num_layers: int = 2, width: int = 24) -> nn.Sequential:
    """Linear layers with the same weights whenever it is called."""
    generator = torch.Generator().manual_seed(0)
    module = nn.Sequential(*(nn.Linear(width, width, dtype=torch.float64) for _ in range(num_layers)))
    for param in module.parameters():
        param.data = 0.2 * torch.randn(param.shape, generator=generator, dtype=torch.float64)
    return module


def _data(num_samples: int, width: int = 24) -> Tensor:
    return torch.randn(num_samples, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _loss(module: nn.Module, batch: Tensor) -> Tensor:
    return torch.tanh(module(batch)).square().mean()


def _flat(module: nn.Module, of_gradient: bool = True) -> Tensor:
    """All gradients, or all parameters, as one vector."""
    params = list(module.parameters())
    tensors = [torch.zeros_like(p) if p.grad is None else p.grad for p in params] if of_gradient else params
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def _one_device(module: nn.Module, batch: Tensor) -> Tensor:
    module = copy.deepcopy(module)
    _loss(module, batch).backward()
    return _flat(module)


def _expect_gradients(expect: Expect, saw: list[Tensor], reference: Tensor, on: str) -> None:
    """Every rank holds the gradient of the whole batch; the commonest mistakes have rules of their own."""
    expect.close(f"every rank ends with the same gradients ({on})", saw, [saw[0]] * len(saw))
    size = float(saw[0].norm() / reference.norm())
    direction = float(torch.dot(saw[0], reference) / (saw[0].norm() * reference.norm()))
    if direction > 0.999999:
        expect.close(f"the gradient has the size of one device's, so it is a mean ({on})", size, 1.0)
    expect.close(f"the gradient is that of the whole batch on one device ({on})", saw[0], reference)


def _sent_a_rank(run: Run) -> float:
    """Mean over ranks: how a tree and a ring share the work differs, their sum does not."""
    return sum(sum(t.sent_bytes) for t in run.traffic.transfers if t.name != "broadcast") / run.ranks


@exercise(
    "Average the gradients",
    hints=[
        "Which tensor must be equal on all ranks before the optimizer steps: the parameter, or its gradient?",
        "`dist.all_reduce(x)` leaves the sum. How often must what be divided, so that it becomes a mean for any "
        "number of ranks?",
        "For each parameter: `param.grad.div_(dist.get_world_size())`, then `dist.all_reduce(param.grad)`.",
    ],
)
def average_gradients(expect: Expect, average_gradients: Callable[[nn.Module], None]) -> None:
    def program() -> tuple[Tensor, Tensor]:
        module = _mlp()
        _loss(module, _data(SAMPLES * dist.get_world_size()).chunk(dist.get_world_size())[dist.get_rank()]).backward()
        average_gradients(module)
        return _flat(module, of_gradient=False), _flat(module)

    for ranks in (2, 3):
        run = launch(program, ranks=ranks)
        on = f"{ranks} ranks"
        params = _flat(_mlp(), of_gradient=False)
        expect.equal(f"parameters are left as they are ({on})", [value[0] for value in run.values], [params] * ranks)
        reference = _one_device(_mlp(), _data(SAMPLES * ranks))
        _expect_gradients(expect, [value[1] for value in run.values], reference, on)
        budget = 2 * (ranks - 1) / ranks * reference.nbytes
        expect.budget(f"bytes a rank sends: 2(n-1)/n of the gradient's ({on})", _sent_a_rank(run), budget, "B")


@exercise(
    "Plan the buckets",
    hints=[
        "Walk through the parameters from the last to the first, with one bucket open at a time.",
        "Before a parameter goes in: would the bucket then exceed `bucket_bytes`? If so, open a new one. The bucket "
        "that is open at the end counts, too.",
        "`for index in reversed(range(len(sizes_bytes)))`; keep `filled_bytes`; append to `buckets[-1]`.",
    ],
)
def plan_buckets(expect: Expect, plan_buckets: Callable[[list[int], int], list[list[int]]]) -> None:
    sizes, most = [40, 8, 60, 8, 20, 20, 250, 8, 30], 100
    plan = [list(bucket) for bucket in plan_buckets(list(sizes), most)]
    held = sorted(index for bucket in plan for index in bucket)
    expect.equal("every parameter is in exactly one bucket", held, list(range(len(sizes))))
    too_large = [
        f"{sum(sizes[i] for i in b)} bytes in bucket {n}"
        for n, b in enumerate(plan)
        if len(b) > 1 and sum(sizes[i] for i in b) > most
    ]
    expect.that(
        f"no bucket of several parameters exceeds bucket_bytes = {most}",
        not too_large,
        saw=", ".join(too_large) or "none does",
        expected=f"at most {most} bytes",
    )
    order = [index for bucket in plan for index in bucket]
    expect.equal("the last parameter comes first, in buckets and between them", order, sorted(order, reverse=True))
    expect.that("no bucket is empty", all(plan), saw=f"sizes {[len(b) for b in plan]}", expected="1 or more in each")
    expect.budget("all-reduces a step, one a bucket", len(plan), 5, "calls")
    alone = [list(bucket) for bucket in plan_buckets([5], 100)]
    expect.equal("one parameter alone makes one bucket", alone, [[0]])


def _slow_machine() -> Cluster:
    """A matrix product of the check takes about as long as the all-reduce of its gradient."""
    device = Device("one gigaflop", {"float32": 1e9, "float64": 1e9}, 1e12, 1e15)
    return find_cluster("dgx-a100").but(device=device, intra=Link("wire", 0.0, 0.25e9))


@exercise(
    "Overlap",
    hints=[
        "`param.register_post_accumulate_grad_hook(f)` calls `f(param)` when `param.grad` is ready. What must not "
        "happen inside `f`, if backward is to go on?",
        "Keep what `dist.all_reduce(..., async_op=True)` returns in a list, and wait for all of them in the function "
        "you return.",
        "In the hook: divide `param.grad` by the world size, then `works.append(dist.all_reduce(param.grad, "
        "async_op=True))`. In `finish`: `for work in works: work.wait()`.",
    ],
)
def overlap(expect: Expect, overlap: Callable[[nn.Module], Callable[[], None]]) -> None:
    ranks, num_layers, width, samples = 4, 5, 64, 24

    def program(answer: Callable[[nn.Module], Any]) -> tuple[Tensor, Tensor]:
        with record_function("setup"):
            module = _mlp(num_layers, width)
            part = _data(samples * ranks, width).chunk(ranks)[dist.get_rank()]
            finish = answer(module)
        _loss(module, part).backward()
        finish()
        with record_function("setup"):
            return _flat(module, of_gradient=False), _flat(module)

    run = launch(program, overlap, ranks=ranks, cluster=_slow_machine())
    params = _flat(_mlp(num_layers, width), of_gradient=False)
    saw = [value[0] for value in run.values]
    expect.equal("the hook leaves the parameter itself as it is, and averages its gradient", saw, [params] * ranks)
    reference = _one_device(_mlp(num_layers, width), _data(samples * ranks, width))
    _expect_gradients(expect, [value[1] for value in run.values], reference, f"{ranks} ranks")
    budget = 2 * (ranks - 1) / ranks * reference.nbytes
    expect.budget("bytes a rank sends: 2(n-1)/n of the gradient's", _sent_a_rank(run), budget, "B")

    step = run.timeline.without("setup")
    backward_end_s = max(span.end_s for span in step.select(0, "compute", "backward"))
    first_s = min(span.start_s for span in step.select(0, "comm"))
    expect.that(
        "the first all-reduce starts before backward ends",
        first_s < backward_end_s,
        saw=f"{1e3 * abs(first_s - backward_end_s):.3g} ms {'before' if first_s < backward_end_s else 'after'} its end",
        expected="communication while backward computes",
    )
    slow = launch(program, lambda module: lambda: naive_average(module), ranks=ranks, cluster=_slow_machine())
    naive_s = slow.timeline.without("setup").makespan_s
    exposed_s = 2 * (ranks - 1) / ranks * (width * width + width) * 8 / 0.25e9  # of the first layer, ready last
    compute_s = naive_s - sum(s.duration_s for s in slow.timeline.without("setup").select(0, "comm"))
    expect.budget(
        f"simulated seconds of a step ({1e3 * naive_s:.3g} ms with waiting)",
        step.makespan_s,
        1.05 * (compute_s + 1.2 * exposed_s),
        "s",
    )


@exercise(
    "Predict the last all-reduce",
    hints=[
        "An all-reduce starts when two things are true. Which?",
        "Its bucket is ready, and the stream is free: the all-reduce before it has ended.",
        "`end_s = max(end_s, ready) + seconds`, bucket after bucket.",
    ],
)
def last_all_reduce_end(expect: Expect, last_all_reduce_end: Callable[[list[float], list[float]], float]) -> None:
    cases = {
        "one bucket alone ends when it was ready and has been sent": ([3.0], [2.0], 5.0),
        "a stream that is free waits until a bucket is ready": ([1.0, 5.0], [1.0, 1.0], 6.0),
        "a stream that is busy lets a bucket wait, until the one before it has ended": ([1.0, 2.0], [4.0, 1.0], 6.0),
        "a late small bucket ends after an early large one": ([1.0, 4.0, 5.0], [6.0, 1.0, 0.5], 8.5),
        "busy, then free, then busy again": ([1.0, 2.0, 9.0, 9.5], [3.0, 1.0, 2.0, 1.0], 12.0),
    }
    for rule, (ready_s, bucket_s, expected) in cases.items():
        saw = last_all_reduce_end(list(ready_s), list(bucket_s))
        expect.close(f"{rule} (ready {ready_s}, seconds {bucket_s})", saw, expected)


@exercise(
    "Accumulate",
    hints=[
        "For which micro-batches may nothing be sent, and for which one must it be?",
        "All but the last run in `with replica.no_sync():`. And backward *adds*: what must each loss be divided by, "
        "for the sum to be a mean?",
        "`(loss_of(replica, micro_batch) / len(micro_batches)).backward()`, the last one outside of `no_sync`.",
    ],
)
def accumulate(expect: Expect, accumulate: Callable[[Any, Callable, list], None]) -> None:
    num, ranks = 3, 4

    def program() -> Tensor:
        replica = DataParallel(_mlp())
        part = _data(SAMPLES * num * ranks).chunk(ranks)[dist.get_rank()]
        accumulate(replica, _loss, list(part.chunk(num)))
        return _flat(replica)

    run = launch(program, ranks=ranks)
    reference = _one_device(_mlp(), _data(SAMPLES * num * ranks))
    _expect_gradients(expect, run.values, reference, f"{num} micro-batches on {ranks} ranks")
    budget = 2 * (ranks - 1) / ranks * reference.nbytes
    expect.budget(f"bytes a rank sends for {num} micro-batches", _sent_a_rank(run), budget, "B")
