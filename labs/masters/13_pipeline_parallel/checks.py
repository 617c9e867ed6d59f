"""Checks of lab 13: pipeline parallel. Plans are checked by the rules and by replay; the weights also by gradients."""

import copy
import operator
import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib.course import Expect, exercise
from lablib.course.checks.comparison import difference, is_array, plain_number
from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.rules import changes_nothing, not_from_lablib, observe
from lablib.pipeline import Costs, Plan, balanced_cut, read_plan, replay, schedules, validate
from lablib.pipeline.deadlock import steps_done
from lablib.text.units import plural

LIMITS, MICROBATCHES, AT_MOST_S = (3, 2, 2), 4, 15  # of exercise 4: one for each stage; 15 is the minimum
_UNITS = {"milliseconds": 1e-3, "microseconds": 1e-6, "hours": 3600.0}
_ACTION = re.compile(r"[FB](0|[1-9]\d*)")


def _seconds(draw: Draw, stages: int, slowest: int) -> list[float]:
    """Seconds of each stage; the given one is the slowest by far."""
    seconds = [draw.number(0.5, 1.5) for _ in range(stages)]
    seconds[slowest] = draw.number(2.0, 3.0)
    return seconds


@exercise(
    "Predict the bubble",
    hints=[
        "Write down when the last stage ends its last forward. What does it wait for, and which stage limits the "
        "speed?",
        "Time of all forwards: one micro-batch through all stages, and m - 1 more on the slowest. Backward is the same "
        "in reverse, with its own seconds.",
        "step_s = sum(F) + (m - 1) max(F) + sum(B) + (m - 1) max(B); busy: m (sum(F) + sum(B)), of p step_s.",
    ],
)
def bubble(expect: Expect, bubble: Callable[[list[float], list[float], int], float]) -> None:
    not_from_lablib(bubble)
    draw = expect.draw
    p, m = draw.integer(2, 7), draw.integer(2, 9)
    first = draw.integer(0, p - 2)
    last = draw.choice([i for i in range(p) if i != first])
    even, uneven = [draw.number(0.5, 2.0)] * p, _seconds(draw, p, first)
    alone = _seconds(draw, p, first)
    cases = [
        ("equal stages, one micro-batch", even, [2 * each for each in even], 1),
        ("equal stages", even, [2 * each for each in even], m),
        ("a stage that is slow in both", uneven, [2 * each for each in uneven], m),
        ("one stage slow in forward, another in backward", alone, _seconds(draw, p, last), m),
        ("unequal stages, one micro-batch", alone, _seconds(draw, p, last), 1),
        ("one stage", [draw.number(1, 2)], [draw.number(2, 3)], m),
        ("many micro-batches", _seconds(draw, 8, 3), _seconds(draw, 8, 5), 500),
        ("many stages", _seconds(draw, 18, 3), _seconds(draw, 18, 11), m),
    ]
    cases += [
        (f"in {unit}", *([scale * each for each in _seconds(draw, p, slow)] for slow in (first, last)), m)
        for unit, scale in _UNITS.items()
    ]
    for name, forward_s, backward_s, number in cases:
        call = observe(bubble, list(forward_s), list(backward_s), number)
        changes_nothing(expect, [call])
        plan = schedules.gpipe(len(forward_s), number)
        wanted = replay(plan, Costs(forward_s, backward_s)).bubble_fraction
        expect.close(f"the bubble is the replay's ({name})", _number(call.value), wanted, rtol=1e-9, atol=1e-9)


def _number(value: Any) -> Any:
    if value is None:
        raise RuleBroken("a number is returned", "None: is there a return?", "a share from 0 to 1")
    return plain_number(value)


