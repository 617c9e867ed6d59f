"""Rendezvous of the ranks of one machine in a file, without listening sockets or foreign data.

torchrun's rendezvous uses TCP stores. They listen on every interface without authentication, and it unpickles their
contents: any user who reaches the port can run code as this user. One machine does not need them.

    the ranks             a `FileStore` on a file that only this user can open, and that soon has no name (see pool.py)
    a program's own       `init_process_group()` uses that file as well: `env://` leads to it inside a rank

MASTER_ADDR and MASTER_PORT name a free port of loopback, for programs that open a store there themselves.
"""

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlparse

from torch.distributed import FileStore, PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]

from lablib.torch_compat import rendezvous_handlers

_OPEN_FILES = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
_TIMEOUT = timedelta(seconds=60)


class MeetingFile:
    """The store of a rank, in a file of this user alone. Its name may be removed once all ranks have opened it."""

    def __init__(self, path: str):
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        # The store opens the file at every call, through the path of an open descriptor: no other name is needed.
        self._store = FileStore(f"{_OPEN_FILES}/{self._file}", -1)
        self._store.set_timeout(_TIMEOUT)
        self._generation = self._meetings = 0
        rendezvous_handlers["env"] = self._env_rendezvous

    def next_generation(self) -> Store:
        """An empty store. Every rank calls it the same number of times."""
        self._generation += 1
        self._meetings = 0
        return PrefixStore(f"lablib/{self._generation}", self._store)

    def _env_rendezvous(self, url: str, timeout: timedelta = _TIMEOUT, **_: Any) -> Iterator[tuple[Store, int, int]]:
        """Handler for `init_process_group()`: yields the store, the rank and the world size."""
        said = parse_qs(urlparse(url).query)
        rank, world_size = (int((said.get(key) or [os.environ[key.upper()]])[0]) for key in ("rank", "world_size"))
        self._meetings += 1
        master = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        store = PrefixStore(f"lablib/{self._generation}/own/{self._meetings}/{master}", self._store)
        store.set_timeout(timeout)
        yield store, rank, world_size
