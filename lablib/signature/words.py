"""The text of an annotation and of a value, for messages."""

import inspect
import reprlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from lablib.signature.bounds import Bound

MAX_LETTERS = 120  # of a value in a message
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "True or False", type(None): "None"}


def shown(value: object) -> str:
    """The value for a message, shortened; works even if its `repr` raises."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother, short.maxlong = 3, MAX_LETTERS, MAX_LETTERS, 60
    try:
        text = short.repr(value)
    except Exception:  # a user's object may do anything here
        text = ""
    return text[:MAX_LETTERS] or f"an object of class {type(value).__name__}"


def in_words(hint: Any) -> str:
    """The annotation in words.

    >>> in_words(int | None), in_words(Sequence[float]), in_words(Mapping[str, Sequence[float]])
    ('a whole number or None', 'a list of numbers', 'a dict of text to lists of numbers')
    """
    origin, of = get_origin(hint), get_args(hint)
    if hint in _WORDS:
        return _WORDS[hint]
    if origin is Annotated:
        return _bounded(in_words(of[0]), of[1:])
    if origin in (Union, types.UnionType):
        words = [in_words(one) for one in of]
        return (", or " if "," in words[0] else " or ").join(words)
    if origin is Literal:
        return " or ".join(map(repr, of))
    if origin is Callable or (inspect.isclass(origin) and issubclass(origin, Callable)):
        if not of or not isinstance(of[0], list):
            return "a function"
        return f"a function of {len(of[0])} argument{'s' * (len(of[0]) != 1)}"
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return f"a dict of {_plural(of[0])} to {_plural(of[1])}"
    if inspect.isclass(origin) and issubclass(origin, tuple) and of[-1:] != (Ellipsis,):
        if len(set(of)) == 1 < len(of):
            return f"a tuple of {len(of)} {_plural(of[0])}"
        words = [in_words(one) for one in of]
        return "a tuple of " + ", ".join(f"({one})" if "," in one else one for one in words)
    if origin is not None and of:
        return f"a list of {_plural(of[0])}"
    name = getattr(hint, "__name__", str(hint))
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"


def _bounded(words: str, notes: Sequence[Any], is_plural: bool = False) -> str:
    for bound in notes:
        if isinstance(bound, Bound):
            words = bound.words(words, is_plural)
    return words


def _plural(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        return _bounded(_plural(kind), notes, is_plural=True)
    words = in_words(hint).removeprefix("a ").removeprefix("an ")
    first, of, rest = words.partition(" of ")
    if hint in (str, bool) or " or " in first:
        return words
    return f"{first}{'es' if first.endswith(('ch', 's', 'x')) else 's'}{of}{rest}"
