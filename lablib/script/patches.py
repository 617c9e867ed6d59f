"""Functions of torch and Python that answer differently on the ranks of a script, and are put back after the run.

Everybody else who calls them meanwhile (the main thread, Jupyter's threads) reaches the original.
"""

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from lablib.script.process import here
from lablib.sim.replaced import replaced


class Patches(ExitStack):
    """Attributes replaced for the time of a run. Use as a context manager; leaving it restores all of them."""

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """`owner.name = value`, until the run ends."""
        self.enter_context(replaced((owner, name, value)))

    def answer(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """On ranks, `owner.name(...)` is `function(process, ...)`; elsewhere the original."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def answered(*args: Any, **kwargs: Any) -> Any:
            process = here()
            return original(*args, **kwargs) if process is None else function(process, *args, **kwargs)

        self.replace(owner, name, answered)
