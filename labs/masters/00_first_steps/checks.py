"""Checks of lab 00: first steps."""

from collections.abc import Callable
from itertools import combinations

import torch
import torch.distributed as dist
from torch import Tensor

from lablib import Run, find_cluster, launch
from lablib.course import Expect, exercise
from lablib.course.own_copy import own_copy
from lablib.course.rules import (
    calls_only,
    changes_nothing,
    communications_within,
    is_mean,
    not_from_lablib,
    observe,
    returns_new_tensors,
    sent_bytes_within,
)

CLUSTER = "dgx-h100"


@exercise(
    "The mean over ranks",
    hints=[
        "Which collective leaves a sum on every rank? And what is a mean, once you have the sum?",
        "`all_reduce` writes its result into the tensor that it is given, and `x` must stay as it is: give it a copy.",
        "Copy `x` with `.clone()`, let `dist.all_reduce` add up the copies, and divide by the number of ranks.",
    ],
)
def mean_over_ranks(expect: Expect, answer: Callable[[Tensor], Tensor]) -> None:
    not_from_lablib(answer)

    def program(xs: list[Tensor]):
        return observe(own_copy(answer), xs[dist.get_rank()])

    cases = [((3, 5), torch.float64), ((2, 3, 4), torch.float32), ((expect.draw.integer(6, 20),), torch.float32)]
    for ranks, (shape, dtype) in zip([*expect.draw.integers(2, 2, 9), 1], cases, strict=True):
        xs = [expect.draw.tensor(shape, dtype, contiguous=len(shape) != 2) for _ in range(ranks)]
        run = expect.launch(program, xs, ranks=ranks, cluster=CLUSTER)
        returns_new_tensors(expect, run, like=xs[0])
        changes_nothing(expect, run)
        is_mean(expect, run, torch.stack(xs).mean(0))
        calls_only(expect, run, "all_reduce")
        communications_within(expect, run, at_most=1, at_least=1)
        _sends_as(expect, run, dist.all_reduce, xs[0])

    ranks, x = expect.draw.integer(2, 8), expect.draw.tensor((1000, 1000))  # large: the ring, which sends least
    run = expect.launch(program, [x] * ranks, ranks=ranks, cluster=CLUSTER)
    size_bytes = 2 * (ranks - 1) / ranks * x.numel() * x.element_size()
    sent_bytes_within(expect, run, at_most=size_bytes, at_least=size_bytes)


def _sends_as(expect: Expect, run: Run, program: Callable[[Tensor], object], x: Tensor) -> None:
    """No rank sends more than in a run of `program(x)`, and none less."""
    plain = launch(program, x, ranks=run.ranks, cluster=CLUSTER)
    sent = [plain.traffic.sent_bytes(rank) for rank in range(run.ranks)]
    sent_bytes_within(expect, run, at_most=max(sent), at_least=min(sent))


@exercise(
    "Pass to the right",
    hints=[
        "If every rank first waits for a message, who sends one? What must each have begun before it waits?",
        "`dist.isend` begins a send and returns at once. The right neighbour is (rank + 1) % world_size.",
        "Make an empty tensor like `x`, begin the send to the right, receive from the left, and then `.wait()` for "
        "the send.",
    ],
)
def pass_to_right(expect: Expect, answer: Callable[[Tensor], Tensor]) -> None:
    not_from_lablib(answer)
    cluster = find_cluster(CLUSTER).free_compute()

    def program(xs: list[Tensor]):
        return observe(own_copy(answer), xs[dist.get_rank()])

    some = expect.draw.integer(20, 40)
    cases = [((some, some + 1), torch.float64), ((1000, some), torch.float32), ((some,), torch.float32)]
    counts = [expect.draw.choice([5, 7]), expect.draw.choice([4, 6, 8]), 2]  # an odd one always: see the seconds
    for ranks, (shape, dtype) in zip(counts, cases, strict=True):
        xs = [expect.draw.tensor(shape, dtype) for _ in range(ranks)]
        run = expect.launch(program, xs, ranks=ranks, cluster=cluster)
        returns_new_tensors(expect, run, like=xs[0])
        changes_nothing(expect, run)
        got = [call.value for call in run.values]
        expect.equal(f"ranks 1 to {ranks - 1} of {ranks} hold what their left neighbour gave", got[1:], xs[:-1])
        expect.equal(f"rank 0 of {ranks} holds what the last rank gave", got[0], xs[-1])
        calls_only(expect, run, "send")
        size_bytes = xs[0].numel() * xs[0].element_size()
        sent_bytes_within(expect, run, at_most=size_bytes, at_least=size_bytes)
        one_message_s = cluster.edge(0, 1).transfer_s(size_bytes)
        expect.budget(f"seconds on {ranks} ranks: two messages", run.timeline.makespan_s, 2 * one_message_s, "s")


MAX_SEED, MAX_RANKS = 999, 32  # what the exercise promises