@exercise(
    "1F1B",
    hints=[
        "How many forwards must stage i have done, before the first gradient can come back to it?",
        "First min(p - 1 - i, m) forwards. Then, m times: a forward if one is left, and the oldest backward.",
        "`ahead = min(num_stages - 1 - stage, num_microbatches)`; for each i: F(ahead + i), if below m, and B(i).",
    ],
)
def one_f_one_b(expect: Expect, one_f_one_b: Callable[[int, int, int], list[str]]) -> None:
    not_from_lablib(one_f_one_b)
    draw = expect.draw
    few = draw.integer(3, 7)
    sizes = [
        (draw.choice([2, 4, 5, 6]), draw.integer(7, 12)),  # not 3: p - i forwards would equal those of 4
        (few, draw.integer(1, few - 2)),  # fewer than stage 0 would run first
        (few + 1, few + 1),
        (1, draw.integer(2, 5)),
        (draw.integer(3, 5), 1),
        (3, draw.integer(7, 12)),
        (9, draw.integer(20, 30)),
        (18, draw.integer(101, 120)),
    ]
    for p, m in sizes:
        expect.measured.clear()  # the report shows the last sizes
        rows: dict[int, list[str]] = {}
        returned: dict[int, Any] = {}
        for stage in draw.shuffled(range(p)):  # a row must not depend on earlier calls
            returned[stage] = observe(one_f_one_b, stage, p, m).value
            rows[stage] = _row(expect, returned[stage], stage, p, m)
        changed = [stage for stage in range(p) if list(returned[stage]) != rows[stage]]
        rule = f"a later call does not change a row ({_sizes(p, m)})"
        expect.that(rule, not changed, f"the rows of stages {changed} changed", "a new list for each call")
        _expect_1f1b(expect, [rows[stage] for stage in range(p)], p, m)


def _sizes(p: int, m: int) -> str:
    return f"{plural(p, 'stages')}, {plural(m, 'micro-batches')}"


def _row(expect: Expect, value: Any, stage: int, p: int, m: int) -> list[str]:
    """The returned actions."""
    what = f"stage {stage} of {p}, {plural(m, 'micro-batches')}"
    expect.equal("a row is returned", value is ..., False)
    if not isinstance(value, list | tuple):
        said = "None: is there a return?" if value is None else short_repr(value)
        raise RuleBroken(f"a list of texts is returned ({what})", said, '["F0", "B0"]')
    for each in value:
        if not (isinstance(each, str) and _ACTION.fullmatch(each)):
            raise RuleBroken(f'an action is a text such as "F0" or "B12" ({what})', short_repr(each), '"F0"')
    value = [str.__str__(each) for each in value]  # a subclass of str may show something else
    for kind in "FB":
        numbers = [int(each[1:]) for each in value if each[0] == kind]
        expect.equal(f"each {kind} is done once ({what})", sorted(numbers), list(range(m)))
    seen: set[str] = set()
    for each in value:
        if each[0] == "B" and f"F{each[1:]}" not in seen:
            raise RuleBroken(f"a forward comes before its backward ({what})", f"{each} first", f"F{each[1:]}")
        seen.add(each)
    return value


def _plan_of(rows: Sequence[Sequence[str]], m: int) -> Plan:
    lines = [" ".join(f"{stage}{each}" for each in row) for stage, row in enumerate(rows)]
    return replace(Plan.parse("yours", lines), num_microbatches=m, rank_of=tuple(range(len(rows))))


def _expect_1f1b(expect: Expect, rows: list[list[str]], p: int, m: int) -> None:
    plan, what = _plan_of(rows, m), _sizes(p, m)
    report = validate(plan)
    expect.that(f"no stages wait for each other for ever ({what})", not report.findings, str(report), "none do")
    done = replay(plan)
    held = [round(each, 6) for each in done.in_flight]
    allowed = [min(p - stage, m) for stage in range(p)]
    over = [f"stage {i} holds {saw:g}" for i, (saw, most) in enumerate(zip(held, allowed, strict=True)) if saw > most]
    expect.that(f"stage i holds p - i micro-batches at most ({what})", not over, over, f"at most {allowed}")
    expect.budget(f"the step takes no longer than GPipe's ({what})", done.makespan_s, 3.0 * (m + p - 1), "s")


# ---- run_row: one rank at a time, its neighbours played from the unsplit model; then all ranks of a launch ----


