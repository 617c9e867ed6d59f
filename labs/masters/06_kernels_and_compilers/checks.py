"""Checks of lab 06: kernels and compilers. Rows, parts, texts and sizes are random."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from lablib.course import Expect, exercise
from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.operators import Operators
from lablib.course.checks.rules import changes_nothing, not_from_lablib, observe
from lablib.kernels.accesses import Launch, record_accesses
from lablib.kernels.jit import jit, next_power_of_2, tl

_SOFTMAXES = (torch.softmax, torch.nn.functional.softmax, torch.log_softmax, torch.logsumexp, torch.logaddexp)

# ---- Softmax in one kernel ------------------------------------------------------------------------------------------


@exercise(
    "Softmax in one kernel",
    hints=[
        "Where does row p begin, and which of the BLOCK places after that are still in the row?",
        "Load the row with a mask. Masked numbers must not be the maximum and must add 0 to the sum: which number has "
        "exp 0?",
        '`x = tl.load(x_ptr + row + at, mask=at < M, other=-float("inf"))`; then `e = tl.exp(x - tl.max(x, axis=0))`, '
        "and one `tl.store` of e over its sum, with the same mask.",
    ],
)
def softmax_kernel(expect: Expect, softmax_kernel: Callable[..., None]) -> None:
    if tl is None:
        raise RuleBroken("Triton is needed to run a kernel", "no package triton", "Linux: pip install triton")
    not_from_lablib(softmax_kernel, refused=(tl.softmax, *_SOFTMAXES))
    for on, x, block in _rows(expect.draw):
        expect.measured.clear()
        y, given = torch.full_like(x, -7.0), x.clone()
        with record_accesses() as launches:
            jit(softmax_kernel)[(len(x),)](x, y, x.shape[1], BLOCK=block)
        on = f"{on}; {x.shape[0]} x {x.shape[1]}, BLOCK {block}"
        expect.equal(f"x stays unchanged ({on})", x.nan_to_num(9.0), given.nan_to_num(9.0))
        _expect_accesses(expect, launches[0], on)
        expect.that(f"no number is nan ({on})", not y.isnan().any(), "nan", "a share from 0 to 1")
        total = y.sum(1)
        expect.close(f"every row of y has the sum 1 ({on})", total, torch.ones(len(x)), rtol=1e-4)
        wanted = torch.softmax(x.double(), 1).float()
        expect.close(f"y is the softmax of each row ({on})", y, wanted, rtol=1e-4, atol=1e-7)


def _rows(draw: Draw) -> Iterator[tuple[str, Tensor, int]]:
    """The case in words, x, BLOCK."""
    rows, M = draw.integer(3, 6), draw.integer(5, 7)
    yield "a row as long as the tile", draw.tensor((rows, 8)), 8
    yield "one row", draw.tensor((1, 4)), 4
    # 3 x 5 first: a missing mask and a stride of BLOCK leave x at different places (15, 16), so messages differ.
    yield "a row shorter than the tile", draw.tensor((3, 5)), 8
    yield "a row shorter than the tile, random", draw.tensor((rows, M)), 8
    yield "a tile much longer than the row", draw.tensor((rows, M)), 32
    yield "numbers far below 0", draw.tensor((rows, M)) - 500, 8
    yield "numbers a million below 0", draw.tensor((rows, M)).round() - 1e6, 8
    yield "numbers far above 0", draw.tensor((rows, M)) + 500, 8
    yield "rows of different sizes", draw.tensor((3, M)) + torch.tensor([[0.0], [200.0], [-200.0]]), 8
    hidden = draw.tensor((rows, M))
    hidden[:, draw.integer(0, M - 1)] = -math.inf
    yield "a number of -inf in each row", hidden, 8
    zeros = draw.tensor((rows, M))
    zeros[:, draw.integer(0, M - 1)] = 0.0
    yield "a number of 0 in each row", zeros, 8
    yield "numbers far apart", 100 * draw.tensor((rows, M)), 8
    yield "rows of one number", draw.tensor((rows, 1)), 1
    long = draw.integer(65, 90)
    yield "long rows", draw.tensor((2, long)), next_power_of_2(long)


def _expect_accesses(expect: Expect, launch: Launch, on: str) -> None:
    counts = {(tensor, kind): Counter() for tensor in "xy" for kind in ("load", "store", "atomic")}
    names = dict(zip(launch.tensors, "xy", strict=True))
    for one in launch.accesses:
        counts[names[one.tensor], one.kind].update(one.elements.tolist())
    rows, M = next(iter(launch.tensors.values())).shape
    if not counts["y", "store"]:
        raise RuleBroken(f"y is written ({on})", "nothing was stored", "tl.store(y_ptr + ..., ...)")
    for tensor, kind, word in (("x", "load", "read"), ("y", "store", "written")):
        found = counts[tensor, kind]
        missing = rows * M - len(found)
        rule = f"every number of {tensor} is {word} ({on})"
        expect.that(rule, not missing, f"{missing} of {rows * M} are not", f"all {rows * M}")
        most = max(found.values())
        expect.that(f"each number of {tensor} is {word} once ({on})", most == 1, f"one was {most} times", "once")
    extra = sum(counts["y", "load"].values()) + sum(counts["x", "store"].values())
    expect.that(f"x is only read, y only written ({on})", not extra, f"{extra} other accesses", "none")
    for one in launch.accesses:
        own = bool((one.elements // M == one.program[0]).all())
        expect.that(f"a program touches its own row ({on})", own, f"program {one.program[0]} left it", "row p alone")


# ---- Join two parts -------------------------------------------------------------------------------------------------


@exercise(
    "Join two parts",
    hints=[
        "Which number is the maximum of both parts? By which factor does s1 change if another m is subtracted in its "
        "exp?",
        "exp(x - m) = exp(x - m1) exp(m1 - m): each sum is multiplied by exp of the old m less the new m. This is "
        "never more than 1. What happens where both m are -inf?",
        "`m = torch.maximum(m1, m2)`, and `s1 * torch.exp(m1 - m) + s2 * torch.exp(m2 - m)`; where m is -inf, "
        "subtract 0 instead: `torch.where(m == -math.inf, 0.0, m)`.",
    ],
)
def join(expect: Expect, join: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    not_from_lablib(join)
    for on, m1, s1, m2, s2 in _parts(expect.draw):
        expect.measured.clear()
        call = observe(join, m1, s1, m2, s2)
        changes_nothing(expect, [call])
        found = call.value
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise RuleBroken(f"a pair is returned ({on})", f"a {type(found).__name__}", "m, s")
        for name, one in zip("ms", found, strict=True):
            if not isinstance(one, Tensor) or one.dtype != m1.dtype or one.shape != m1.shape:
                saw = f"{one.dtype} {list(one.shape)}" if isinstance(one, Tensor) else type(one).__name__
                raise RuleBroken(f"{name} is a tensor like m1 ({on})", saw, f"{m1.dtype} {list(m1.shape)}")
        m, s = _joined(m1, s1, m2, s2)
        rtol = 1e-9 if m1.dtype == torch.float64 else 1e-5
        expect.that(f"m and s are not nan ({on})", not any(one.isnan().any() for one in found), "nan", "numbers, -inf")
        expect.equal(f"m is the larger maximum ({on})", found[0], m)
        expect.close(f"s is the sum of exp(x - m) ({on})", found[1], s, rtol=rtol, atol=1e-300)


def _joined(m1: Tensor, s1: Tensor, m2: Tensor, s2: Tensor) -> tuple[Tensor, Tensor]:
    """One number at a time, with Python's own exp."""
    pairs = []
    for a, b, c, d in zip(*(one.flatten().tolist() for one in (m1, s1, m2, s2)), strict=True):
        m = max(a, c)
        s = sum(sum_ * math.exp(top - m) for top, sum_ in ((a, b), (c, d)) if sum_)
        pairs.append((m, s))
    columns = (m1.new_tensor(column).view(m1.shape) for column in zip(*pairs, strict=True))
    return tuple(columns)  # type: ignore[return-value]


