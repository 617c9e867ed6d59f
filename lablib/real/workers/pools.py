"""The warm pools of this process: at most one for each backend and size, and not too many workers altogether.

On "nccl" there is one at most: a worker that waits holds memory of its GPU (the context of CUDA, NCCL's buffers), which
the ranks of another size would find missing. Workers started under other values of variables that libraries read once
(fixed_environment.py) are ended, too.
"""

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from lablib.errors import WorkerError
from lablib.real.gpu.sharing import environments
from lablib.real.workers.fixed_environment import FixedEnvironment, fixed_environment
from lablib.real.workers.pool import Pool
from lablib.real.workers.processes import servers

_MAX_IDLE_WORKERS = 16  # each holds some 200 MB, of which 170 are shared on gloo
_Key = tuple[str, int, FixedEnvironment]  # backend, ranks, what the workers' libraries have read


class Pools:
    """Owns every pool. Ended when the interpreter exits; a killed interpreter's workers end by themselves."""

    def __init__(self) -> None:
        self._pools: dict[_Key, Pool] = {}  # the one used last stands last
        self._lock = threading.Lock()  # one launch at a time: the ranks of two would share the same cores
        self._owner = os.getpid()
        atexit.register(self.end)

    @contextmanager
    def borrow(self, backend: str, ranks: int) -> Iterator[Pool]:
        """A living pool for one launch, started if need be. Raises WorkerError when it cannot be started."""
        with self._lock:
            key = (backend, ranks, fixed_environment())
            pool = self._pools.pop(key, None)
            self._end_those_in_the_way(backend, ranks)
            if pool is None or not pool.is_alive:
                self._make_room(ranks)
                pool = _start(backend, ranks)
            self._pools[key] = pool
            yield pool

    def end(self) -> None:
        """End every worker. A forked child leaves its parent's workers alone."""
        if os.getpid() == self._owner:
            for pool in self._pools.values():
                pool.end()
            servers().end()
        self._pools.clear()

    def _end_those_in_the_way(self, backend: str, ranks: int) -> None:
        """End what this launch makes useless, or what would hold memory of its GPUs."""
        for key in [key for key in self._pools if key[0] == backend and (backend == "nccl" or key[1] == ranks)]:
            self._pools.pop(key).end()

    def _make_room(self, ranks: int) -> None:
        """End the pools that were not used for longest until this many workers more may stay."""
        self._pools = {key: pool for key, pool in self._pools.items() if pool.is_alive}
        while self._pools and ranks + sum(pool.ranks for pool in self._pools.values()) > _MAX_IDLE_WORKERS:
            self._pools.pop(next(iter(self._pools))).end()


def pools() -> Pools:
    """The pools of this very process (a forked one has its own)."""
    return _pools_of(os.getpid())


@cache
def _pools_of(_pid: int) -> Pools:
    return Pools()


def _start(backend: str, ranks: int) -> Pool:
    """A new pool, by the first way that works on this machine."""
    ways, errors = environments(backend, ranks), []
    for way in ways:
        try:
            return Pool(backend, way)
        except WorkerError as error:
            if len(ways) == 1:
                raise
            errors.append(str(error))
    raise WorkerError(f"NCCL could not let {ranks} ranks share the GPUs of this machine:\n" + "\n".join(errors))