class _Stage(nn.Module):
    """A stage of a small model: an embedding or a product, then tanh; the last one's output is its loss, over m."""

    def __init__(self, draw: Draw, number: int, p: int, m: int):
        super().__init__()
        self.number, self.is_last = number, number == p - 1
        self.table = nn.Parameter(draw.tensor((11, 4), torch.float64)) if number == 0 else None
        self.weight = nn.Parameter(draw.tensor((4, 4), torch.float64))
        self.tokens = [torch.tensor([[draw.integer(0, 10) for _ in range(3)] for _ in range(2)]) for _ in range(m)]
        self.targets = [draw.tensor((2, 3, 4), torch.float64) for _ in range(m)]
        self.calls: _Calls | None = None

    def forward(self, action: str, x: Tensor) -> Tensor:
        if self.calls:
            self.calls.begin("stage", action, x)
        y = torch.tanh((x if self.table is None else self.table[x]) @ self.weight)
        if self.is_last:
            number = int(action[1:])
            y = (y - self.targets[number].to(y.device)).square().mean() * (number + 1) / len(self.targets)
        if self.calls:
            self.calls.made(x, y)
        return y


class _Unsplit:
    """Every input, output and gradient of the stages, from one graph over all of them."""

    def __init__(self, stages: Sequence[_Stage], m: int):
        stages = copy.deepcopy(list(stages))
        self.inputs: dict[tuple[int, int], Tensor] = {}
        for i in range(m):
            x = stages[0].tokens[i]
            for stage in stages:
                self.inputs[stage.number, i] = x
                x = stage(f"F{i}", x)
                x.retain_grad()
            self.inputs[len(stages), i] = x
            x.backward()
        self.gradients = [torch.cat([param.grad.flatten() for param in each.parameters()]) for each in stages]  # pyright: ignore


_SENT = {"F": "F sends the stage's output", "B": "B sends the gradient of the stage's input"}


