"""A simulated key-value store: a rank that waits for a key gives up its turn.

A timeout is in virtual time: it expires when no rank can set the key before that time. Without a timeout, waiting for a
key that no rank sets is a deadlock and raises at once.

`dist.TCPStore(host, port)` and `dist.FileStore(path)` of the program give such stores, too: torch's own would block a
rank's thread, and with it all other ranks. Stores at the same address or path share their keys.

Simplified: such a store does not wait until `world_size` ranks have made it, but only for the keys that are read.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from math import inf
from typing import Any

import torch.distributed as dist

from lablib.errors import Wait
from lablib.process.replaced import replaced
from lablib.sim.ranks.turns import Turns
from lablib.sim.source import ProgramLine, is_program, program_line
from lablib.text.messages import safe_repr

rendezvous = import_module("torch.distributed.rendezvous")  # torch.distributed has a function of that name


class SimStore(dist.Store):  # pyright: ignore[reportPrivateImportUsage]
    """A `torch.distributed.Store` in memory. Each rank has one, with a separate timeout; all share the same keys."""

    def __init__(self, turns: Turns, shared: "SimStore | None" = None):
        super().__init__()
        self._turns = turns
        self._data: dict[str, bytes] = {} if shared is None else shared._data
        self._others: list[SimStore] = []
        self._places: dict[str, SimStore] = {} if shared is None else shared._places
        self._at_first = self.timeout  # pyright: ignore[reportAttributeAccessIssue] - the stubs lack it

    def of_another_rank(self) -> "SimStore":
        """A store with the same keys and a separate timeout. It lives as long as this one."""
        # torch keeps the C++ side alone, which cannot answer without this.
        self._others.append(SimStore(self._turns, self))
        return self._others[-1]

    def at(self, place: str) -> "SimStore":
        """A store made by the program, which shares its keys with others at the same place."""
        if place not in self._places:
            self._places[place] = SimStore(self._turns)
        return self._places[place].of_another_rank()

    def set(self, key: str, value: str | bytes) -> None:
        self._turns.check()
        self._data[key] = _bytes(value)
        self._turns.progress()

    def get(self, key: str) -> bytes:
        self._until_set([key], self._timeout_s())
        return self._data[key]

    def add(self, key: str, amount: int) -> int:
        self._turns.check()
        total = int(self._data.get(key, b"0")) + amount
        self._data[key] = str(total).encode()
        self._turns.progress()
        return total

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        self._turns.check()
        current = self._data.get(key)
        if (current is None and not _bytes(expected)) or current == _bytes(expected):
            self._data[key] = _bytes(desired)
            self._turns.progress()
        return self._data.get(key, _bytes(expected))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._until_set(keys, self._timeout_s() if timeout is None else _seconds(timeout))

    def check(self, keys: list[str]) -> bool:
        self._turns.check()
        # A program may poll this, so the others get a turn.
        if not self._has(keys):
            self._let_others_run(keys, "polls the store for", program_line())
        return self._has(keys)

    def delete_key(self, key: str) -> bool:
        self._turns.check()
        self._turns.progress()
        return self._data.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._data)

    def append(self, key: str, value: str | bytes) -> None:
        self.set(key, self._data.get(key, b"") + _bytes(value))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        # torch also sets one, the group's; ignored, so that an endless wait is a deadlock error with all ranks' waits.
        if is_program(sys._getframe(1)):
            super().set_timeout(timeout)

    def _timeout_s(self) -> float:
        timeout = self.timeout  # pyright: ignore[reportAttributeAccessIssue] - the stubs lack it
        return inf if timeout == self._at_first else _seconds(timeout)

    def _has(self, keys: list[str]) -> bool:
        return all(key in self._data for key in keys)

    def _until_set(self, keys: list[str], timeout_s: float) -> None:
        self._turns.check()
        source = program_line()
        until_s = self._turns.clock_s(self._turns.current) + timeout_s
        while not self._has(keys):
            time_is_up = self._let_others_run(keys, "waits in the store for", source, until_s)
            if time_is_up and not self._has(keys):
                raise dist.DistStoreError(
                    f"wait timeout after {timeout_s:g} s of virtual time, keys: {', '.join(keys)}; "
                    f"no rank sets the missing keys by then"
                )

    def _let_others_run(self, keys: list[str], verb: str, source: ProgramLine, until_s: float = inf) -> bool:
        """Give up the turn once. Returns whether `until_s` has passed."""
        rank = self._turns.current
        names = ", ".join(repr(key.rsplit("//", 1)[-1]) for key in keys)  # without the prefixes that torch adds
        return self._turns.poll(lambda: Wait(rank, f"{verb} the key {names}", str(source)), until_s)


@contextmanager
def stores_of_the_program(store: SimStore, is_rank: Callable[[], bool]) -> Iterator[None]:
    """Replace torch's store classes: on ranks they make simulated stores, elsewhere torch's."""

    def tcp(
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta | None = None,
        *_: Any,
        **__: Any,
    ) -> SimStore:
        return made(f"{host_name}:{port}", timeout, host=host_name, port=port)

    def file(file_name: str, world_size: int = -1, timeout: timedelta | None = None) -> SimStore:
        return made(os.path.abspath(file_name), timeout, path=file_name)

    def made(place: str, timeout: timedelta | None, **attributes: Any) -> SimStore:
        one = store.at(place)
        vars(one).update(attributes)
        if timeout is not None:
            dist.Store.set_timeout(one, timeout)  # pyright: ignore[reportPrivateImportUsage]
        return one

    kinds = {"TCPStore": tcp, "FileStore": file}
    classes = {name: _simulated(getattr(dist, name), make, is_rank) for name, make in kinds.items()}
    with replaced(*((owner, name, kind) for owner in (dist, rendezvous) for name, kind in classes.items())):
        yield


def _simulated(plain: type, make: Callable[..., SimStore], is_rank: Callable[[], bool]) -> type:
    """A replacement of torch's class `plain`; simulated stores count as its instances."""

    class Kind(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, (plain, SimStore))

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return make(*args, **kwargs) if is_rank() else plain(*args, **kwargs)

    return Kind(plain.__name__, (), {"__module__": plain.__module__, "__doc__": plain.__doc__})


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _seconds(timeout: timedelta | float) -> float:
    """A timeout in seconds, as in torch's stores: none unless above 0."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"a store's timeout must be a timedelta: got {safe_repr(timeout)}; try timedelta(seconds=30)")
    return seconds if seconds > 0 else inf
