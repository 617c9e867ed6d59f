"""Checks of lab 09: data parallel. All run on the simulator, in float64, on ranks and data that are drawn anew."""

import copy
import operator
from collections.abc import Callable, Iterable, Sequence
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
from lablib.course.expect import RuleBroken
from lablib.course.formatting import short_repr
from lablib.course.observe import Observed
from lablib.course.rules import (
    changes_nothing,
    equals_one_device,
    not_from_lablib,
    observe,
    sent_bytes_within,
)
from lablib.parallel import DataParallel
from lablib.parallel import average_gradients as naive_average

SAMPLES = 4  # of one rank, in one step


def _mlp(draw: Draw, num_layers: int, width: int, inputs: int | None = None) -> nn.Sequential:
    """Linear layers whose weights are drawn; none has a gradient yet. The first takes `inputs` numbers, or `width`."""
    takes = [inputs or width] + [width] * (num_layers - 1)
    module = nn.Sequential(*(nn.Linear(size, width, dtype=torch.float64, device="cpu") for size in takes))
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


def _sends_an_all_reduce(expect: Expect, run: Run, module: nn.Module, steps: int) -> None:
    """The ranks themselves add, once in each step. To cut a gradient into equal shards, zeros may be added to it."""
    ranks = run.ranks
    needed = steps * 2 * (ranks - 1) / ranks * _flat_params(module).nbytes
    padded = sum(param.nbytes + -param.numel() % ranks * param.itemsize for param in module.parameters())
    at_most = steps * 2 * (ranks - 1) / ranks * padded
    sent_bytes_within(expect, run, at_most=at_most, at_least=needed, mean=True)


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
        width = expect.draw.integer(5, 24)
        module = _mlp(expect.draw, expect.draw.integer(1, 3), width)
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
        _sends_an_all_reduce(expect, run, module, len(steps))


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
        _expect_plan(expect, observe(plan_buckets, list(sizes), most), sizes, most)
    size = expect.draw.integer(1, 100)
    for name, sizes, most in [
        ("one parameter makes one bucket", [size], 100),
        ("one parameter larger than a bucket makes one bucket", [200 + size], 100),
        ("no parameters make no bucket", [], 100),
    ]:
        expect.equal(name, _plan(expect, observe(plan_buckets, list(sizes), most)), _reference_plan(sizes, most))


def _plan(expect: Expect, call: Observed) -> list[list[int]]:
    """The plan that was returned, of lists, tuples or whatever else holds buckets of indices."""
    wanted = "a list of buckets, each a list of indices: [[2, 1], [0]]"
    if not isinstance(call.value, Iterable) or isinstance(call.value, str):
        raise RuleBroken("a list of buckets is returned", short_repr(call.value), wanted)
    changes_nothing(expect, [call])
    plan: list[list[int]] = []
    for number, bucket in enumerate(call.value):
        try:
            plan.append([operator.index(index) for index in bucket])
        except TypeError:  # no list, or not of whole numbers
            said = f"item {number} is {short_repr(bucket)}"
            raise RuleBroken("a bucket is a list of parameter indices", said, wanted) from None
    return plan


def _expect_plan(expect: Expect, call: Observed, sizes: list[int], most: int) -> None:
    """The rules of a plan, one by one; together they leave one plan."""
    plan = _plan(expect, call)
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
    draw = expect.draw
    for ranks in [draw.choice([3, 5]), 1, draw.choice([2, 4, 6])]:
        expect.measured.clear()  # what holds is shown for the last number of ranks
        _expect_overlap(expect, overlap, ranks)