class _Calls:
    """The calls of one row, each compared at once: their order, the tensors sent, and what is still held."""

    def __init__(self, stage: _Stage, unsplit: _Unsplit, row: Sequence[str], p: int, name: str):
        self.stage, self.unsplit, self.p = stage, unsplit, p
        self.what = f"stage {stage.number} of {p}, {name}"
        back = ["send"] if stage.number else []
        self.wanted = [
            (call, action)
            for action in row
            for call in (["recv", "stage", "send"] if action[0] == "F" else ["recv", *back])
        ]
        self.made_calls: list[tuple[str, str]] = []
        self.alive: list[tuple[Any, str]] = []
        self.sent: list[tuple[str, Tensor, Tensor]] = []
        self.broken: RuleBroken | None = None

    def fail(self, rule: str, saw: str, expected: str) -> None:
        self.broken = self.broken or RuleBroken(f"{rule} ({self.what})", saw, expected)
        raise self.broken

    def fail_without(self, wanted: tuple[str, str] | None, saw: str) -> None:
        """Another call was made, or none, instead of the wanted one."""
        if wanted and (wanted[0], wanted[1][0]) == ("send", "B") and not saw.startswith("stage"):
            self.fail(_SENT["B"], f"nothing at {wanted[1]}", "x.grad: the received x must require gradients")
        expected = " ".join(wanted) if wanted else "the end of the row"
        self.fail("the actions are done in the row's order, each once", saw, expected)

    def begin(self, call: str, action: Any, x: Any = None) -> None:
        done = len(self.made_calls)
        wanted = self.wanted[done] if done < len(self.wanted) else None
        if wanted != (call, action):
            saw = f"{call}({short_repr(action)}, ...)" if call != "recv" else f"recv({short_repr(action)})"
            if (call, str(action)[:1], self.stage.number) == ("send", "B", 0):
                self.fail("stage 0 sends nothing back: tokens have no gradient", saw, "no send after a B")
            before = " ".join(f"{name} {of}" for name, of in self.made_calls[-3:]) or "nothing"
            self.fail_without(wanted, f"{saw} after {before}")
        self.made_calls.append((call, action))
        if call == "stage":
            given = self.unsplit.inputs[self.stage.number, int(action[1:])]
            if not isinstance(x, Tensor) or difference(x.detach(), given.detach(), rtol=1e-9, atol=1e-12) is not None:
                self.fail("the stage computes on what the action received", short_repr(x), "recv(action)")

    def made(self, x: Tensor, y: Tensor) -> None:
        self.alive += [(weakref.ref(each), self.made_calls[-1][1]) for each in (x, y) if each.is_floating_point()]

    def recv(self, action: str) -> Tensor | None:
        self.begin("recv", action)
        over = {of[1:] for _, of in self.made_calls[:-1] if of[0] == "B"}
        kept = sorted({of[1:] for ref, of in self.alive if ref() is not None} & over, key=int)
        if len(kept) > 2:  # local variables may still have one from an F and one from a B
            saw = f"tensors of micro-batches {', '.join(kept)} at {action}"
            self.fail("after its B nothing of a micro-batch is kept", saw, "dropped, as by `held.pop(number)`")
        number, at = int(action[1:]), self.stage.number
        if action[0] == "F":
            return self.unsplit.inputs[at, number].detach().clone()
        grad = self.unsplit.inputs[at + 1, number].grad
        return None if self.stage.is_last or grad is None else grad.clone()

    def send(self, action: str, x: Any) -> None:
        self.begin("send", action)
        number, at = int(action[1:]), self.stage.number
        of = self.unsplit.inputs[at + 1 if action[0] == "F" else at, number]
        wanted = of.detach() if action[0] == "F" else of.grad
        name = _SENT[action[0]]
        assert wanted is not None
        if not isinstance(x, Tensor):
            self.fail(name, f"{short_repr(x)} at {action}", "a tensor: does the received x require gradients?")
        if x.requires_grad:
            self.fail("a tensor is sent without its autograd graph", f"{action} requires gradients", "y.detach()")
        if difference(x, wanted, rtol=1e-9, atol=1e-12) is not None:
            self.fail(name, f"{short_repr(x)} at {action}", short_repr(wanted))
        self.sent.append((action, x, wanted))

    def functions(self) -> tuple[Callable[..., Any], ...]:
        """`send` and `recv` for an answer: messages name functions better than bound methods."""

        def send(action: str, tensor: Tensor) -> None:
            self.send(action, tensor)

        def recv(action: str) -> Tensor | None:
            return self.recv(action)

        return send, recv

    def end(self, expect: Expect) -> None:
        if self.broken:  # also if the answer caught it
            raise self.broken
        if len(self.made_calls) < len(self.wanted):
            self.fail_without(self.wanted[len(self.made_calls)], "the end")
        changed = [action for action, x, wanted in self.sent if difference(x, wanted, rtol=1e-9, atol=1e-12)]
        expect.that(f"what is sent is not changed later ({self.what})", not changed, changed, "a message on its way")


def _any_order(draw: Draw, m: int) -> list[str]:
    """A row with each F before its B, and backwards out of turn."""
    row = [f"F{i}" for i in range(m)]
    for i in draw.shuffled(range(m)):
        row.insert(draw.integer(row.index(f"F{i}") + 1, len(row)), f"B{i}")
    return ["F0", "F1", "F2", "B1", "B2", "B0"] if m == 3 else row


