"""States of the default random generators of torch, Python and numpy, taken and restored together.

Simulated ranks swap them on every turn. Reading the state takes 1 us in torch, 20 us in Python and 60 us in numpy, more
than all other costs of a turn. So the Mersenne twisters of Python and numpy (624 words and a position) are copied as
bytes: numpy's at the address that it publishes for this purpose, Python's at the start of its object, if a test of that
memory confirms it. The one other part, the second of two normal numbers drawn at once, is an attribute in Python; in
numpy it is rare, and a rank with one takes the slow path.
"""

import ctypes
import random
from array import array
from typing import Any, Self

import numpy.random  # numpy loads it on first use, which takes 0.1 s that should not count in a launch
import torch

from lablib.process.settings.setting import ProcessSetting

_TWISTER_BYTES = 624 * 4 + 4  # the key and the position
_Twister = ctypes.c_char * _TWISTER_BYTES


def _twister_of(generator: random.Random) -> Any:
    """The memory of a Python generator, behind its object header; None if the state is not there."""
    _, (*words, position), _ = generator.getstate()
    if random.Random.__base__.__basicsize__ < object.__basicsize__ + _TWISTER_BYTES:  # pyright: ignore
        return None
    memory = _Twister.from_address(id(generator) + object.__basicsize__)
    return memory if memory.raw == array("I", [position, *words]).tobytes() else None


_PYTHONS: Any = vars(random)["_inst"]
_PYTHONS_TWISTER = _twister_of(_PYTHONS)


def _set_pythons(state: Any) -> None:
    if _PYTHONS_TWISTER:
        _PYTHONS_TWISTER.raw, _PYTHONS.gauss_next = state
    else:
        random.setstate(state)


class RandomStates:
    """The three states, taken at construction; faster if numpy's generator was not used since `before` was put."""

    __slots__ = ("_torch", "_python", "_numpy", "_numpy_bytes", "_is_plain")

    def __init__(self, before: Self | None = None) -> None:
        self._torch = torch.default_generator.get_state()
        self._python = (_PYTHONS_TWISTER.raw, _PYTHONS.gauss_next) if _PYTHONS_TWISTER else random.getstate()
        address = _twister_address()
        self._numpy_bytes = held = _Twister.from_address(address).raw if address else b""
        self._numpy: Any
        if before is not None and before._is_plain and held == before._numpy_bytes:
            self._numpy, self._is_plain = before._numpy, True
        else:
            self._numpy = numpy.random.get_state()
            self._is_plain = bool(held) and not self._numpy[3]  # no second normal number is stored

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RandomStates) and self._comparable() == other._comparable()

    def _comparable(self) -> tuple:
        kind, key, *rest = self._numpy
        return self._torch.tolist(), self._python, kind, key.tolist(), rest

    def give_back(self) -> None:
        torch.default_generator.set_state(self._torch)
        _set_pythons(self._python)
        numpy.random.set_state(self._numpy)

    # ---- at every turn of a simulated rank ----

    def put(self) -> None:
        """Restore these states, if the replaced ones were taken by `taken_again`."""
        address = _twister_address()
        if not self._is_plain or not address:
            return self.give_back()
        torch.default_generator.set_state(self._torch)
        _set_pythons(self._python)
        ctypes.memmove(address, self._numpy_bytes, _TWISTER_BYTES)

    def taken_again(self) -> "RandomStates":
        """The states after these were put. Leaves no second normal number behind for the next rank."""
        now = RandomStates(self)
        if not now._is_plain and now._numpy_bytes:
            numpy.random.set_state((*now._numpy[:3], 0, 0.0))
        return now


def _twister_address() -> int:
    """Address of the state of numpy's default generator; 0 if the program has replaced it by another kind."""
    generator = numpy.random.get_bit_generator()  # pyright: ignore[reportAttributeAccessIssue]
    return generator.ctypes.state_address if type(generator) is numpy.random.MT19937 else 0


SETTINGS = (
    ProcessSetting(
        "random generators",
        RandomStates,
        RandomStates.give_back,
        is_always=True,
        at_turns=(RandomStates.put, RandomStates.taken_again),
    ),
)
