"""A per-process setting of Python or torch: its state can be taken and restored."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, call
from typing import Any


@dataclass(frozen=True)
class ProcessSetting:
    """One setting, or a few related ones."""

    name: str  # its name in messages
    take: Callable[[], Any]  # returns the current state: an immutable value that `==` compares
    give_back: Callable[[Any], None]  # restores a taken state
    # functions `(holder, name)` that change it. They are given if reading it takes a microsecond or more; a frequent
    # reader (the simulator, at every change of turn) then waits until one has been called.
    setters: tuple[tuple[Any, str], ...] = ()
    # every thread has its own, or only the main thread can set it, or the simulator selects it by thread
    # (lablib/sim/ranks/by_thread.py)
    is_of_thread: bool = False
    travels: bool = False  # whether a state is plain data, which can be sent to another process
    is_always: bool = False  # restored even if it looks unchanged: it changes all the time, or is not fully visible
    # its attributes `(holder, name)`, if the state is the tuple of their values
    places: tuple[tuple[Any, str], ...] = ()
    # faster functions for the simulator, at every turn: one that restores a state taken by them, and one that takes the
    # current state, given the state restored last
    at_turns: tuple[Callable[[Any], None], Callable[[Any], Any]] | None = None
    # returns functions without Python code; their results differ if the state does, and they may change with it. None:
    # use `take`.
    reads: Callable[[], Iterable[Callable[[], Any]]] | None = None
    # functions that return the lists of the state, which programs replace and change in place
    lists: tuple[Callable[[], list], ...] = ()


Pair = tuple[Callable[[], Any], Callable[[Any], Any]]


def flags(name: str, *pairs: Pair, is_of_thread: bool = False) -> ProcessSetting:
    """A setting of flags, each a pair of getter and setter. Only differing flags are set."""
    reads = [read for read, _ in pairs]

    def take() -> tuple:
        return tuple(map(call, reads))

    def give_back(state: tuple) -> None:
        for (read, write), value in zip(pairs, state, strict=True):
            if read() != value:
                write(value)

    return ProcessSetting(name, take, give_back, is_of_thread=is_of_thread, travels=True, reads=lambda: reads)


def attributes(name: str, holder: Any, *names: str, **more: Any) -> ProcessSetting:
    """A setting of several attributes of one object."""

    def take() -> tuple:
        return tuple([getattr(holder, attribute) for attribute in names])

    def give_back(state: tuple) -> None:
        for attribute, value in zip(names, state, strict=True):
            setattr(holder, attribute, value)

    reads, places = [partial(attrgetter(*names), holder)], tuple((holder, attribute) for attribute in names)
    return ProcessSetting(name, take, give_back, places=places, reads=lambda: reads, **more)


def contents(
    name: str, holder: Any, attribute: str, changed: Callable[[], None] | None = None, **more: Any
) -> ProcessSetting:
    """A setting of a list, which programs replace and change in place; `changed` is called after a restore."""

    def take() -> tuple[list, tuple]:
        now = getattr(holder, attribute)
        return now, tuple(now)

    def give_back(state: tuple[list, tuple]) -> None:
        now, items = state
        now[:] = items
        setattr(holder, attribute, now)
        if changed is not None:
            changed()

    return ProcessSetting(name, take, give_back, lists=(partial(getattr, holder, attribute),), **more)
