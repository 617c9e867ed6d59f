"""Per-rank settings of Python and torch (lablib/process/settings), swapped when a turn begins.

Random generators, process groups and hooks of the interpreter are swapped at every turn. Passing a turn takes some 10
us, and there are thirty more settings, which few programs change. So at the end of a turn only the settings that are
quick to read are compared. Any other setting is compared only after the first call of a function that changes it. The
next rank's settings are put in place only where they differ from the current ones.

The default process group is per rank, too: `torch.distributed.group.WORLD`. Module-level code runs once, in the turn of
the rank that imports the module first. Functions with `group=group.WORLD` as a default (all of
torch.distributed.nn.functional) would keep that rank's group for every rank, and for every later launch. So
WORLD is None during an import, which means the default group in all of torch.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from inspect import CO_OPTIMIZED
from operator import call
from types import FrameType
from typing import Any

from lablib.process.replaced import replaced
from lablib.process.settings import OF_THE_PROCESS
from lablib.torch_compat import WorldMeta, place

_ALWAYS = tuple(setting for setting in OF_THE_PROCESS if setting.is_always)
_LOOKED_AT = tuple(setting for setting in OF_THE_PROCESS if not setting.is_always)
_C10D, _PROCESS_WORLD = place("process_world")
_HOLDERS, _NAMES = zip(*(place for setting in _ALWAYS for place in setting.places), strict=True)
_PUT = [setting.at_turns[0] for setting in _ALWAYS if setting.at_turns]
_TAKE_AGAIN = [setting.at_turns[1] for setting in _ALWAYS if setting.at_turns]


class Settings:
    """The settings now in place, for the ranks of one run.

    Attributes:
        states: state of every compared setting, as the last rank left it; initially as at construction.
        always: state of every other setting, by name, at construction.
    """

    def __init__(self) -> None:
        self.states: list[Any] = [setting.take() for setting in _LOOKED_AT]
        self.always: dict[str, Any] = {setting.name: setting.take() for setting in _ALWAYS}
        self._quick = [(at, setting) for at, setting in enumerate(_LOOKED_AT) if not setting.setters]
        self._looks()

    def _looks(self) -> None:
        """Update the quick readers from `_quick`."""
        self._reads, self._lists = [], []
        for _, setting in self._quick:
            self._reads += setting.reads() if setting.reads else () if setting.lists else (setting.take,)
            self._lists += setting.lists
        self._seen = self._look()

    def _look(self) -> list[Any]:
        lists = list(map(call, self._lists))
        return [*map(call, self._reads), *map(id, lists), *map(tuple, lists)]

    def look(self) -> None:
        """Record the settings that a rank leaves."""
        if self._look() != self._seen:
            self._take(at for at, _ in self._quick)

    def _take(self, places: Iterable[int]) -> None:
        self.states = self.states.copy()
        for at in places:
            self.states[at] = _LOOKED_AT[at].take()
        self._looks()

    def put(self, states: list[Any]) -> None:
        """Put these in place. Equal states stay the same object, which later comparisons find at once."""
        differing = [
            (at, state)
            for at, (state, now) in enumerate(zip(states, self.states, strict=True))
            if state is not now and state != now
        ]
        for at, state in differing:
            _LOOKED_AT[at].give_back(state)
        if differing:  # a torch module imported in between may have a table now
            self._take(at for at, _ in differing)

    @contextmanager
    def watched(self) -> Iterator["Settings"]:
        """Within this context, a setter of a slow setting marks it for comparison from then on."""
        with ExitStack() as stack:
            for at, setting in enumerate(_LOOKED_AT):
                for holder, name in setting.setters:
                    stack.enter_context(replaced((holder, name, self._telling(getattr(holder, name), at))))
            yield self

    def _telling(self, setter: Callable[..., Any], at: int) -> Callable[..., Any]:
        @wraps(setter)
        def mark_and_call(*args: Any, **kwargs: Any) -> Any:
            if all(at != place for place, _ in self._quick):
                self.look()  # earlier changes of the rank in this turn
                self._quick.append((at, _LOOKED_AT[at]))
                self._looks()
            return setter(*args, **kwargs)

        return mark_and_call


class OwnSettings:
    """The settings of one rank, initially those at the start of the run: one item of its per-rank state (rank.py).

    Args:
        settings: the settings in place.
        others: initial states that differ from the process, by name of the setting.
    """

    def __init__(self, settings: Settings, others: dict[str, Any]):
        self._settings = settings
        states = settings.always | others
        self._values = [value for setting in _ALWAYS if setting.places for value in states[setting.name]]
        self._others = [states[setting.name] for setting in _ALWAYS if setting.at_turns]
        self._states = settings.states
        if others.keys() & {setting.name for setting in _LOOKED_AT}:
            now = zip(_LOOKED_AT, settings.states, strict=True)
            self._states = [others.get(setting.name, state) for setting, state in now]

    def put(self) -> None:
        for holder, name, value in zip(_HOLDERS, _NAMES, self._values, strict=True):
            setattr(holder, name, value)
        for put, state in zip(_PUT, self._others, strict=True):
            put(state)
        if self._states is not self._settings.states:
            self._settings.put(self._states)

    def take(self) -> None:
        self._values = list(map(getattr, _HOLDERS, _NAMES))
        for at, take_again in enumerate(_TAKE_AGAIN):
            self._others[at] = take_again(self._others[at])
        self._settings.look()
        self._states = self._settings.states


def _world(cls: type) -> Any:
    frame = sys._getframe(1)
    is_function = frame.f_code.co_flags & CO_OPTIMIZED
    return getattr(_C10D, _PROCESS_WORLD).default_pg if is_function or not _is_import(frame) else None


def _is_import(frame: FrameType | None) -> bool:
    """Whether a frame runs module-level or class-level code of an import, outside any function; not a script's own."""
    while frame is not None and not frame.f_code.co_flags & CO_OPTIMIZED:
        if frame.f_code.co_name == "<module>":
            return frame.f_globals.get("__name__") != "__main__"
        frame = frame.f_back
    return False


WORLD = property(_world, vars(WorldMeta)["WORLD"].fset)