@exercise(
    "Run a row",
    hints=[
        "Which two tensors of a micro-batch does its B need, that its F had? Keep them under the micro-batch's number: "
        "several are in flight, and their backwards may come in any order.",
        "F: x = recv(action) is a leaf; it must require gradients (not for tokens). y = stage(action, x); send it "
        "detached. B: begin at y with the received gradient; then x.grad is what the stage before needs.",
        "F: held[number] = x, y. B: x, y = held.pop(number); y.backward(recv(action)); x.grad is None for tokens.",
    ],
)
def run_row(expect: Expect, run_row: Callable[..., Any]) -> None:
    not_from_lablib(run_row)
    draw = expect.draw
    p, m = draw.integer(3, 5), draw.integer(5, 7)
    cases = [("one micro-batch", 2, 1, lambda stage, p, m: ["F0", "B0"])]
    cases += [("GPipe", p, m, lambda stage, p, m: _row_of(schedules.gpipe(p, m), stage))]
    cases += [("1F1B", p, 12, lambda stage, p, m: _row_of(schedules.one_f_one_b(p, m), stage))]
    cases += [("backwards in any order", 3, each, lambda stage, p, m: _any_order(draw, m)) for each in (3, m, 11)]
    cases += [("all of the model on one stage", 1, m, lambda stage, p, m: _any_order(draw, m))]
    many = draw.integer(130, 140)  # all in flight at once
    cases += [("GPipe, many micro-batches", 2, many, lambda stage, p, m: _row_of(schedules.gpipe(p, m), stage))]
    for name, p, m, row_of in cases:
        expect.measured.clear()  # the report shows the last row
        stages = [_Stage(draw, number, p, m) for number in range(p)]
        unsplit = _Unsplit(stages, m)
        for stage in reversed(stages):
            for step in (1, 2):  # gradients are added: two steps give twice the gradient
                row = row_of(stage.number, p, m)
                stage.calls = calls = _Calls(stage, unsplit, row, p, name)
                seen = observe(run_row, list(row), stage, *calls.functions())
                with expect.grouped(f"order, messages and gradients are right ({calls.what}, step {step})", "right"):
                    calls.end(expect)
                    changes_nothing(expect, [seen])
                    rule = f"gradients equal the unsplit model's, step {step} ({calls.what})"
                    expect.close(rule, _flat_gradient(stage), step * unsplit.gradients[stage.number], atol=1e-12)
    _expect_a_pipeline(expect, run_row, draw)


def _row_of(plan: Plan, stage: int) -> list[str]:
    return [str(each).lstrip("0123456789") for each in plan.actions[stage]]


def _flat_gradient(stage: nn.Module) -> Tensor:
    grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in stage.parameters()]
    return torch.cat([grad.flatten() for grad in grads])


def _expect_a_pipeline(expect: Expect, run_row: Callable[..., Any], draw: Draw) -> None:
    """All ranks at once, with messages."""
    p, m = 4, draw.integer(5, 8)
    stages = [_Stage(draw, number, p, m) for number in range(p)]
    unsplit = _Unsplit(stages, m)

    def program(stages: Sequence[_Stage]) -> Tensor:
        rank = dist.get_rank()
        stage, works = stages[rank], []

        def recv(action: str) -> Tensor | None:
            is_forward = action[0] == "F"
            if rank == (0 if is_forward else p - 1):
                return stage.tokens[int(action[1:])].to(stage.weight.device) if is_forward else None
            x = torch.empty(2, 3, 4, dtype=torch.float64)
            dist.recv(x, rank - 1 if is_forward else rank + 1)
            return x

        def send(action: str, x: Tensor) -> None:
            if rank != (p - 1 if action[0] == "F" else 0):
                works.append(dist.isend(x, rank + 1 if action[0] == "F" else rank - 1))

        run_row(_row_of(schedules.one_f_one_b(p, m), rank), stage, send, recv)
        for work in works:
            work.wait()
        return _flat_gradient(stage)

    run = expect.launch(program, stages, ranks=p)
    for rank, gradient in enumerate(run.values):
        rule = f"gradients equal the unsplit model's (rank {rank} of {p} in a launch, 1F1B)"
        expect.close(rule, gradient, unsplit.gradients[rank], atol=1e-12)


