"""Checks of lab 02: mixed precision. Patterns, gradients, models, blocks and formats are random."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lablib.course import Expect, exercise
from lablib.course.checks.comparison import plain_number
from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.observe import Observed
from lablib.course.checks.operators import Operators
from lablib.course.checks.rules import changes_nothing, communications_within, not_from_lablib, observe
from lablib.precision.formats import E2M1, E4M3, E5M2, FP16, Format, all_values
from lablib.text.units import plural

# ---- Round to BF16 --------------------------------------------------------------------------------------------------

_SAMPLE = 610  # patterns of a kind: an answer may look at them one by one
_PLACES = {
    "nearer to the lower pattern rounds to it": (0x0001, 0x7FFF),
    "nearer to the higher pattern rounds to it": (0x8001, 0xFFFF),
    "halfway between two rounds to the even one (last bit 0)": (0x8000, 0x8000),
}


@exercise(
    "Round to BF16",
    hints=[
        "The upper 16 bits are the lower neighbour, and upper + 1 the next one. What do the lower 16 bits mean?",
        "Compare the lower bits with 0x8000, half a step. At exactly half, look at the last bit of the upper ones. "
        "How does upper + 1 change a mantissa of all ones? And the bits of a NaN?",
        "`upper, lower = bits >> 16, bits & 0xFFFF`; add 1 where lower is above 0x8000, or equal to it with upper odd. "
        "A NaN has `bits & 0x7FFFFFFF` above 0x7F800000: return a pattern that is always a NaN, 0x7FC0.",
    ],
)
def bf16_bits(expect: Expect, bf16_bits: Callable[[Tensor], Tensor]) -> None:
    not_from_lablib(bf16_bits)
    for rule, bits in _patterns(expect.draw):
        _expect_bits(expect, bf16_bits, rule, bits)
    one, other = (_uppers(expect.draw, 0, 0x7F7F, 6) << 16 for _ in range(2))
    _stays(expect, lambda: bf16_bits(one), lambda: bf16_bits(other))
    for shape in ((3, 5), (2, 0), (), (2, 3, 4), (1, 4, 1)):
        bits = (_uppers(expect.draw, 0, 0x7F7F, math.prod(shape)) | 1).reshape(shape) << 16 | 0x8000
        _expect_bits(expect, bf16_bits, f"any shape works: {tuple(shape)}", bits)
    bits = (_uppers(expect.draw, 0, 0x7F7F, 40).reshape(4, 10) << 16 | 0x8000)[:, ::2].T
    _expect_bits(expect, bf16_bits, "a view of every second column works", bits)


def _patterns(draw: Draw) -> Iterator[tuple[str, Tensor]]:
    """Rules, and FP32 patterns that try them."""
    every = torch.arange(2**16)
    ends = every[((every >> 7) + 2) % 256 < 4]  # of the exponents, the two lowest and the two highest, with each sign
    exact = torch.cat([ends, _uppers(draw, 0x0000, 0xFFFF, 4000)])
    yield "a BF16 pattern that is not a NaN stays unchanged", exact[(exact & 0x7FFF) <= 0x7F80] << 16
    signs = (torch.arange(_SAMPLE) // 61 % 2) << 15
    kinds = {
        "a positive number": _without_carry(_uppers(draw, 0x0080, 0x7F7E)),
        "a negative number": _without_carry(_uppers(draw, 0x8080, 0xFF7E)),
        "a subnormal number": _uppers(draw, 0x0000, 0x007E) | signs,
        "a mantissa of all ones": _uppers(draw, 0x0000, 0x7EFF) | 0x7F | signs,
    }
    for kind, uppers in kinds.items():
        for rule, (low, high) in _PLACES.items():
            lower = torch.tensor([low, high, *(draw.integer(low, high) for _ in range(59))])
            yield f"{kind} {rule}", uppers << 16 | lower.repeat(_SAMPLE // 61 + 1)[: len(uppers)]
    above = torch.tensor([0x7F7F8000, 0x7F7F8001, 0x7F7FFFFF, draw.integer(0x7F7F8000, 0x7F7FFFFF)])
    below = torch.tensor([0x7F7F7FFF, 0x7F7F0001])
    sign = 1 << 31
    yield "half a step beyond the largest number and more is an infinity", torch.cat([above, above | sign])
    yield "less than half a step beyond the largest number is the largest", torch.cat([below, below | sign])
    low_only = torch.tensor([0x7F800001, 0x7F808000, 0x7F80FFFF, draw.integer(0x7F800001, 0x7F80FFFF)])
    rest = torch.tensor([0x7FC00000, 0x7FFFFFFF, 0x7FFF8000, draw.integer(0x7F810000, 0x7FFFFFFF)])
    for which, nans in (("its lower half alone", low_only), ("its upper half", rest)):
        yield f"a NaN with bits in {which} stays a NaN", torch.cat([nans, nans | sign])


def _without_carry(uppers: Tensor) -> Tensor:
    """The same, without a mantissa of all ones, which has a separate rule."""
    return torch.where((uppers & 0x7F) == 0x7F, uppers - 2, uppers)


def _uppers(draw: Draw, low: int, high: int, count: int = _SAMPLE) -> Tensor:
    """Upper halves from `low` to `high`, with both ends if `count` is above 1."""
    spread = torch.rand(count, generator=torch.Generator().manual_seed(draw.integer(0, 10**6)), dtype=torch.float64)
    uppers = low + (spread * (high - low + 1)).long()
    if count > 1:
        uppers[0], uppers[-1] = low, high
    return uppers


def _expect_bits(expect: Expect, answer: Callable[[Tensor], Tensor], rule: str, bits: Tensor) -> None:
    with _without_bf16():
        call = observe(answer, bits.clone() if bits.is_contiguous() else bits)
    value = call.value
    if not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex():
        raise RuleBroken("a tensor of whole numbers is returned", _told(value), f"{_told(bits)}: 16 bits each")
    if value.shape != bits.shape:
        raise RuleBroken("the result has the shape of the input", str(tuple(value.shape)), str(tuple(bits.shape)))
    changes_nothing(expect, [call])
    wanted = bits.int().view(torch.float32).bfloat16().view(torch.int16).long() & 0xFFFF
    saw = value.long()
    outside = ((saw < 0) | (saw > 0xFFFF)).flatten().nonzero()
    if len(outside):
        raise RuleBroken("the result is 16 bits wide", f"{int(saw.flatten()[outside[0]]):#x}", "from 0x0 to 0xffff")
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    is_right = torch.where(is_nan, (saw & 0x7FFF) > 0x7F80, saw == wanted).flatten()
    if not is_right.all():
        at = int((~is_right).nonzero()[0])
        given, got, want = (int(tensor.flatten()[at]) for tensor in (bits, saw, wanted))
        said = f"{given:#010x} ({_value(given)}) became {got:#06x} ({_value(got << 16)})"
        count = int((~is_right).sum())
        raise RuleBroken(rule, f"{said}; {count} of {plural(is_right.numel(), 'patterns')} are wrong", _wanted(want))
    expect.that(rule, True, saw=f"{plural(saw.numel(), 'patterns')}", expected="")


def _stays(expect: Expect, first: Callable[[], Tensor], second: Callable[[], Tensor]) -> None:
    """The next call does not overwrite the result of the first."""
    kept = first()
    before = kept.clone()
    second()
    rule, saw = "a result stays unchanged when the next one is computed", "the first call's result changed"
    is_kept = torch.equal(kept, before)
    expect.that(rule, is_kept, saw="unchanged" if is_kept else saw, expected="a new tensor for each call")


def _value(bits: int) -> str:
    return f"{torch.tensor(bits - (bits >> 31 << 32), dtype=torch.int32).view(torch.float32).item():.9g}"


def _wanted(bits: int) -> str:
    return f"{bits:#06x} ({_value(bits << 16)})" if (bits & 0x7FFF) <= 0x7F80 else "a NaN, such as 0x7fc0"


def _told(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}, {tuple(value.shape)}"
    return "None: is there a return?" if value is None else f"{type(value).__name__} {short_repr(value)}"


class _NoBF16(Operators):
    """Notes the first operator that reads or makes a BF16 tensor: torch may have done the rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.found = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        parts = tree_leaves((result, args, kwargs))  # lists, too
        if any(isinstance(part, Tensor) and part.dtype == torch.bfloat16 for part in parts):
            self.found = self.found or func.overloadpacket.__name__
        return result


