"""The states of torch's, Python's and numpy's default generators, taken and put back together on every turn.

torch hands its state out in a microsecond, Python in twenty; numpy takes sixty, more than all else that a turn costs.
So numpy's Mersenne twister (624 words and a position) is copied as the bytes it is, at the address that numpy publishes
for this purpose. Its one other part, the second of two normal numbers drawn at once, is rare: a rank that has one
waiting gets the slow way.
"""

import ctypes
import random
from typing import Any

import numpy.random  # numpy loads it on first use: a tenth of a second that belongs to the import, not to a launch
import torch

_TWISTER_BYTES = 624 * 4 + 4  # the key and the position


class RandomStates:
    """One rank's (or the host's) three states. Made from what the generators hold now."""

    def __init__(self) -> None:
        self._numpy_bytes = b""
        self._is_plain = False
        self.take()

    def take(self) -> None:
        """Remember what the generators hold now."""
        self._torch = torch.default_generator.get_state()
        self._python = random.getstate()
        address = _twister_address()
        held = ctypes.string_at(address, _TWISTER_BYTES) if address else b""
        if self._is_plain and held == self._numpy_bytes:
            return  # nobody drew
        self._numpy_bytes = held
        self._numpy: Any = numpy.random.get_state()
        self._is_plain = bool(held) and not self._numpy[3]
        if address and not self._is_plain:
            # Leave no second normal number behind for the next rank.
            numpy.random.set_state((*self._numpy[:3], 0, 0.0))

    def put(self) -> None:
        """Make the generators hold what was taken."""
        torch.default_generator.set_state(self._torch)
        random.setstate(self._python)
        address = _twister_address()
        if self._is_plain and address:
            ctypes.memmove(address, self._numpy_bytes, _TWISTER_BYTES)
        else:
            numpy.random.set_state(self._numpy)


def _twister_address() -> int:
    """Where numpy's default generator keeps its state; 0 if the program has put another kind in its place."""
    generator = numpy.random.get_bit_generator()  # pyright: ignore[reportAttributeAccessIssue]
    return generator.ctypes.state_address if type(generator) is numpy.random.MT19937 else 0
