"""Checks of lab 00: first steps."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from math import isfinite

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from lablib import Run, Transfer, find_cluster, launch
from lablib.course import Expect, exercise
from lablib.course.checks.rules import (
    calls_only,
    changes_nothing,
    communications_within,
    is_mean,
    not_from_lablib,
    observe,
    returns_new_tensors,
    sent_bytes_within,
)
from lablib.text.units import format_quantity, plural

CLUSTER = "dgx-h100"


@exercise(
    "The mean over ranks",
    hints=[
        "Which collective leaves a sum on every rank? How does a mean follow from the sum?",
        "`all_reduce` writes its result into its argument, and `x` must stay unchanged: pass it a copy.",
        "Copy `x` with `.clone()`, let `dist.all_reduce` add up the copies, and divide by the number of ranks.",
    ],
)
def mean_over_ranks(expect: Expect, answer: Callable[[Tensor], Tensor]) -> None:
    not_from_lablib(answer)

    def program(xs: list[Tensor]):
        return observe(answer, xs[dist.get_rank()])

    def mean(xs: list[Tensor]) -> Run:
        run = expect.launch(program, xs, ranks=len(xs), cluster=CLUSTER)
        returns_new_tensors(expect, run, like=xs[0])
        changes_nothing(expect, run)
        is_mean(expect, run, torch.stack(xs).mean(0))
        return run

    some, many = expect.draw.integers(2, 2, 9), expect.draw.integer(10, 33)
    cases = [(some[0], (3, 5)), (some[1], (2, 1, 3, 4)), (1, (expect.draw.integer(6, 20),)), (many, ())]
    for ranks, shape in cases:
        xs = [expect.draw.tensor(shape) for _ in range(ranks)]
        if not shape:  # one number: terms that cancel would leave only rounding
            xs = [x.abs() + 0.5 for x in xs]
        if len(shape) == 2:  # a slice of a larger tensor, which has no flat view
            xs = [expect.draw.tensor((3, 7), torch.float64, contiguous=False)[:, :5] for _ in range(ranks)]
        run = mean(xs)
        calls_only(expect, run, "all_reduce")
        communications_within(expect, run, at_most=1, at_least=int(ranks > 1))
        if ranks > 1:
            _sends_as(expect, run, dist.all_reduce, xs[0].contiguous())  # NCCL accepts only contiguous ones

    # Large: the ring, which sends least. The number of ranks differs from the first case, which identifies a mistake
    # with large tensors alone.
    ranks = expect.draw.choice([number for number in range(2, 9) if number != some[0]])
    x = expect.draw.tensor((1000, 1000))
    run = mean([x + rank for rank in range(ranks)])
    size_bytes = 2 * (ranks - 1) / ranks * x.numel() * x.element_size()
    sent_bytes_within(expect, run, at_most=size_bytes, at_least=size_bytes)
    first, second = ([1 + expect.draw.tensor((5,)).abs() for _ in range(3)] for _ in range(2))
    wanted = [torch.stack(xs).mean(0) for xs in (first, second)]
    with expect.grouped("two calls return separate means", "equal"):
        for rank, means in enumerate(_two_calls(expect, answer, first, second)):
            expect.close(f"two calls return separate means (rank {rank})", means, wanted, rtol=1e-5)
    xs = [torch.zeros(4), 1 + expect.draw.tensor((4,)).abs(), 1 + expect.draw.tensor((4,)).abs()]
    xs[1][expect.draw.integer(0, 3)] = float("inf")
    means = [call.value for call in expect.launch(program, xs, ranks=len(xs), cluster=CLUSTER).values]
    with expect.grouped("the mean over ranks with zeros and infinities", "equal"):
        for rank, value in enumerate(means):
            rule = f"the mean over ranks with zeros and infinities (rank {rank})"
            expect.close(rule, value, torch.stack(xs).mean(0), rtol=1e-5)


def _two_calls(expect: Expect, answer: Callable[[Tensor], object], first: list[Tensor], second: list[Tensor]) -> list:
    """The results of two calls in one run, on each rank: read after both, so a shared buffer shows."""

    def program(first: list[Tensor], second: list[Tensor]):
        return [answer(xs[dist.get_rank()]) for xs in (first, second)]

    return expect.launch(program, first, second, ranks=len(first), cluster=CLUSTER).values


def _sends_as(expect: Expect, run: Run, program: Callable[[Tensor], object], x: Tensor) -> None:
    """No rank sends more than in a run of `program(x)`, and none less."""
    plain = launch(program, x, ranks=run.ranks, cluster=CLUSTER)
    sent = [plain.traffic.sent_bytes(rank) for rank in range(run.ranks)]
    # Shown without bytes: small tensors use a tree, which the lab leaves out. Its ranks send unequal shares.
    with expect.grouped(f"bytes a rank sends ({plural(run.ranks, 'ranks')})", "as many as one all_reduce of x"):
        sent_bytes_within(expect, run, at_most=max(sent), at_least=min(sent))


@exercise(
    "Pass to the right",
    hints=[
        "If every rank first waits for a message, which rank sends one? What must each rank start before it waits?",
        "`dist.batch_isend_irecv` starts a send and a receive together. Right of `rank` is (rank + 1) % world_size.",
        "Make an empty tensor like `x`. Put a `dist.P2POp` that sends to the right and one that receives from the "
        "left into a list, start both with `dist.batch_isend_irecv`, and `.wait()` for each handle.",
    ],
)
def pass_to_right(expect: Expect, answer: Callable[[Tensor], Tensor]) -> None:
    not_from_lablib(answer)
    cluster = find_cluster(CLUSTER).free_compute()

    def program(xs: list[Tensor]):
        return observe(answer, xs[dist.get_rank()])

    some = expect.draw.integer(20, 40)
    cases = [((some, some + 1), torch.float64), ((1000, some), torch.float32), ((some, 2, 3), torch.bfloat16)]
    cases += [((), torch.float32)]
    counts = [expect.draw.choice([5, 7]), expect.draw.choice([4, 6, 8]), 2]  # one is odd: the budget below needs it
    counts += [expect.draw.integer(10, 33)]
    for ranks, (shape, dtype) in zip(counts, cases, strict=True):
        xs = [(1000 * expect.draw.tensor(shape, torch.float64)).to(dtype) for _ in range(ranks)]
        run = expect.launch(program, xs, ranks=ranks, cluster=cluster)
        returns_new_tensors(expect, run, like=xs[0])
        changes_nothing(expect, run)
        got = [call.value for call in run.values]
        _on_each(expect, "holds the x of its left neighbour", got, [xs[-1], *xs[:-1]])
        calls_only(expect, run, "send")
        size_bytes = xs[0].numel() * xs[0].element_size()
        sent_bytes_within(expect, run, at_most=size_bytes, at_least=size_bytes)
        one_message_s = max(cluster.edge(rank, (rank + 1) % ranks).transfer_s(size_bytes) for rank in range(ranks))
        expect.budget(
            f"seconds on {plural(ranks, 'ranks')}, at most the time of two messages",
            run.timeline.makespan_s,
            2 * one_message_s,
            "s",
        )
    first, second = ([expect.draw.tensor((5,)) for _ in range(3)] for _ in range(2))
    wanted = [[first[rank - 1], second[rank - 1]] for rank in range(3)]
    _on_each(expect, "holds the results of two calls", _two_calls(expect, answer, first, second), wanted)
    expect.launch(program, first, ranks=3, cluster=cluster, like="nccl")  # single messages may wait for one another
    expect.that("it finishes on GPUs, with messages of any size", True, "it finished", "it finishes")


def _on_each(expect: Expect, rule: str, saw: list, expected: list) -> None:
    """Every rank has the expected value; the message names a rank with another one."""
    with expect.grouped(f"every rank of {len(saw)} {rule}", "equal"):
        for rank, (mine, wanted) in enumerate(zip(saw, expected, strict=True)):
            expect.equal(f"rank {rank} of {len(saw)} {rule}", mine, wanted)


@exercise(
    "Fix a deadlock",
    hints=[
        "Which rank waits in the broken program, and for which ranks?",
        "All ranks must call a collective. Only the text is for rank 0 alone.",
        "Two of the lines of `broken_report` must be in another order: which of them may be under the `if`?",
    ],
)
def report(expect: Expect, answer: Callable[[Tensor], str | None]) -> None:
    not_from_lablib(answer)

    def program(losses: list[Tensor]):
        return answer(losses[dist.get_rank()])

    large = expect.draw.integer(500, 790) + expect.draw.choice([0.2, 0.3, 0.7, 0.8])
    _reports(expect, program, 16, large)  # 16 bits hold quarters and halves of such a mean, no tenths
    counts, digits = expect.draw.integers(3, 2, 9), (0, 5, expect.draw.integer(1, 9))
    for ranks, last_digit in zip(counts, digits, strict=True):  # two decimals, the last perhaps a 0
        _reports(expect, program, ranks, expect.draw.integer(10, 98) / 10 + last_digit / 100)
    _reports(expect, program, expect.draw.integer(2, 9), -expect.draw.integer(110, 980) / 100)
    _reports(expect, program, 1, expect.draw.integer(110, 980) / 100)
    # Four digits before the point, and none:
    for mean in (expect.draw.integer(1000, 3000) + 0.25, expect.draw.integer(11, 98) / 100):
        _reports(expect, program, expect.draw.integer(2, 4), mean)
    for mean in (float("nan"), float("inf")):
        _reports(expect, program, expect.draw.integer(2, 9), mean)
    near = expect.draw.integer(110, 980) / 100  # rounded one by one, the losses have another mean
    _reports(expect, program, 4, near, [near + more for more in (0.004, 0.004, 0.004, 0.012)])
    first, second = ([torch.tensor(loss + 0.5 * rank) for rank in range(3)] for loss in (1.0, 3.0))
    said = _two_calls(expect, answer, first, second)
    expect.equal("two calls report two means", said, [["mean loss 1.50", "mean loss 3.50"], [None, None], [None, None]])


def _reports(
    expect: Expect,
    program: Callable[[list[Tensor]], str | None],
    ranks: int,
    mean: float,
    given: Sequence[float] = (),
) -> None:
    """The text on rank 0 alone, for losses with a mean near `mean`: the third digit is rounded, not cut off.

    Args:
        given: the losses; drawn if empty.
    """
    spread = [1.0] + [expect.draw.number(-0.5, 0.5) for _ in range(ranks - 1)]  # rank 0's is far from the mean
    third = expect.draw.number(0.002, 0.004) * (-1 if mean > 0 else 1)
    losses = [torch.tensor(mean + third + one - sum(spread) / ranks) for one in spread]
    if not isfinite(mean):  # one rank's loss is not finite, so the mean is not either
        losses = [torch.tensor(one) for one in spread[1:]] + [torch.tensor(mean)]
    if given:
        losses, mean = [torch.tensor(one) for one in given], sum(given) / len(given)
    run = expect.launch(program, losses, ranks=ranks, cluster=CLUSTER)
    expect.equal(f"rank 0 reports the mean loss of {_ranks(ranks)}", run.values[0], f"mean loss {mean:.2f}")
    if ranks == 1:
        return
    with expect.grouped("the other ranks report nothing", "equal"):
        for rank, said in enumerate(run.values[1:], 1):
            expect.equal(f"the other ranks report nothing (rank {rank} of {ranks})", said, None)
    communications_within(expect, run, at_most=1, at_least=1)
    plain = launch(lambda: dist.all_reduce(torch.ones(())), ranks=ranks, cluster=CLUSTER)
    sent, at_most = run.traffic.sent_bytes(), plain.traffic.sent_bytes()
    expect.budget(f"bytes sent by all {ranks} ranks", sent, at_most, "B", at_least=4 * (ranks - 1))


def _ranks(count: int) -> str:
    return f"all {count} ranks" if count > 1 else "one rank"


MAX_SEED, MAX_RANKS = 999, 32  # the limits in the exercise


@exercise(
    "Equal weights, different data",
    hints=[
        "`torch.manual_seed` may be called more than once. On what should the weights depend, and on what the data?",
        "Weights: a seed made from `seed` alone. Data: one made from `seed` and the rank, far from all values of "
        "`seed`. Or: all ranks draw the data of all ranks, and each takes its own.",
        "With at most 32 ranks, `100 * seed + rank` is a different number for each pair. What must be added to keep it "
        "out of 0 to 999? (Stay below 2**32: torch uses the lowest 32 bits of a seed.)",
    ],
)
def weights_and_data(expect: Expect, answer: Callable[[int], tuple[Tensor, Tensor]]) -> None:
    not_from_lablib(answer)
    near = expect.draw.integer(2, 498)
    _draws_well(expect, answer, [near, near + 1, 0, 1, expect.draw.integer(500, MAX_SEED)], expect.draw.integer(3, 6))
    _keeps_its_promise(expect, answer)


def _draws_well(expect: Expect, answer: Callable[[int], tuple[Tensor, Tensor]], seeds: list[int], ranks: int) -> None:
    """The rules that a few seeds and ranks can show."""

    def program():
        draws = []
        for seed in seeds:
            first = answer(seed)
            torch.rand(3)  # an answer that sets no seed continues from here
            draws.append((first, answer(seed)))
        return draws

    run = expect.launch(program, ranks=ranks, cluster=CLUSTER)
    rule, wanted = "two tensors of shape (4, 4) from torch.randn on every rank", "weights, data"
    for rank, draws in enumerate(run.values):
        for problem in (_not_a_pair(pair) for draw in draws for pair in draw):
            expect.that(rule, not problem, f"{problem} on rank {rank} of {ranks}", wanted) if problem else None
    expect.that(rule, True, "two", wanted)
    sent = f"{format_quantity(run.traffic.sent_bytes(), 'B')} sent in {plural(len(run.traffic), 'communications')}"
    expect.that("nothing is sent, and no rank waits for another", not len(run.traffic), sent, "no communication")
    weights = [[draws[i][0][0] for draws in run.values] for i in range(len(seeds))]  # [seed][rank]
    data = [[draws[i][0][1] for draws in run.values] for i in range(len(seeds))]
    for seed, one in zip(seeds, weights, strict=True):
        with expect.grouped("the weights are the same as on rank 0", "equal"):
            _on_each(expect, f"has the weights of rank 0, with seed {seed}", one, [one[0]] * ranks)
    again = [
        f"different {name} in the second call with seed {seeds[i]}, on rank {rank}"
        for i in range(len(seeds))
        for rank, draws in enumerate(run.values)
        for index, name in enumerate(("weights", "data"))
        if not torch.equal(draws[i][0][index], draws[i][1][index])
    ]
    _none(expect, "the same seed gives the same numbers again", again, "numbers that depend on the seed alone")
    _are_random(expect, seeds[0], weights[0][0], data[0])
    for by_seed, name in ((weights, "weights"), (data, "data")):
        pairs = combinations(zip(seeds, by_seed, strict=True), 2)
        same = [f"the same {name} with seeds {a} and {b}" for (a, x), (b, y) in pairs if torch.equal(x[0], y[0])]
        _none(expect, f"another seed gives different {name}", same, "a seed that depends on `seed`")


def _keeps_its_promise(expect: Expect, answer: Callable[[int], tuple[Tensor, Tensor]]) -> None:
    """No two tensors of any seed and rank share numbers: every seed on three ranks, some seeds on every rank."""
    everywhere = [*range(13), 32, 100, 500, MAX_SEED, *expect.draw.integers(20, 13, MAX_SEED - 1)]
    all_seeds, on_all = list(range(MAX_SEED + 1)), (0, *expect.draw.integers(2, 1, MAX_RANKS - 2), MAX_RANKS - 1)

    def program():
        with _disable_current_modes():  # 4000 calls; their time and memory are not needed
            return {seed: answer(seed) for seed in (all_seeds if dist.get_rank() in on_all else everywhere)}

    with _short_stacks():
        drawn = expect.launch(program, ranks=MAX_RANKS, cluster=CLUSTER).values
    problems = [
        f"{problem} on rank {rank} of {MAX_RANKS} with seed {seed}"
        for rank, pairs in enumerate(drawn)
        for seed, pair in pairs.items()
        if (problem := _not_a_pair(pair))
    ]
    _none(expect, f"two tensors with every seed from 0 to {MAX_SEED}", problems, "weights, data")
    drawn = [{seed: (w.detach(), x.detach()) for seed, (w, x) in pairs.items()} for pairs in drawn]
    weights = [drawn[0][seed][0] for seed in all_seeds]
    other = [
        f"rank {rank} of {MAX_RANKS} has different weights from rank 0, with seed {seed}"
        for rank, pairs in enumerate(drawn)
        for seed, (mine, _) in pairs.items()
        if not torch.equal(mine, weights[seed])
    ]
    _none(expect, f"the same weights on every one of {MAX_RANKS} ranks", other, "weights that depend on the seed alone")
    data = [torch.stack([drawn[rank][seed][1] for seed in all_seeds]) for rank in on_all]
    _are_normal(expect, torch.stack([torch.stack(weights), *data]).flatten(1))
    named = [(f"the weights with seed {seed}", one) for seed, one in enumerate(weights)]
    named += [
        (f"the data of rank {rank} with seed {seed}", one)
        for rank, pairs in enumerate(drawn)
        for seed, (_, one) in pairs.items()
    ]
    rule = f"no two tensors share numbers, for seeds 0 to {MAX_SEED} and {MAX_RANKS} ranks"
    _none(expect, rule, _shared(named), "different numbers in each tensor")


@contextmanager
def _short_stacks() -> Iterator[None]:
    """Shorten the stack that torch.manual_seed records for GPUs that start later: a full one takes 0.5 ms."""
    before = getattr(sys, "tracebacklimit", None)
    sys.tracebacklimit = 0
    try:
        yield
    finally:
        if before is None:
            del sys.tracebacklimit
        else:
            sys.tracebacklimit = before


def _are_normal(expect: Expect, drawn: Tensor) -> None:
    """Rows of 16,000 numbers, the weights first: each as from torch.randn, and no two correlate."""
    tied = drawn.double().corrcoef() - torch.eye(len(drawn))
    for rule, most in (("data do not follow the weights", tied[0]), ("ranks' data do not follow each other", tied)):
        most = float(most.abs().max())
        expect.that(rule, most < 0.05, f"correlation {most:.2f}", "independent draws")
    for index, name in enumerate(["the weights"] + ["the data"] * (len(drawn) - 1)):
        mean, spread = float(drawn[index].mean()), float(drawn[index].std())
        is_normal = abs(mean) < 0.05 and abs(spread - 1) < 0.05  # at least six standard errors
        saw = f"{name} have mean {mean:.2f} and standard deviation {spread:.2f}"
        expect.that("weights and data are from torch.randn", is_normal, saw, "0 and 1") if not is_normal else None


def _shared(named: list[tuple[str, Tensor]]) -> list[str]:
    """The first two tensors with two or more numbers in common, in any order and with any sign; [] if there are none.

    A single number may well occur twice among a hundred thousand of 24 random bits.
    """
    numbers = torch.stack([one.flatten() for _, one in named]).abs()
    _, first, at = np.unique(numbers.numpy(), return_index=True, return_inverse=True)
    owner = first[at.reshape(numbers.shape)] // numbers.shape[1]  # for each number: the first tensor that has it
    for mine, owners in enumerate(owner):
        before, times = np.unique(owners[owners != mine], return_counts=True)
        if times.size and times.max() > 1:
            (name, one), (other, two) = named[mine], named[before[times.argmax()]]
            if torch.equal(one, two):
                return [f"{name} are {other}"]
            return [f"{name} share {times.max()} of {owners.size} numbers with {other}, ignoring signs"]
    return []


def _none(expect: Expect, rule: str, found: list[str], expected: str) -> None:
    """Check that nothing was found that breaks a rule."""
    expect.that(rule, not found, found[0] if found else "none", expected)


def _not_a_pair(pair: object) -> str:
    """Why a value is not two tensors as of torch.randn(4, 4); "" if it is."""
    if not isinstance(pair, tuple | list):
        return f"a {type(pair).__name__}"
    if len(pair) != 2:
        return f"{len(pair)} value{'s' if len(pair) != 1 else ''}"
    for name, one in zip(("weights", "data"), pair, strict=True):
        if not isinstance(one, Tensor):
            return f"{name} of type {type(one).__name__}"
        if one.shape != (4, 4) or one.dtype != torch.float32:
            return f"{name} of shape {tuple(one.shape)} and type {str(one.dtype).removeprefix('torch.')}"
    return ""


def _are_random(expect: Expect, seed: int, weights: Tensor, data: list[Tensor]) -> None:
    """Each holds 16 different numbers; no tensor is another one shifted, scaled, reordered or squared."""
    named = [("the weights", weights), *((f"rank {rank}'s data", one) for rank, one in enumerate(data))]
    constant = [f"{name}: {len(one.unique())} different numbers of 16" for name, one in named if len(one.unique()) < 16]
    _none(expect, "weights and data are random", constant, "torch.randn(4, 4)")
    copies = [f"{name} with seed {seed} are the weights{_made_from(weights, one)}" for name, one in named[1:]]
    copies = [text for text in copies if not text.endswith("are the weights")]
    _none(expect, "data are drawn separately", copies, "a separate draw, from another seed")
    pairs = [(a, b, _made_from(x, y)) for (a, x), (b, y) in combinations(named[1:], 2)]
    same = [f"{b} are {a}{how}" for a, b, how in pairs if how]
    _none(expect, "every rank draws different data", same, "a seed that depends on the rank")


def _made_from(a: Tensor, b: Tensor) -> str:
    """How `b` was made from `a`; "" if it was not."""
    a, b = a.detach().double().flatten(), b.detach().double().flatten()
    if torch.equal(a, b):
        return " again"
    if _is_line(a, b):
        return ", shifted or scaled"
    if _is_line(a.sort().values, b.sort().values) or _is_line(a.sort().values, -b.sort(descending=True).values):
        return " in another order"
    same_order = any(torch.equal(x.argsort(), y.argsort()) for x in (a, -a, a.abs(), -a.abs()) for y in (b, b.abs()))
    return ", number by number through a function" if same_order else ""


def _is_line(a: Tensor, b: Tensor) -> bool:
    """Is b = slope * a + shift, to rounding?"""
    a, b = a - a.mean(), b - b.mean()
    slope = torch.dot(a, b) / torch.dot(a, a)
    return float((b - slope * a).abs().max()) < 1e-5 * float(b.abs().max())


@exercise(
    "Find the corrupted ranks",
    hints=[
        "What can one rank compute without the others? What must it then send to all of them?",
        "`grad.isfinite().all()` is one number on each rank. Which collective gives all of these to every rank?",
        "`dist.all_gather` fills a list of n tensors of one number, the r-th from rank r. Which positions do you keep?",
    ],
)
def corrupted_ranks(expect: Expect, answer: Callable[[Tensor], list[int]]) -> None:
    not_from_lablib(answer)
    nan, inf = float("nan"), float("inf")
    draw, ranks = expect.draw, expect.draw.integers(3, 4, 9)
    one, two = sorted(draw.integers(2, 1, 3))
    shape = (draw.integer(10, 14), draw.integer(5, 9))
    grads = [draw.tensor(shape).T for _ in range(ranks[0])]  # transposed: no flat view
    hit = {one: (0, nan), 0: (1, nan), two: (draw.integer(8, 40), nan)}
    _finds(expect, answer, grads, hit, f"a NaN on ranks 0, {one} and {two}")
    grads = [draw.tensor((3, *shape), torch.bfloat16) for _ in range(ranks[1])]
    hit = {one: (draw.integer(8, 20), -inf), two: (-1, inf)}  # the last place
    _finds(expect, answer, grads, hit, f"an infinity on ranks {one} and {two}")
    # Finite in their type. The norm of the first overflows, and the sum of the others, in float64 the sum of two.
    sizes = [
        (1e30, torch.float32),
        (3e38, torch.float32),
        (1e300, torch.float64),
        (1.7e308, torch.float64),
        (6e4, torch.float16),
    ]
    for size, dtype in sizes:
        of = shape if dtype != torch.float16 else (draw.integer(30, 60),)
        grads = [size * draw.tensor(of, dtype).abs().clamp(0.7, 1.0) for _ in range(ranks[2])]
        _finds(expect, answer, grads, {}, f"all numbers are finite, of {size:g}")
    grads = [draw.tensor(shape[:1]) for _ in range(ranks[1])]
    grads[one][0] = -torch.finfo(torch.float32).max
    _finds(expect, answer, grads, {}, "all numbers are finite, one is the largest of its type")
    _finds(expect, answer, [torch.zeros(()) for _ in range(ranks[0])], {one: (0, nan)}, "one number, NaN or zero")
    many = [draw.tensor((40, 60)) for _ in range(ranks[1])]  # torch prints only the first and the last of so many
    hit = {rank: (draw.integer(1100, 1300) if rank else 3, draw.choice([nan, inf, -inf])) for rank in range(ranks[1])}
    _finds(expect, answer, many, hit, "every rank is hit")
    _finds(expect, answer, [draw.tensor(shape[:1])], {0: (8, inf)}, "the only rank is hit")
    count = draw.integer(66, 72)  # too many for one bit per rank in a number
    who = (draw.integer(3, 9), *draw.integers(10, 25, 60), count - 1)
    hit = {rank: (draw.integer(8, 44), draw.choice([nan, inf, -inf])) for rank in who}
    _finds(expect, answer, [draw.tensor(shape) for _ in range(count)], hit, "twelve ranks of many are hit")

    def twice(grads: list[Tensor], others: list[Tensor]):
        return answer(grads[dist.get_rank()]), answer(others[dist.get_rank()])

    calls = [[torch.tensor([nan if rank == bad else 1.0]) for rank in range(3)] for bad in draw.integers(2, 0, 2)]
    wanted = tuple([rank for rank, grad in enumerate(grads) if grad.isnan()] for grads in calls)
    run = expect.launch(twice, *calls, ranks=3, cluster=CLUSTER)
    _on_each(expect, "returns separate results for two calls", run.values, [wanted] * 3)


def _finds(
    expect: Expect,
    answer: Callable[[Tensor], list[int]],
    grads: list[Tensor],
    hit: dict[int, tuple[int, float]],
    what: str,
) -> None:
    """The right list on every rank, nothing changed, one collective with one number from each rank.

    Args:
        grads: one per rank.
        hit: for each rank that is hit, the index and the value to put there.
        what: the case, in words.
    """
    for rank, (place, value) in hit.items():
        grads[rank][tuple(np.unravel_index(place % grads[rank].numel(), grads[rank].shape))] = value
    ranks, bad = len(grads), sorted(hit)
    what = f"{what}; {str(grads[0].dtype).removeprefix('torch.')}, shape {tuple(grads[0].shape)}"

    def program(grads: list[Tensor]):
        return observe(answer, grads[dist.get_rank()])

    run = expect.launch(program, grads, ranks=ranks, cluster=CLUSTER)
    found = [call.value for call in run.values]
    _on_each(expect, f"finds {bad} ({what})", found, [bad] * ranks)
    other = [f"a {type(one).__name__}: {one}" for one in found if not isinstance(one, list)]
    _none(expect, "a list is returned", other, "a list")
    other = [f"a {type(r).__name__} in {one}" for one in found for r in one if not isinstance(r, int | np.integer)]
    _none(expect, "the list holds whole numbers", other, "ranks as int")
    changes_nothing(expect, run)
    communications_within(expect, run, at_most=1, at_least=int(ranks > 1))
    shared = sum(_numbers(transfer) for transfer in run.traffic.transfers)
    expect.budget(f"numbers shared by {_ranks(ranks)}: one each", shared, ranks, "numbers")


def _numbers(transfer: Transfer) -> float:
    """How many numbers its tensor has. A number of over 8 bytes counts as two; without a type, each byte counts."""
    size_bytes = getattr(torch, transfer.dtype).itemsize if transfer.dtype else 1
    return transfer.tensor_bytes / min(size_bytes, 8)
