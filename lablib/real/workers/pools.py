"""The warm pools of this process: at most one per backend and size, with a limited number of workers.

On "nccl" there is at most one: a waiting worker holds memory of its GPU (the context of CUDA, NCCL's buffers), which
the ranks of another size would lack. Workers started under other values of variables that libraries read once
(processes.py) are ended, too.
"""

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from lablib.errors import WorkerError
from lablib.real.gpu.sharing import environments
from lablib.real.workers.pool import Pool
from lablib.real.workers.processes import FixedEnvironment, fixed_environment, servers

_MAX_IDLE_WORKERS = 16  # each holds some 200 MB, of which 170 are shared on gloo
_Key = tuple[str, int, FixedEnvironment]  # backend, ranks, variables read by the workers' libraries


class Pools:
    """Owns every pool. Ended when the interpreter exits; the workers of a killed interpreter end by themselves."""

    def __init__(self) -> None:
        self._pools: dict[_Key, Pool] = {}  # the most recently used last
        self._lock = threading.Lock()  # one launch at a time: two would share the same cores
        self._owner = os.getpid()
        atexit.register(self.end)

    @contextmanager
    def borrow(self, backend: str, ranks: int) -> Iterator[Pool]:
        """A live pool for one launch, started on demand. Raises WorkerError if it cannot be started."""
        with self._lock:
            key = (backend, ranks, fixed_environment())
            pool = self._pools.pop(key, None)
            # Pools that this launch makes useless, or that would hold memory of its GPUs.
            for other in [one for one in self._pools if one[0] == backend and (backend == "nccl" or one[1] == ranks)]:
                self._pools.pop(other).end()
            if pool is None or not pool.is_alive:
                self._pools = {key: one for key, one in self._pools.items() if one.is_alive}
                while self._pools and ranks + sum(one.ranks for one in self._pools.values()) > _MAX_IDLE_WORKERS:
                    self._pools.pop(next(iter(self._pools))).end()  # the least recently used
                pool = _start(backend, ranks)
            self._pools[key] = pool
            yield pool

    def end(self) -> None:
        """End every worker. In a forked child, the parent's workers are not affected."""
        if os.getpid() == self._owner:
            for pool in self._pools.values():
                pool.end()
            servers().end()
        self._pools.clear()


def pools() -> Pools:
    """The pools of this process; a forked one has its own."""
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
