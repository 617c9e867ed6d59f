"""Checks of lab 09: data parallel. All run on the simulator, in float64, on ranks and data that are drawn anew."""

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import record_function

from lablib import Cluster, Device, Link, Run, find_cluster, launch
from lablib.course import Expect, exercise
from lablib.course.draw import Draw
from lablib.course.rules import equals_one_device, not_from_lablib, peak_bytes_within, sent_bytes_within
from lablib.parallel import DataParallel
from lablib.parallel import average_gradients as naive_average

SAMPLES = 4  # of one rank, in one step


def _mlp(draw: Draw, num_layers: int, width: int) -> nn.Sequential:
    """Linear layers whose weights are drawn; none has a gradient yet."""
    layers = [nn.Linear(width, width, dtype=torch.float64, device="cpu") for _ in range(num_layers)]
    module = nn.Sequential(*layers)
    for param in module.parameters():
        param.data = 0.2 * draw.tensor(param.shape, torch.float64)
    return module


def _loss(module: nn.Module, batch: Tensor) -> Tensor:
    return torch.tanh(module(batch)).square().mean()


def _flat(module: nn.Module) -> Tensor:
    """All gradients as one vector; zeros where there is none."""
    return torch.cat(
        [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in module.parameters()]
    )


def _flat_params(module: nn.Module) -> Tensor:
    return torch.cat([param.detach().flatten() for param in module.parameters()])


def _one_device(module: nn.Module, batch: Tensor) -> Tensor:
    module = copy.deepcopy(module)
    _loss(module, batch).backward()
    return _flat(module)


def _all_reduce_bytes(module: nn.Module, ranks: int) -> float:
    """What each rank sends in an all-reduce of the gradient, if the ranks themselves add."""
    return 2 * (ranks - 1) / ranks * _flat_params(module).nbytes


