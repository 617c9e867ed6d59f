"""Checks of lab 06: kernels and compilers. Rows, parts, texts and sizes are random."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lablib.course import Expect, exercise
from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.rules import changes_nothing, not_from_lablib, observe
from lablib.kernels.accesses import Launch, record_accesses
from lablib.kernels.jit import jit, next_power_of_2, tl
from lablib.text.units import plural

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
    _needs_triton()
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


# ---- Attention in one kernel ----------------------------------------------------------------------------------------


@exercise(
    "Causal attention in one kernel",
    hints=[
        "Which three variables are kept from tile to tile, and which values have they before the first? Which is the "
        "last tile that a query of this program sees?",
        "For each tile: scores by `tl.dot(q, tl.trans(k)) * scale`, hidden ones -inf; the new maximum; both s and o "
        "times exp(old - new), plus the tile's own share. Divide once, at the end.",
        "`rows = first + tl.arange(0, BLOCK)`, and in `for start in range(0, first + BLOCK, BLOCK)` `keys = start + "
        "tl.arange(0, BLOCK)`. `scores = tl.where(keys <= rows[:, None], scores, -float('inf'))`, and `o = o * "
        "tl.exp(m - new)[:, None] + tl.dot(tl.exp(scores - new[:, None]), v)`.",
    ],
)
def attend_kernel(expect: Expect, attend_kernel: Callable[..., None]) -> None:
    _needs_triton()
    not_from_lablib(attend_kernel)
    for on, q, k, v, block in _texts(expect.draw):
        scale = expect.draw.number(0.5, 2.0) / math.sqrt(q.shape[1])
        expect.measured.clear()
        o, (N, D) = torch.full_like(q, -7.0), q.shape
        given = [one.clone() for one in (q, k, v)]
        with record_accesses() as launches:
            jit(attend_kernel)[(math.ceil(N / block),)](q, k, v, o, N, scale, D=D, BLOCK=block)
        on = f"{on}; N {N}, D {D}, BLOCK {block}"
        expect.equal(f"q, k and v stay unchanged ({on})", [q, k, v], given)
        expect.that(f"no number is nan ({on})", not o.isnan().any(), f"{_rows_with_nan(o)} are", "numbers")
        softmax = _softmax(q, k, scale)
        expect.close(f"each query's mean of the values ({on})", o, (softmax @ v.double()).float(), rtol=1e-3, atol=1e-4)
        _expect_tiles(expect, launches[0], ("q", "k", "v", "o"), block, on)


@exercise(
    "The gradient of the queries",
    hints=[
        "Which numbers does a program need once, which in each tile? There is no maximum to follow: `lse` is known.",
        "For each tile: the softmax, 0 for hidden keys; the gradient of the scores; its product with k is added to dq. "
        "Where does `scale` belong?",
        "`share = tl.where(keys <= rows[:, None], tl.exp(tl.dot(q, tl.trans(k)) * scale - lse[:, None]), 0.0)`, then "
        "`dq += tl.dot(share * (tl.dot(do, tl.trans(v)) - delta[:, None]), k)`; store `dq * scale`.",
    ],
)
def dq_kernel(expect: Expect, dq_kernel: Callable[..., None]) -> None:
    _needs_triton()
    not_from_lablib(dq_kernel)
    for on, q, k, v, block in _texts(expect.draw):
        scale = expect.draw.number(0.5, 2.0) / math.sqrt(q.shape[1])
        expect.measured.clear()
        do, dq, (N, D) = expect.draw.tensor(q.shape), torch.full_like(q, -7.0), q.shape
        softmax = _softmax(q, k, scale)
        delta = (do * (softmax @ v.double())).sum(1)
        tensors = (q, k, v, do, _scores(q, k, scale).logsumexp(1).float(), delta.float())
        given = [one.clone() for one in tensors]
        with record_accesses() as launches:
            jit(dq_kernel)[(math.ceil(N / block),)](*tensors, dq, N, scale, D=D, BLOCK=block)
        on = f"{on}; N {N}, D {D}, BLOCK {block}"
        expect.equal(f"the other tensors stay unchanged ({on})", list(tensors), given)
        expect.that(f"no number is nan ({on})", not dq.isnan().any(), f"{_rows_with_nan(dq)} are", "numbers")
        of_scores = softmax * (do.double() @ v.double().T - delta[:, None])
        wanted = (of_scores @ k.double() * scale).float()
        terms = softmax * (do.double() @ v.double().T).abs() @ k.double().abs() * scale
        expect.close(f"each query's gradient ({on})", dq, wanted, rtol=1e-3, atol=3e-4 * float(terms.max()))
        _expect_tiles(expect, launches[0], ("q", "k", "v", "do", "lse", "delta", "dq"), block, on)


def _needs_triton() -> None:
    if tl is None:
        raise RuleBroken("Triton is needed to run a kernel", "no package triton", "Linux: pip install triton")


def _rows_with_nan(x: Tensor) -> str:
    return f"{plural(int(x.isnan().any(1).sum()), 'rows')} of {len(x)}"


def _scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    at = torch.arange(len(q))
    return (q.double() @ k.double().T * scale).masked_fill(at > at[:, None], -math.inf)


def _softmax(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return torch.softmax(_scores(q, k, scale), 1)


def _texts(draw: Draw) -> Iterator[tuple[str, Tensor, Tensor, Tensor, int]]:
    """The case in words, q, k, v, BLOCK."""

    def text(N: int, block: int, D: int) -> tuple[Tensor, Tensor, Tensor, int]:
        return draw.tensor((N, D)), draw.tensor((N, D)), draw.tensor((N, D)), block

    yield "one tile", *text(8, 8, 4)
    yield "two tiles", *text(16, 8, 4)
    yield "many tiles", *text(4 * draw.integer(4, 6), 4, 8)
    yield "a text that tiles do not divide", *text(4 * draw.integer(3, 5) + draw.integer(1, 3), 4, 2)
    yield "a text shorter than a tile", *text(draw.integer(3, 7), 8, 4)
    yield "tiles of one key", *text(draw.integer(5, 7), 1, 4)
    yield "one token", *text(1, 4, 2)
    q, k, v, block = text(8, 8, 4)
    yield "one tile, scores far above 0", 100 * q.abs() + 100, k.abs() + 1, v, block
    q, k, v, block = text(18, 4, 4)
    yield "scores far apart", 300 * q, k, v, block
    low, small = torch.full((18, 4), -1.0), 1e-3 * draw.tensor((18, 4))
    yield "scores far below 0", 100 * q.abs() + 100, low + small, v, block
    yield "scores far above 0", 100 * q.abs() + 100, small - low, v, block
    equal = torch.full((18, 4), -1.0)
    yield "equal scores a million below 0", 5e5 + draw.tensor((18, 4)).abs(), equal, v, block
    rising = torch.arange(18.0)[:, None] + draw.tensor((18, 4))
    yield "scores that grow along the text", q.abs() + 1, rising, v, block
    yield "scores that fall along the text", q.abs() + 1, -rising, v, block


def _expect_tiles(expect: Expect, launch: Launch, names: tuple[str, ...], block: int, on: str) -> None:
    """A program reads its own rows once, the keys and values that it sees once, and writes its own rows once."""
    N, D = next(iter(launch.tensors.values())).shape
    found: dict[tuple[str, str, int], Counter] = defaultdict(Counter)
    short = dict(zip(launch.tensors, names, strict=True))
    for one in launch.accesses:
        found[short[one.tensor], "written" if one.kind == "store" else "read", one.program[0]].update(
            one.elements.tolist()
        )
    for program in range(math.ceil(N / block)):
        first, end = program * block, min(N, (program + 1) * block)
        for name in names:
            width = 1 if name in ("lse", "delta") else D
            rows = range(0, end) if name in ("k", "v") else range(first, end)
            kind, other = ("written", "read") if name == names[-1] else ("read", "written")
            saw = found[name, kind, program]
            wanted = set(range(rows.start * width, rows.stop * width))
            where = f"program {program}; {on}"
            which = "the keys and values that it sees" if name in ("k", "v") else "its own rows"
            missing, more = wanted - set(saw), set(saw) - wanted
            rule = f"a program has {which} {kind}"
            said = f"{len(missing)} of {len(wanted)} numbers of {name} are not"
            expect.that(f"{rule}, all ({where})", not missing, said, "all")
            said = f"{len(more)} other numbers of {name} are {kind}"
            expect.that(f"{rule}, and no others ({where})", not more, said, "none")
            said = f"a number of {name} is {kind} {max(saw.values(), default=0)} times"
            expect.that(f"{rule} once ({where})", max(saw.values(), default=0) <= 1, said, "once")
            extra = sum(found[name, other, program].values())
            expect.that(f"{name} is only {kind} ({where})", not extra, f"{extra} numbers are {other}", "none")
