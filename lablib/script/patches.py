"""Temporary replacements of functions of torch and Python on the ranks of a script.

Other threads (the main thread, Jupyter's threads) still call the original.
"""

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from lablib.process.replaced import replaced
from lablib.script.process import here


class Patches(ExitStack):
    """Attributes replaced for the duration of a run. A context manager that restores all of them at the end."""

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name = value` until the run ends."""
        self.enter_context(replaced((owner, name, value)))

    def answer(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """On ranks, `owner.name(...)` calls `function(process, ...)`; elsewhere the original."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def answered(*args: Any, **kwargs: Any) -> Any:
            process = here()
            return original(*args, **kwargs) if process is None else function(process, *args, **kwargs)

        self.replace(owner, name, answered)
