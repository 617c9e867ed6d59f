"""Each rank's own settings of Python and torch (lablib/owners), put in place when its turn begins.

Random generators, process groups and tables of torch are swapped at every turn. Passing it takes some 10 us, and there
are thirty settings besides, which hardly any program changes. So a rank's turn ends with one look at those that are
quick to read; the others are looked at from the first time that a function which sets them is called. What the next
rank left is put in place only where it differs from what stands there.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from operator import call
from typing import Any

from lablib.owners import OF_THE_PROCESS
from lablib.owners.owner import Owner
from lablib.sim.replaced import replaced

_ALWAYS = tuple(owner for owner in OF_THE_PROCESS if owner.is_always)
_LOOKED_AT = tuple(owner for owner in OF_THE_PROCESS if not owner.is_always)
_GIVE_BACK = [(at, own.at_turns[0] if own.at_turns else own.give_back) for at, own in enumerate(_ALWAYS)]
_TAKE = [(at, own.take) for at, own in enumerate(_ALWAYS) if not own.at_turns]
_TAKE_AGAIN = [(at, own.at_turns[1]) for at, own in enumerate(_ALWAYS) if own.at_turns]


class Settings:
    """What is in place now, for the ranks of one run.

    Attributes:
        states: of every owner that is looked at, as the last rank left it; as it was when this was made, at first.
        always: of every other, as it was when this was made.
    """

    def __init__(self) -> None:
        self.states: list[Any] = [owner.take() for owner in _LOOKED_AT]
        self.always: list[Any] = [owner.take() for owner in _ALWAYS]
        self._quick = [(at, owner) for at, owner in enumerate(_LOOKED_AT) if not owner.setters]
        self._looks()

    def _looks(self) -> None:
        self._reads = [read for _, owner in self._quick for read in owner.reads or (owner.take,)]
        self._seen = list(map(call, self._reads))

    def look(self) -> None:
        """Note what a rank leaves."""
        seen = list(map(call, self._reads))
        if seen != self._seen:
            self._seen, self.states = seen, self.states.copy()
            for at, owner in self._quick:
                self.states[at] = owner.take()

    def put(self, states: list[Any]) -> None:
        """Put these in place. Equal ones stay the same object, so that nobody need compare them again."""
        differing = [
            (owner, state)
            for owner, state, now in zip(_LOOKED_AT, states, self.states, strict=True)
            if state is not now and state != now
        ]
        for owner, state in differing:
            owner.give_back(state)
        if differing:
            self.states = states
            self._seen = list(map(call, self._reads))

    @contextmanager
    def watched(self) -> Iterator["Settings"]:
        """While this lasts, functions that set what is slow to read mark it as worth a look from then on."""
        with ExitStack() as stack:
            for at, owner in enumerate(_LOOKED_AT):
                for holder, name in owner.setters:
                    stack.enter_context(replaced((holder, name, self._telling(getattr(holder, name), at))))
            yield self

    def _telling(self, setter: Callable[..., Any], at: int) -> Callable[..., Any]:
        @wraps(setter)
        def mark_and_call(*args: Any, **kwargs: Any) -> Any:
            if all(at != place for place, _ in self._quick):
                self._quick.append((at, _LOOKED_AT[at]))
                self._looks()
            return setter(*args, **kwargs)

        return mark_and_call


class OwnSettings:
    """One rank's, which begin as they are when the run begins: a belonging (rank.py).

    Args:
        settings: what is in place.
        others: with which others it begins, by the owner's name.
    """

    def __init__(self, settings: Settings, others: dict[str, Any]):
        self._settings = settings
        self._always = _begun(_ALWAYS, settings.always, others)
        self._states = settings.states
        if others.keys() & {owner.name for owner in _LOOKED_AT}:
            self._states = _begun(_LOOKED_AT, settings.states, others)

    def put(self) -> None:
        for at, give_back in _GIVE_BACK:
            give_back(self._always[at])
        if self._states is not self._settings.states:
            self._settings.put(self._states)

    def take(self) -> None:
        for at, take in _TAKE:
            self._always[at] = take()
        for at, take_again in _TAKE_AGAIN:
            self._always[at] = take_again(self._always[at])
        self._settings.look()
        self._states = self._settings.states


def _begun(owners: Sequence[Owner], states: Sequence[Any], others: dict[str, Any]) -> list[Any]:
    """What a rank begins with where the process has these states."""
    return [
        others[owner.name] if owner.name in others else owner.begin(state) if owner.begin else state
        for owner, state in zip(owners, states, strict=True)
    ]