def _parts(draw: Draw) -> Iterator[tuple[str, Tensor, Tensor, Tensor, Tensor]]:
    """The case in words, m1, s1, m2, s2."""
    kind = torch.float64

    def some(shape: tuple[int, ...], low: float = 1.0, high: float = 5.0) -> Tensor:
        return torch.tensor([draw.number(low, high) for _ in range(math.prod(shape))], dtype=kind).view(shape)

    n = draw.integer(3, 6)
    m = some((n,), -2, 2)
    yield "equal maxima", m, some((n,)), m.clone(), some((n,))
    above = torch.tensor([1.0, -1.0], dtype=kind) * some((2,))
    yield "either maximum is larger", m[:2], some((2,)), m[:2] + above, some((2,))
    yield "the second maximum is larger", m, some((n,)), m + some((n,)), some((n,))
    yield "the first maximum is larger", m, some((n,)), m - some((n,)), some((n,))
    yield "one number", some(()), some(()), some(()), some(())
    yield "a matrix, either larger", some((2, n), -2, 2), some((2, n)), some((2, n), -2, 2), some((2, n))
    yield "both far above 0", m + 5000, some((n,)), m + 5000.5, some((n,))
    yield "both far below 0", m - 5000, some((n,)), m - 5000.5, some((n,))
    yield "the second thousands above", m, some((n,)), m + 3000, some((n,))
    yield "the second thousands below", m, some((n,)), m - 3000, some((n,))
    empty, zero = torch.full((n,), -math.inf, dtype=kind), torch.zeros(n, dtype=kind)
    yield "the first part is empty", empty, zero, m, some((n,))
    yield "the second part is empty", m, some((n,)), empty, zero
    yield "both parts are empty", empty, zero, empty.clone(), zero.clone()
    one = torch.tensor([-math.inf, 1.0, -math.inf], dtype=kind)
    held = torch.tensor([0.0, 2.0, 0.0], dtype=kind)
    yield (
        "some parts are empty",
        one,
        held,
        torch.tensor([2.0, -math.inf, -math.inf], dtype=kind),
        held.flip(0)[[1, 0, 0]],
    )
    yield "float32", m.float(), some((n,)).float(), m.float() + 1, some((n,)).float()