@exercise(
    "Equal weights, different data",
    hints=[
        "`torch.manual_seed` may be called more than once. What should the weights depend on, and what the data?",
        "Weights: a seed made from `seed` alone. Data: one made from `seed` and the rank, far from all that may be a "
        "`seed`. Or: all ranks draw the data of all, and each takes its own.",
        "With at most 32 ranks, `100 * seed + rank` is another number for each pair. What must be added, so that it is "
        "none of 0 to 999?",
    ],
)
def weights_and_data(expect: Expect, answer: Callable[[int], tuple[Tensor, Tensor]]) -> None:
    not_from_lablib(answer)
    near = expect.draw.integer(1, MAX_SEED - 1)
    _draws_well(expect, answer, [near, near + 1], MAX_RANKS)
    far = expect.draw.integer(500, MAX_SEED)
    _draws_well(expect, answer, [0, 1, far], expect.draw.integer(3, 6))


def _draws_well(expect: Expect, answer: Callable[[int], tuple[Tensor, Tensor]], seeds: list[int], ranks: int) -> None:
    """All rules of the exercise, on so many ranks, for some seeds."""

    def program():
        mine, draws = own_copy(answer), []
        for seed in seeds:
            first, used = mine(seed), torch.initial_seed()
            torch.rand(3)  # whoever draws without a seed goes on from here
            draws.append((first, mine(seed), used))
        return draws

    run = expect.launch(program, ranks=ranks, cluster=CLUSTER)
    is_pair = all(_is_pair(pair) for draws in run.values for draw in draws for pair in draw[:2])
    saw = run.values[0][0][0]
    expect.that("two float tensors of shape (4, 4) on every rank", is_pair, "two" if is_pair else saw, "weights, data")
    weights = [[draws[i][0][0] for draws in run.values] for i in range(len(seeds))]  # [seed][rank]
    data = [[draws[i][0][1] for draws in run.values] for i in range(len(seeds))]
    expect.equal("the same weights on every rank", weights, [[one[0]] * ranks for one in weights])
    again = [
        f"other {name} in the second call with seed {seeds[i]}, on rank {rank}"
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
        _none(expect, f"another seed gives other {name}", same, "a seed that depends on `seed`")

    owner = {_key(one[0]): f"the weights with seed {seed}" for seed, one in zip(seeds, weights, strict=True)}
    owner |= _weights_of(answer, [used for draws in run.values for *_, used in draws if used not in seeds])
    twice = []
    for seed, by_rank in zip(seeds, data, strict=True):
        for rank, one in enumerate(by_rank):
            mine = f"the data of rank {rank} with seed {seed}"
            first = owner.setdefault(_key(one), mine)
            twice += [f"{mine} are {first}"] if first != mine else []
    _none(expect, f"no numbers over again, for seeds 0 to {MAX_SEED} and {ranks} ranks", twice, "other numbers")
    expect.budget(f"bytes sent ({ranks} ranks)", run.traffic.sent_bytes(), 0, "B")


def _none(expect: Expect, rule: str, found: list[str], expected: str) -> None:
    """Nothing was found that breaks a rule."""
    expect.that(rule, not found, found[0] if found else "so it is", expected)


def _is_pair(pair: object) -> bool:
    return (
        isinstance(pair, tuple | list)
        and len(pair) == 2
        and all(isinstance(t, Tensor) and t.shape == (4, 4) and t.is_floating_point() for t in pair)
    )


def _key(numbers: Tensor) -> bytes:
    return numbers.detach().double().contiguous().numpy().tobytes()


def _weights_of(answer: Callable[[int], tuple[Tensor, Tensor]], used: list[int]) -> dict[bytes, str]:
    """The weights of some seeds that were used for data, if they may be a run's `seed` as well."""
    seeds = sorted({seed for seed in used if 0 <= seed <= MAX_SEED})[:8]
    drawn = launch(lambda: [answer(seed)[0] for seed in seeds], ranks=2, cluster=CLUSTER).values[0] if seeds else []
    return {_key(one): f"the weights with seed {seed}" for seed, one in zip(seeds, drawn, strict=True)}


def _are_random(expect: Expect, seed: int, weights: Tensor, data: list[Tensor]) -> None:
    """Each holds 16 different numbers, and none is another in disguise: shifted, scaled, in another order, squared."""
    named = [("the weights", weights), *((f"rank {rank}'s data", one) for rank, one in enumerate(data))]
    constant = [f"{name}: {len(one.unique())} different numbers of 16" for name, one in named if len(one.unique()) < 16]
    _none(expect, "weights and data are random", constant, "torch.randn(4, 4)")
    copies = [f"{name} with seed {seed} are the weights{_made_from(weights, one)}" for name, one in named[1:]]
    copies = [text for text in copies if not text.endswith("are the weights")]
    _none(expect, "data are draws of their own", copies, "a draw of its own, from another seed")
    pairs = [(a, b, _made_from(x, y)) for (a, x), (b, y) in combinations(named[1:], 2)]
    alike = [f"{b} are {a}{how}" for a, b, how in pairs if how]
    _none(expect, "every rank draws data of its own", alike, "a seed that depends on the rank")
    if len(data) == MAX_RANKS:  # enough numbers to tell
        all_data = torch.stack(data).double().flatten(1)
        both = torch.stack([weights.double().flatten().expand_as(all_data).flatten(), all_data.flatten()])
        tied = float(both.corrcoef()[0, 1])
        expect.that("data do not follow the weights", abs(tied) < 0.3, f"correlation {tied:.2f}", "independent draws")


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
    "Mend a deadlock",
    hints=[
        "Which rank waits in the broken program, and who is not there?",
        "A collective belongs to all ranks. Only the text belongs to rank 0.",
        "Two of the lines of `broken_report` must be in another order: which of them may stand under the `if`?",
    ],
)
def report(expect: Expect, answer: Callable[[Tensor], str | None]) -> None:
    not_from_lablib(answer)

    def program(losses: list[Tensor]):
        return own_copy(answer)(losses[dist.get_rank()])

    for ranks, last_digit in zip(expect.draw.integers(3, 2, 9), (0, 5, expect.draw.integer(1, 9)), strict=True):
        mean = expect.draw.integer(10, 98) / 10 + last_digit / 100  # two digits behind the point, the last perhaps a 0
        spread = [expect.draw.number(-0.5, 0.5) for _ in range(ranks)]
        losses = [torch.tensor(mean + one - sum(spread) / ranks) for one in spread]
        run = expect.launch(program, losses, ranks=ranks, cluster=CLUSTER)
        expect.equal(f"rank 0 reports the mean loss of all {ranks} ranks", run.values[0], f"mean loss {mean:.2f}")
        expect.equal("the other ranks report nothing", run.values[1:], [None] * (ranks - 1))
        communications_within(expect, run, at_most=1, at_least=1)
        plain = launch(lambda: dist.all_reduce(torch.ones(())), ranks=ranks, cluster=CLUSTER)
        sent, at_most = run.traffic.sent_bytes(), plain.traffic.sent_bytes()
        expect.budget(f"bytes sent by all {ranks} ranks", sent, at_most, "B", at_least=4 * (ranks - 1))


