"""Garbage collection on all ranks at the same steps, in place of Python's automatic collection.

A collection stops a process for up to seconds in a large program. Automatic ones begin after a number of new objects,
so each rank stops in other steps, and all ranks wait for each. With a share q of steps in which a rank stops, n ranks
are delayed in 1 - (1 - q)^n of the steps if they stop separately, in q of them if they stop together.

    automatic     rank 0  [step][step][gc][step]      [step]          memory.gc_every_steps = 0
                  rank 1  [step][step]    [step][gc  ][step]
    together      rank 0  [step][step][gc  ][step][step]              memory.gc_every_steps = 2
                  rank 1  [step][step][gc  ][step][step]

Cycles of objects, also of tensors, live up to this many steps longer.

Cost: one full collection per `every` steps; the memory of the cycles between two collections.
Source: Megatron-LM (`--manual-gc`, `--manual-gc-interval`); torchtitan (`gc_freq`); lab 17, "Further: garbage
collection", measures the formula.
Simplified: full collections only. On the simulator a collection takes no virtual time.
"""

import gc
from collections.abc import Mapping
from typing import Any, Self

from lablib.signature import NonNegativeInt, checked


class SynchronizedCollection:
    """No automatic collection while the block runs; one collection after each `every` steps, and one at its start.

    `every`: steps; 0: the block changes nothing. At its end automatic collection is as before, also after an exception.
    """

    @checked
    def __init__(self, every: NonNegativeInt):
        self.every, self._was_enabled = every, False

    def step_ended(self, metrics: Mapping[str, Any]) -> None:
        """To be called after each step; `metrics` has its number, "step"."""
        if self.every and metrics["step"] % self.every == 0:
            gc.collect()

    def __enter__(self) -> Self:
        if self.every:
            self._was_enabled = gc.isenabled()
            gc.disable()
            gc.collect()
        return self

    def __exit__(self, *_: object) -> None:
        if self.every and self._was_enabled:
            gc.enable()