@exercise(
    "The weight of a micro-batch",
    hints=[
        "A mean over all tokens is a sum over all tokens, divided by their number. What is a micro-batch's sum?",
        "n_i tokens count in micro-batch i: its mean is its sum over n_i. What turns it into a part of the whole mean?",
        "n_i / (n_1 + ... + n_m), with n_i = (target != -100).sum().",
    ],
)
def loss_weights(expect: Expect, loss_weights: Callable[[list[Tensor]], list[float]]) -> None:
    not_from_lablib(loss_weights)
    draw = expect.draw
    unequal = draw.shuffled((1, 2, 3, 4, 6))  # texts; none of them is the mean
    for number, (name, texts) in enumerate(
        [("of unequal size", unequal), ("of one size", [2] * 4), ("without padding", [2] * 3), ("one", [2])]
    ):
        targets = [_targets(draw, number, each) for each in texts]
        targets.sort(key=lambda each: int((each != -100).sum()))
        targets = targets[1:] + targets[:1]  # the first is not the largest, and they are not sorted by size
        if number == 0:  # of any shapes: one text alone, and two times two
            targets = [each[0] if len(each) == 1 else each for each in targets]
            targets = [each.reshape(2, 2, -1) if len(each) == 4 and each.dim() == 2 else each for each in targets]
        call = observe(loss_weights, list(targets))
        changes_nothing(expect, [call])
        weights = call.value.tolist() if is_array(call.value) else call.value
        if not isinstance(weights, list | tuple):
            expect.equal("a list of numbers is returned", weights, [1.0] * len(texts))
        weights = [plain_number(each) for each in weights]
        counts = [int((each != -100).sum()) for each in targets]
        wanted = [count / sum(counts) for count in counts]
        rule = f"the weights are shares of the tokens that count (micro-batches {name})"
        is_off = difference(weights, wanted, rtol=1e-9, atol=0.0) is not None
        if is_off and len(weights) == len(wanted) and all(isinstance(each, int | float) for each in weights):
            given, right = (", ".join(f"{each:.4g}" for each in shares) for shares in (weights, wanted))
            if given != right:  # all of them: mistakes may agree in the first
                raise RuleBroken(rule, given, right)
        expect.close(rule, weights, wanted)
        flat = [torch.cat([each.flatten() for each in targets])]
        found, whole = _gradient([float(each) for each in weights], targets), _gradient([1.0], flat)
        expect.close(f"the gradient equals the whole batch's (micro-batches {name})", found, whole)


def _targets(draw: Draw, number: int, num_texts: int) -> Tensor:
    """Targets of texts of some length, or of 8 tokens; the fourth kind has one text. All but the third have -100."""
    length = 7 * draw.integer(3, 9) if number == 0 else 8
    tokens = torch.tensor([[draw.integer(0, 50) for _ in range(length + 1)] for _ in range(num_texts)])
    targets = tokens[:, 1:]  # as in the labs: the next tokens, a view of `tokens`
    for text in targets:
        text[[] if number == 2 else draw.integers(draw.integer(1, length - 1), 0, length - 1)] = -100
        text[(text != -100).nonzero()[0]] = 0  # a token like any other
    return targets[0] if number == 3 else targets


def _gradient(weights: list[float], batches: list[Tensor]) -> Tensor:
    """Gradient of the weighted sum of each batch's mean loss, for a slope that depends on the tokens."""
    slope = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    for weight, targets in zip(weights, batches, strict=True):
        counted = targets[targets != -100].double()
        (weight * (slope * (counted + 1).sqrt() - counted / 50).square().mean()).backward()
    assert slope.grad is not None
    return slope.grad


@exercise(
    "A plan that beats 1F1B",
    hints=[
        "Begin with 1F1B and write I W for each B: 16 seconds. The last stage may hold one more. What can wait there?",
        "The last stage decides when the last I goes back. Which of its W's can come after its last I?",
        "The last stage: F0 I0 F1 I1 W0 F2 ...: I as early as possible, and W only when it would hold a third.",
    ],
)
def plan(expect: Expect, my_plan: str) -> None:
    expect.equal("a plan is written down", my_plan is ..., False)
    if not isinstance(my_plan, str):
        raise RuleBroken("the plan is a text, one line per rank", short_repr(my_plan), '"rank 0: F0 F1 ..."')
    try:
        found = read_plan(str.__str__(my_plan))  # a subclass of str may show something else
    except ValueError as error:
        raise RuleBroken("the plan can be read", str(error), "actions such as F0, I0, W0, B0") from None
    expect.equal("the plan has a line for each stage", found.num_stages, len(LIMITS))
    expect.equal("line i is stage i, with one piece of the model", found.rank_of, tuple(range(len(LIMITS))))
    expect.equal("the plan has four micro-batches", found.num_microbatches, MICROBATCHES)
    report = validate(found)
    expect.that("the plan keeps the rules, and no stage waits for ever", not report.findings, str(report), "no finding")
    done = replay(found)
    held = [round(each, 6) for each in done.in_flight]
    both = enumerate(zip(held, LIMITS, strict=True))
    over = [f"rank {rank} holds {saw:g}" for rank, (saw, most) in both if saw > most]
    expect.that("no stage holds more than its limit", not over, ", ".join(over) or "none does", "at most 3, 2 and 2")
    expect.budget("the step takes at most 15 seconds, F = I = W = 1", done.makespan_s, AT_MOST_S, "s")


