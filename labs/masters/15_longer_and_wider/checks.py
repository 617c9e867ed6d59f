"""Checks of lab 15: longer and wider. Scores, orders and routings are random; sums and gradients equal one device's."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lablib import Run
from lablib.course import Expect, exercise
from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.observe import Observed
from lablib.course.checks.rules import calls_only, changes_nothing, not_from_lablib, observe, whole_numbers
from lablib.text.units import plural

HALF = 0.5  # of a byte: budgets of bytes that are exact
EXACT = 1e-9


# ---- exercise 1 ----


@exercise(
    "Merge two attentions",
    hints=[
        "exp(l) is the sum of the weights of a part. What share of the whole sum is part 2's?",
        "w = exp(l2) / (exp(l1) + exp(l2)), and o = o1 + w (o2 - o1). With scores such as 1000, exp overflows: which "
        "function of l2 - l1 is w?",
        "w = 1 / (1 + exp(l1 - l2)) is the sigmoid of l2 - l1; it needs one more dimension, for o. l = log(exp(l1) + "
        "exp(l2)): torch has one function for it, too, which does not overflow.",
    ],
)
def merge(expect: Expect, merge: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    not_from_lablib(merge)
    draw = expect.draw
    far = draw.number(500.0, 2000.0)
    few, other = ([draw.integer(2, 5), draw.integer(2, 5)] for _ in range(2))
    f32, f64 = torch.float32, torch.float64
    lead = (draw.integer(1, 3), draw.integer(2, 3))  # batch, heads
    cases = [  # name, parts, levels of scores, shape before the last two, (queries, width), type
        ("two parts", [draw.integer(2, 6), draw.integer(7, 11)], 0.0, lead, None, f64),
        ("one key against many", [1, draw.integer(20, 30)], 0.0, lead, None, f64),
        ("large scores", few, 300.0, lead, None, f64),
        ("scores far below zero", other, -far, lead, None, f64),
        ("four parts, one after another", draw.integers(4, 1, 9), 0.0, (draw.integer(2, 5),), None, f64),
        ("one query of one number", few, 0.0, (1, 1), (1, 1), f64),
        ("as many queries as heads and numbers", few, 0.0, (2, 3), (3, 3), f64),
        ("five dimensions", other, 0.0, (2, 1, 3), None, f64),
        ("one part's scores far above the other's", few, None, lead, None, f64),
        ("float32", few, 0.0, lead, None, f32),
    ]
    for name, parts, level, lead, shape, dtype in cases:
        with expect.grouped(f"o and l equal attention over all keys ({name})", "right"):
            queries, width = shape or (draw.integer(3, 5), draw.integer(2, 6))
            _expect_merged(expect, merge, name, parts, level, (*lead, queries, width), dtype)
    with expect.grouped("if a part has no key (l = -inf), the other one is the result", "right"):
        for of_all in (False, True):
            _expect_unseen(expect, merge, of_all)


def _attention(q: Tensor, k: Tensor, v: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT + shift
    return torch.softmax(scores, -1) @ v, scores.logsumexp(-1)


def _pair(rule: str, value: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(isinstance(each, Tensor) for each in value):
        said = "None: is there a return?" if value is None else short_repr(value)
        raise RuleBroken(rule, said, "two tensors, o and l")
    return value[0], value[1]


def _expect_merged(
    expect: Expect,
    answer: Callable[..., Any],
    name: str,
    parts: list[int],
    level: float | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    draw, rtol = expect.draw, EXACT if dtype == torch.float64 else 1e-5
    *lead, queries, width = shape
    q = draw.tensor(shape, dtype)
    k, v = (draw.tensor((*lead, sum(parts), width), dtype) for _ in range(2))
    # A different level for each query's scores: exp(1200) is inf, and exp(-1200) is 0.
    levels = torch.linspace(-0.3, 1.0, queries)[:, None] * 4 * (level or 0.0)
    shift = levels.expand(queries, sum(parts)).to(dtype).clone()
    if level is None:  # one query's first part is far above the second, another's far below
        shift[:, : parts[0]] += torch.linspace(-3000.0, 3000.0, queries, dtype=dtype)[:, None]
    k = k * (10 if level else 1)
    wanted = _attention(q, k, v, shift)
    split = zip(k.split(parts, -2), v.split(parts, -2), shift.split(parts, -1), strict=True)
    pieces = [_attention(q, *each) for each in split]
    (o, lse), kept = pieces[0], []
    for piece in pieces[1:]:
        call = observe(answer, o.clone(), lse.clone(), piece[0].clone(), piece[1].clone())
        o, lse = _merged(expect, call, name)
        kept.append((o, o.clone(), lse, lse.clone()))
        _expect_shapes(expect, name, o, lse, *wanted)
    rule = f"a result does not change when the next call is made ({name})"
    same = all(torch.equal(each[i], each[i + 1]) for each in kept for i in (0, 2) if bool(each[i + 1].isfinite().all()))
    expect.that(rule, same, "it changed", "new tensors from each call")
    note = f"({name}, {'+'.join(map(str, parts))} keys)"
    expect.close(f"l is the log of the sum over all keys {note}", lse, wanted[1], rtol=rtol, atol=rtol)
    expect.close(f"o is attention over all keys {note}", o, wanted[0], rtol=rtol, atol=rtol)


def _merged(expect: Expect, call: Observed, name: str) -> tuple[Tensor, Tensor]:
    """The pair of a call that did not change its arguments."""
    expect.equal("a pair is returned", call.value is ..., False)
    changes_nothing(expect, [call])
    pair = _pair(f"o and l are returned ({name})", call.value)
    said = "the result shares its memory with an argument" if call.aliased else "new ones"
    expect.that(f"o and l are new tensors ({name})", not call.aliased, said, "separate memory: a copy, x.clone()")
    return pair


def _expect_shapes(expect: Expect, name: str, o: Tensor, lse: Tensor, wanted_o: Tensor, wanted_lse: Tensor) -> None:
    for what, saw, wanted in (("o", o, wanted_o), ("l", lse, wanted_lse)):
        expect.equal(f"{what} keeps its shape ({name})", tuple(saw.shape), tuple(wanted.shape))
        expect.equal(f"{what} keeps its type ({name})", str(saw.dtype), str(wanted.dtype))


def _expect_unseen(expect: Expect, answer: Callable[..., Any], of_all: bool) -> None:
    """Queries without a key in one part, as under a causal mask: l is -inf, and o is ignored."""
    draw, (rows, width) = expect.draw, (expect.draw.integer(3, 6), expect.draw.integer(2, 5))
    o = [draw.tensor((rows, width), torch.float64) for _ in range(2)]
    lse = [draw.tensor((rows,), torch.float64) for _ in range(2)]
    share = torch.sigmoid(lse[1] - lse[0])[:, None]
    both = o[0] + share * (o[1] - o[0]), torch.logaddexp(*lse)
    lost_rows = slice(0, rows if of_all else 1)
    for seen, unseen in ((0, 1), (1, 0)):
        lost, wanted = lse[unseen].clone(), [each.clone() for each in both]
        lost[lost_rows], wanted[0][lost_rows] = float("-inf"), o[seen][lost_rows]
        wanted[1][lost_rows] = lse[seen][lost_rows]
        args = [(o[0], lse[0]), (o[1], lse[1])]
        args[unseen] = (o[unseen], lost)
        call = observe(answer, *[x.clone() for each in args for x in each])
        value = _merged(expect, call, "a part with no key")
        rule = f"if part {unseen + 1} has no key (l = -inf), the other one is the result"
        expect.close(f"{rule}: o", value[0][lost_rows], wanted[0][lost_rows], rtol=EXACT)
        expect.close(f"{rule}: l", value[1][lost_rows], wanted[1][lost_rows], rtol=EXACT)
        rule = f"if both parts have keys, and another query none in part {unseen + 1}, both count"
        expect.close(f"{rule}: o", value[0], wanted[0], rtol=EXACT, atol=EXACT)
        expect.close(f"{rule}: l", value[1], wanted[1], rtol=EXACT, atol=EXACT)


# ---- exercise 2 ----


@exercise(
    "An order of equal work",
    hints=[
        "A late token attends to many keys, an early one to few. Which piece goes with the first one, so that the sum "
        "is the mean?",
        "Cut the sequence into 2n pieces of equal length. Rank r has the r-th from the front and the r-th from behind.",
        "With c = seq_len // (2 * n), piece i is range(i * c, (i + 1) * c). Which i has the r-th piece from behind?",
    ],
)
def even_order(expect: Expect, even_order: Callable[[int, int, int], list[int]]) -> None:
    not_from_lablib(even_order)
    draw = expect.draw
    long = draw.choice([2, 4, 6])
    pieces = {
        1: 3,
        draw.integer(9, 12): draw.integer(2, 5),
        long: draw.integer(280, 320) // long,
        draw.choice([5, 7]): 1,
    }
    for n, length in pieces.items():
        expect.measured.clear()
        seq_len = 2 * n * length
        what = f"{seq_len} tokens on {plural(n, 'ranks')}"
        asked = draw.shuffled(range(n))

        def program(answer: Callable[..., Any], seq_len: int, asked: Sequence[int]) -> Any:
            return observe(answer, seq_len, len(asked), asked[dist.get_rank()]).value

        run = expect.launch(program, even_order, seq_len, asked, ranks=n)  # each rank with separate variables
        calls_only(expect, run)
        tokens: list[list[int]] = [[]] * n
        for rank, value in zip(asked, run.values, strict=True):
            expect.equal("positions are returned", value is ..., False)
            tokens[rank] = whole_numbers(f"a list of positions is returned ({what})", value, "[0, 1, 6, 7]")
        listed = sorted(token for each in tokens for token in each)
        rule = f"every token is on one rank ({what})"
        expect.that(rule, listed == list(range(seq_len)), tokens, f"each of 0 to {seq_len - 1} once")
        ascending = [each == sorted(each) for each in tokens]
        expect.that(f"the positions of a rank ascend ({what})", all(ascending), tokens, "each list in order")
        counts = [len(each) for each in tokens]
        expect.that(f"every rank has equally many tokens ({what})", len(set(counts)) == 1, counts, seq_len // n)
        pairs = [sum(token + 1 for token in each) for each in tokens]
        rule = f"every rank has equally many pairs of a query and a key ({what})"
        expect.that(rule, len(set(pairs)) == 1, pairs, f"{sum(pairs) // n} on each")
        runs = [1 + sum(b != a + 1 for a, b in zip(each, each[1:], strict=False)) for each in tokens]
        rule = f"the tokens of a rank are at most two runs ({what})"
        expect.that(rule, max(runs) <= 2, f"{max(runs)} runs: {tokens[runs.index(max(runs))]}", "2 runs")


# ---- exercise 3 ----


@exercise(
    "Tokens to their experts, and back",
    hints=[
        "Each expert has `capacity` places for this rank's tokens. Which place does a token get? How many earlier "
        "tokens chose the same expert?",
        "place = expert * capacity + number of earlier tokens for it; a token with a number of capacity or more is "
        "left out. Put tokens into a tensor [num_experts * capacity, D] of zeros, exchange it, run, exchange back.",
        "earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]; kept = earlier < "
        "capacity; box[place[kept]] = x[kept]; at the end out[kept] = weight[kept, None] * back[place[kept]].",
    ],
)
def mixture(expect: Expect, mixture: Callable[..., Tensor]) -> None:
    not_from_lablib(mixture, allowed=("with_gradient",))
    draw = expect.draw
    for kind, ranks in (("any", 1), ("all to one expert", 5), ("room for all", 2), ("any", draw.integer(2, 4))):
        expect.measured.clear()
        _expect_mixture(expect, mixture, kind, ranks, torch.float64)
    _expect_mixture(expect, mixture, "float32", 2, torch.float32)


def _expect_mixture(expect: Expect, answer: Callable[..., Any], kind: str, ranks: int, dtype: torch.dtype) -> None:
    draw, local, width = expect.draw, expect.draw.integer(1, 3), expect.draw.integer(3, 6)
    exact = EXACT if dtype == torch.float64 else 1e-5
    experts = ranks * local
    counts = [draw.integer(5, 12) for _ in range(ranks)]  # tokens of each rank
    capacity = max(counts) if kind == "room for all" else draw.integer(1, 3)
    xs = [draw.tensor((count, width), dtype) for count in counts]
    weights = [0.5 + draw.tensor((count,), dtype).abs() for count in counts]
    one = draw.integer(0, experts - 1)
    drawn = [
        [one if kind in ("all to one expert", "room for all") else draw.integer(0, experts - 1) for _ in range(n)]
        for n in counts
    ]
    choices = [torch.tensor(each) for each in drawn]
    matrices = draw.tensor((experts, width, width), dtype)
    biases = draw.tensor((experts, width), dtype)  # the output for an empty place is not 0 either
    grads = [draw.tensor((count, width), dtype) for count in counts]

    def program(answer: Callable[..., Any]) -> Any:
        rank = dist.get_rank()
        own = slice(rank * local, (rank + 1) * local)
        here = torch.get_default_device()
        matrix, bias = (each[own].clone().to(here).requires_grad_() for each in (matrices, biases))
        x, weight = (each[rank].clone().to(here).requires_grad_() for each in (xs, weights))

        boxes_seen: list[Tensor] = []

        def run_experts(boxes: Tensor) -> Tensor:
            boxes_seen.append(boxes.detach().clone())
            if tuple(boxes.shape) != (ranks, local, capacity, width):
                raise RuleBroken(
                    "run_experts gets [ranks, experts of this rank, capacity, D]",
                    str(tuple(boxes.shape)),
                    str((ranks, local, capacity, width)),
                )
            return torch.tanh(torch.einsum("necd,edf->necf", boxes, matrix) + bias[None, :, None])

        call = observe(answer, x, choices[rank].clone().to(here), weight, run_experts, experts, capacity)
        if isinstance(call.value, Tensor) and call.value.shape == x.shape and call.value.requires_grad:
            (call.value * grads[rank].to(here)).sum().backward()
        return call, [each.grad for each in (x, weight, matrix, bias)], boxes_seen

    run = expect.launch(program, answer, ranks=ranks)
    leaves = [each.clone().requires_grad_() for each in (*xs, *weights)]
    matrix, bias = matrices.clone().requires_grad_(), biases.clone().requires_grad_()
    outputs, total = [], torch.zeros((), dtype=dtype)
    for rank in range(ranks):
        x, weight = leaves[rank], leaves[ranks + rank]
        kept = [drawn[rank][:i].count(expert) < capacity for i, expert in enumerate(drawn[rank])]
        of_each = [
            weight[i] * torch.tanh(x[i] @ matrix[expert] + bias[expert]) if kept[i] else 0 * x[i]
            for i, expert in enumerate(drawn[rank])
        ]
        outputs.append(torch.stack(of_each))
        total = total + (outputs[-1] * grads[rank]).sum()
    total.backward()
    on = f"({kind}: {plural(ranks, 'ranks')}, {plural(experts, 'experts')}, {plural(capacity, 'places')} each)"
    wanted_grads: list[Any] = [each.grad for each in (*leaves, matrix, bias)]
    with expect.grouped(f"outputs and gradients equal one device's {on}", "right"):
        for rank, (call, _, _) in enumerate(run.values):
            _expect_output(expect, call.value, outputs[rank].detach(), xs[rank], f"{on}, rank {rank}", exact)
        for rank, (_, _, boxes) in enumerate(run.values):
            expect.equal(f"run_experts is called once {on}, rank {rank}", len(boxes), 1)
            came = [[each.count(rank * local + e) for e in range(local)] for each in drawn]
            filled = (boxes[0] != 0).any(3).sum(2).tolist()
            wanted = [[min(count, capacity) for count in counts] for counts in came]
            said = f"{filled}; last places hold up to {short_repr(boxes[0][:, :, -1].abs().amax((0, 1)))}"
            rule = f"each token with a place fills one place, the others are 0 {on}, rank {rank}"
            expect.that(rule, filled == wanted, said, wanted)
        for rank, (call, found, _) in enumerate(run.values):
            where = f"{on}, rank {rank}"
            own = slice(rank * local, (rank + 1) * local)
            wanted = [wanted_grads[rank], wanted_grads[ranks + rank], wanted_grads[-2][own], wanted_grads[-1][own]]
            names = ("x", "weight", "the experts' matrices", "the experts' biases")
            for name, saw, want in zip(names, found, wanted, strict=True):
                rule = f"the gradient of {name} equals one device's {where}"
                if saw is None:
                    raise RuleBroken(rule, "None: it is not in autograd's graph", "a gradient")
                expect.close(rule, saw, want, rtol=exact, atol=exact)
            changes_nothing(expect, [call])
    _expect_sent(expect, run, dtype.itemsize * experts * capacity * width, on)


def _expect_output(expect: Expect, saw: Any, wanted: Tensor, x: Tensor, where: str, exact: float) -> None:
    if not isinstance(saw, Tensor):
        said = "None: is there a return?" if saw is None else short_repr(saw)
        expect.equal(f"a tensor is returned {where}", saw is ..., False)
        raise RuleBroken(f"a tensor is returned {where}", said, "[t, D]")
    expect.equal(f"the output has the shape of x {where}", tuple(saw.shape), tuple(x.shape))
    expect.equal(f"the output has the type of x {where}", str(saw.dtype), str(x.dtype))
    lost, found = wanted.abs().sum(1) == 0, saw.detach().cpu()
    if bool(lost.any()) and not bool((found[lost] == 0).all()):
        said = "other numbers"
        if torch.equal(found[lost], x[lost]):
            said = "the token, unchanged"
        elif bool((found[~lost] == 0).all(1).any()):
            said = f"numbers, and zeros for an earlier one: token {int((found == 0).all(1).nonzero()[0])} has a place"
        raise RuleBroken(f"a token without a place gets zeros {where}", said, "0 in all of its row")
    expect.close(f"the output equals one device's {where}", saw.detach(), wanted, rtol=exact, atol=exact)


def _expect_sent(expect: Expect, run: Run, box_bytes: int, on: str) -> None:
    """The boxes out and back, and their gradients: four exchanges."""
    other = sorted({t.name for t in run.traffic.transfers if not t.name.startswith(("all_to_all", "alltoall"))})
    expect.that(f"the only calls are all-to-alls {on}", not other, " and ".join(other) or "none", "all_to_all")
    expect.budget(f"exchanges, forward and backward {on}", len(run.traffic), 4, "calls")
    n = run.ranks
    sent = max(run.traffic.sent_bytes(rank) for rank in range(n))
    expect.budget(f"bytes a rank sends, forward and backward {on}", sent, 4 * box_bytes * (n - 1) / n + HALF, "B")


# ---- exercise 4 ----


@exercise(
    "A block for some tokens",
    hints=[
        "Which tokens: sort by score, take the first ones, and then put those in the order of the sequence.",
        "Only these go through the block, in a single call. Its output, times their scores, is added to x.",
        "chosen = torch.sort(scores, descending=True, stable=True).indices[:capacity].sort().values; x.index_add(0, "
        "chosen, scores[chosen, None] * block(x[chosen])).",
    ],
)
def some_tokens(expect: Expect, some_tokens: Callable[..., Tensor]) -> None:
    not_from_lablib(some_tokens)
    draw = expect.draw
    any_size = draw.integer(20, 40), draw.integer(10, 18)  # called twice: other scores, other tokens
    kinds = (
        "all tokens",
        "scores below zero",
        "equal scores",
        "one token",
        "scores that are close",
        "float32",
        "any",
        "any",
    )
    for kind in kinds:
        expect.measured.clear()
        dtype = torch.float32 if kind == "float32" else torch.float64
        length, width = draw.integer(6, 11), draw.integer(2, 5)
        capacity = {"all tokens": length, "one token": 1}.get(kind, draw.integer(2, length - 3))
        if kind == "any":
            length, capacity = any_size
        x, grad = (draw.tensor((length, width), dtype) for _ in range(2))
        scores = draw.tensor((length,), dtype) if kind == "any" else _scores_apart(draw, length, dtype)
        if kind == "equal scores":
            scores = torch.full((length,), 2.0, dtype=dtype)  # the last is larger, one is smaller; the rest are equal
            scores[-1], scores[draw.integer(0, length - 2)] = 3.0, 1.0
        if kind == "scores below zero":
            scores = -scores.abs() - 0.1
        if kind == "scores that are close":  # in fewer bits they would be equal
            scores = 1.0 + 1e-9 * torch.arange(length, dtype=dtype)
        _expect_some_tokens(expect, some_tokens, kind, x, scores, capacity, grad)


def _scores_apart(draw: Draw, length: int, dtype: torch.dtype) -> Tensor:
    """Scores that keep their order in fewer bits, or below zero: only the case of close scores tests fewer bits."""
    while True:
        scores = draw.tensor((length,), dtype)
        kinds = (scores, -scores.abs() - 0.1)
        if all(len(each.bfloat16().unique()) == length for each in kinds):
            return scores


def _expect_some_tokens(
    expect: Expect, answer: Callable[..., Any], kind: str, x: Tensor, scores: Tensor, capacity: int, grad: Tensor
) -> None:
    what = f"({kind}: {capacity} of {len(x)} tokens)"
    seen: list[int] = []
    matrix = expect.draw.tensor((x.shape[1], x.shape[1]), x.dtype)
    exact = EXACT if x.dtype == torch.float64 else 1e-5

    def block(x_CD: Tensor) -> Tensor:
        """Each token's output depends on those before it."""
        seen.append(len(x_CD))
        return torch.tanh(x_CD.cumsum(0) @ matrix)

    leaves = [x.clone().requires_grad_(), scores.clone().requires_grad_()]
    call = observe(answer, *leaves, block, capacity)
    saw = call.value
    if not isinstance(saw, Tensor):
        expect.equal(f"a tensor is returned {what}", saw is ..., False)
        raise RuleBroken(
            f"a tensor is returned {what}", "None: is there a return?" if saw is None else short_repr(saw), "[T, D]"
        )
    expect.equal(f"the block is called once, with `capacity` tokens {what}", seen, [capacity])
    changes_nothing(expect, [call])
    mine = [x.clone().requires_grad_(), scores.clone().requires_grad_()]
    order = sorted(range(len(x)), key=lambda i: (-float(scores[i]), i))[:capacity]
    chosen = sorted(order)
    added = block(torch.stack([mine[0][i] for i in chosen]))
    wanted = torch.stack(
        [mine[0][i] + (mine[1][i] * added[chosen.index(i)] if i in chosen else 0.0) for i in range(len(x))]
    )
    (wanted * grad).sum().backward()
    expect.equal(f"the output has the shape of x {what}", tuple(saw.shape), tuple(x.shape))
    expect.equal(f"the output has the type of x {what}", str(saw.dtype), str(x.dtype))
    passed = [i for i in range(len(x)) if i not in chosen]
    rule = f"a token that is not chosen passes unchanged {what}"
    wrong = [i for i in passed if not torch.equal(saw[i].detach(), x[i])]
    said = "all do"
    if wrong:
        zeros = not bool(saw[wrong[0]].any())
        said = f"tokens that {'became zeros' if zeros else 'have other numbers'}: {wrong}"
    expect.that(rule, not wrong, said, "x itself")
    expect.close(f"the output is x + score * block(x) {what}", saw.detach(), wanted.detach(), rtol=exact, atol=exact)
    if saw.requires_grad:
        (saw * grad).sum().backward()
    for name, own, one in zip(("x", "scores"), leaves, mine, strict=True):
        rule = f"the gradient of {name} is right {what}"
        if own.grad is None:
            raise RuleBroken(rule, "None: it is not in autograd's graph", "a gradient")
        expect.close(rule, own.grad, one.grad, rtol=exact, atol=exact)
