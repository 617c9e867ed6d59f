"""One setting that Python or torch keeps once for the process: its state can be taken, and given back."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, call
from typing import Any


@dataclass(frozen=True)
class ProcessSetting:
    """One setting, or a few that belong together.

    Attributes:
        name: what people call it.
        take: the state it is in now: a value that `==` compares, and that nothing changes afterwards.
        give_back: puts it into a state that was taken.
        setters: functions `(holder, name)` that change it. Where they are named, looking at it costs a microsecond or
            more, and whoever looks often (the simulator, at every change of turn) waits until one has been called.
        is_of_thread: every thread has its own, or only the main thread can set it, or the simulator answers by thread
            (lablib/sim/ranks/by_thread.py).
        travels: a state is plain data, which another process can be given.
        is_always: it is given back also where it looks the same: it changes all the time, or not all of it shows.
        places: the attributes that it consists of, `(holder, name)`, where the state is the tuple of their values.
        at_turns: quicker ways for the simulator, at every turn: one that gives back what these took, and one that takes
            what stands there after a state was given back, from that state.
        reads: gives functions, without Python code of their own, whose answers differ where the state does; they may
            be others once the state has changed. None: `take` tells.
        lists: functions that give the lists of which the state consists, which programs replace and change in place.
    """

    name: str
    take: Callable[[], Any]
    give_back: Callable[[Any], None]
    setters: tuple[tuple[Any, str], ...] = ()
    is_of_thread: bool = False
    travels: bool = False
    is_always: bool = False
    places: tuple[tuple[Any, str], ...] = ()
    at_turns: tuple[Callable[[Any], None], Callable[[Any], Any]] | None = None
    reads: Callable[[], Iterable[Callable[[], Any]]] | None = None
    lists: tuple[Callable[[], list], ...] = ()


Pair = tuple[Callable[[], Any], Callable[[Any], Any]]


def flags(name: str, *pairs: Pair, is_of_thread: bool = False) -> ProcessSetting:
    """A setting of flags, each a function that reads it and one that sets it. Only what differs is set."""
    reads = [read for read, _ in pairs]

    def take() -> tuple:
        return tuple(map(call, reads))

    def give_back(state: tuple) -> None:
        for (read, write), value in zip(pairs, state, strict=True):
            if read() != value:
                write(value)

    return ProcessSetting(name, take, give_back, is_of_thread=is_of_thread, travels=True, reads=lambda: reads)


def attributes(name: str, holder: Any, *names: str, **more: Any) -> ProcessSetting:
    """A setting of some attributes of one object."""

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
    """A setting of a list, which programs replace and change in place; `changed` is told when it is given back."""

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
