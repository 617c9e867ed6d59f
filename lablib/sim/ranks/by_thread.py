"""Per-rank `sys.stdout`, `sys.stderr`, `sys.stdin` and `os.environ`, selected by the calling thread.

State that is swapped with the turn (own_settings.py) is visible to all threads during the turn. Other threads of the
notebook run at the same time (a progress bar, a server), and their output and variables must stay the notebook's. So
these few are selected by thread during a run: a rank's for its threads, the process's for others.

    attributes       `sys` and `os.environ` get a class with a descriptor: for `sys.stdout`, read or assigned anywhere;
                     and for `os.environ._data`, the storage of `os.environ`, `os.environb` and `os.getenv`
    the dictionary   of `sys`, which `print` and the interpreter's own messages read: a stream that forwards to the
                     above

A turn of a rank costs nothing by this; an access costs 0.2 us more.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import current_thread
from typing import TYPE_CHECKING, Any

from lablib.sim.ranks.threads import owner

if TYPE_CHECKING:
    from lablib.sim.ranks.rank import Rank

_GONE = object()


class _ByThread:
    """A descriptor with one value per rank, by its number, and one for all other threads, under None."""

    def __init__(self, name: str, of_the_process: Any, of_ranks: Mapping[int, Any]):
        self._name = name
        self.values: dict[int | None, Any] = {None: of_the_process, **of_ranks}

    def __get__(self, holder: Any, kind: type | None = None) -> Any:
        if (value := self.values[owner(current_thread())]) is _GONE:
            raise AttributeError(f"{holder!r} has no attribute {self._name!r}: it was deleted")
        return value

    def __set__(self, holder: Any, value: Any) -> None:
        self.values[owner(current_thread())] = value

    def __delete__(self, holder: Any) -> None:
        self.__get__(holder)
        self.__set__(holder, _GONE)


class _Stream:
    """The stream of the calling thread, for code that reads the dictionary of `sys`."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        stream = getattr(sys, self._name, _GONE)
        if stream is _GONE:
            raise RuntimeError(f"lost sys.{self._name}")  # the error of `print`
        if stream is None and attribute in ("write", "flush"):
            return lambda *_: None  # printing to None does nothing
        return getattr(stream, attribute)


@contextmanager
def own_streams(ranks: Sequence["Rank"]) -> Iterator[None]:
    """Give every rank its own standard streams within this context."""
    streams = {name: {rank.rank: getattr(rank, name) for rank in ranks} for name in ("stdout", "stderr")}
    streams["stdin"] = dict.fromkeys(streams["stdout"], sys.stdin)
    own = {name: _ByThread(name, getattr(sys, name), of_ranks) for name, of_ranks in streams.items()}
    with _of_class(sys, own):
        sys.__dict__.update({name: _Stream(name) for name in own})
        try:
            yield
        finally:
            now = {name: by_thread.values[None] for name, by_thread in own.items()}  # the notebook may have set another
            sys.__dict__.update({name: None if stream is _GONE else stream for name, stream in now.items()})


@contextmanager
def own_environments(of_ranks: Mapping[int, dict[Any, Any]]) -> Iterator[None]:
    """Give every rank its own environment within this context: the encoded names and values of `os.environ`."""
    environ: dict[Any, Any] = vars(os.environ)["_data"]
    own = {"_data": _ByThread("_data", environ, of_ranks)}
    with ExitStack() as stack:
        for holder in {id(holder): holder for holder in (os.environ, getattr(os, "environb", os.environ))}.values():
            stack.enter_context(_of_class(holder, own))
        stack.callback(_tell_the_system, environ, of_ranks)
        yield


def _tell_the_system(environ: dict[Any, Any], of_ranks: Mapping[int, dict[Any, Any]]) -> None:
    """Update the C environment, which child processes inherit, to `os.environ` of the process."""
    for key in {key for own in of_ranks.values() for key, _ in own.items() ^ environ.items()}:
        if key in environ:
            os.putenv(key, environ[key])
        else:
            os.unsetenv(key)


@contextmanager
def _of_class(holder: Any, own: Mapping[str, _ByThread]) -> Iterator[None]:
    """Replace these attributes of an object by descriptors within this context.

    Only this object has the new class. (Python's import makes each module as `type(sys)(name)`.)
    """
    kind = type(holder)
    makes_plain = {"__new__": lambda cls, *args, **kwargs: kind(*args, **kwargs)}
    named = {"__slots__": (), "__module__": kind.__module__}
    holder.__class__ = type(kind.__name__, (kind,), {**named, **makes_plain, **own})
    try:
        yield
    finally:
        holder.__class__ = kind
