"""Rules that many checks share. The first argument is the check's `expect`.

Effects of a call on its tensors (the program returns `observe(answer, ...)`, so `run.values` are `Observed`):

    returns_tensors       a tensor of the right shape and type, on every rank
    returns_new_tensors   the same, with memory that no argument has
    changes_nothing       arguments are unchanged, lists too
    works_in_place        the first argument holds the result
Values:
    whole_numbers         a list of whole numbers, for further rules
    is_mean               a mean, and not a sum or a mean of other values
    same_on_every_rank    all ranks agree
    equals_one_device     gradients equal the whole batch's on one device
Communication of a run:
    calls_only            only these calls, by their names in `run.traffic`
    communications_within number of calls
    same_calls            a block in which all ranks make the same calls, with any data
    sent_bytes_within     bytes that each rank sends: at most a good algorithm's, at least the task's
The answer's source (own_code.py):
    not_from_lablib       it does not call the library's own solution

They are functions of a recorded run; none of them communicates.
"""

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lablib.course.checks.comparison import difference, distinguishable, is_array
from lablib.course.checks.expect import Expect, RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.observe import Observed
from lablib.course.checks.observe import observe as observe
from lablib.course.checks.own_code import not_from_lablib as not_from_lablib
from lablib.errors import CollectiveMismatchError, DeadlockError
from lablib.run import Run
from lablib.text.units import format_quantity, plural

Calls = Run | Sequence[Observed]  # of `observe`: a run of a program that returns one, or calls made without ranks

_RTOL = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def returns_tensors(expect: Expect, calls: Calls, like: Tensor) -> None:
    """Every call returned a tensor with the shape and the type of `like`."""
    for where, call in _places(calls):
        value, rule = call.value, "a tensor is returned"
        if value is Ellipsis:
            expect.equal(rule, value, like)  # for a stub
        if not isinstance(value, Tensor):
            raise RuleBroken(rule, f"{type(value).__name__} {short_repr(value)}{where}", "a tensor")
        for name in ("shape", "dtype"):
            got, wanted = (_told(getattr(tensor, name)) for tensor in (value, like))
            if got != wanted:
                raise RuleBroken(f"the {_WORDS[name]} of the result is that of the input", got + where, wanted)


_WORDS = {"shape": "shape", "dtype": "type"}


def _told(what: torch.Size | torch.dtype) -> str:
    return str(tuple(what) if isinstance(what, torch.Size) else what).removeprefix("torch.")


def returns_new_tensors(expect: Expect, calls: Calls, like: Tensor) -> None:
    """As `returns_tensors`, and the result shares no memory with an argument."""
    returns_tensors(expect, calls, like)
    for where, call in _places(calls):
        expect.that(
            "the result is a new tensor",
            not call.aliased,
            saw=f"the result shares its memory with an argument{where}" if call.aliased else "memory of its own",
            expected="memory of its own: start from a copy, x.clone()",
        )


def whole_numbers(rule: str, value: Any, example: str) -> list[int]:
    """The whole numbers of a returned list, tuple or array. RuleBroken with the rule: anything of another kind."""
    value = value.tolist() if is_array(value) else value
    try:
        return [int(operator.index(each)) for each in value]  # a subclass of int may equal everything
    except TypeError:
        said = "None: is there a return?" if value is None else short_repr(value)
        raise RuleBroken(rule, said, example) from None


def changes_nothing(expect: Expect, calls: Calls) -> None:
    """The tensors and lists of the arguments are unchanged."""
    for where, call in _places(calls):
        first = call.args[call.changed[0]] if call.changed else None
        kind = "" if isinstance(first, Tensor) else f" (a {type(first).__name__})"
        expect.that(
            "the input stays as it was",
            not call.changed,
            saw=f"argument {call.changed[0] + 1}{kind} changed{where}" if call.changed else "as it was",
            expected="as it was: work on a copy",
        )


def works_in_place(expect: Expect, calls: Calls, expected: Sequence[Tensor], what: str = "the result") -> None:
    """The first argument holds `expected`, one per call, after the call. The order of sums is free."""
    everywhere = f" on all {calls.ranks} ranks" if isinstance(calls, Run) and calls.ranks > 1 else ""
    with expect.grouped(f"x holds {what}{everywhere}", "in place"):
        for (where, call), wanted in zip(_places(calls), expected, strict=True):
            if 0 in call.moved:
                raise RuleBroken(
                    f"x itself holds {what} when the call returns",
                    f"x was given other memory{where} (`x.data = ...`, `x.set_(...)`): what shares memory with it, a "
                    "view or the tensor that it is a part of, still holds the old values",
                    _IN_PLACE,
                )
            if not call.changed and _differs(call.args[0], wanted):
                raise RuleBroken(f"x itself holds {what} when the call returns", _why_unchanged(call, where), _IN_PLACE)
            _refuse_float32_accuracy(what + where, call.args[0], wanted)
            rule = f"x holds {what}{where} ({_in_words(wanted)})"
            expect.close(rule, call.args[0], wanted, rtol=_rtol(wanted), atol=_atol(wanted))