@contextmanager
def _without_bf16() -> Iterator[None]:
    with _NoBF16() as mode:
        yield
    if mode.found:
        raise RuleBroken(
            "the rounding is your own",
            f"a tensor of torch.bfloat16, in the operator {mode.found}",
            "whole numbers: >>, &, ==, torch.where",
        )


# ---- A loss scaler ---------------------------------------------------------------------------------------------------

_LARGE = torch.finfo(torch.float32).max  # the sum of two of them is infinite; so is one over a scale below 1
_HANDED = (2.0**40, 2.0**-20, 24.0)  # scales that some steps get instead of the last one


class _Step:
    """One step: gradients of each rank, whether they overflow, and a description."""

    def __init__(self, gradients: list[list[Tensor]], overflow: bool, words: str):
        self.gradients, self.overflow, self.words = gradients, overflow, words

    @property
    def needs_a_scale_of_1(self) -> bool:
        """Whether its finite gradients stay finite only when divided by 1 or more."""
        largest = max(float(gradient.abs().max()) for of_rank in self.gradients for gradient in of_rank)
        return not self.overflow and largest > 1e20


@exercise(
    "A loss scaler",
    hints=[
        "In `unscale` first check on this rank: is every number of every gradient finite? Then all ranks need the "
        "information whether any rank found one that is not.",
        "A tensor with one number, 1.0 for an overflow, and one `dist.all_reduce(flag, op=dist.ReduceOp.MAX)`: after "
        "it all ranks return the same. Every rank makes this call in every step. `update` does not communicate.",
        "`found = any(not g.isfinite().all() for g in gradients)`; all-reduce it; `g.div_(self.scale)` for each. In "
        "`update` an overflow halves `self.scale` and sets `self.good_steps` to 0. Otherwise count; at `self.interval` "
        "double the scale, and count from 0 again.",
    ],
)
def LossScaler(expect: Expect, LossScaler: Callable[[float, int], Any]) -> None:
    not_from_lablib(LossScaler)
    draw = expect.draw
    for ranks in (1, draw.integer(2, 4), draw.integer(5, 8)):
        for interval in (draw.integer(3, 4), 1):
            scale = draw.choice([2.0 ** draw.integer(3, 16), 1000.0 * draw.integer(1, 9)])
            good_steps = draw.integer(0, interval - 1) if ranks > 1 else 0
            expect.measured.clear()  # the result shows only the rules of the last run
            _expect_steps(expect, LossScaler, ranks, interval, scale, good_steps)


