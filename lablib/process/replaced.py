"""Temporarily replace attributes of a module or a class."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

_MISSING = object()


@contextmanager
def replaced(*answers: tuple[Any, str, Any]) -> Iterator[None]:
    """Set each `(owner, name, other)`; restore the owner at the end, also after an exception."""
    with ExitStack() as undo:
        for owner, name, other in answers:
            undo.callback(_put_back, owner, name, vars(owner).get(name, _MISSING))
            setattr(owner, name, other)
        yield


def _put_back(owner: Any, name: str, own: Any) -> None:
    """Restore an attribute; delete ours if the owner inherits it (`UntypedStorage.resize_`)."""
    if own is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, own)
