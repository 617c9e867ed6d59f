"""Checks of lab 09: data parallel. All run on the simulator, in float64, on random data and numbers of ranks."""

import copy
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import nullcontext
from functools import cache, partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import record_function

from lablib import Cluster, Device, Link, Run, find_cluster, launch
from lablib.course import Expect, exercise
from lablib.course.checks.comparison import plain_number
from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.observe import Observed
from lablib.course.checks.rules import (
    changes_nothing,
    equals_one_device,
    not_from_lablib,
    observe,
    same_calls,
    sent_bytes_within,
)
from lablib.parallel import DataParallel
from lablib.parallel import average_gradients as naive_average
from lablib.text.units import plural

SAMPLES = 4  # of one rank, in one step


class _Network(nn.Module):
    """Layers inside a Sequential, a head that shares the last layer's weight, and direct parameters.

    `gains` has three dimensions, `scale` one element.
    """

    def __init__(self, takes: list[int], width: int, gains: int, dtype: torch.dtype):
        super().__init__()
        like: dict[str, Any] = {"dtype": dtype, "device": "cpu"}
        self.gains = nn.Parameter(torch.empty(3, gains, width, **like))
        self.scale = nn.Parameter(torch.empty(1, **like))
        layers = [nn.Linear(size, width, **like) for size in takes]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width, width, **like)
        self.head.weight = layers[-1].weight

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.head(self.layers(x)) * (1 + self.gains.mean((0, 1)))


def _network(
    draw: Draw,
    num_layers: int,
    width: int,
    inputs: int | None = None,
    gains: int = 2,
    dtype: torch.dtype = torch.float64,
) -> _Network:
    """A network with random weights and no gradients. Its first layer, of two or more, takes `inputs`, or `width`."""
    module = _Network([inputs or width] + [width] * (num_layers - 1), width, gains, dtype)
    for param in module.parameters():
        param.data = 0.2 * draw.tensor(param.shape, dtype)
    module.scale.data += 1
    return module


def _loss(module: nn.Module, batch: Tensor) -> Tensor:
    return torch.tanh(module(batch)).square().mean()


def _flat(module: nn.Module) -> Tensor:
    """All gradients as one vector."""
    for name, param in module.named_parameters():
        if param.grad is None:
            rule = "every parameter has a gradient"
            raise RuleBroken(rule, f"{name} has none", "a gradient: was backward called, on a loss of the whole batch?")
    return torch.cat([param.grad.flatten() for param in module.parameters() if param.grad is not None])


def _flat_params(module: nn.Module) -> Tensor:
    return torch.cat([param.detach().flatten() for param in module.parameters()])


def _one_device(module: nn.Module, batch: Tensor, weight: float = 1.0) -> Tensor:
    module = copy.deepcopy(module)
    (weight * _loss(module, batch)).backward()
    return _flat(module)


def _sends_an_all_reduce(expect: Expect, run: Run, modules: Sequence[nn.Module]) -> None:
    """The ranks themselves add, once in each step. A gradient may be padded with zeros, to cut it into equal shards.

    Args:
        modules: the module of each step.
    """
    ranks = run.ranks
    params = [param for module in modules for param in module.parameters()]
    needed = 2 * (ranks - 1) / ranks * sum(param.nbytes for param in params)
    at_most = 2 * (ranks - 1) / ranks * sum(param.nbytes + -param.numel() % ranks * param.itemsize for param in params)
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
    draw = expect.draw
    runs = [(1, torch.float64), (draw.integer(2, 7), torch.float64), (draw.integer(8, 9), torch.float64)]
    for ranks, dtype in [*runs, (draw.integer(2, 7), torch.float32)]:
        expect.measured.clear()  # the report shows the last number of ranks
        _expect_averaged(expect, average_gradients, ranks, dtype)

    def step(module: nn.Module, backward: Callable[[], None]) -> None:
        backward()
        average_gradients(module)

    _expect_zeros_averaged(expect, step)


