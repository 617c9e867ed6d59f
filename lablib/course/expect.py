"""The words a check is written in. Each states a rule, and what breaks it is said as rule, saw, expected.

    expect.equal("every rank holds the sum", saw=run.values, expected=[total] * 4)
    expect.close("the loss is the one-device loss", saw=loss, expected=reference, rtol=1e-9)
    expect.budget("bytes each rank sends", saw=run.traffic.sent_bytes(0), at_most=2 * 3 / 4 * size_bytes, unit="B")
    expect.that("ranks end together", spread_s < 1e-9, saw=f"{spread_s} s apart", expected="all at the same time")
    expect.raises("a skipped collective is diagnosed", DeadlockError, lambda: launch(program, ranks=2))

A rule that holds is kept with what was measured, so that "passed" can be shown with its numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from lablib.course.formatting import short_repr
from lablib.units import format_quantity

E = TypeVar("E", bound=BaseException)


class RuleBroken(Exception):
    """A rule of a check does not hold. It can be raised on a rank too, and travels from worker processes."""

    def __init__(self, rule: str, saw: str, expected: str):
        super().__init__(rule, saw, expected)  # pickling calls the class with exactly these
        self.rule, self.saw, self.expected = rule, saw, expected

    def __str__(self) -> str:
        return f"{self.rule}: saw {self.saw}, expected {self.expected}"


class NotAttempted(Exception):
    """The exercise still holds its stub."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A rule that held, with what was measured, as text."""

    rule: str
    text: str


class Expect:
    """What a check gets as its first argument. `measured` collects the rules that held."""

    def __init__(self) -> None:
        self.measured: list[Measured] = []

    def equal(self, rule: str, saw: Any, expected: Any) -> None:
        """`saw` equals `expected` exactly: tensors in shape, type and every bit of value; also inside lists and dicts.

        Raises:
            RuleBroken: it does not.
            NotAttempted: `saw` is or holds `...`.
        """
        self._compare(rule, saw, expected, rtol=None, atol=0.0, note="equal")

    def close(self, rule: str, saw: Any, expected: Any, *, rtol: float = 1e-9, atol: float = 0.0) -> None:
        """|saw - expected| <= atol + rtol * |expected| for every number; shapes equal, types free.

        Raises:
            RuleBroken: some number is further off, or is not a number.
            NotAttempted: `saw` is or holds `...`.
        """
        self._compare(rule, saw, expected, rtol=rtol, atol=atol, note=f"equal to {max(rtol, atol):.0e}")

    def budget(self, rule: str, saw: float, at_most: float, unit: str = "") -> None:
        """`saw` is within a budget: simulated seconds ("s"), bytes ("B") sent or held, or a count of anything.

        Rounding of the last bits (1e-9) is forgiven.

        Raises:
            RuleBroken: it is more, or not a number.
        """
        _refuse_stub(saw)
        spent, allowed = format_quantity(saw, unit, 4), format_quantity(at_most, unit, 4)
        if not saw <= at_most + 1e-9 * abs(at_most):
            over = f", {saw / at_most:.4g} times the budget" if at_most else ""
            raise RuleBroken(rule, spent + over, f"at most {allowed}")
        self.measured.append(Measured(rule, f"{spent}, at most {allowed}"))

    def that(self, rule: str, condition: bool, saw: object, expected: object) -> None:
        """`condition` holds. For what no other word says; `saw` and `expected` are for the message.

        Where it holds and there was nothing to see (an empty list of offenders), what was expected is kept as measured.

        Raises:
            RuleBroken: it does not hold.
        """
        _refuse_stub(saw)
        if not condition:
            raise RuleBroken(rule, _text(saw), _text(expected))
        self.measured.append(Measured(rule, _text(expected if _is_nothing(saw) else saw)))

    def raises(self, rule: str, error: type[E], call: Callable[[], object]) -> E:
        """Calling `call()` raises an `error`, which is returned.

        Raises:
            RuleBroken: nothing is raised. Another exception passes through.
        """
        try:
            value = call()
        except error as raised:
            self.measured.append(Measured(rule, type(raised).__name__))
            return raised
        raise RuleBroken(rule, f"no error, and the value {short_repr(value)}", error.__name__)

    def _compare(self, rule: str, saw: Any, expected: Any, rtol: float | None, atol: float, note: str) -> None:
        _refuse_stub(saw)
        difference = _difference(saw, expected, rtol, atol)
        if difference:
            raise RuleBroken(rule, *difference)
        self.measured.append(Measured(rule, note))


