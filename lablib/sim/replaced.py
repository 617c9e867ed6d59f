"""Other functions in the place of a module's or a class's own, for the time of a run."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

_MISSING = object()


@contextmanager
def replaced(*answers: tuple[Any, str, Any]) -> Iterator[None]:
    """Put `(owner, name, other)` in place; leave the owner as it was at the end, whatever happened."""
    with ExitStack() as undo:
        for owner, name, other in answers:
            undo.callback(_put_back, owner, name, vars(owner).get(name, _MISSING))
            setattr(owner, name, other)
        yield


def _put_back(owner: Any, name: str, own: Any) -> None:
    """What an owner had itself; what it has from a base class (`UntypedStorage.resize_`) shows again without ours."""
    if own is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, own)
