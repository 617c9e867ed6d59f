"""Functions of torch and Python that answer differently on the ranks of a script, and are put back after the run.

Everybody else who calls them meanwhile (the main thread, Jupyter's threads) reaches the original.
"""

import functools
from collections.abc import Callable
from typing import Any

from lablib.script.process import here

_MISSING = object()


class Patches:
    """Attributes replaced for the time of a run. Use as a context manager; leaving it restores all of them."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """`owner.name = value`, until the run ends."""
        # An attribute inherited from a base class is not the owner's own: putting it back means deleting ours.
        own = vars(owner).get(name, _MISSING)
        self._undo.append((owner, name, own))
        setattr(owner, name, value)

    def answer(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """On ranks, `owner.name(...)` is `function(process, ...)`; elsewhere the original."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def answered(*args: Any, **kwargs: Any) -> Any:
            process = here()
            return original(*args, **kwargs) if process is None else function(process, *args, **kwargs)

        self.replace(owner, name, answered)

    def __enter__(self) -> "Patches":
        return self

    def __exit__(self, *_: Any) -> None:
        while self._undo:
            owner, name, value = self._undo.pop()
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
