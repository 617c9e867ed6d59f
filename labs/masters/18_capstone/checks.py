"""Checks of lab 18: the capstone. Budgets, curves and sums are random; a plan is judged by the planner."""

from collections.abc import Callable, Mapping
from math import isfinite, log
from numbers import Real
from typing import Any

import numpy as np

from lablib.capstone import changed, find_brief, plan_step
from lablib.course import Expect, exercise
from lablib.course.checks.comparison import is_array, plain_number
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.rules import not_from_lablib
from lablib.plan import search
from lablib.train.config import DataConfig, ModelConfig, PrecisionConfig, TrainConfig


def _number(rule: str, value: Any) -> float:
    value = plain_number(value)
    if not isinstance(value, Real) or isinstance(value, bool) or not isfinite(value):
        said = "None: is there a return?" if value is None else short_repr(value)
        raise RuleBroken(rule, said, "a finite number")
    return float(value)


# ---- exercise 1 ----


@exercise(
    "The size for a budget",
    hints=[
        "How many FLOPs do the hours pay? Then a size N has the tokens D that use them up.",
        "flops = gpu_hours * 3600 * flops_per_s, and D = flops / (6 N). Which N of many has the least loss?",
        "Sizes on a logarithmic scale: smallest * (largest / smallest) ** (i / 2000); then min(sizes, key=...).",
    ],
)
def size_for_budget(expect: Expect, size_for_budget: Callable[..., tuple[float, float]]) -> None:
    not_from_lablib(size_for_budget)
    draw = expect.draw
    for kind in draw.shuffled(["only falls", "only rises", "one size"] + ["inside"] * 6):
        expect.measured.clear()
        hours, rate = float(draw.integer(10, 9999)), 1e12 * draw.integer(50, 900)
        flops = hours * 3600 * rate
        middle = (flops / 6) ** 0.5 * draw.integer(5, 20) / 10  # the size with the least loss
        tokens_there, power = flops / 6 / middle, draw.integer(20, 60) / 100
        inside = draw.integer(5, 70) / 100, draw.integer(15, 200) / 10  # not symmetric about the best size
        low, high = {"inside": inside, "only falls": (0.05, 0.5), "only rises": (2, 30)}.get(kind, (1.5, 1.5))
        smallest, largest = middle * low, middle * high

        loss = _a_loss(middle, tokens_there, power)
        best = min(max(middle, smallest), largest)
        value: Any = size_for_budget(hours, rate, loss, smallest, largest)
        what = f"{kind}: {hours:,.0f} GPU hours at {rate:.3g} FLOP/s"
        expect.equal(f"a pair is returned ({what})", value is ..., False)
        if is_array(value):
            value = value.tolist()
        if not isinstance(value, tuple | list) or len(value) != 2:
            said = "None: is there a return?" if value is None else short_repr(value)
            raise RuleBroken(f"a pair (N, D) is returned ({what})", said, "(N, D)")
        n, d = (_number(f"N and D are numbers ({what})", each) for each in value)
        if abs(6 * n * d / flops - 1) > 1e-6:
            mistakes = {2: "2 N D", 1: "N D", 6 * 3600: "an hour has 3600 s", 6 / 3600: "hours are counted twice"}
            said = f"{6 * n * d:.4g} FLOPs" + next(
                (f": {text}" for factor, text in mistakes.items() if abs(factor * n * d / flops - 1) < 1e-6), ""
            )
            raise RuleBroken(f"6 N D are the FLOPs of the budget ({what})", said, f"{flops:.4g} FLOPs")
        rule = f"smallest <= N <= largest ({what})"
        expect.that(
            rule, smallest * 0.999999 <= n <= largest * 1.000001, f"{n:.4g}", f"{smallest:.4g} to {largest:.4g}"
        )
        said, wanted = (
            f"{n:.4g} with {loss(n, d):.5f}",
            f"within 1% of {best:.4g}, with {loss(best, flops / 6 / best):.5f}",
        )
        expect.that(f"N has the least loss ({what})", abs(log(n / best)) <= 0.01, said, wanted)


def _a_loss(middle: float, tokens_there: float, power: float) -> Callable[[Any, Any], Any]:
    """A loss that is least at `middle`; the numbers are in a closure, as an answer may read no closures."""

    def loss(n: Any, d: Any) -> Any:
        return 1.7 + (middle / n) ** power + (tokens_there / d) ** power

    return loss


# ---- exercise 2 ----

_NEAR = 0.005  # nats