Rows = list[list[str]]


def _one_by_one(p: int, m: int) -> Rows:
    return [[f"{kind}{i}" for i in range(m) for kind in "FB"] for _ in range(p)]


def _that_runs(draw: Draw, is_large: bool) -> Rows:
    """1F1B's, of 2 to 5 stages; a large one has micro-batches with numbers of two digits."""
    p = draw.integer(3 if is_large else 2, 5)
    plan = schedules.one_f_one_b(p, draw.integer(11, 14) if is_large else draw.integer(1, 6))
    return [[str(each).lstrip("0123456789") for each in row] for row in plan]


def _in_a_circle(draw: Draw, is_large: bool) -> Rows:
    """Some micro-batches one by one; then stage i needs a backward before it goes on, and i + 1 two forwards."""
    p, m = draw.integer(2, 5), draw.integer(11, 14) if is_large else draw.integer(2, 6)
    first, begin = draw.integer(1, p - 1), 2 * draw.integer(0, m - 2)  # the first stage that needs two
    rows = _one_by_one(p, m)
    for row in rows[first:]:
        row[begin:] = sorted(row[begin:], key=lambda each: each[0] == "B")
    return rows


def _last_exchanged(draw: Draw, is_large: bool) -> Rows:
    return _too_early(_that_runs(draw, is_large), draw)


