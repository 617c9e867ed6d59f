"""Simulated groups for torch's backend names, such as `new_group(backend="gloo")`.

    dist.new_group(backend="gloo")          a group on the CPU next to NCCL's, for objects and checkpoints
    dist.init_process_group("gloo")         after destroy_process_group(): the world made again

torch's own backends would block the rank's thread in C++, and with it all other ranks, which could get no turn.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from lablib.process.replaced import replaced
from lablib.torch_compat import current, place

_SIMULATED = frozenset({"gloo", "nccl", "undefined"})


@contextmanager
def named_backends(is_rank: Callable[[], bool]) -> Iterator[None]:
    """Simulate groups of torch's own backends on ranks; elsewhere torch makes the group."""
    helper, default_timeout = current("new_process_group"), current("default_timeout")

    def timeout(backend: Any) -> Any:  # torch built without NCCL has no timeout for it
        return c10d.default_pg_timeout if is_rank() else default_timeout(backend)

    def new_group(size: int, rank: int, ranks: Any, backend: Any, store: Any, *args: Any, **kwargs: Any) -> Any:
        # "cpu:gloo,cuda:nccl" -> {"gloo", "nccl"}.
        if not is_rank() or not ({part.rpartition(":")[2] for part in str(backend).lower().split(",")}) <= _SIMULATED:
            return helper(size, rank, ranks, backend, store, *args, **kwargs)
        return simulated_group(helper, size, rank, ranks, backend, store, *args, **kwargs)

    with replaced((*place("new_process_group"), new_group), (*place("default_timeout"), timeout)):
        yield


def simulated_group(
    helper: Callable[..., Any], size: int, rank: int, ranks: Any, backend: Any, store: Any, *args: Any, **kwargs: Any
) -> Any:
    """A group of the simulator, made by torch's `helper`, which torch knows under the name `backend`."""
    kwargs.pop("device_id", None)
    kwargs.pop("backend_options", None)  # of another backend's class
    args = tuple(None if position == 1 else value for position, value in enumerate(args))
    group, prefix_store = helper(size, rank, ranks, c10d.Backend("sim"), store, *args, **kwargs)
    if isinstance(group, dist.ProcessGroup):  # this rank is a member
        asked: Any = c10d.Backend(str(backend))
        world = current("process_world")
        world.pg_map[group] = (asked, prefix_store)
        world.pg_backend_config[group] = str(c10d.BackendConfig(asked))
    return group, prefix_store