def _difference(saw: Any, expected: Any, rtol: float | None, atol: float, at: str = "") -> tuple[str, str] | None:
    """The first place where the two differ, as (saw, expected); None if they do not. `rtol=None` asks for equality."""
    where = f" at {at}" if at else ""
    if _is_array(expected):
        return _array_difference(saw, expected, rtol, atol, where)
    if isinstance(expected, list | tuple):
        if not isinstance(saw, list | tuple):
            return short_repr(saw) + where, f"a {type(expected).__name__} of {len(expected)}"
        if len(saw) != len(expected):
            return f"{len(saw)} items{where}: {short_repr(saw)}", f"{len(expected)} items: {short_repr(expected)}"
        pairs = [(f"{at}[{i}]", s, e) for i, (s, e) in enumerate(zip(saw, expected, strict=True))]
    elif isinstance(expected, Mapping):
        if not isinstance(saw, Mapping) or set(saw) != set(expected):
            return (f"keys {sorted(map(str, saw))}" if isinstance(saw, Mapping) else short_repr(saw)) + where, (
                f"keys {sorted(map(str, expected))}"
            )
        pairs = [(f"{at}[{key!r}]", saw[key], expected[key]) for key in expected]
    else:
        same = _same(saw, expected, rtol, atol)
        return None if same else (short_repr(saw) + where, short_repr(expected))
    return next((found for place, s, e in pairs if (found := _difference(s, e, rtol, atol, place))), None)


def _same(saw: Any, expected: Any, rtol: float | None, atol: float) -> bool:
    """Are two plain values the same, to the tolerance if there is one?"""
    if _is_array(saw):  # a tensor with one element stands for its number
        if saw.reshape(-1).shape[0] != 1:
            return False
        saw = saw.reshape(-1).tolist()[0]
    if rtol is None or not isinstance(expected, int | float) or isinstance(expected, bool):
        return bool(saw == expected)
    return isinstance(saw, int | float) and (saw == expected or abs(saw - expected) <= atol + rtol * abs(expected))


def _array_difference(saw: Any, expected: Any, rtol: float | None, atol: float, where: str) -> tuple[str, str] | None:
    """`_difference` for tensors and arrays: shape, then type where equality is asked, then the worst element."""
    import numpy as np

    if not _is_array(saw) or tuple(saw.shape) != tuple(expected.shape):
        return short_repr(saw) + where, short_repr(expected)
    if rtol is None and str(saw.dtype) != str(expected.dtype):
        return f"{short_repr(saw)}{where}", f"type {str(expected.dtype).removeprefix('torch.')}: {short_repr(expected)}"
    got, want = _numbers(saw), _numbers(expected)
    with np.errstate(invalid="ignore"):
        off = np.where(got == want, 0.0, np.abs(got - want))  # inf == inf; inf - inf is not a number
    allowed = 0.0 if rtol is None else atol + rtol * np.abs(want)
    bad = ~(off <= allowed)
    if not bad.any():
        return None
    worst = np.unravel_index(int(np.argmax(np.where(bad, np.nan_to_num(off, nan=np.inf), -1.0))), off.shape)
    element = f"[{', '.join(map(str, worst))}]" if worst else ""
    place = where + element if where else element and f" at {element}"
    count = f", {int(bad.sum())} of {bad.size} elements differ" if bad.size > 1 else ""
    return f"{got[worst]:.12g}{place}{count}", f"{want[worst]:.12g}"


def _numbers(array: Any) -> Any:
    """The values as a numpy array wide enough to hold them exactly."""
    import numpy as np

    if hasattr(array, "detach"):
        array = array.detach().cpu()
        exact = array.is_complex() or not (array.is_floating_point())
        array = array.numpy() if exact else array.double().numpy()
    array = np.asarray(array)
    return array.astype(np.float64) if array.dtype == bool else array


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "reshape")


def _refuse_stub(saw: Any) -> None:
    if saw is Ellipsis or (isinstance(saw, list | tuple) and any(item is Ellipsis for item in saw)):
        raise NotAttempted


def _is_nothing(saw: object) -> bool:
    """Is it an empty list, text or the like? 0 and False are something."""
    return saw is None or (hasattr(saw, "__len__") and not _is_array(saw) and len(saw) == 0)  # pyright: ignore


def _text(value: object) -> str:
    return value if isinstance(value, str) else short_repr(value)
