"""Other functions in the place of a module's own, for the time of a run."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def replaced(*answers: tuple[Any, str, Any]) -> Iterator[None]:
    """Put `(owner, name, other)` in place; put the owner's own back at the end, whatever happened."""
    with ExitStack() as own:
        for owner, name, other in answers:
            own.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, other)
        yield
