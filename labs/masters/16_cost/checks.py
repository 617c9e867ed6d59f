"""Checks of lab 16: what would GPT-3 cost? Sizes, prices and plans are random; a step equals a replayed schedule."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from numbers import Real
from typing import Any

from lablib.course import Expect, exercise
from lablib.course.checks.comparison import plain_number
from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.rules import not_from_lablib
from lablib.pipeline import Costs, replay, schedules

EXACT = 1e-9


def _terms(expect: Expect, value: Any, wanted: Mapping[str, float], what: str, mistakes: Mapping[str, Any]) -> None:
    """The right terms, each close to its value; a known mistake is named."""
    expect.equal(f"terms are returned ({what})", value is ..., False)
    if not isinstance(value, Mapping):
        said = "None: is there a return?" if value is None else short_repr(value)
        raise RuleBroken(f"a dict of terms is returned ({what})", said, f"a dict of {', '.join(wanted)}")
    expect.equal("the terms have the names of the docstring", sorted(map(str, value)), sorted(wanted))
    for name, right in wanted.items():
        saw: Any = plain_number(value[name])
        if not isinstance(saw, Real) or isinstance(saw, bool):
            raise RuleBroken(f"the term {name!r} is a number of seconds ({what})", short_repr(saw), "a number")
        for mistake, wrong in mistakes.get(name, {}).items():
            if abs(wrong - right) > EXACT * abs(right) + 1e-12 and abs(saw - wrong) <= EXACT * abs(wrong):
                raise RuleBroken(f"the term {name!r} is right ({what})", f"{saw:.4g} s: {mistake}", f"{right:.4g} s")
        expect.close(f"the term {name!r} is right ({what})", saw, right, rtol=EXACT, atol=0.0 if right else 1e-12)


# ---- exercise 1 ----


@exercise(
    "Two terms of a layer",
    hints=[
        "How many FLOPs does one token take in forward, in all parts of the layer together? And in both passes?",
        "FLOPs of both passes are 3 times forward's, over n ranks. An all-reduce has 2 * tokens * width bytes; its "
        "rounds cost latency, even if it is small.",
        "one all-reduce = 2 (n-1)/n * 2 * tokens * width / bytes_per_s + 2 (n-1) * latency_s; a layer has four.",
    ],
)
def layer_terms(expect: Expect, layer_terms: Callable[..., dict[str, float]]) -> None:
    not_from_lablib(layer_terms)
    draw = expect.draw
    for n in (1, 2, draw.choice([5, 7]), 8, 16):
        expect.measured.clear()
        tokens, width, seq_len = 2 * draw.integer(1, 999) + 1, 64 * draw.integer(1, 99) + 1, draw.integer(5, 4000)
        if n in (5, 7):  # few FLOPs, and n does not divide them
            tokens, width, seq_len = n * draw.integer(1, 9) + 1, n * draw.integer(1, 9) + 1, n * draw.integer(1, 9)
        flops_per_s, bytes_per_s, latency_s = 1e12 * draw.integer(1, 99), 1e9 * draw.integer(1, 99), 1e-6
        latency_s *= draw.integer(1, 99)
        value = layer_terms(tokens, width, seq_len, n, flops_per_s, bytes_per_s, latency_s)
        matrices, scores = 24 * width * width, 4 * seq_len * width
        products_s = 3 * (matrices + scores) * tokens / n / flops_per_s
        size_bytes = 2 * tokens * width
        send_s, rounds_s = 2 * (n - 1) * size_bytes / n / bytes_per_s, 2 * (n - 1) * latency_s
        mistakes = {
            "products": {
                "that is forward alone": products_s / 3,
                "backward counts once, it takes twice forward's": products_s * 2 / 3,
                "the scores are left out": 3 * matrices * tokens / n / flops_per_s,
                "each rank has all products, but they share them": products_s * n,
            },
            "all-reduces": {
                "that is one all-reduce, a layer has four": send_s + rounds_s,
                "that is forward alone": 2 * (send_s + rounds_s),
                "the latency of the rounds is left out": 4 * send_s,
                "latency counts once, but there are 2(n-1) rounds": 4 * (send_s + latency_s),
                "a number has 2 bytes": 4 * (send_s / 2 + rounds_s),
                "only half of the ring's rounds": 4 * (send_s + rounds_s / 2),
            },
        }
        what = f"{tokens} tokens of width {width}, {n} ranks"
        _terms(expect, value, {"products": products_s, "all-reduces": 4 * (send_s + rounds_s)}, what, mistakes)


# ---- exercise 2 ----


@exercise(
    "A step as a sum",
    hints=[
        "Which stage never waits once it has begun? How long is it busy? And what happens before it begins, and after?",
        "The first micro-batch passes all stages once, forward and then backward. While it is on the other stages, the "
        "busiest one waits; p - 1 boundaries are crossed twice.",
        "bubble = sum(stages_s) - max(stages_s); messages = 2 (p - 1) message_s; data axis = 2 (r-1)/r * 2 * params / "
        "bytes_per_s.",
    ],
)
def step_terms(expect: Expect, step_terms: Callable[..., dict[str, float]]) -> None:
    not_from_lablib(step_terms)
    draw = expect.draw
    p = draw.choice([3, 5])
    # stages, micro-batches, replicas, the busiest stage (None: all are as busy)
    cases = [(1, 6, 3, 0), (2, draw.integer(2, 12), 1, 1), (p, draw.integer(2, 12), draw.integer(3, 9), p // 2)]
    for p, m, replicas, busiest in (*cases, (4, 1, 8, 3), (7, 2, 2, 0), (6, draw.integer(1, 12), 2, None)):
        expect.measured.clear()
        message_s, unit_s = 0.001 * draw.integer(1, 99), 1e-6 * draw.integer(9001, 10_999)
        forward = [unit_s * draw.integer(10, 99) for _ in range(p)]
        backward = [unit_s * draw.integer(10, 199) for _ in range(p)]
        if busiest is None:
            forward, backward = forward[:1] * p, backward[:1] * p
        else:
            forward[busiest], backward[busiest] = max(forward), unit_s + max(backward)
        stages_s = [f + b for f, b in zip(forward, backward, strict=True)]
        params, bytes_per_s = replicas * draw.integer(1000, 9999) + 1, 1e6 * draw.integer(1, 99)
        given = list(stages_s)
        value = step_terms(given, m, message_s, params, replicas, bytes_per_s)
        what = f"{p} stages, {m} micro-batches, {replicas} replicas"
        expect.equal("stages_s stays as it was", given, stages_s)
        slowest, gradients_s = max(stages_s), 2 * params / bytes_per_s
        messages_s, bubble_s = 2 * (p - 1) * message_s, sum(stages_s) - slowest
        if p > 1 and busiest in (p - 1, None):  # then the sum is exactly the replayed step
            plan = schedules.one_f_one_b(p, m)
            whole_s = replay(plan, Costs(forward_s=forward, backward_s=backward)).makespan_s
            bubble_s = whole_s - m * slowest
        share = (replicas - 1) / replicas
        wanted = {
            "stage": m * slowest,
            "bubble and messages": bubble_s + messages_s,
            "data axis": 2 * share * gradients_s,
        }
        mistakes = {
            "stage": {
                "the mean of the stages, but all wait for the busiest": m * sum(stages_s) / p,
                "the first stage, but all wait for the busiest": m * stages_s[0],
                "the last stage, but all wait for the busiest": m * stages_s[-1],
                "the sum of the stages, but they work at the same time": m * sum(stages_s),
            },
            "bubble and messages": {
                "the messages are left out": bubble_s,
                "messages go there and back": bubble_s + messages_s / 2,
                "p stages have p - 1 boundaries": bubble_s + 2 * p * message_s,
                "p - 1 times the busiest stage, but the others are faster": (p - 1) * slowest + messages_s,
                "the busiest stage is counted twice": sum(stages_s) + messages_s,
                "messages of all micro-batches, but only the first and the last are waited for": bubble_s
                + m * messages_s,
            },
            "data axis": {
                "there are two calls, and a parameter has 2 bytes": share * gradients_s,
                "a replica keeps its own share": 2 * gradients_s,
            },
        }
        _terms(expect, value, wanted, what, mistakes)


# ---- exercise 3 ----


class Plan:
    """A plan that cannot be compared or hashed, as a dict. Errors of Python name the class."""

    __hash__ = None  # pyright: ignore

    def __init__(self, number: int):
        self.number = number

    def __repr__(self) -> str:
        return f"plan {self.number}"


class _Priced:
    """A function of plans that counts its calls."""

    def __init__(self, seconds: Sequence[float]):
        self.seconds, self.calls = seconds, list[int]()

    def __call__(self, plan: Any) -> float:
        if not isinstance(plan, Plan):
            raise RuleBroken("bound_s and step_s are called with a plan of the list", short_repr(plan), "a plan")
        self.calls.append(plan.number)
        return self.seconds[plan.number]


def _searches(draw: Draw) -> Iterator[tuple[str, list[float], list[float]]]:
    """Bounds and steps of many kinds. In the first the lowest bounds have the longest steps, and five are needed."""
    scale = draw.integer(2, 99)
    pairs = [(5.5, 6.5), (2.5, 6), (8, 8.5), *draw.shuffled([(1, 9), (1.5, 8), (2, 7), (3, 5), (6.5, 9.5)])]
    yield "misleading bounds", [scale * bound for bound, _ in pairs], [scale * step for _, step in pairs]
    for kind in ("any", "tight bounds", "loose bounds", "some impossible", "only the last bound is good", "any"):
        count = draw.integer(30, 40)
        steps = [float(draw.integer(100, 999)) + 0.001 * i for i in range(count)]
        shares = {"tight bounds": (90, 99), "loose bounds": (1, 40)}.get(kind, (30, 99))
        bounds = [step * draw.integer(*shares) / 100 for step in steps]
        if kind == "some impossible":
            for i in draw.shuffled(range(count))[: count // 3]:
                steps[i] = inf
                bounds[i] = inf if i % 2 else bounds[i]
        if kind == "only the last bound is good":
            best = steps.index(min(steps))
            bounds = [min(bound, steps[best] * 0.5) for bound in bounds]
            bounds[best] = steps[best] * 0.9
        yield kind, bounds, steps
    yield "steps that are close", [1.0, 1.0002], [1.0005, 1.0003]
    yield "the lowest bound is impossible", [1.0, 3.0, 2.0], [inf, 5.0, 4.0]
    yield "no plan", [], []
    yield "all impossible", [1.0, inf, 2.0], [inf, inf, inf]
    yield "one long plan", [1e7], [2e7]
    yield "a bound that equals the step", [3.0, 2.0, 3.0], [3.0, 3.0, 4.0]


@exercise(
    "Search with a bound",
    hints=[
        "Which plan may turn out to be the shortest of all? Try it first.",
        "Sort the plans by their bounds. Try them in that order, and remember the best. When may you stop?",
        "Stop when the next bound is not below the best step. Sort pairs (bound, index): plans cannot be compared.",
    ],
)
def cheapest(expect: Expect, cheapest: Callable[..., Any]) -> None:
    not_from_lablib(cheapest)
    for kind, bounds, steps in _searches(expect.draw):
        expect.measured.clear()
        plans = [Plan(number) for number in range(len(steps))]
        given, bound_s, step_s = list(plans), _Priced(bounds), _Priced(steps)
        value = cheapest(given, lambda plan: bound_s(plan), lambda plan: step_s(plan))  # noqa: B023
        what = f"({kind}: {len(plans)} plans)"
        expect.equal(f"a plan is returned {what}", value is ..., False)
        expect.that(f"the list of plans stays as it was {what}", given == plans, "it was changed", "as it was")
        least = min(steps, default=inf)
        if least == inf:
            expect.that(f"None is returned if no plan is possible {what}", value is None, short_repr(value), "None")
        else:
            rule = f"the plan itself is returned {what}"
            is_plan = isinstance(value, Plan)
            expect.that(rule, is_plan, short_repr(value), "a plan of the list")
            rule = f"step_s is called: a bound is not a step {what}"
            expect.that(rule, bool(step_s.calls), len(step_s.calls), "one call or more")
            saw = f"{value} with {steps[value.number]:g} s" if is_plan else ""
            said = f"one with {least:g} s"
            expect.that(f"it has the shortest step {what}", is_plan and steps[value.number] == least, saw, said)
        expect.budget(f"calls of bound_s {what}", len(bound_s.calls), len(plans), "calls")
        needed = sum(bound < least for bound in bounds)
        allowed = max(needed, int(least < inf))
        rule, tried = f"calls of step_s {what}", step_s.calls
        if len(tried) > allowed:
            first, last = bounds[tried[0]], bounds[tried[-1]]
            saw = f"{len(tried)} calls, the first for a bound of {first:.4g}, the last for {last:.4g}"
            wanted = f"at most {allowed}: bounds from {min(bounds):.4g} to below {least:.4g}, the shortest step"
            raise RuleBroken(rule, saw, wanted)
        expect.budget(rule, len(tried), allowed, "calls", at_least=needed)


# ---- exercise 4 ----


@exercise(
    "Explain a wrong plan",
    hints=[
        "Which choices differ? For each: how long is a step if only this one is put right?",
        "Keep the change that makes the step shortest, then repeat with the rest, from the new plan. What is saved is "
        "the difference of two steps, one of which you know already.",
        "now_s = step_s(wrong) once. In a turn: after = {name: step_s({**plan, name: better[name]}) for name in left}",
    ],
)
def explain(expect: Expect, explain: Callable[..., Any]) -> None:
    not_from_lablib(explain)
    draw = expect.draw
    for count, same in ((3, 1), (3, 1), (1, 0), (2, 2), (6, 1), (4, 0), (0, 3)):
        is_first = not expect.measured
        expect.measured.clear()
        names = draw.shuffled([f"choice {i}" for i in range(count + same)])
        wrong = {name: 1000 * draw.integer(2, 9) for name in names}
        differ = draw.shuffled(names)[:count]
        by = {name: draw.integer(1, 5) * (-1) ** i for i, name in enumerate(differ)}  # some larger, some smaller
        better = {name: wrong[name] + by.get(name, 0) for name in draw.shuffled(names)}
        if is_first:  # the choice that comes second does not save much alone; the given order is another one
            better = {name: better[name] for name in (*differ[1:], *set(names).difference(differ), differ[0])}
        steps = _Steps(draw, wrong, better, dict(zip(differ, "abc", strict=True)) if is_first else {})
        first, last = dict(wrong), dict(better)
        value = explain(first, last, lambda plan: steps(plan))  # noqa: B023
        what = f"({count} choices differ, {same} do not)"
        expect.equal(f"a list is returned {what}", value is ..., False)
        expect.equal("wrong and better stay as they were", [first, last], [wrong, better])
        if not isinstance(value, list | tuple):
            said = "None: is there a return?" if value is None else short_repr(value)
            raise RuleBroken(f"a list of pairs is returned {what}", said, "[(choice, seconds), ...]")
        calls = list(steps.calls)
        wanted = _explained(wrong, better, steps)
        found = [tuple(each) if isinstance(each, list | tuple) else each for each in value]
        listed = [each[0] if isinstance(each, tuple) and len(each) == 2 else each for each in found]
        expect.equal(f"each choice that differs is listed once {what}", sorted(map(str, listed)), sorted(differ))
        order = [name for name, _ in wanted]
        rule = f"each time the choice that saves most from the plan so far {what}"
        expect.that(rule, listed == order, short_repr(found), short_repr(wanted))
        for (name, saved_s), (_, right) in zip(found, wanted, strict=True):
            expect.close(f"seconds saved by {name} {what}", saved_s, right, rtol=EXACT, atol=EXACT)
        needed = 1 + count * (count + 1) // 2
        expect.budget(f"calls of step_s {what}", len(calls), needed, "calls", at_least=needed if count else 0)
        expect.equal(f"no plan is priced twice {what}", len(set(calls)), len(calls))


# Seconds of a plan by the choices that are right: b alone saves more than c, but after a it saves less.
MISLEADING = {"": 20, "a": 12, "b": 15, "c": 19, "ab": 11.5, "ac": 8, "bc": 14, "abc": 5}


class _Steps:
    """Seconds of plans: random, or `MISLEADING` for the letters of some choices. It counts its calls."""

    def __init__(self, draw: Draw, wrong: Mapping[str, int], better: Mapping[str, int], letters: Mapping[str, str]):
        self._draw, self._wrong, self._better, self._letters = draw, wrong, better, letters
        self._scale = draw.integer(2, 99)
        self._seconds: dict[Any, float] = {}
        self.calls: list[Any] = []

    def __call__(self, plan: Any) -> float:
        wrong, better = self._wrong, self._better
        if not isinstance(plan, Mapping) or set(plan) != set(wrong):
            raise RuleBroken("step_s is called with a whole plan", short_repr(plan), f"a dict of {', '.join(wrong)}")
        for name, value in plan.items():
            if value not in (wrong[name], better[name]):
                expected = f"{wrong[name]} or {better[name]}"
                raise RuleBroken(f"{name} has a value of one of the two plans", short_repr(value), expected)
        key = tuple(plan[name] for name in wrong)
        self.calls.append(key)
        if self._letters:
            right = sorted(letter for name, letter in self._letters.items() if plan[name] == better[name])
            return float(self._scale * MISLEADING["".join(right)])
        return self._seconds.setdefault(key, self._draw.integer(1, 10**6) / 8)


def _explained(wrong: Mapping[str, int], better: Mapping[str, int], step_s: Any) -> list[tuple[str, float]]:
    plan, now_s, found = dict(wrong), step_s(wrong), []
    left = [name for name in better if wrong[name] != better[name]]
    while left:
        after_s, name = min((step_s({**plan, name: better[name]}), name) for name in left)
        found.append((name, now_s - after_s))
        plan[name], now_s = better[name], after_s
        left.remove(name)
    return found
