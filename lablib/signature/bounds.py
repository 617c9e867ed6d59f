"""Bounds in annotations: ranges of numbers, choices from a table, powers of two, lists with an item.

    num_stages: Count                            a whole number, 1 or more
    momentum: FractionBelow1                     a number, at least 0 and below 1
    steps: Annotated[int, Range(ge=0, le=99)]    a whole number, 0 to 99
    recipe: Annotated[str, OneOf(RECIPES)]       one of the names of a table
    num_tokens: Annotated[Count, "give the tokens of the sampled loss"]    a text becomes the remedy in the message

A bound tests only values of the right type. No bound accepts NaN. Python's int and float stay the types, so type
checkers see `Count` as an int.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from math import inf
from typing import Annotated, Any

_LONGEST_NAME = 100  # characters of a misspelled name that are compared


class Bound:
    """A condition on a value: `holds` tests it, `rule` is its text, `remedy` proposes another value."""

    names_the_type = False  # a rule that needs no type: "one of a, b"

    @property
    def rule(self) -> str:
        raise NotImplementedError

    def holds(self, value: Any) -> bool:
        raise NotImplementedError

    def test(self) -> Callable[[Any], bool]:
        """`holds` as a function, built once for many values."""
        return self.holds

    def words(self, type_words: str, is_plural: bool = False) -> str:
        """The rule with the words of the type: "a whole number, 1 or more", "texts, each one of a, b"."""
        if is_plural:
            return f"{type_words}, each {self.rule}"
        return self.rule if self.names_the_type else f"{type_words}, {self.rule}"

    def remedy(self, argument: str, value: Any) -> str:
        """A value that holds: "try num_stages=1". NaN represents a value of another type."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Range(Bound):
    """Numbers at least `ge` or above `gt`, and at most `le` or below `lt`; finite ones with `lt=inf` or `gt=-inf`.

    `example` is proposed in the message if the parameter has no default; without it, the nearest end is.
    """

    ge: float = -inf
    gt: float | None = None
    le: float = inf
    lt: float | None = None
    example: float | None = None

    def holds(self, value: Any) -> bool:
        return bool(self.test()(value))

    def test(self) -> Callable[[Any], bool]:
        ge, gt, le, lt = self.ge, self.gt, self.le, self.lt
        if gt is None:
            return (lambda value: ge <= value <= le) if lt is None else (lambda value: ge <= value < lt)
        return (lambda value: gt < value <= le) if lt is None else (lambda value: gt < value < lt)

    @property
    def rule(self) -> str:
        low, high = self._ends()
        if low > -inf and high < inf:
            if self.gt is None and self.lt is None:
                return f"{low:,} to {high:,}"
            return f"{'at least' if self.gt is None else 'above'} {low:,} and {self._upper()}"
        if low > -inf:
            return f"{low:,} or more" if self.gt is None else f"above {low:,}"
        return self._upper() if high < inf else "not NaN"

    def words(self, type_words: str, is_plural: bool = False) -> str:
        if self.lt == inf or self.gt == -inf:
            type_words = type_words.replace("number", "finite number", 1)
            if self._ends() == (-inf, inf):
                return type_words
        return Bound.words(self, type_words, is_plural)

    def remedy(self, argument: str, value: Any) -> str:
        low, high = self._ends()
        nearest = high if value == value and value > low else low
        tries = (self.example, nearest, low, high, nearest + 1, nearest - 1, (low + high) / 2, 0)
        proposed = next(one for one in tries if one is not None and abs(one) < inf and self.holds(one))
        return f"try {argument}={proposed}"

    def _ends(self) -> tuple[float, float]:
        return self.ge if self.gt is None else self.gt, self.le if self.lt is None else self.lt

    def _upper(self) -> str:
        return f"at most {self.le:,}" if self.lt is None else f"below {self.lt:,}"


class OneOf(Bound):
    """A value of a table, or one of its keys. The message lists all, and the nearest."""

    names_the_type = True

    def __init__(self, choices: Iterable[Any]):
        self.choices = tuple(choices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OneOf) and self.choices == other.choices

    def __hash__(self) -> int:
        return hash(self.choices)

    def holds(self, value: Any) -> bool:
        return value in self.choices

    @property
    def rule(self) -> str:
        return f"one of {', '.join(str(one) or repr(one) for one in self.choices)}"

    def remedy(self, argument: str, value: Any) -> str:
        names = [name for name in self.choices if isinstance(name, str)]
        if isinstance(value, str) and (
            near := get_close_matches(value[:_LONGEST_NAME].lower(), names, n=3, cutoff=0.5)
        ):
            return f"did you mean {' or '.join(map(repr, near))}?"
        return f"try {argument}={as_written(self.choices[0])}"


@dataclass(frozen=True, slots=True)
class PowerOfTwo(Bound):
    """1, 2, 4, ... up to `le`; also 0 with `or_zero`."""

    le: float = inf
    or_zero: bool = False
    names_the_type = True

    @property
    def rule(self) -> str:
        return ("0 or " if self.or_zero else "") + "a power of two" + (f" up to {self.le:,}" if self.le < inf else "")

    def holds(self, value: Any) -> bool:
        return int(value) & (int(value) - 1) == 0 and (value > 0 or (self.or_zero and value == 0)) and value <= self.le

    def remedy(self, argument: str, value: Any) -> str:
        above = 1 << max(int(value) - 1, 0).bit_length() if value == value else 1
        return f"try {argument}={min(above, self.le)}"


@dataclass(frozen=True, slots=True)
class NonEmpty(Bound):
    """A list, dict or text with an item. Iterators pass unread."""

    @property
    def rule(self) -> str:
        return "not empty"

    def holds(self, value: Any) -> bool:
        try:
            return len(value) > 0
        except TypeError:  # an iterator
            return True

    def remedy(self, argument: str, value: Any) -> str:
        return "give at least one item"


def as_written(value: Any) -> str:
    """The text of a value: a dtype or a number format by its name."""
    return repr(value) if isinstance(value, str | int | float | tuple | list | dict) else str(value)


Count = Annotated[int, Range(ge=1)]
NonNegativeInt = Annotated[int, Range(ge=0)]
Finite = Annotated[float, Range(lt=inf, gt=-inf, example=1.0)]
Positive = Annotated[float, Range(gt=0, lt=inf, example=1.0)]
NonNegative = Annotated[float, Range(ge=0, lt=inf, example=1.0)]
Fraction = Annotated[float, Range(ge=0, le=1, example=0.5)]
FractionBelow1 = Annotated[float, Range(ge=0, lt=1, example=0.5)]
PositiveFraction = Annotated[float, Range(gt=0, le=1, example=0.5)]
