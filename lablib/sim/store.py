"""The key-value store that ranks share. One that waits for a key gives up its turn instead of blocking the thread."""

from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from lablib.errors import Wait
from lablib.sim.scheduler import Scheduler
from lablib.sim.source import Source, program_line


class SimStore(dist.Store):  # pyright: ignore[reportPrivateImportUsage]
    """A `torch.distributed.Store` in memory; all ranks hold the same object.

    Args:
        scheduler: to wait for another rank.
    """

    def __init__(self, scheduler: Scheduler):
        super().__init__()
        self._scheduler = scheduler
        self._data: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        self._data[key] = _bytes(value)
        self._scheduler.progress()

    def get(self, key: str) -> bytes:
        self._until(lambda: key in self._data, [key])
        return self._data[key]

    def add(self, key: str, amount: int) -> int:
        total = int(self._data.get(key, b"0")) + amount
        self._data[key] = str(total).encode()
        self._scheduler.progress()
        return total

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        current = self._data.get(key)
        if (current is None and not _bytes(expected)) or current == _bytes(expected):
            self._data[key] = _bytes(desired)
            self._scheduler.progress()
        return self._data.get(key, _bytes(expected))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._until(lambda: all(key in self._data for key in keys), keys)

    def check(self, keys: list[str]) -> bool:
        # A program may call this until it is true, so the others get a turn.
        if not all(key in self._data for key in keys):
            self._let_others_run(keys, "polls the store for", program_line())
        return all(key in self._data for key in keys)

    def delete_key(self, key: str) -> bool:
        self._scheduler.progress()
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
        pass

    def _until(self, is_there: Callable[[], bool], keys: list[str]) -> None:
        source = program_line()
        while not is_there():
            self._let_others_run(keys, "waits in the store for", source)

    def _let_others_run(self, keys: list[str], verb: str, source: Source) -> None:
        rank = self._scheduler.current
        names = ", ".join(repr(key.rsplit("//", 1)[-1]) for key in keys)  # without the prefixes that torch adds
        self._scheduler.poll(lambda: Wait(rank, f"{verb} the key {names}", str(source)))


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