def _in_words(x: Tensor) -> str:
    shape = " x ".join(map(str, x.shape)) or "()"
    return f"{plural(x.numel(), 'elements')}, {str(x.dtype).removeprefix('torch.')}, shape {shape}"


def _refuse_float32_accuracy(what: str, saw: Tensor, wanted: Tensor) -> None:
    """Refuse float64 sums that are right to only seven digits: they were computed in float32."""
    if wanted.dtype != torch.float64 or saw.shape != wanted.shape or not wanted.numel():
        return
    error = float((saw - wanted).abs().max() / wanted.abs().max()) if float(wanted.abs().max()) else 0.0
    if _rtol(wanted) < error < 1e-6:
        said = f"off by {error:.2g} of the largest ({_in_words(wanted)}): this is float32 accuracy, x is float64"
        raise RuleBroken(f"x holds {what}", said, "sums in x's own type")


_IN_PLACE = "x changed in place: x.copy_(...), x.add_(...), x[...] = ..."


def _why_unchanged(call: Observed, where: str) -> str:
    where = f"{where} ({plural(call.args[0].numel(), 'elements')})"  # some answers fail only for small tensors
    returned = isinstance(call.value, Tensor) and not call.aliased
    if returned or call.rebinds:
        saw = "a new tensor was returned" if returned else "x is as it was"
        return f"{saw}{where}: `x = ...` gives the name to another tensor, and the caller's x never changes"
    return f"nothing wrote to x{where}: did the function return early?"


def is_mean(expect: Expect, calls: Calls, expected: Tensor) -> None:
    """Every call returned `expected`, which is a mean over as many ranks as there are calls."""
    values = [call.value for _, call in _places(calls)]
    for (where, _), value in zip(_places(calls), values, strict=True):
        factor = _factor(value, expected)
        if factor is not None and abs(factor - 1) > 1e-3:
            said = _times_the_mean(factor, len(values))
            raise RuleBroken("the result is the mean over ranks", said + where, "1")
        is_alike = isinstance(value, Tensor) and value.shape == expected.shape
        if not is_alike or _differs(value, expected):  # its place is computed only for a broken rule
            expect.close(f"the result is the mean over ranks{where}", value, expected, rtol=0.0, atol=_atol(expected))
    expect.that("the result is the mean over ranks", True, f"on every one of {len(values)}", "the mean")


def same_on_every_rank(expect: Expect, values: Sequence[Any], what: str) -> None:
    """All ranks hold the same, bit for bit."""
    for rank, value in enumerate(values):
        expect.equal(f"{what}: the same on every rank (rank {rank} beside rank 0)", value, values[0])


def equals_one_device(expect: Expect, gradients: Sequence[Tensor], reference: Tensor, on: str = "") -> None:
    """Every rank holds the gradient of the whole batch on one device: `gradients`, one flat tensor per rank.

    A wrong factor has a separate rule: an optimizer such as Adam would hide it.
    """
    where = f" ({on})" if on else ""
    rule = f"every rank ends with the same gradients{where}"
    for rank, gradient in enumerate(gradients):
        found = difference(gradient, gradients[0], rtol=1e-9, atol=0.0)
        if found:
            wanted = f"{found[1]}, as on rank 0: did every gradient take part in the all-reduce?"
            raise RuleBroken(rule, f"on rank {rank} {found[0]}", wanted)
    expect.that(rule, True, f"on every one of {len(gradients)}", "the same")
    factor = _factor(gradients[0], reference)
    if factor is not None:
        rule = f"the gradient has the size of one device's, so it is a mean{where}"
        if abs(factor - 1) > 1e-6:
            raise RuleBroken(rule, _times_the_mean(factor, len(gradients)), "1")
        expect.that(rule, True, "1 time the mean", "1")
    rule = f"the gradient is that of the whole batch on one device{where}"
    # Terms that cancel leave an element near zero with the rounding error of the terms.
    expect.close(rule, gradients[0], reference, rtol=_rtol(reference), atol=_atol(reference))