@exercise(
    "A forecast",
    hints=[
        "If a were known, loss = E + A x with x = 1 / t^a: how do you fit a straight line?",
        "For each a from 0.05 to 1.5, fit E and A by least squares (numpy.linalg.lstsq), and keep the a with the least "
        "sum of squared differences.",
        "columns = np.stack([np.ones_like(t), t**-a], axis=1); E, A = np.linalg.lstsq(columns, y, rcond=None)[0]",
    ],
)
def forecast(expect: Expect, forecast: Callable[..., float]) -> None:
    not_from_lablib(forecast)
    draw = expect.draw
    # Exact curves, of few steps and with gaps, also with exponents near the bounds; then curves with noise, where a fit
    # to some of the losses is another.
    plain, noisy = (0.0, 40, 80, 1, 20, 60), (0.1, 80, 90, 2, 20, 100)
    exact = [plain] * 2 + [(0.0, 10, 12, 1, 6, 8), (0.0, 10, 30, 3, 140, 149), (0.0, 10, 30, 3, 6, 149)]
    for noise, fewest, most, gap, lowest, highest in exact + [noisy] * 4:
        expect.measured.clear()
        end, factor = draw.integer(100, 250) / 100, draw.integer(100, 400) / 100
        power = draw.integer(lowest, highest) / 100
        first, count, at_step = draw.integer(1, 5), draw.integer(fewest, most), draw.integer(200, 400)
        steps = list(range(first, first + gap * count, gap))
        curve = [end + factor / t**power for t in steps]
        losses = [y + noise * draw.integer(-100, 100) / 100 for y in curve]
        given = list(steps), list(losses)
        value = forecast(*given, at_step)
        what = f"{count} losses, each {gap} steps, noise of {noise:g}, step {at_step}"
        expect.equal("steps and losses stay as they were", list(given), [steps, losses])
        expect.equal(f"a loss is returned ({what})", value is ..., False)
        saw = _number(f"a loss is returned ({what})", value)
        wanted = _fitted(steps, losses, at_step) if noise else end + factor / at_step**power
        for text, wrong in (
            ("that is the last loss", losses[-1]),
            ("that is E, the loss after endless steps", end),
            ("the exponent is fixed at 0.5", _fixed(steps, losses, at_step, 0.5)),
            ("the exponent is fixed at 1", _fixed(steps, losses, at_step, 1.0)),
            ("the constant E is left out", _without_constant(steps, losses, at_step)),
        ):
            if abs(saw - wanted) > _NEAR and abs(saw - wrong) < 1e-4:
                raise RuleBroken(f"the forecast is on the fitted curve ({what})", f"{saw:.4f}: {text}", f"{wanted:.4f}")
        said = f"{wanted:.4f}, within {_NEAR:g}: the least sum of squares over all losses"
        expect.that(f"the forecast is on the fitted curve ({what})", abs(saw - wanted) <= _NEAR, f"{saw:.4f}", said)


def _fitted(steps: list[int], losses: list[float], at_step: int) -> float:
    """The forecast with the least sum of squares, over a fine grid of exponents."""
    a, y = np.linspace(0.05, 1.5, 2901), np.array(losses)
    x = np.array(steps, dtype=float)[:, None] ** -a
    off_x, off_y = x - x.mean(0), (y - y.mean())[:, None]
    slope = (off_x * off_y).sum(0) / (off_x**2).sum(0)
    best = ((slope * off_x - off_y) ** 2).sum(0).argmin()
    return float(y.mean() + slope[best] * (at_step ** -a[best] - x.mean(0)[best]))


def _fixed(steps: list[int], losses: list[float], at_step: int, a: float) -> float:
    """The forecast with a given exponent: a straight line through (t^-a, loss)."""
    xs = [t**-a for t in steps]
    mean_x, mean_y = sum(xs) / len(xs), sum(losses) / len(xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, losses, strict=True))
    slope /= sum((x - mean_x) ** 2 for x in xs)
    return mean_y + slope * (at_step**-a - mean_x)


def _without_constant(steps: list[int], losses: list[float], at_step: int) -> float:
    """The forecast by A / t^a: a straight line of the logarithms."""
    xs, ys = [log(t) for t in steps], [log(y) for y in losses]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum((x - mean_x) ** 2 for x in xs)
    return 2.718281828459045 ** (mean_y + slope * (log(at_step) - mean_x))


# ---- exercise 3 ----

_ROOM, _MEMORY_BYTES = 1.25, 20e9