def _too_early(rows: Rows, draw: Draw) -> Rows:
    """On the last stage a backward is before its own forward."""
    i = draw.integer(0, len(rows[-1]) // 2 - 1)
    rows[-1][2 * i : 2 * i + 2] = [f"B{i}", f"F{i}"]
    return rows


def _two_exchanged(draw: Draw, is_large: bool) -> Rows:
    rows = _that_runs(draw, is_large)
    for row in rows:
        a, b = draw.integer(0, len(row) - 1), draw.integer(0, len(row) - 1)
        row[a], row[b] = row[b], row[a]
    return rows


def _digits_exchanged(draw: Draw, is_large: bool) -> Rows:
    """F1 and F10, or F10 and F100."""
    rows = _one_by_one(2, draw.integer(101, 110)) if is_large else _that_runs(draw, True)
    one, other = ("F10", "F100") if is_large else ("F1", "F10")
    for row in rows:
        a, b = row.index(one), row.index(other)
        row[a], row[b] = row[b], row[a]
    return rows


def _one_at_a_time(draw: Draw, is_large: bool) -> Rows:
    return _one_by_one(8, 32) if is_large else _one_by_one(draw.integer(2, 5), draw.integer(1, 6))


_KINDS: dict[str, Callable[[Draw, bool], Rows]] = {
    "that runs to its end": _that_runs,
    "of one stage": lambda draw, is_large: _one_by_one(1, draw.integer(11, 14) if is_large else draw.integer(1, 6)),
    "with a circle": _in_a_circle,
    "with a backward too early on the last stage": _last_exchanged,
    "of one stage, with a backward too early": lambda draw, is_large: _too_early(_one_by_one(1, 8), draw),
    "with two actions exchanged": _two_exchanged,
    "in any order": lambda draw, is_large: [draw.shuffled(row) for row in _that_runs(draw, is_large)],
    "in any other order": lambda draw, is_large: [draw.shuffled(row) for row in _that_runs(draw, is_large)],
    "with F1 and F10 exchanged": _digits_exchanged,
    "of one micro-batch at a time": _one_at_a_time,
}


@exercise(
    "Where it stops",
    hints=[
        "Keep for each row its position, and a set of the finished actions. When may a row's next action run?",
        "Repeat over the rows, each as far as it gets, until a round changes nothing.",
        "F on stage i needs (i - 1, F) in the set, B needs (i + 1, B); the last B needs its own F.",
    ],
)
def actions_done(expect: Expect, actions_done: Callable[[list[list[str]]], list[int]]) -> None:
    not_from_lablib(actions_done)
    draw = expect.draw
    for kind, rows_of in _KINDS.items():
        for number in range(3):
            rows = rows_of(draw, number == 2)
            p, m = len(rows), len(rows[0]) // 2
            call = observe(actions_done, [list(row) for row in rows])
            changes_nothing(expect, [call])
            value = call.value.tolist() if is_array(call.value) else call.value
            if not isinstance(value, list | tuple):
                expect.equal("a number for each row is returned", value, [0] * p)
            wanted, what = steps_done(_plan_of(rows, m)), f"each row gets as far as it can (a plan {kind})"
            is_it = difference(value, wanted, rtol=0.0, atol=0.0) is None  # an answer's own `==` may always be true
            expect.that(what, is_it, short_repr(value), short_repr(wanted))


@exercise(
    "Split the layers",
    hints=[
        "Suppose you know the best way to cut the first k layers into s - 1 stages, for all k. How do you find it for "
        "s stages?",
        "The last stage takes layers k to n; the slowest is the larger of it and the best cut of the first k. Try all "
        "k.",
        "best[s][n] = min over k of max(best[s - 1][k], sum(costs[k:n])), from s = 1 on; keep the cuts with it.",
    ],
)
def split_layers(expect: Expect, split_layers: Callable[[list[float], int], list[int]]) -> None:
    not_from_lablib(split_layers)
    draw = expect.draw
    stages = draw.integer(3, 4)
    gpt = [0.0, *[1.0] * (stages * draw.integer(2, 3) - 1), draw.number(2, 3.5)]
    cases = [
        ("a GPT", gpt, stages),
        ("a stage for each layer", [draw.number(0, 2) for _ in range(5)], 5),
        ("one stage", [draw.number(0, 2) for _ in range(4)], 1),
        ("equal layers", [1.0] * 7, 3),
        ("a slow layer first", [draw.number(5, 9), *[1.0] * 6], 3),
        ("layers that cost nothing", [0.0] * 5, 3),
    ]
    # Small, many and uneven: no heuristic finds the best cut of each.
    lumps = [[draw.choice((0.2, 1.0, 5.0)) * draw.number(0.8, 1.2) for _ in range(16)] for _ in range(24)]
    cases += [("drawn", each, 6) for each in lumps]
    for unit, scale in _UNITS.items():  # costs of real layers are milliseconds: no fixed number of seconds is small
        cases += [(f"drawn in {unit}", [scale * draw.number(0.5, 3) for _ in range(24)], 6) for _ in range(8)]
    cases += [("drawn", [draw.number(0, 5) for _ in range(draw.integer(20, 26))], each) for each in (2, 3, 4, 5, 6, 8)]
    for name, costs, stages in cases:
        expect.measured.clear()  # the report shows the last row of layers
        call = observe(split_layers, list(costs), stages)
        changes_nothing(expect, [call])
        counts = _counts(call.value)
        what = f"{name}, {plural(len(costs), 'layers')} over {plural(stages, 'stages')}"
        expect.equal(f"there is a number for each stage ({what})", len(counts), stages)
        expect.that(f"every stage has a layer ({what})", min(counts) > 0, counts, "1 or more each")
        expect.equal(f"every layer is in a stage ({what})", sum(counts), len(costs))
        ends = list(accumulate(counts))
        slowest = max(sum(costs[end - count : end]) for end, count in zip(ends, counts, strict=True))
        best = max(sum(costs[i] for i in piece) for piece in balanced_cut(costs, stages))
        expect.budget(f"the slowest stage is as fast as possible ({what}, split {counts})", slowest, best, "s")


def _counts(value: Any) -> list[int]:
    try:
        return [operator.index(each) for each in value]
    except TypeError:
        said = "None: is there a return?" if value is None else short_repr(value)
        raise RuleBroken("a list of whole numbers is returned", said, "[3, 3, 3, 1]") from None
