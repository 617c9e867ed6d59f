"""The annotations of a function or class, resolved; a class that only type checkers import is kept as a name."""

import builtins
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any


@cache
def hints_of(owner: Any) -> Mapping[str, Any]:
    """The annotations of a function or class, each resolved in the module that defines it."""
    kinds = reversed(owner.__mro__) if inspect.isclass(owner) else [owner]
    found: dict[str, Any] = {}
    for kind in kinds:
        names = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
        for name, hint in getattr(kind, "__annotations__", {}).items():
            found[name] = _resolved(hint, names)
    return found


class Named:
    """Placeholder for a class that only type checkers import."""


class _Names(dict[str, Any]):
    """The names of a module; a missing one is taken for a class that only type checkers import."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, None) or type(name, (Named,), {})


def _resolved(hint: Any, names: Mapping[str, Any]) -> Any:
    """The type of an annotation given as text; `Any` if it cannot be resolved."""
    if not isinstance(hint, str):
        return hint
    try:
        return eval(hint, {}, _Names(names))  # the source of this package, not a user's text
    except (AttributeError, TypeError):
        return Any