@exercise(
    "A plan",
    hints=[
        "What fills the memory of each plan above, the model's state or activations? Which field makes it smaller, and "
        "what does that cost in time?",
        "A small model on fast links needs no tensor or pipeline ranks: data parallelism with ZeRO, and micro-batches "
        "of several sequences.",
        'Begin with "parallel.zero_stage=1" and add "data.micro_batch=...": 512 sequences on 64 GPUs are 8 each.',
    ],
)
def plan(expect: Expect, my_plan: Any) -> None:
    expect.equal("a plan is given", my_plan is ..., False)
    if not isinstance(my_plan, list | tuple) or not all(isinstance(each, str) for each in my_plan):
        raise RuleBroken("a plan is a list of texts", short_repr(my_plan), '["parallel.zero_stage=1", ...]')
    my_plan = [str.__str__(each) for each in my_plan]  # read once, as plain texts
    names = [each.partition("=")[0].strip() for each in my_plan]
    fixed = ("model.", "data.batch_size", "data.seq_len", "data.corpus", "num_steps", "optimizer.")
    kept = [name for name in names if name.startswith((*fixed, "precision.products"))]
    expect.equal("model, batch, optimizer and dtype of products stay as they are", kept, [])
    brief = find_brief("one-billion")
    model = ModelConfig(
        num_layers=24, d_model=2048, num_heads=16, vocab_size=brief.vocab_size, max_seq_len=brief.seq_len
    )
    start = TrainConfig(
        model=model, data=DataConfig(batch_size=512, seq_len=brief.seq_len), precision=PrecisionConfig("bfloat16")
    )
    try:
        found = plan_step(changed(start, my_plan), brief.cluster, brief.gpus)
    except ValueError as error:
        raise RuleBroken("the plan is possible", str(error), "fields of lab train, and axes that divide") from None
    expect.budget("memory of a GPU, by the planner", found.peak_memory_bytes, _MEMORY_BYTES, "B")
    best = search(found.setup.model if found.setup else "", brief.cluster, 512, gpus=brief.gpus, seq_len=brief.seq_len)
    expect.budget("seconds of a step, by the planner", found.step_time_s, _ROOM * best.best.step_time_s, "s")


# ---- exercise 4 ----


@exercise(
    "An error in terms",
    hints=[
        "What is the difference of one term, and by what must it be divided so that all add up to the relative error?",
        "Each share is (predicted - measured) / the sum of all measured. Which names does only one side have?",
        "names = {*predicted, *measured}; predicted.get(name, 0); sorted(..., key=lambda pair: -abs(pair[1])).",
    ],
)
def error_terms(expect: Expect, error_terms: Callable[..., list[tuple[str, float]]]) -> None:
    not_from_lablib(error_terms)
    draw = expect.draw
    for only_predicted, only_measured, both in ((1, 1, 3), (0, 2, 2), (2, 0, 4), (0, 0, 1), (0, 0, 5)):
        expect.measured.clear()
        names = [f"term {i}" for i in draw.shuffled(range(only_predicted + only_measured + both))]
        numbers = draw.shuffled(range(3, 3 + 7 * len(names), 7))
        predicted, measured = dict[str, float](), dict[str, float]()
        for i, name in enumerate(names):
            seconds = 0.1 * draw.integer(50, 200)
            off = 0.013 * numbers[i] * (-1) ** i
            if i >= only_measured:
                predicted[name] = seconds + (off if i >= only_measured + only_predicted else 0.0)
            if i < only_measured or i >= only_measured + only_predicted:
                measured[name] = seconds
        given = dict(predicted), dict(measured)
        value = error_terms(*given)
        what = f"{len(names)} terms, {only_predicted} only predicted, {only_measured} only measured"
        expect.equal(f"a list is returned ({what})", value is ..., False)
        expect.equal("predicted and measured stay as they were", list(given), [predicted, measured])
        _check_terms(expect, value, predicted, measured, what)


def _check_terms(
    expect: Expect, value: Any, predicted: Mapping[str, float], measured: Mapping[str, float], what: str
) -> None:
    is_list = isinstance(value, list | tuple)
    if not is_list or not all(isinstance(each, tuple | list) and len(each) == 2 for each in value):
        said = "None: is there a return?" if value is None else short_repr(value)
        raise RuleBroken(f"a list of pairs is returned ({what})", said, "[(name, share), ...]")
    total, said = sum(measured.values()), sum(predicted.values())
    wanted = {n: (predicted.get(n, 0) - measured.get(n, 0)) / total for n in {**predicted, **measured}}
    expect.equal(f"each term is there once ({what})", sorted(str(name) for name, _ in value), sorted(wanted))
    shares = {name: _number(f"the share of {name} is a number ({what})", share) for name, share in value}
    if abs(sum(shares.values()) - (said / total - 1)) > 1e-9 * max(1.0, abs(said / total)):
        wrongs = {
            "each is over its own term, but the sum is over the whole": [
                (predicted.get(n, 0) - measured[n]) / measured[n] for n in measured
            ],
            "they are over the predicted sum": [each * total / said for each in wanted.values()] if said else [],
            "the sign belongs to measured - predicted": [-each for each in wanted.values()],
        }
        saw = f"{sum(shares.values()):+.4f}"
        saw += next((f": {text}" for text, each in wrongs.items() if abs(sum(each) - sum(shares.values())) < 1e-9), "")
        raise RuleBroken(f"the shares add up to predicted / measured - 1 ({what})", saw, f"{said / total - 1:+.4f}")
    for name, share in wanted.items():
        expect.close(f"the share of {name} ({what})", shares[name], share, rtol=1e-9, atol=1e-12)
    sizes = [abs(shares[name]) for name, _ in value]
    said_order = ", ".join(f"{size:.3f}" for size in sizes)
    expect.that(f"the largest size is first ({what})", sizes == sorted(sizes, reverse=True), said_order, "falling")