def _steps(draw: Draw, ranks: int, interval: int, scale: float) -> list[_Step]:
    """Overflows of every kind, and between them enough steps without overflow to grow."""
    last, inf = ranks - 1, math.inf
    finite = [_step(draw, ranks, scale, "finite gradients")]
    bad = [
        (0, 0, [inf]),
        (last, 0, [-inf]),
        (last, 2, [inf]),
        (last, 1, [math.nan]),
        (last, 1, [inf]),
        (last, -1, [inf]),
    ]
    bad.append((draw.integer(0, last), 2, [inf, -inf]))
    overflows = [_overflow(draw, ranks, scale, *which) for which in bad]
    bad_ranks = [_overflow(draw, ranks, scale, rank, 0, [math.nan]) for rank in range(1, last)]
    together = [_overflow_on(draw, ranks, scale, range(ranks)), _overflow_on(draw, ranks, scale, sorted({0, last}))]
    many = _step(draw, ranks, scale, f"256 infinities on rank {last}", (last, 0, []), overflow=True)
    many.gradients[last][0] = torch.full((256,), math.inf)  # a count of 8 bits is 0 again
    everywhere = _step(draw, ranks, scale, "finite gradients, infinite sum of the largest ones")
    for of_rank in everywhere.gradients:
        for gradient in of_rank:
            gradient.view(-1)[0] = _LARGE
    large = [
        _step(draw, ranks, scale, "finite gradients, infinite squares", (0, 0, [1e30])),
        everywhere,
        _step(draw, ranks, scale, "finite gradients, infinite sum", (0, 1, [_LARGE, _LARGE])),
    ]
    zeros = _step(draw, ranks, 0.0, "gradients that are all zero")
    tiny = _step(draw, ranks, 1e-6, "small gradients")
    return [
        *finite * interval,
        overflows[0],
        *finite * (interval - 1),
        *overflows[1:],
        *bad_ranks,
        *together,
        many,
        *large,
        zeros,
        tiny,
        draw.choice(overflows),
        *finite * (interval + 1),
    ]


def _overflow(draw: Draw, ranks: int, scale: float, rank: int, number: int, values: list[float]) -> _Step:
    words = f"{' and '.join(map(str, values))} in gradient {number} of rank {rank}"
    return _step(draw, ranks, scale, words, (rank, number, values), overflow=True)


def _overflow_on(draw: Draw, ranks: int, scale: float, which: Sequence[int]) -> _Step:
    """Infinities in every gradient of several ranks, as when S is too large."""
    of_ranks = "all ranks" if len(which) == ranks else f"ranks {' and '.join(map(str, which))} alone"
    step = _step(draw, ranks, scale, f"infinities in all gradients of {of_ranks}", overflow=True)
    for rank in which:
        step.gradients[rank] = [torch.full((2, 3), math.inf), draw.tensor((3,)) * math.inf]
    return step


