"""Random inputs of a check, drawn for each run, so that an answer cannot depend on fixed inputs.

A failed check names its seed; `LAB_CHECK_SEED` set to it draws the same inputs again.
"""

import os
import secrets
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from lablib.course.errors import CourseError

T = TypeVar("T")
_VARIABLE = "LAB_CHECK_SEED"
_MAX_SEED = 10**6  # short enough to type


class Draw:
    """Draws numbers, tensors and permutations. `seed`: from 0 up; None: `$LAB_CHECK_SEED`, or a new one each time.

    Raises CourseError: `$LAB_CHECK_SEED` is no such number.
    """

    def __init__(self, seed: int | None = None):
        self.seed = _seed() if seed is None else seed
        self._generator = torch.Generator("cpu").manual_seed(self.seed)

    def integer(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return int(torch.randint(low, high + 1, (), generator=self._generator, device="cpu"))

    def integers(self, count: int, low: int, high: int) -> list[int]:
        """`count` distinct whole numbers from `low` to `high`, in any order."""
        if count > high - low + 1:
            raise ValueError(f"from {low} to {high} there are {high - low + 1} numbers: got count={count}.")
        if high - low >= 1000 * count:  # a permutation of the range would be long, and equal draws are rare
            drawn: dict[int, None] = {}
            while len(drawn) < count:
                drawn[self.integer(low, high)] = None
            return list(drawn)
        return [low + index for index in self._order(high - low + 1)[:count]]

    def number(self, low: float, high: float) -> float:
        """A real number from `low` to `high`."""
        drawn = torch.rand((), generator=self._generator, dtype=torch.float64, device="cpu")
        return low + (high - low) * float(drawn)

    def choice(self, options: Sequence[T]) -> T:
        return options[self.integer(0, len(options) - 1)]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in another order."""
        return [items[index] for index in self._order(len(items))]

    def tensor(
        self, shape: Sequence[int], dtype: torch.dtype = torch.float32, device: str = "cpu", contiguous: bool = True
    ) -> Tensor:
        """A tensor of normally distributed numbers; `contiguous=False`: every second element of a larger one."""
        wide = (*shape, 1 if contiguous else 2)
        drawn = torch.randn(wide, generator=self._generator, dtype=torch.float64, device="cpu")
        drawn = drawn.to(device=device, dtype=dtype)[..., 0]
        return drawn.contiguous() if contiguous else drawn

    def _order(self, count: int) -> list[int]:
        return torch.randperm(count, generator=self._generator, device="cpu").tolist()


def _seed() -> int:
    text = os.environ.get(_VARIABLE)
    if text is None:
        return secrets.randbelow(_MAX_SEED)
    if not text.isdecimal():
        raise CourseError(f"{_VARIABLE} must be a whole number from 0 up: got {text!r}; unset it, or correct it.")
    return int(text)