# ---- Attention, one tile of queries ---------------------------------------------------------------------------------


@exercise(
    "One tile of queries",
    hints=[
        "Which three variables are kept from tile to tile, and which values have they before the first? Where must the "
        "loop end?",
        "For each tile: scores, hidden ones -inf; the new maximum; both s and o times exp(old - new), plus the tile's "
        "own share. Divide once, at the end.",
        "`for start in range(0, first + R, block)`; `hidden = start + torch.arange(len(keys)) > first + "
        "torch.arange(R)[:, None]`; `o = o * torch.exp(m - new) + torch.exp(scores - new) @ values`.",
    ],
)
def attend(expect: Expect, attend: Callable[[Tensor, Tensor, Tensor, int, int], Tensor]) -> None:
    attention = torch.nn.functional.scaled_dot_product_attention
    not_from_lablib(attend, refused=[attention])
    for on, q, k, v, first, block in _texts(expect.draw):
        expect.measured.clear()
        (R, d), N = q.shape, len(k)
        on = f"{on}; R {R}, d {d}, N {N}, first {first}, block {block}"
        with Operators() as operators:
            call = observe(attend, q, k, v, first, block)
        changes_nothing(expect, [call])
        named = next((name for name in sorted(operators.names) if "attention" in name), "")
        expect.that("the attention is your own", not named, f"{named} was called", "m, s and o from tile to tile")
        value = call.value
        if not isinstance(value, Tensor) or value.shape != q.shape or value.dtype != q.dtype:
            saw = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise RuleBroken(f"a tensor like q is returned ({on})", saw, f"{q.dtype} {list(q.shape)}")
        expect.that(f"no number is nan ({on})", not value.isnan().any(), "nan", "numbers")
        at = first + torch.arange(R)[:, None]
        scores = (q.double() @ k.double().T / math.sqrt(d)).masked_fill(torch.arange(N) > at, -math.inf)
        wanted = torch.softmax(scores, 1) @ v.double()
        rtol = 1e-8 if q.dtype == torch.float64 else 1e-3
        expect.close(f"each query's mean of the values ({on})", value.double(), wanted, rtol=rtol, atol=rtol / 10)
        if on.startswith(_LONG):  # all scores take more than the rest; a byte for each is left for a mask
            rule = f"scores of at most `block` keys exist at a time: bytes of all tensors of the call ({on})"
            own = sum(x.nbytes for x in (q, k, v)) + 40 * R * (block + d) * q.itemsize
            expect.budget(rule, operators.peak_bytes, at_most=own + R * N, unit="B")
        seen = min(N, -(-(first + R) // block) * block)
        rule = f"each score is computed once, and none in a tile that no query sees ({on})"
        expect.budget(rule, operators.flops, at_most=4 * R * d * seen, unit="FLOPs")


_LONG = "a long text"


def _texts(draw: Draw) -> Iterator[tuple[Any, ...]]:
    """The case in words, q, k, v, first, block. R differs from N, d and block."""
    kind = torch.float64

    def text(R: int, N: int, first: int, block: int, d: int = 3) -> tuple[Tensor, Tensor, Tensor, int, int]:
        return draw.tensor((R, d), kind), draw.tensor((N, d), kind), draw.tensor((N, d), kind), first, block

    yield "one tile holds all keys", *text(6, 6 + 2, 2, 8)
    yield "the first queries", *text(5, 16, 0, 4)
    yield "queries in the middle", *text(5, 24, draw.integer(7, 10), 4)
    yield "the last queries", *text(5, 24, 19, 4, d=4)
    yield "a text that tiles do not divide", *text(5, 23, 18, 4)
    yield "tiles of one key", *text(4, 13, draw.integer(3, 6), 1)
    yield "one query", *text(1, 17, draw.integer(8, 12), 4)
    q, *rest = text(5, 20, 11, 4)
    yield "scores far apart", 1000 * q, *rest
    low = torch.full((20, 3), -1.0, dtype=kind)
    yield "scores far below 0", q.abs() * 3e4 + 3e4, low + 1e-4 * draw.tensor((20, 3), kind), *rest[1:]
    yield "scores far above 0", q.abs() * 3e4 + 3e4, -low + 1e-4 * draw.tensor((20, 3), kind), *rest[1:]
    high = draw.tensor((20, 3), kind)
    yield "scores that grow along the text", q.abs() + 1, torch.arange(20.0, dtype=kind)[:, None] + high, *rest[1:]
    yield "float32", *(one.float() for one in text(5, 20, 9, 4)[:3]), 9, 4
    yield _LONG, *text(128, 1024, 896, 4, d=2)


# ---- The end of a step ----------------------------------------------------------------------------------------------


@exercise(
    "The end of a step",
    hints=[
        "How many tiles has the output, down and across? How many waves are they?",
        "These waves hold waves * cores tiles. How many whole columns of tiles is that, with `down` tiles in each?",
        "`waves = ceil(down * across / cores)`; then `waves * cores // down` tiles across, each `columns` wide.",
    ],
)
def end_of_step(expect: Expect, end_of_step: Callable[[int, int, int, int, int], int]) -> None:
    not_from_lablib(end_of_step)
    for on, *sizes in _sizes(expect.draw):
        expect.measured.clear()
        M, N, rows, columns, cores = sizes
        given = f"M {M}, N {N}, tiles {rows} x {columns}, {cores} cores"
        found = end_of_step(*sizes)
        whole = isinstance(found, int) and not isinstance(found, bool)
        expect.that(f"a whole number is returned ({given})", whole, type(found).__name__, "int")
        expect.equal(f"{on} ({given})", found, _last_width(*sizes))


def _last_width(M: int, N: int, rows: int, columns: int, cores: int) -> int:
    """The same by trying widths and counting tiles."""

    def waves(width: int) -> int:
        return math.ceil(math.ceil(M / rows) * math.ceil(width / columns) / cores)

    last = N
    while waves(last + 1) == waves(N):
        last += 1
    return last


def _sizes(draw: Draw) -> Iterator[tuple[str, int, int, int, int, int]]:
    """The case in words, M, N, rows, columns, cores."""
    yield "tiles that are not full", 37, 11, 16, 8, 9
    yield "one row of tiles, one wave", 16, 8, 16, 8, draw.integer(3, 6)
    yield "two rows of tiles", 32, 8, 16, 8, 8
    yield "rows that tiles do not divide", 17, 8, 16, 8, 8
    yield "cores that rows of tiles do not divide", 48, 8, 16, 8, 8
    yield "several waves", 48, 8 * draw.integer(9, 15), 16, 8, 8
    yield "more rows of tiles than cores", 16 * 7, 8, 16, 8, 3
    yield "more rows of tiles than cores, two columns", 16 * 7, 9, 16, 8, 3
    yield "a width at the end of its step", 32, 32, 16, 8, 8
    yield "one column beyond the end of a step", 32, 33, 16, 8, 8
    yield "tiles wider than high", 30, 50, 8, 32, 7
    yield "a step of many thousands", 100, 1, 128, 256, draw.integer(100, 140)
    yield "one core", 8, 9, 8, 4, 1
    for _ in range(20):
        rows, columns = draw.integer(2, 9), draw.integer(2, 9)
        M, N, cores = draw.integer(1, 60), draw.integer(1, 60), draw.integer(1, 20)
        yield "random sizes", M, N, rows, columns, cores