@exercise(
    "Whose gradient is it?",
    hints=[
        "What can one rank find out without the others? What must all of them then learn?",
        "`grad.isfinite().all()` is a rank's own answer: one number. Which collective shows everybody's to everybody?",
        "`dist.all_gather` fills a list of n tensors of one number, the r-th from rank r. Which positions do you keep?",
    ],
)
def corrupted_ranks(expect: Expect, answer: Callable[[Tensor], list[int]]) -> None:
    not_from_lablib(answer)
    nan, inf = float("nan"), float("inf")
    ranks = expect.draw.integers(3, 4, 9)
    one, two = sorted(expect.draw.integers(2, 1, 3))
    _finds(expect, answer, ranks[0], {0: nan, one: nan, two: nan}, f"a NaN on ranks 0, {one} and {two}", first=one)
    _finds(expect, answer, ranks[1], {one: -inf, two: inf}, f"an infinity on ranks {one} and {two}")
    for size in (1e30, 3e38):  # finite in float32; the norm of the first is not, nor the sum of the second
        _finds(expect, answer, ranks[2], {}, f"all numbers are finite, of {size:g}", size=size)
    many = expect.draw.integer(66, 72)  # a bit for each rank fits no number
    bad = {rank: expect.draw.choice([nan, inf, -inf]) for rank in (0, expect.draw.integer(25, 60), many - 1)}
    _finds(expect, answer, many, bad, "three ranks of many are hit")


def _finds(
    expect: Expect,
    answer: Callable[[Tensor], list[int]],
    ranks: int,
    bad: dict[int, float],
    what: str,
    size: float = 0.0,
    first: int | None = None,
) -> None:
    """The right list on every rank, nothing changed, one collective of a number each."""
    shape = (expect.draw.integer(5, 9), expect.draw.integer(5, 9))
    grads = [expect.draw.tensor(shape) for _ in range(ranks)]
    if size:
        grads = [size * grad.abs().clamp(0.5, 1.0) for grad in grads]
    for rank, value in bad.items():  # on rank `first` in the first place, else behind the first eight
        grads[rank].view(-1)[0 if rank == first else expect.draw.integer(8, grads[rank].numel() - 1)] = value

    def program(grads: list[Tensor]):
        return observe(own_copy(answer), grads[dist.get_rank()])

    run = expect.launch(program, grads, ranks=ranks, cluster=CLUSTER)
    found = [call.value for call in run.values]
    expect.equal(f"{what}: every rank of {ranks} returns {sorted(bad)}", found, [sorted(bad)] * ranks)
    changes_nothing(expect, run)
    communications_within(expect, run, at_most=1, at_least=1)
    numbers = launch(lambda: dist.all_reduce(torch.zeros(ranks, dtype=torch.int64)), ranks=ranks, cluster=CLUSTER)
    at_most = max(numbers.traffic.sent_bytes(rank) for rank in range(ranks))
    sent_bytes_within(expect, run, at_most=max(at_most, 8 * (ranks - 1)))
