"""`sys.stdout`, `sys.stderr`, `sys.stdin` and `os.environ`: each rank's own, told apart by the thread that asks.

What is swapped with the turn (own_settings.py) is everybody's while the turn lasts. Other threads of the notebook run
meanwhile (a progress bar, a server), and what they print or set is the notebook's. So these few are answered by thread
for the time of a run: a rank's to its own thread and to those that it starts, the process's to all others.

    attributes       `sys` and `os.environ` are given a class whose descriptor answers: `sys.stdout`, whoever reads or
                     assigns it; `os.environ._data`, in which all of `os.environ`, `os.environb` and `os.getenv` looks
    the dictionary   of `sys`, which `print` and the interpreter's own messages ask: a stream that passes all on

A turn of a rank costs nothing by this; a question costs a fifth of a microsecond more.
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
    """A descriptor: one value for each rank, by its number, and one for everybody else, under None."""

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
    """The stream of the thread that uses it, for those who look into the dictionary of `sys`."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        stream = getattr(sys, self._name, _GONE)
        if stream is _GONE:
            raise RuntimeError(f"lost sys.{self._name}")  # what `print` says then
        return _nothing if stream is None and attribute in ("write", "flush") else getattr(stream, attribute)


def _nothing(*_: Any) -> None:
    """What printing to None does."""


@contextmanager
def own_streams(ranks: Sequence["Rank"]) -> Iterator[None]:
    """Until the end every rank has its own standard streams."""
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
    """Until the end every rank has its own of what `os.environ` keeps: names and values, encoded."""
    environ: dict[Any, Any] = vars(os.environ)["_data"]
    own = {"_data": _ByThread("_data", environ, of_ranks)}
    with ExitStack() as stack:
        for holder in {id(holder): holder for holder in (os.environ, getattr(os, "environb", os.environ))}.values():
            stack.enter_context(_of_class(holder, own))
        stack.callback(_tell_the_system, environ, of_ranks)
        yield


def _tell_the_system(environ: dict[Any, Any], of_ranks: Mapping[int, dict[Any, Any]]) -> None:
    """Have child processes, which do not ask os.environ, find what it has: setting a variable sets it for them too."""
    for key in {key for own in of_ranks.values() for key, _ in own.items() ^ environ.items()}:
        if key in environ:
            os.putenv(key, environ[key])
        else:
            os.unsetenv(key)


@contextmanager
def _of_class(holder: Any, own: Mapping[str, _ByThread]) -> Iterator[None]:
    """Until the end these attributes of an object are answered by descriptors.

    Of the new class there is this one object. (Python's import makes each module as `type(sys)(name)`.)
    """
    kind = type(holder)
    makes_plain = {"__new__": lambda cls, *args, **kwargs: kind(*args, **kwargs)}
    named = {"__slots__": (), "__module__": kind.__module__}
    holder.__class__ = type(kind.__name__, (kind,), {**named, **makes_plain, **own})
    try:
        yield
    finally:
        holder.__class__ = kind