def _expect_zeros_averaged(expect: Expect, step: Callable[[nn.Module, Callable[[], None]], None]) -> None:
    """One rank's gradients are all 0: it must make the same calls as the others."""
    draw, ranks = expect.draw, 3
    idle, module = draw.integer(0, ranks - 1), _network(draw, 2, 5)
    batches = [draw.tensor((SAMPLES, 5), torch.float64) for _ in range(ranks)]
    weights = [float(rank != idle) for rank in range(ranks)]

    def program(module: nn.Module, batches: list[Tensor]) -> Tensor:
        rank = dist.get_rank()
        step(module, lambda: (weights[rank] * _loss(module, batches[rank])).backward())
        return _flat(module)

    on = f"{plural(ranks, 'ranks')}, all gradients of rank {idle} are 0"
    with same_calls(on):
        run = expect.launch(program, module, batches, ranks=ranks)
    alone = [_one_device(module, batch, weight) for batch, weight in zip(batches, weights, strict=True)]
    equals_one_device(expect, run.values, torch.stack(alone).mean(0), on=on)


def _expect_averaged(expect: Expect, answer: Callable[[nn.Module], None], ranks: int, dtype: torch.dtype) -> None:
    """Two steps of one module, one of another with large gradients."""
    draw = expect.draw
    width, num_layers = draw.integer(5, 24), draw.integer(2, 3)
    modules = [_network(draw, num_layers + number, width, dtype=dtype) for number in range(2)]
    batches = [draw.tensor((SAMPLES * ranks, width), dtype) for _ in range(3)]
    steps = [
        (0, 1.0, batches[0]),
        (0, 1.0, batches[1]),
        (1, 1e4, batches[2]),
    ]  # number of the module, weight of the loss

    def program(modules: list[nn.Module], steps: list[tuple[int, float, Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
        gradients = []
        for number, weight, batch in steps:
            module = modules[number]
            module.zero_grad()
            (weight * _loss(module, batch.chunk(dist.get_world_size())[dist.get_rank()])).backward()
            answer(module)
            gradients.append(_flat(module))
        return [_flat_params(module) for module in modules], gradients

    run = expect.launch(program, modules, steps, ranks=ranks)
    on = f"{plural(ranks, 'ranks')}, {str(dtype).removeprefix('torch.')}"
    params = [[_flat_params(module) for module in modules]] * ranks
    expect.equal(f"parameters are not changed ({on})", [value[0] for value in run.values], params)
    for at, (number, weight, batch) in enumerate(steps):
        saw = [value[1][at] for value in run.values]
        where = f"{on}, step {at + 1}{', another module' if number else ''}"
        equals_one_device(expect, saw, _one_device(modules[number], batch, weight), on=where)
    _sends_an_all_reduce(expect, run, [modules[number] for number, _, _ in steps])


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


def _sizes(draw: Draw, num_small: int, is_large_first: bool) -> tuple[list[int], int]:
    """Gradients of very different sizes, and the size of a bucket; read from the end, as buckets are filled.

    After two gradients that are larger than a bucket come two that fill one exactly, and one that fills one alone.
    Another larger one comes second, or last.
    """
    bucket_bytes = draw.integer(241, 2801)
    small = [draw.integer(1, bucket_bytes // 6) for _ in range(num_small)]
    first = draw.integer(1, bucket_bytes // 4 - 1)
    large = [bucket_bytes + draw.integer(1, 200) for _ in range(3)]
    place = draw.integer(3, num_small - 3)
    order = [*small[:place], *large[:2], first, bucket_bytes - first, bucket_bytes, *small[place:]]
    order.insert(1 if is_large_first else len(order), large[2])
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
    draw = expect.draw
    num_small = draw.integers(2, 12, 30)
    drawn = [_sizes(draw, num, is_first) for is_first in (False, True) for num in num_small]
    many = [draw.integer(1, 9) * 10**6 for _ in range(200)], 7 * 10**8
    one, over = draw.integer(4, 99), draw.integer(1, 3)
    full = [([one], one), ([one, 100 - one], 100), ([100, one, 100 - one], 100)]
    # Too many bytes; the one of the second case is lost in a sum in single precision.
    above = [([100 - one + over, one], 100), ([2**25 + 1, 2**25], 2**26)]
    for sizes, most in [*drawn, many, *full, *above]:
        expect.measured.clear()  # the report shows the last sizes
        _expect_plan(expect, observe(plan_buckets, list(sizes), most), sizes, most)
    size = draw.integer(1, 100)
    for name, sizes, most in [
        ("one parameter makes one bucket", [size], 100),
        ("one parameter larger than a bucket makes one bucket", [200 + size], 100),
        ("no parameters make no bucket", [], 100),
    ]:
        expect.equal(name, _plan(expect, observe(plan_buckets, list(sizes), most)), _reference_plan(sizes, most))


def _returned(value: Any) -> str:
    return "None: is there a return?" if value is None else short_repr(value)


def _plan(expect: Expect, call: Observed) -> list[list[int]]:
    """The returned plan: lists, tuples or other iterables of buckets of indices."""
    wanted = "a list of buckets, each a list of indices: [[2, 1], [0]]"
    if not isinstance(call.value, Iterable) or isinstance(call.value, str | Mapping | Set):
        raise RuleBroken("a list of buckets is returned", _returned(call.value), wanted)
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
    """The rules of a plan, one by one; together they permit one plan only."""
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
        saw=f"{closed[early[0]]} {together[early[0]]} bytes" if early else "each is as full as possible",
        expected="a gradient that fits goes in",
    )
    exact = [n for n, size in enumerate(together) if size == most]
    expect.that(
        f"a bucket may be exactly full ({what})",
        not exact,
        saw=f"{closed[exact[0]]} exactly {most} bytes" if exact else "no bucket is closed too early",
        expected=f"at most {most} bytes: {most} are allowed",
    )


def _slow_machine() -> Cluster:
    """A matrix product of the check takes about as long as the all-reduce of its gradient."""
    device = Device("one gigaflop", {"float32": 1e9, "float64": 1e9}, 1e12, 1e15)
    return find_cluster("dgx-a100").replace(device=device, intra=Link("wire", 0.0, 0.25e9))


def _start_in_backward(run: Run) -> float:
    """Start of rank 0's first communication, as a share of its first backward; above 1 after backward."""
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
        "happen inside `f`, so that backward goes on?",
        "Keep the works that `dist.all_reduce(..., async_op=True)` returns in a list that belongs to this call of "
        "`overlap`, and wait for all of them in the function you return. A second step begins with an empty list.",
        "`start(param)`: divide `param.grad`, start its all-reduce, append the work. `finish()`: wait for each work, "
        "then `works.clear()`. Register `start` on every parameter and return `finish`.",
    ],
)
def overlap(expect: Expect, overlap: Callable[[nn.Module], Callable[[], None]]) -> None:
    not_from_lablib(overlap)
    draw = expect.draw
    runs = [(3, draw.integer(7, 8), 2), (1, 3, 1), (draw.choice([2, 4, 5, 6]), draw.integer(3, 4), 1)]
    for ranks, num_steps, num_modules in runs:
        expect.measured.clear()  # the report shows the last number of ranks
        _expect_overlap(expect, overlap, ranks, num_steps, num_modules)

    def step(module: nn.Module, backward: Callable[[], None]) -> None:
        finish = overlap(module)
        backward()
        finish()

    _expect_zeros_averaged(expect, step)


def _expect_overlap(
    expect: Expect, overlap: Callable[[nn.Module], Callable[[], None]], ranks: int, num_steps: int, num_modules: int
) -> None:
    """Some steps with new data each; the last two are steps of the second module, if there is one.

    `gains` is ready first, and takes as long to send as two layers' backward: waiting for it in a hook is slow.
    """
    draw = expect.draw
    width, samples = 64, 24
    modules = [_network(draw, draw.integer(4, 7), width, gains=98) for _ in range(num_modules)]
    batches = [draw.tensor((samples * ranks, width), torch.float64) for _ in range(num_steps)]
    steps = [(num_modules - 1 if at >= num_steps - 2 else 0, batch) for at, batch in enumerate(batches)]

    def program(modules: list[nn.Module], steps: list[tuple[int, Tensor]], answer: Callable[[nn.Module], Any]) -> tuple:
        gradients = []
        with record_function("setup"):
            ends = []
            for module in modules:
                finish = answer(module)
                expect.that(
                    "overlap returns a function, to be called after backward",
                    callable(finish),
                    saw="a function" if callable(finish) else _given(finish),
                    expected="return finish",
                )
                ends.append(finish)
        for number, batch in steps:
            with record_function("setup"):
                modules[number].zero_grad()
                part = batch.chunk(dist.get_world_size())[dist.get_rank()]
            _loss(modules[number], part).backward()
            with record_function("finish"):
                ends[number]()
            with record_function("setup"):
                gradients.append(_flat(modules[number]))
        return [_flat_params(module) for module in modules], gradients

    on = {"ranks": ranks, "cluster": _slow_machine()}
    run = expect.launch(program, modules, steps, overlap, **on)
    best = cache(partial(launch, program, modules, steps, _overlapped, **on))  # runs once, for an answer that is right
    params = [_flat_params(module) for module in modules]
    changed = [rank for rank, value in enumerate(run.values) if not all(map(torch.equal, value[0], params))]
    expect.that(
        "the hook does not change the parameter itself, and averages its gradient",
        not changed,
        saw=f"parameters changed on rank {changed[0]}" if changed else "parameters are as they were",
        expected="parameters as they were: the hook is given the parameter, and param.grad is the gradient",
    )
    for at, (number, batch) in enumerate(steps):
        if at == 1:
            # Kept works keep their gradients: at least two steps' gradients too many when the last step ends.
            peaks = [max(one.memory.peak_bytes(rank) for rank in range(ranks)) for one in (run, best())]
            rule = f"finish() releases the works of its step: peak memory of a rank in {num_steps} steps"
            expect.budget(rule, peaks[0], peaks[1] + 1.5 * params[0].nbytes, "B")
        where = f"{plural(ranks, 'ranks')}, step {at + 1}{', another module' if number else ''}"
        saw = [value[1][at] for value in run.values]
        equals_one_device(expect, saw, _one_device(modules[number], batch), on=where)
    _sends_an_all_reduce(expect, run, [modules[number] for number, _ in steps])
    if ranks == 1:
        return  # no communication
    share = _start_in_backward(run)
    expect.that(
        "the first all-reduce starts in the first half of backward",
        share < 0.5,
        saw=f"after {share:.0%} of backward" if share < 1 else "after backward",
        expected="communication while backward computes",
    )
    naive = launch(program, modules, steps, _naive, **on)
    took_s, best_s, naive_s = (one.timeline.without("setup").makespan_s for one in (run, best(), naive))
    limits = f"{1e3 * naive_s:.3g} ms with waiting, {1e3 * best_s:.3g} ms at best"
    expect.budget(f"simulated seconds of {num_steps} steps ({limits})", took_s, 1.02 * best_s, "s")
    late = sum(span.phase == "finish" for span in run.timeline.select(0, "comm"))
    expect.that(
        "every gradient is sent from its hook",
        not late,
        saw=f"{plural(late, 'calls')} that finish() started, in {num_steps} steps" if late else "all are",
        expected="finish() only waits",
    )


def _given(value: Any) -> str:
    """The value that `overlap` returned instead of a function."""
    return "None: is there a return? And is it finish, not finish()?" if value is None else short_repr(value)


def _overlapped(module: nn.Module) -> Callable[[], None]:
    """A reference: its time and memory are the budget."""
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
    """The latest end over all i, if bucket i and all after it are sent without a pause once bucket i is ready."""
    return max(ready + sum(bucket_s[i:]) for i, ready in enumerate(ready_s))


@exercise(
    "Predict the last all-reduce",
    hints=[
        "An all-reduce starts when two things are true. Which?",
        "Its bucket is ready, and the lane is free: the all-reduce before it in the list has ended.",
        "Keep `end_s`, the end of the last all-reduce so far. The next starts at the later of `end_s` and its `ready`.",
    ],
)
def last_all_reduce_end(expect: Expect, last_all_reduce_end: Callable[[list[float], list[float]], float]) -> None:
    not_from_lablib(last_all_reduce_end)
    a, b, c, d = (expect.draw.number(0.1, 3.0) for _ in range(4))
    cases = {
        "one bucket alone ends when it has been sent after it was ready": ([a], [b]),
        "a free lane waits until a bucket is ready": ([a, a + b + c], [b, d]),
        "a bucket waits for a busy lane, until the one before it has ended": ([a, a + 0.4 * b], [b, 0.3 * b]),
        "a bucket that is ready early waits for its turn, in the order of the list": ([a + b + c, a], [b, d]),
        "a late small bucket ends after an early large one": ([a, a + b, a + b + c], [b + c + d, 0.1 * b, 0.1 * c]),
        "busy, then free, then busy again": ([a, a + 0.5 * b, a + b + c + 9, a + b + c + 9 + 0.5 * d], [b, c, d, a]),
    }
    for num in [*expect.draw.integers(2, 5, 14), expect.draw.integer(60, 100)]:
        for order, (ready_s, bucket_s) in _many_buckets(expect.draw, num).items():
            cases[f"{num} buckets, {order}"] = (ready_s, bucket_s)
    for rule, (ready_s, bucket_s) in cases.items():
        call = observe(last_all_reduce_end, list(ready_s), list(bucket_s))
        if call.value is None:
            raise RuleBroken(rule, _returned(None), "a number")
        with expect.grouped(rule, "equal to 1e-09"):
            _expect_end(expect, last_all_reduce_end, rule, ready_s, bucket_s)
        changes_nothing(expect, [call])


def _many_buckets(draw: Draw, num: int) -> dict[str, tuple[list[float], list[float]]]:
    """Lists in which any bucket, the last, the first, or one in the middle decides; of very different seconds."""
    any_s = [draw.number(0.0, 8.0) for _ in range(num)]
    sends_s = [draw.number(0.01, 2.0) for _ in range(num)]
    short_s = [draw.number(0.1, 0.4) for _ in range(num)]
    rising_s = [number + draw.number(0.5, 1.0) for number in range(num)]
    early_s = [draw.number(0.0, 0.1) for _ in range(num)]
    middle = draw.integer(1, num - 2)
    stops_s = [*early_s[:middle], sum(sends_s[:middle]) + draw.number(1.0, 9.0), *early_s[middle + 1 :]]
    return {
        "ready in any order": ([1e-6 * x for x in any_s], [1e-6 * x for x in sends_s]),
        "ready one by one, each sent before the next": (rising_s, short_s),
        "the same within nanoseconds": ([1e-9 * x for x in rising_s], [1e-9 * x for x in short_s]),
        "ready all at once": ([100 * x for x in early_s], [100 * (0.2 + x) for x in sends_s]),
        "one of them late": (stops_s, sends_s),
    }


def _expect_end(expect: Expect, answer: Callable, rule: str, ready_s: list[float], bucket_s: list[float]) -> None:
    """The end is right. If not, the message names the first buckets only: as few as show the error."""

    def is_right(num: int) -> bool:
        saw = plain_number(answer(ready_s[:num], bucket_s[:num]))
        wanted = _end_s(ready_s[:num], bucket_s[:num])
        return isinstance(saw, int | float) and abs(saw - wanted) <= 1e-9 * wanted

    num = len(ready_s)
    if num > 4 and not is_right(num):
        num = next(count for count in range(1, num + 1) if count == num or not is_right(count))
        rule += f", the first {num} of them" if num < len(ready_s) else ""
    ready_s, bucket_s = ready_s[:num], bucket_s[:num]
    if num <= 6:
        for name, values in (("ready_s", ready_s), ("bucket_s", bucket_s)):
            rule += f", {name} [{', '.join(f'{x:.4g}' for x in values)}]"
    saw, wanted = plain_number(answer(list(ready_s), list(bucket_s))), _end_s(ready_s, bucket_s)
    if isinstance(saw, float) and 1e-9 < abs(saw / wanted - 1) < 1e-6 and saw == torch.tensor(saw).item():
        said = f"off by {abs(saw / wanted - 1):.1e} of it: the accuracy of float32"
        raise RuleBroken(rule, said, f"{wanted:.10g}: numbers of Python, or tensors of float64")
    expect.close(rule, saw, wanted)


def _accumulate(replica: Any, loss_of: Callable[[nn.Module, Tensor], Tensor], micro_batches: list[Tensor]) -> None:
    """A reference: its bytes and memory are the budget."""
    for number, micro_batch in enumerate(micro_batches, 1):
        with nullcontext() if number == len(micro_batches) else replica.no_sync():
            (loss_of(replica, micro_batch) / len(micro_batches)).backward()


@exercise(
    "Accumulate",
    hints=[
        "After which micro-batches must no gradient be sent, and after which one must it be? How many may be in memory "
        "at once?",
        "All but the last run in `with replica.no_sync():`, forward and backward. And backward *adds*: what must each "
        "loss be divided by, for the sum to be a mean?",
        "Divide each loss by `len(micro_batches)`. Loop over `micro_batches[:-1]` inside of `no_sync`, and do the same "
        "once more outside, for the last.",
    ],
)
def accumulate(expect: Expect, accumulate: Callable[[Any, Callable, list], None]) -> None:
    not_from_lablib(accumulate)
    draw = expect.draw
    several = draw.integer(3, 4)  # then four, once: joining only the first two differs from joining all in pairs
    cases = [(DataParallel, several, draw.integer(1, 3)), (DataParallel, 1, 2), (DDP, 6, 4), (DDP, 1, 2)]
    for wrap, num, ranks in cases:
        expect.measured.clear()  # the report shows the last case
        _expect_accumulated(expect, accumulate, wrap, num, ranks)


def _expect_accumulated(expect: Expect, answer: Callable, wrap: Callable, num: int, ranks: int) -> None:
    """One replica, three steps: `num` micro-batches, one more of them, and an ordinary backward without the answer."""
    samples = expect.draw.integer(130, 150)  # a micro-batch's activations are larger than parameters and inputs
    module = _network(expect.draw, 4, 24, inputs=1)
    nums = (num, num + 1)
    steps = [expect.draw.tensor((ranks * count * samples, 1), torch.float64) for count in (*nums, 1)]

    def program(module: nn.Module, steps: list[Tensor], answer: Callable) -> tuple[list[Tensor], list[int]]:
        gradients, losses, replica = [], [], wrap(module)
        parts = [batch.chunk(dist.get_world_size())[dist.get_rank()] for batch in steps]
        for part, count in zip(parts, nums, strict=False):
            module.zero_grad()
            calls = []

            def loss_of(module: nn.Module, micro_batch: Tensor, calls: list[int] = calls) -> Tensor:
                calls.append(1)
                return _loss(module, micro_batch)

            changes_nothing(expect, [observe(answer, replica, loss_of, list(part.chunk(count)))])
            gradients.append(_flat(module))
            losses.append(len(calls))
        module.zero_grad()
        _loss(replica, parts[-1]).backward()
        return [*gradients, _flat(module)], losses

    run = expect.launch(program, module, steps, answer, ranks=ranks)
    owner = "torch's" if wrap is DDP else "lablib's"
    on = f"{num} and {num + 1} micro-batches on {plural(ranks, 'ranks')}, {owner} replica"
    for number, batch in enumerate(steps):
        saw = [value[0][number] for value in run.values]
        step = f"step {number + 1}" if number < len(nums) else "an ordinary backward after them"
        equals_one_device(expect, saw, _one_device(module, batch), on=f"{on}, {step}")
    best = launch(program, module, steps, _accumulate, ranks=ranks)
    sent = [sum(one.traffic.sent_bytes(rank) for rank in range(ranks)) / ranks for one in (run, best)]
    expect.budget(f"bytes a rank sends in {len(steps)} steps ({on})", sent[0], sent[1], "B", at_least=0.98 * sent[1])
    peak = max(best.memory.peak_bytes(rank) for rank in range(ranks))
    held = max(run.memory.peak_bytes(rank) for rank in range(ranks))
    expect.budget(f"peak memory of a rank, one micro-batch at a time ({on})", held, 1.1 * peak, "B")
    for number, count in enumerate(nums):
        calls = max(value[1][number] for value in run.values)
        expect.budget(f"loss_of is called once for each micro-batch ({on}, step {number + 1})", calls, count, "calls")