def _expect_overlap(expect: Expect, overlap: Callable[[nn.Module], Callable[[], None]], ranks: int) -> None:
    """Three or more steps with new data each."""
    width, samples, num_steps = 64, 24, expect.draw.integer(3, 4)
    module = _mlp(expect.draw, expect.draw.integer(4, 7), width)
    steps = [expect.draw.tensor((samples * ranks, width), torch.float64) for _ in range(num_steps)]

    def program(module: nn.Module, steps: list[Tensor], answer: Callable[[nn.Module], Any]) -> tuple:
        gradients = []
        with record_function("setup"):
            finish = answer(module)
            saw = "a function" if callable(finish) else finish
            rule = "overlap returns a function, to be called after backward"
            expect.that(rule, callable(finish), saw=saw or "nothing: is there a return?", expected="return finish")
        for batch in steps:
            with record_function("setup"):
                module.zero_grad()
                part = batch.chunk(dist.get_world_size())[dist.get_rank()]
            _loss(module, part).backward()
            finish()
            with record_function("setup"):
                gradients.append(_flat(module))
        return _flat_params(module), gradients

    on = {"ranks": ranks, "cluster": _slow_machine()}
    run = expect.launch(program, module, steps, overlap, **on)
    best = launch(program, module, steps, _overlapped, **on)
    saw = [value[0] for value in run.values]
    rule = "the hook leaves the parameter itself as it is, and averages its gradient"
    expect.equal(rule, saw, [_flat_params(module)] * ranks)
    for number, batch in enumerate(steps):
        if number == 1:
            # Works that are kept keep their gradients: two steps' more than they need, or more, when the last one ends.
            peaks = [max(one.memory.peak_bytes(rank) for rank in range(ranks)) for one in (run, best)]
            rule = f"finish() lets go of the works of its step: peak memory of a rank in {num_steps} steps"
            expect.budget(rule, peaks[0], peaks[1] + 1.5 * _flat_params(module).nbytes, "B")
        where = f"{ranks} rank{'s' if ranks > 1 else ''}, step {number + 1}"
        equals_one_device(expect, [value[1][number] for value in run.values], _one_device(module, batch), on=where)
    _sends_an_all_reduce(expect, run, module, num_steps)
    if ranks == 1:
        return  # there is nothing to hide
    share = _start_in_backward(run)
    expect.that(
        "the first all-reduce starts in the first half of backward",
        share < 0.5,
        saw=f"after {share:.0%} of backward" if share < 1 else "after backward",
        expected="communication while backward computes",
    )
    naive = launch(program, module, steps, _naive, **on)
    took_s, best_s, naive_s = (one.timeline.without("setup").makespan_s for one in (run, best, naive))
    told = f"{1e3 * naive_s:.3g} ms with waiting, {1e3 * best_s:.3g} ms at best"
    expect.budget(f"simulated seconds of {num_steps} steps ({told})", took_s, 1.02 * best_s, "s")


def _overlapped(module: nn.Module) -> Callable[[], None]:
    """A reference: what it takes and holds is the budget."""
    works: list[dist.Work] = []

    def start(param: Tensor) -> None:
        assert param.grad is not None
        param.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(param.grad, async_op=True))  # pyright: ignore[reportArgumentType]

    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)

    def finish() -> None:
        while works:
            works.pop(0).wait()

    return finish


def _naive(module: nn.Module) -> Callable[[], None]:
    return lambda: naive_average(module)


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
        call = observe(last_all_reduce_end, list(ready_s), list(bucket_s))
        expect.close(rule + shown, call.value, _end_s(ready_s, bucket_s))
        changes_nothing(expect, [call])


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
    cases = [(DataParallel, draw.integer(2, 4), draw.integer(1, 4)), (DataParallel, 1, 2), (DDP, draw.integer(3, 5), 3)]
    for wrap, num, ranks in cases:
        expect.measured.clear()  # what holds is shown for the last of them
        _expect_accumulated(expect, accumulate, wrap, num, ranks)


def _expect_accumulated(expect: Expect, answer: Callable, wrap: Callable, num: int, ranks: int) -> None:
    """One replica, two steps: the first of `num` micro-batches, the second of one more."""
    samples = 128  # so that the activations of a micro-batch weigh more than parameters and inputs
    module = _mlp(expect.draw, 4, 24, inputs=1)
    nums = (num, num + 1)
    steps = [expect.draw.tensor((ranks * count * samples, 1), torch.float64) for count in nums]

    def program(module: nn.Module, steps: list[Tensor], answer: Callable) -> list[Tensor]:
        gradients, replica = [], wrap(module)
        for batch, count in zip(steps, nums, strict=True):
            module.zero_grad()
            part = batch.chunk(dist.get_world_size())[dist.get_rank()]
            changes_nothing(expect, [observe(answer, replica, _loss, list(part.chunk(count)))])
            gradients.append(_flat(module))
        return gradients

    run = expect.launch(program, module, steps, answer, ranks=ranks)
    best = launch(program, module, steps, _accumulate, ranks=ranks)
    whose = "torch's" if wrap is DDP else "lablib's"
    on = f"{num} and {num + 1} micro-batches on {ranks} rank{'s' if ranks > 1 else ''}, {whose} replica"
    for number, batch in enumerate(steps):
        saw = [value[number] for value in run.values]
        equals_one_device(expect, saw, _one_device(module, batch), on=f"{on}, step {number + 1}")
    sent = [sum(one.traffic.sent_bytes(rank) for rank in range(ranks)) / ranks for one in (run, best)]
    expect.budget(f"bytes a rank sends in two steps ({on})", sent[0], sent[1], "B", at_least=0.98 * sent[1])
    peak = max(best.memory.peak_bytes(rank) for rank in range(ranks))
    held = max(run.memory.peak_bytes(rank) for rank in range(ranks))
    expect.budget(f"peak memory of a rank, one micro-batch at a time ({on})", held, 1.1 * peak, "B")