@exercise(
    "Average the gradients",
    hints=[
        "Which tensor must be equal on all ranks before the optimizer steps: the parameter, or its gradient?",
        "`dist.all_reduce(x)` leaves the sum. What makes it a mean, for any number of ranks?",
        "Loop over `module.parameters()`: divide each `param.grad` once by `dist.get_world_size()`, and sum it.",
    ],
)
def average_gradients(expect: Expect, average_gradients: Callable[[nn.Module], None]) -> None:
    not_from_lablib(average_gradients)
    for ranks in [1, *expect.draw.integers(3, 2, 7)]:
        expect.measured.clear()  # what holds is shown for the last number of ranks
        module = _mlp(expect.draw, expect.draw.integer(1, 3), expect.draw.integer(5, 24))
        width = module[0].in_features
        steps = [expect.draw.tensor((SAMPLES * ranks, width), torch.float64) for _ in range(2)]

        def program(module: nn.Module, steps: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            gradients = []
            for batch in steps:
                module.zero_grad()
                _loss(module, batch.chunk(dist.get_world_size())[dist.get_rank()]).backward()
                average_gradients(module)
                gradients.append(_flat(module))
            return _flat_params(module), gradients

        run = expect.launch(program, module, steps, ranks=ranks)
        on = f"{ranks} rank{'s' if ranks > 1 else ''}"
        params = [_flat_params(module)] * ranks
        expect.equal(f"parameters are left as they are ({on})", [value[0] for value in run.values], params)
        for number, batch in enumerate(steps):
            saw = [value[1][number] for value in run.values]
            equals_one_device(expect, saw, _one_device(module, batch), on=f"{on}, step {number + 1}")
        needed = len(steps) * _all_reduce_bytes(module, ranks)
        sent_bytes_within(expect, run, at_most=needed, at_least=needed, mean=True)


def _reference_plan(sizes_bytes: Sequence[int], bucket_bytes: int) -> list[list[int]]:
    plan: list[list[int]] = []
    free = -1
    for index in range(len(sizes_bytes) - 1, -1, -1):
        if not plan or sizes_bytes[index] > free:
            plan.append([])
            free = bucket_bytes
        plan[-1].append(index)
        free -= sizes_bytes[index]
    return plan


def _sizes(draw: Draw) -> tuple[list[int], int]:
    """Gradients of very different sizes, and the size of a bucket; read from the end, as buckets are filled.

    After a gradient that is larger than a bucket come two that fill one exactly, and one that does so alone.
    """
    bucket_bytes = 4 * draw.integer(60, 700)
    small = [4 * draw.integer(1, bucket_bytes // 24) for _ in range(draw.integer(12, 30))]
    first = 4 * draw.integer(1, bucket_bytes // 4 - 1)
    large = bucket_bytes + 4 * draw.integer(1, 50)
    place = draw.integer(3, len(small) - 3)
    order = [*small[:place], large, first, bucket_bytes - first, bucket_bytes, *small[place:]]
    return order[::-1], bucket_bytes


@exercise(
    "Plan the buckets",
    hints=[
        "Walk through the parameters from the last to the first, with one bucket open at a time.",
        "Before a gradient goes in: would the bucket then exceed `bucket_bytes`? A bucket may be exactly full.",
        "`for index in reversed(range(len(sizes_bytes)))`; keep `filled_bytes` of the open bucket, `buckets[-1]`; and "
        "set it back when you open another.",
    ],
)
def plan_buckets(expect: Expect, plan_buckets: Callable[[list[int], int], list[list[int]]]) -> None:
    not_from_lablib(plan_buckets)
    for _ in range(4):
        expect.measured.clear()  # what holds is shown for the last sizes
        sizes, most = _sizes(expect.draw)
        _expect_plan(expect, plan_buckets(list(sizes), most), sizes, most)
    size = expect.draw.integer(1, 100)
    for name, sizes, most in [
        ("one parameter makes one bucket", [size], 100),
        ("one parameter larger than a bucket makes one bucket", [200 + size], 100),
        ("no parameters make no bucket", [], 100),
    ]:
        saw = [list(bucket) for bucket in plan_buckets(list(sizes), most)]
        expect.equal(name, saw, _reference_plan(sizes, most))


def _expect_plan(expect: Expect, answer: Any, sizes: list[int], most: int) -> None:
    """The rules of a plan, one by one; together they leave one plan."""
    expect.that("a list of buckets is returned", answer is not None, saw=answer, expected="a list of lists")
    plan = [[int(index) for index in bucket] for bucket in answer]
    what = f"{len(sizes)} gradients, buckets of {most} bytes"
    held = sorted(index for bucket in plan for index in bucket)
    expect.equal(f"every parameter is in exactly one bucket ({what})", held, list(range(len(sizes))))
    filled = [sum(sizes[i] for i in bucket) for bucket in plan]
    too_large = [f"{filled[n]} bytes in bucket {n}" for n, b in enumerate(plan) if len(b) > 1 and filled[n] > most]
    expect.that(
        f"no bucket of several parameters exceeds bucket_bytes ({what})",
        not too_large,
        saw=", ".join(too_large) or "none does",
        expected=f"at most {most} bytes",
    )
    order = [index for bucket in plan for index in bucket]
    expect.equal(
        f"the last parameter comes first, in buckets and between them ({what})", order, sorted(order, reverse=True)
    )
    empty = [f"bucket {n} is" for n, bucket in enumerate(plan) if not bucket]
    expect.that(f"no bucket is empty ({what})", not empty, saw=", ".join(empty) or "none is", expected="none")
    together = [filled[n] + sizes[after[0]] for n, (_, after) in enumerate(pairwise(plan))]
    early = [n for n, size in enumerate(together) if size < most]
    closed = [f"bucket {n} of {len(plan)} is closed; with the next gradient it would have" for n in range(len(plan))]
    expect.that(
        f"a bucket is closed only when the next gradient does not fit ({what})",
        not early,
        saw=f"{closed[early[0]]} {together[early[0]]} bytes" if early else "each is as full as can be",
        expected="a gradient that fits goes in",
    )
    exact = [n for n, size in enumerate(together) if size == most]
    expect.that(
        f"a bucket may be exactly full ({what})",
        not exact,
        saw=f"{closed[exact[0]]} exactly {most} bytes" if exact else "where sizes allow it, one is",
        expected=f"at most {most} bytes: {most} are allowed",
    )


def _slow_machine() -> Cluster:
    """A matrix product of the check takes about as long as the all-reduce of its gradient."""
    device = Device("one gigaflop", {"float32": 1e9, "float64": 1e9}, 1e12, 1e15)
    return find_cluster("dgx-a100").replace(device=device, intra=Link("wire", 0.0, 0.25e9))


def _start_in_backward(run: Run) -> float:
    """When rank 0's first communication starts, as a share of its first backward; above 1 after it."""
    step = run.timeline.without("setup")
    compute = step.select(0, "compute")
    start_s = min(span.start_s for span in compute if span.phase == "backward")
    # The program runs several steps: the first backward ends before the second forward.
    next_s = min((span.start_s for span in compute if span.phase == "forward" and span.start_s > start_s), default=1e9)
    end_s = max(span.end_s for span in compute if span.phase == "backward" and span.start_s < next_s)
    return (min(span.start_s for span in step.select(0, "comm")) - start_s) / (end_s - start_s)


@exercise(
    "Overlap",
    hints=[
        "`param.register_post_accumulate_grad_hook(f)` calls `f(param)` when `param.grad` is ready. What must not "
        "happen inside `f`, if backward is to go on?",
        "Keep what `dist.all_reduce(..., async_op=True)` returns in a list that belongs to this call of `overlap`, and "
        "wait for all of them in the function you return. A second step begins with an empty list.",
        "`start(param)`: divide `param.grad`, start its all-reduce, append the work. `finish()`: wait for each work, "
        "then `works.clear()`. Register `start` on every parameter and return `finish`.",
    ],
)
def overlap(expect: Expect, overlap: Callable[[nn.Module], Callable[[], None]]) -> None:
    not_from_lablib(overlap)
    width, samples, num_steps = 64, 24, 2
    ranks, num_layers = expect.draw.integer(3, 5), expect.draw.integer(4, 6)
    module = _mlp(expect.draw, num_layers, width)
    steps = [expect.draw.tensor((samples * ranks, width), torch.float64) for _ in range(num_steps)]

    def program(module: nn.Module, steps: list[Tensor], answer: Callable[[nn.Module], Any]) -> tuple:
        gradients = []
        with record_function("setup"):
            finish = answer(module)
        for batch in steps:
            with record_function("setup"):
                module.zero_grad()
                part = batch.chunk(dist.get_world_size())[dist.get_rank()]
            _loss(module, part).backward()
            finish()
            with record_function("setup"):
                gradients.append(_flat(module))
        return _flat_params(module), gradients

    run = expect.launch(program, module, steps, overlap, ranks=ranks, cluster=_slow_machine())
    saw = [value[0] for value in run.values]
    rule = "the hook leaves the parameter itself as it is, and averages its gradient"
    expect.equal(rule, saw, [_flat_params(module)] * ranks)
    for number, batch in enumerate(steps):
        on = f"{ranks} ranks, step {number + 1}"
        equals_one_device(expect, [value[1][number] for value in run.values], _one_device(module, batch), on=on)
    needed = num_steps * _all_reduce_bytes(module, ranks)
    sent_bytes_within(expect, run, at_most=needed, at_least=needed, mean=True)

    share = _start_in_backward(run)
    expect.that(
        "the first all-reduce starts in the first half of backward",
        share < 0.5,
        saw=f"after {share:.0%} of backward" if share < 1 else "after backward",
        expected="communication while backward computes",
    )

    def naive(module: nn.Module) -> Callable[[], None]:
        return lambda: naive_average(module)

    slow = launch(program, module, steps, naive, ranks=ranks, cluster=_slow_machine()).timeline.without("setup")
    first_layer_s = 2 * (ranks - 1) / ranks * (width * width + width) * 8 / 0.25e9  # exposed: ready last
    compute_s = slow.makespan_s - sum(span.duration_s for span in slow.select(0, "comm"))
    expect.budget(
        f"simulated seconds of {num_steps} steps ({1e3 * slow.makespan_s:.3g} ms with waiting)",
        run.timeline.without("setup").makespan_s,
        1.05 * (compute_s + 1.2 * num_steps * first_layer_s),
        "s",
    )


def _end_s(ready_s: Sequence[float], bucket_s: Sequence[float]) -> float:
    """The latest of: bucket i is ready, and it and all after it are sent without a pause."""
    return max(ready + sum(bucket_s[i:]) for i, ready in enumerate(ready_s))


@exercise(
    "Predict the last all-reduce",
    hints=[
        "An all-reduce starts when two things are true. Which?",
        "Its bucket is ready, and the stream is free: the all-reduce before it in the list has ended.",
        "Keep `end_s`, the end of the last all-reduce so far. The next starts at the later of `end_s` and its `ready`.",
    ],
)
def last_all_reduce_end(expect: Expect, last_all_reduce_end: Callable[[list[float], list[float]], float]) -> None:
    not_from_lablib(last_all_reduce_end)
    a, b, c, d = (expect.draw.number(0.1, 3.0) for _ in range(4))
    cases = {
        "one bucket alone ends when it was ready and has been sent": ([a], [b]),
        "a stream that is free waits until a bucket is ready": ([a, a + b + c], [b, d]),
        "a stream that is busy lets a bucket wait, until the one before it has ended": ([a, a + 0.4 * b], [b, 0.3 * b]),
        "a bucket that is ready early waits for its turn: the order is that of the list": ([a + b + c, a], [b, d]),
        "a late small bucket ends after an early large one": ([a, a + b, a + b + c], [b + c + d, 0.1 * b, 0.1 * c]),
        "busy, then free, then busy again": ([a, a + 0.5 * b, a + b + c + 9, a + b + c + 9 + 0.5 * d], [b, c, d, a]),
    }
    for _ in range(4):
        num = expect.draw.integer(5, 14)
        ready_s = [expect.draw.number(0.0, 8.0) for _ in range(num)]
        cases[f"{num} buckets, ready in any order"] = (ready_s, [expect.draw.number(0.01, 2.0) for _ in range(num)])
    for rule, (ready_s, bucket_s) in cases.items():
        shown = "".join(
            f", {name} {[round(x, 3) for x in values]}"
            for name, values in (("ready_s", ready_s), ("bucket_s", bucket_s))
            if len(values) < 5
        )
        expect.close(rule + shown, last_all_reduce_end(list(ready_s), list(bucket_s)), _end_s(ready_s, bucket_s))


def _accumulate(replica: Any, loss_of: Callable[[nn.Module, Tensor], Tensor], micro_batches: list[Tensor]) -> None:
    """A reference: what it sends and holds is the budget."""
    for number, micro_batch in enumerate(micro_batches, 1):
        with nullcontext() if number == len(micro_batches) else replica.no_sync():
            (loss_of(replica, micro_batch) / len(micro_batches)).backward()


@exercise(
    "Accumulate",
    hints=[
        "For which micro-batches may nothing be sent, and for which one must it be? How many may be in memory at once?",
        "All but the last run in `with replica.no_sync():`, forward and backward. And backward *adds*: what must each "
        "loss be divided by, for the sum to be a mean?",
        "Divide each loss by `len(micro_batches)`. Loop over `micro_batches[:-1]` inside of `no_sync`, and do the same "
        "once more outside, for the last.",
    ],
)
def accumulate(expect: Expect, accumulate: Callable[[Any, Callable, list], None]) -> None:
    not_from_lablib(accumulate)
    draw = expect.draw
    cases = [(DataParallel, 1, 2), (DataParallel, draw.integer(2, 3), draw.integer(2, 4)), (DDP, draw.integer(4, 6), 3)]
    for wrap, num, ranks in cases:
        expect.measured.clear()  # what holds is shown for the last of them
        _expect_accumulated(expect, accumulate, wrap, num, ranks)


def _expect_accumulated(expect: Expect, answer: Callable, wrap: Callable, num: int, ranks: int) -> None:
    """One replica, two steps of `num` micro-batches."""
    width, samples = 16, 64  # so that activations weigh more than parameters
    module = _mlp(expect.draw, 3, width)
    steps = [expect.draw.tensor((ranks * num * samples, width), torch.float64) for _ in range(2)]

    def program(module: nn.Module, steps: list[Tensor], answer: Callable) -> list[Tensor]:
        gradients, replica = [], wrap(module)
        for batch in steps:
            module.zero_grad()
            part = batch.chunk(dist.get_world_size())[dist.get_rank()]
            answer(replica, _loss, list(part.chunk(num)))
            gradients.append(_flat(module))
        return gradients

    run = expect.launch(program, module, steps, answer, ranks=ranks)
    best = launch(program, module, steps, _accumulate, ranks=ranks)
    whose = "torch's" if wrap is DDP else "lablib's"
    on = f"{num} micro-batch{'es' if num > 1 else ''} on {ranks} ranks, {whose} replica"
    for number, batch in enumerate(steps):
        saw = [value[number] for value in run.values]
        equals_one_device(expect, saw, _one_device(module, batch), on=f"{on}, step {number + 1}")
    sent = [sum(one.traffic.sent_bytes(rank) for rank in range(ranks)) / ranks for one in (run, best)]
    expect.budget(f"bytes a rank sends in two steps ({on})", sent[0], sent[1], "B", at_least=0.98 * sent[1])
    peak = max(best.memory.peak_bytes(rank) for rank in range(ranks))
    peak_bytes_within(expect, run, at_most=1.1 * peak)