def _step(
    draw: Draw,
    ranks: int,
    scale: float,
    words: str,
    special: tuple[int, int, list[float]] = (0, 0, []),
    overflow: bool = False,
) -> _Step:
    """Three gradients per rank, with special values in one of them; with three ranks or more, one has none."""
    rank, number, values = special
    gradients = [
        [
            scale * draw.tensor(shape)
            for shape in ((draw.integer(2, 6), 3), (2, 3), (4, 2), (), (3,))[: draw.integer(3, 5)]
        ]
        for _ in range(ranks)
    ]
    target = gradients[rank][number].view(-1)
    first = draw.integer(0, len(target) - len(values)) if values else 0
    target[first : first + len(values)] = torch.tensor(values)
    if ranks > 2:
        gradients[(rank + 1) % ranks] = []
    return _Step(gradients, overflow, words)


def _expect_steps(
    expect: Expect, answer: Callable[..., Any], ranks: int, interval: int, scale: float, good_steps: int
) -> None:
    steps = _steps(expect.draw, ranks, interval, scale)

    def program(steps: list[_Step]) -> list[tuple[list[float], list[Tensor]]]:
        scaler, state, seen = answer(scale, interval), (scale, good_steps), []
        for number, step in enumerate(steps):
            # Matrices are transposed: not contiguous, like some gradients.
            mine = [
                gradient.T.contiguous().T if gradient.ndim == 2 else gradient.clone()
                for gradient in step.gradients[dist.get_rank()]
            ]
            handed, places = list(mine), [gradient.data_ptr() for gradient in mine]
            (scaler.scale, scaler.good_steps), scaler.interval = state, intervals[number]
            skip = scaler.unscale(handed)
            _number("skip is returned", skip, number)
            scaler.update(skip)
            returned = [_number(f"{name} is a number", value, number) for name, value in _state(skip, scaler)]
            if len(handed) != len(mine):
                raise RuleBroken("the list of gradients keeps its items", f"{len(handed)} left", f"{len(mine)}")
            if places != [gradient.data_ptr() for gradient in mine]:
                said = "a gradient got other memory (`x.data = ...`, `x.set_(...)`): its views hold the old numbers"
                raise RuleBroken(
                    f"gradients are divided in place (step {number + 1})",
                    said,
                    "the same memory: x.div_(...), x.copy_(...)",
                )
            state = states[number]
            seen.append((returned, mine))
        return seen

    states, intervals, at = [], [interval] * len(steps), (scale, good_steps)  # states: after each step
    for number, step in enumerate(steps):
        grows = not step.overflow and at[1] + 1 >= intervals[number]
        at = (at[0] / 2 if step.overflow else 2 * at[0] if grows else at[0], 0 if step.overflow or grows else at[1] + 1)
        if number % 5 == 4 and number + 1 < len(steps):  # pass other values: the answer must not keep a state
            intervals[number + 1] = expect.draw.choice([interval, expect.draw.integer(5, 3000)])
            later = intervals[number + 1] - (1 if number == 4 else expect.draw.integer(1, 3))
            at = (_HANDED[number // 5 % 3], max(0, later))
        elif intervals[number] != interval:
            at = (at[0], expect.draw.integer(0, interval - 1))
        if number + 1 < len(steps) and steps[number + 1].needs_a_scale_of_1:
            at = (max(1.0, at[0]), at[1])
        states.append(at)
    run = expect.launch(program, steps, ranks=ranks)
    on = f"interval {interval}, {plural(ranks, 'ranks')}"
    state = (scale, good_steps)
    for number, step in enumerate(steps):
        seen = [value[number] for value in run.values]
        given = f"scale {state[0]:g}, good_steps {state[1]}, interval {intervals[number]}"
        where = f"step {number + 1}, {step.words}; {given}, {plural(ranks, 'ranks')}"
        _expect_step(expect, seen, step, state, intervals[number], where)
        state = states[number]
    communications_within(expect, run, at_most=2 * len(steps))
    sent = max(run.traffic.sent_bytes(rank) for rank in range(ranks))
    expect.budget(
        f"bytes a rank sends in {len(steps)} steps: a flag, and no gradients ({on})", sent, 64 * len(steps), "B"
    )
    fewest = min(run.traffic.sent_bytes(rank) for rank in range(ranks))
    if ranks > 1 and fewest < len(steps):
        raise RuleBroken(
            f"every rank sends its flag to the others ({on})",
            f"{fewest} bytes in {len(steps)} steps",
            "a flag in each step",
        )


def _state(skip: Any, scaler: Any) -> list[tuple[str, Any]]:
    return [("skip", skip), ("scale", scaler.scale), ("good_steps", scaler.good_steps)]


def _number(rule: str, value: Any, step: int) -> float:
    number = plain_number(value)
    if not isinstance(number, int | float):
        raise RuleBroken(f"{rule} (step {step + 1})", _told(value), "True or False" if "skip" in rule else "a number")
    return number


def _expect_step(
    expect: Expect,
    seen: Sequence[tuple[list[float], list[Tensor]]],
    step: _Step,
    state: tuple[float, int],
    interval: int,
    where: str,
) -> tuple[float, int]:
    """The rules of one step; the state after it."""
    scale, good_steps = state
    skips = [bool(returned[0]) for returned, _ in seen]
    said = ", ".join(f"rank {rank} {'skips' if skip else 'steps'}" for rank, skip in enumerate(skips))
    expect.that(
        f"all ranks skip together, or none ({where})", len(set(skips)) == 1, saw=said, expected="all do the same"
    )
    rule = "a step with an overflow is skipped" if step.overflow else "a step without overflow is not skipped"
    expect.that(
        f"{rule} ({where})",
        skips == [step.overflow] * len(skips),
        saw=f"on rank 0 skip {bool(seen[0][0][0])}, scale {seen[0][0][1]:g}, good_steps {seen[0][0][2]}",
        expected=f"skip is {step.overflow} on every rank",
    )
    grows = not step.overflow and good_steps + 1 >= interval
    rules = {
        "an overflow halves the scale": (step.overflow, scale / 2),
        f"step {interval} in a row without overflow doubles the scale": (grows, 2 * scale),
        "a step without overflow leaves the scale until there are enough in a row": (True, scale),
    }
    rule, new_scale = next((rule, new) for rule, (applies, new) in rules.items() if applies)
    expect.close(f"{rule} ({where})", [returned[1] for returned, _ in seen], [new_scale] * len(seen))
    new_steps = 0 if step.overflow or grows else good_steps + 1
    rule = "good_steps counts steps in a row without overflow, from 0 again after each change of the scale"
    expect.equal(f"{rule} ({where})", [returned[2] for returned, _ in seen], [new_steps] * len(seen))
    if not step.overflow:
        wanted = [[gradient / scale for gradient in of_rank] for of_rank in step.gradients]
        for rank, (_, mine) in enumerate(seen):
            rule = f"gradients are divided by the scale of this step, in place (rank {rank}, {where})"
            expect.close(rule, mine, wanted[rank], rtol=1e-6)
    return new_scale, new_steps


# ---- One step in mixed precision -------------------------------------------------------------------------------------


class _Net(nn.Module):
    """Two layers with tanh in a format of 16 bits, and a loss in FP32 times a factor; counts its calls."""

    def __init__(self, draw: Draw, dtype: torch.dtype, factor: float) -> None:
        super().__init__()
        inputs, hidden = draw.integer(2, 5), draw.integer(2, 6)
        shapes = ((hidden, inputs), (hidden,), (hidden,), ())
        self.weights = nn.ParameterList(nn.Parameter(0.5 * draw.tensor(shape).to(dtype)) for shape in shapes)
        self.factor, self.num_calls = factor, 0

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        self.num_calls += 1
        inputs, targets = batch
        inner, shift, outer, constant = self.weights
        outputs = torch.tanh(inputs.to(inner.dtype) @ inner.T + shift) @ outer + constant
        return self.factor * (outputs.float() - targets).square().mean()


class _Sum(nn.Module):
    """A loss that is linear in the weights: the batch, one tensor for each weight, is its gradient."""

    def __init__(self, draw: Draw, dtype: torch.dtype) -> None:
        super().__init__()
        shapes = ((), (3,), (draw.integer(2, 4), 2), (2,))
        self.weights = nn.ParameterList(nn.Parameter(1 + 0.1 * draw.tensor(shape).to(dtype)) for shape in shapes)
        self.num_calls = 0

    def forward(self, batch: list[Tensor]) -> Tensor:
        self.num_calls += 1
        terms = [(slope * weight.float()).sum() for slope, weight in zip(batch, self.weights, strict=True)]
        return torch.stack(terms).sum()


@dataclass
class _Case:
    """A model, the batches of its steps, and what makes them hard."""

    model: _Net | _Sum
    batches: list[Any]
    lr: float
    scales: list[float]
    words: str


@exercise(
    "One step in mixed precision",
    hints=[
        "Five parts: forget the old gradients; backward of the scaled loss; gradients in FP32, divided by the scale; "
        "skip if one of them is not finite; change the masters, and round them into the parameters.",
        "In FP16 a gradient divided by the scale would be rounded to zero again, and the update would be lost in the "
        "parameter: `weight.grad.float() / scale` first. Weights change under `torch.no_grad()`.",
        "`(scale * model(batch)).backward()`; check `gradient.isfinite().all()` of each; then for each weight "
        "`master -= lr * gradient` and `weight.copy_(master)`. Look at all gradients before the first weight changes.",
    ],
)
def mixed_step(expect: Expect, mixed_step: Callable[..., bool]) -> None:
    not_from_lablib(mixed_step)
    for case in _cases(expect.draw):
        expect.measured.clear()
        _expect_case(expect, mixed_step, case)


def _cases(draw: Draw) -> Iterator[_Case]:
    for dtype, scale in ((torch.float16, 2.0 ** draw.integer(6, 10)), (torch.bfloat16, 1.0), (torch.float16, 1000.0)):
        net = _Net(draw, dtype, draw.number(0.5, 2.0))
        width = net.weights[0].shape[1]
        batches = [(draw.tensor((5, width)), draw.tensor((5,))) for _ in range(3)]
        words = f"a net in {_name(dtype)}, scale {scale:g}"
        yield _Case(net, batches, draw.number(0.05, 0.2), [scale, 2 * scale, scale], words)
    net = _Net(draw, torch.float16, 2.0**-24)
    small = [(draw.tensor((5, net.weights[0].shape[1])), draw.tensor((5,))) for _ in range(3)]
    yield _Case(net, small, 2.0**21, [2.0**22] * 3, "a net with gradients below FP16's range, scale 2^22")
    for dtype in (torch.float16, torch.bfloat16):
        line = _Sum(draw, dtype)
        steps = [[2.0**-27 * (1 + draw.tensor(w.shape).abs()) for w in line.weights] for _ in range(6)]
        yield _Case(line, steps, 2.0**12, [2.0**16] * 6, f"updates below the step of {_name(dtype)}")
    large = _Sum(draw, torch.float16)
    slopes = [torch.full(w.shape, 60.0) for w in large.weights]  # times 1,000: a sum of two is beyond FP16's range
    yield _Case(large, [slopes] * 2, 1e-4, [1000.0] * 2, "finite gradients, infinite sum in FP16")
    yield from _overflows(draw)


def _overflows(draw: Draw) -> Iterator[_Case]:
    """An infinity (a slope of 100, times the scale, is beyond FP16's range) or NaN in all, one, or a part of one."""
    line = _Sum(draw, torch.float16)
    infinite, nan = ([torch.full(w.shape, value) for w in line.weights] for value in (100.0, math.nan))
    steps = [[nan[0], *infinite[1:]], infinite, nan, infinite]
    yield _Case(line, steps, 0.01, [1024.0, 1024.0, 1024.0, 512.0], "overflows at steps 1 to 3, then a lower scale")
    values = draw.shuffled([100.0, -100.0, math.nan, math.inf])
    for whole in (True, False):
        for number, value in enumerate(values):
            line = _Sum(draw, torch.float16)
            usual = [draw.tensor(w.shape) for w in line.weights]
            bad = [slope.clone() for slope in usual]
            bad[number].view(-1)[0 if whole else -1 :] = value
            part = "all" if whole else "the last"
            words = f"an overflow at step 2 of 3 in {part} of parameter {number} alone, slope {value:g}, scale 1024"
            yield _Case(line, [usual, bad, usual], 0.01, [1024.0] * 3, words)


def _name(dtype: torch.dtype) -> str:
    return {torch.float16: "FP16", torch.bfloat16: "BF16"}[dtype]


def _expect_case(expect: Expect, answer: Callable[..., Any], case: _Case) -> None:
    model, weights = case.model, list(case.model.parameters())
    masters = [weight.detach().float() for weight in weights]
    places, dtypes = [tensor.data_ptr() for tensor in (*weights, *masters)], [weight.dtype for weight in weights]
    handed = list(masters)
    for weight in weights:
        weight.grad = torch.ones_like(weight)  # of an earlier step
    for number, (batch, scale) in enumerate(zip(case.batches, case.scales, strict=True), 1):
        on = f"step {number}, {case.words}"
        gradients = _gradients(model, batch, scale)
        skips = any(not gradient.isfinite().all() for gradient in gradients)
        before, kept = [master.clone() for master in masters], [weight.detach().clone() for weight in weights]
        model.num_calls = 0
        skip = answer(model, handed, batch, case.lr, scale)
        if skip is Ellipsis:
            expect.equal("skip is returned", skip, skips)  # for a stub
        skip = plain_number(skip)
        if not isinstance(skip, bool | int):
            raise RuleBroken(f"skip is returned ({on})", _told(skip), "True or False")
        _expect_same_tensors(model, weights, masters, handed, places, dtypes, on)
        expect.that(
            f"the model is called once ({on})", model.num_calls == 1, saw=plural(model.num_calls, "calls"), expected="1"
        )
        rule = "an overflow skips the step" if skips else "finite gradients skip no step"
        said = f"skip {bool(skip)}; {_weights_now([*masters, *weights], [*before, *kept])}"
        expect.that(f"{rule} ({on})", bool(skip) == skips, saw=said, expected=f"skip {skips}")
        if skips:
            expect.equal(f"a skipped step changes no master weight ({on})", masters, before)
            expect.equal(f"a skipped step changes no parameter ({on})", [w.detach() for w in weights], kept)
            continue
        wanted = [old - case.lr * gradient for old, gradient in zip(before, gradients, strict=True)]
        for index, (master, old, new) in enumerate(zip(masters, before, wanted, strict=True)):
            step, rounding = (new - old).abs().max(), 2.0**-22 * old.abs().max()  # of FP32 sums in either order
            expect.close(
                f"master weight {index} minus lr times the gradient of this step ({on})",
                master, new, rtol=1e-7, atol=float(1e-5 * step + rounding),
            )  # fmt: skip
        rounded = [master.to(weight.dtype) for master, weight in zip(masters, weights, strict=True)]
        expect.equal(f"each parameter is its rounded master weight ({on})", [w.detach() for w in weights], rounded)


def _weights_now(weights: list[Any], before: list[Tensor]) -> str:
    if all(weight.isfinite().all() for weight in weights):
        is_same = all(torch.equal(weight, old) for weight, old in zip(weights, before, strict=True))
        return "no weight changed" if is_same else "weights changed, and are finite"
    return "weights are infinite or NaN"


def _gradients(model: _Net | _Sum, batch: Any, scale: float) -> list[Tensor]:
    """True gradients in FP32, as backward of the scaled loss in 16 bits gives them."""
    scaled = torch.autograd.grad(scale * model(batch), list(model.parameters()))
    return [gradient.float() / scale for gradient in scaled]


def _expect_same_tensors(
    model: nn.Module,
    weights: list[Any],
    masters: list[Tensor],
    handed: list[Tensor],
    places: list[int],
    dtypes: list[torch.dtype],
    on: str,
) -> None:
    """Parameters and masters are changed in place, in their formats."""
    now = list(model.parameters())
    if len(now) != len(weights) or any(a is not b for a, b in zip(now, weights, strict=True)):
        raise RuleBroken(f"the model keeps its parameters ({on})", "it has others", "weight.copy_(...)")
    if len(handed) != len(masters) or any(a is not b for a, b in zip(handed, masters, strict=True)):
        raise RuleBroken(f"master weights change in place ({on})", "the list holds others", "master -= ...")
    for index, (weight, dtype) in enumerate(zip(weights, dtypes, strict=True)):
        if weight.dtype != dtype:
            raise RuleBroken(f"parameters stay in {_name(dtype)} ({on})", _told(weight), f"parameter {index}: {dtype}")
    for index, (tensor, place) in enumerate(zip((*weights, *masters), places, strict=True)):
        if tensor.data_ptr() != place:
            which = f"master weight {index - len(weights)}" if index >= len(weights) else f"parameter {index}"
            said = f"{which} got other memory (`x.data = ...`): what shares memory with it holds the old numbers"
            raise RuleBroken(f"weights change in place ({on})", said, "master -= ..., weight.copy_(...)")


# ---- Quantize in blocks ---------------------------------------------------------------------------------------------


@exercise(
    "Quantize in blocks",
    hints=[
        "Reshape, so that the numbers of a block have a separate dimension: `x.unflatten(-1, (-1, block))`.",
        "The largest |x| of a block must become the largest number of the format. Which scale has a block of zeros?",
        "`scales = blocks.abs().amax(-1) / format.largest`, 1 where that is 0. `round_to(blocks / scales[..., None], "
        "format)` are the codes; `flatten(-2)` restores the shape.",
    ],
)
def quantize_blocks(expect: Expect, quantize_blocks: Callable[..., tuple[Tensor, Tensor]]) -> None:
    not_from_lablib(quantize_blocks, allowed=("round_to",))
    draw = expect.draw
    exponent, mantissa, bias = draw.integer(2, 4), draw.integer(1, 3), draw.integer(1, 7)
    drawn = Format(f"drawn e{exponent}m{mantissa}", exponent, mantissa, bias, has_infinity=False, has_nan=False)
    for format in (E4M3, E2M1, E5M2, FP16, drawn):
        for x, block, words in _blocks(draw):
            expect.measured.clear()
            on = f"{format}, {words}, blocks of {block} in {' x '.join(map(str, x.shape))}"
            _expect_quantized(expect, observe(quantize_blocks, x, block, format), x, block, format, on)
    one, other = (draw.tensor((2, 8)) for _ in range(2))
    _stays(expect, lambda: quantize_blocks(one, 4, E4M3)[0], lambda: quantize_blocks(other, 4, E4M3)[0])


def _blocks(draw: Draw) -> Iterator[tuple[Tensor, int, str]]:
    rows, block, count = draw.integer(2, 5), draw.integer(3, 9), draw.integer(2, 4)
    x = draw.tensor((rows, block * count))
    yield x, block, "normal numbers"
    outlier = x.clone()
    outlier[0, draw.integer(0, block - 1)] = -300.0
    yield outlier, block, "an outlier below zero"
    zeros = x.clone()
    zeros[1, :block] = 0.0
    yield zeros, block, "a block of zeros"
    some = x.clone()
    some[0, 0], some[0, block - 1], some[-1, :block] = 0.0, 0.0, 0.0
    some[-1, 1], some[-1, 2] = 1.5, -1.5
    yield some, block, "blocks with some zeros, one with sum zero"
    yield torch.zeros_like(x), block, "zeros alone"
    yield 1e-30 * x, block, "very small numbers"
    yield 1e36 * x, block, "very large numbers"
    yield x[:1], block, "one row"
    yield draw.tensor((2, 1, 2, block * count)), block, "four dimensions"
    yield x, 1, "one number per block"
    yield x, block * count, "one block per row"
    yield draw.tensor((block * count,)), block, "a vector"
    yield draw.tensor((2, 3, block * count)), block, "three dimensions"
    yield draw.tensor((block * count, rows)).T, block, "a transposed matrix"


def _expect_quantized(expect: Expect, call: Observed, x: Tensor, block: int, format: Format, on: str) -> None:
    value, rule = call.value, f"codes and scales are returned ({on})"
    if not isinstance(value, tuple | list) or len(value) != 2 or not all(isinstance(part, Tensor) for part in value):
        raise RuleBroken(rule, _told(value), "two tensors: return codes, scales")
    changes_nothing(expect, [call])
    codes, scales = (part.detach() for part in value)
    blocks = x.unflatten(-1, (-1, block))
    of_blocks = blocks.shape[:-1]
    shapes = {"codes have the shape of x": (codes, x.shape), "there is one scale per block": (scales, of_blocks)}
    for rule, (part, shape) in shapes.items():
        if part.shape != shape:
            raise RuleBroken(f"{rule} ({on})", str(tuple(part.shape)), str(tuple(shape)))
        if part.dtype != x.dtype:
            raise RuleBroken(f"codes and scales are float32, as x ({on})", _told(part), "torch.float32")
    largest = blocks.abs().amax(-1)
    wanted = torch.where(largest > 0, largest.double() / format.largest, 1.0)
    is_zero = largest == 0
    if is_zero.any():
        expect.close(f"the scale of a block of zeros is 1 ({on})", scales[is_zero], wanted[is_zero], rtol=1e-6)
    expect.close(
        f"a block's scale is its largest |x| over the format's largest number ({on})", scales, wanted, rtol=1e-6
    )
    exact = (blocks.double() / wanted[..., None]).flatten()
    saw = codes.unflatten(-1, (-1, block)).double().flatten()
    values = all_values(format)
    place = torch.searchsorted(values, exact.clamp(values[0], values[-1])).clamp(1, len(values) - 1)
    nearest = torch.minimum((exact - values[place - 1]).abs(), (exact - values[place]).abs())
    is_number = torch.isin(saw, values)
    is_near = (saw - exact).abs() <= nearest + 1e-5 * exact.abs() + 1e-30
    for rule, holds, must in (
        (f"codes are numbers of the format ({on})", is_number, f"one of its {len(values)} numbers"),
        (f"a code is the nearest number to x / scale ({on})", is_near, "the nearest"),
    ):
        if not holds.all():
            at = int((~holds).nonzero()[0])
            said = f"{saw[at]:.6g} for x / scale = {exact[at]:.6g}, {int((~holds).sum())} of {len(saw)} are wrong"
            raise RuleBroken(rule, said, must)
    expect.that(f"codes are the nearest numbers of the format ({on})", True, saw=f"all {len(saw)}", expected="")