def calls_only(expect: Expect, run: Run, *names: str) -> None:
    """The only communication is calls with these names ("send" is a send and its receive)."""
    other = sorted({transfer.name for transfer in run.traffic.transfers} - set(names))
    allowed = " and ".join(names) or "no communication"
    expect.that(f"the only calls are {allowed}", not other, saw=" and ".join(other) or allowed, expected=allowed)


def communications_within(expect: Expect, run: Run, at_most: int, at_least: int = 0) -> None:
    """The number of calls: a collective of a group counts once, and so does a send with its receive."""
    where = plural(run.ranks, "ranks")
    expect.budget(f"communications on {where}", len(run.traffic), at_most, "calls", at_least=at_least)


@contextmanager
def same_calls(on: str) -> Iterator[None]:
    """A block in which all ranks make the same calls; `on` names the data by which an answer may skip one."""
    try:
        yield
    except (DeadlockError, CollectiveMismatchError) as error:
        expected = "the same calls in the same order on every rank, with any values in its tensors"
        raise RuleBroken(f"every rank makes the same calls ({on})", str(error), expected) from None


def sent_bytes_within(
    expect: Expect, run: Run, at_most: float | Run, at_least: float = 0.0, mean: bool = False
) -> None:
    """Bytes that leave each rank.

    Args:
        at_most: most bytes that a rank may send; or a run on as many ranks, for the bytes of its busiest sender. (A
            library's all-reduce of a small tensor goes up and down a tree; its middle ranks send more than a ring's.)
        at_least: bytes that every rank must send to do the task.
        mean: take the mean over ranks on both sides.
    """

    def sent_by_rank(run: Run) -> list[float]:
        sent = [run.traffic.sent_bytes(rank) for rank in range(run.ranks)]
        return [sum(sent) / len(sent)] if mean else sent

    sent = sent_by_rank(run)
    at_most = max(sent_by_rank(at_most)) if isinstance(at_most, Run) else at_most
    which = f"a rank sends{' in the mean' if mean else ''} ({plural(run.ranks, 'ranks')})"
    expect.budget(f"bytes {which}", max(sent), at_most, "B")
    if min(sent) < at_least * (1 - 1e-9) and sum(sent) >= at_least * len(sent) * (1 - 1e-9):
        least, most = (format_quantity(value, "B", digits=4) for value in (min(sent), max(sent)))
        saw = f"ranks send unequal shares, the least {least}, less than the task needs, the most {most}"
        raise RuleBroken(f"fewest bytes {which}", saw, f"at least {format_quantity(at_least, 'B', digits=4)} from each")
    if at_least:
        fewest = format_quantity(min(sent), "B", digits=4)
        with expect.grouped(f"fewest bytes {which}", f"{fewest}, at least {format_quantity(at_least, 'B', digits=4)}"):
            expect.budget(f"fewest bytes {which}", min(sent), at_most, "B", at_least=at_least)


def _places(calls: Calls) -> list[tuple[str, Observed]]:
    """Each call, with a description of its place."""
    if isinstance(calls, Run):
        return [(f" on rank {rank} of {calls.ranks}", call) for rank, call in enumerate(calls.values)]
    return [("", call) for call in calls]


def _differs(saw: Tensor, expected: Tensor) -> bool:
    return not torch.allclose(saw.double(), expected.double(), rtol=_rtol(expected), atol=_atol(expected))


def _rtol(expected: Tensor) -> float:
    return _RTOL.get(expected.dtype, 1e-9)


def _atol(expected: Tensor) -> float:
    """The error that rounding in the tensor's type can cause in a sum of numbers as large as its largest."""
    return _rtol(expected) * float(expected.abs().max()) if expected.numel() else 0.0


def _times_the_mean(factor: float, number: int) -> str:
    times = f"{distinguishable(lambda value, digits=4: f'{value:.{digits}g}', factor, 1.0)[0]} times the mean"
    return times + (f", as a sum over {number} ranks is" if abs(factor - number) < 1e-3 else "")


def _factor(saw: Any, expected: Tensor) -> float | None:
    """The factor between `saw` and `expected`; None if it is not a multiple."""
    if not isinstance(saw, Tensor) or saw.shape != expected.shape or not expected.numel():
        return None
    a, b = saw.detach().double().flatten(), expected.detach().double().flatten()
    if not float(b.norm()) or not bool(a.isfinite().all()):
        return None
    factor = float(torch.dot(a, b) / torch.dot(b, b))
    return factor if float((a - factor * b).norm()) <= 1e-5 * float(a.norm()) else None
