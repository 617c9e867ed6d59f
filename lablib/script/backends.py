"""Simulated backends for `init_process_group("nccl")`: `sim`, under the requested name.

torch makes every group in one function, `_new_process_group_helper`. It is given the backend "sim", and the requested
name is stored where `get_backend` reads it. Ranks use the run's own store, not one at MASTER_ADDR.

    requested                    get_backend()   tensors may be on
    "nccl"                       nccl            the device
    "gloo", "mpi", "ucc"         that name       the host (or the device: gloo copies)
    None, "cpu:gloo,cuda:nccl"   as in torch     either

Calls that NCCL does not support are rejected if it was requested by name (nccl_limits.py and nccl_order.py in
lablib/sim/communication).
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from lablib.errors import unknown_name
from lablib.script.marks import index_of
from lablib.script.patches import Patches
from lablib.script.process import Process, here
from lablib.sim.communication.named_backends import simulated_group
from lablib.sim.communication.nccl_limits import NcclLimits
from lablib.sim.source import is_program
from lablib.torch_compat import current, place, torch_file

_LABLIB = os.path.dirname(os.path.dirname(__file__)) + os.sep
_C10D = os.path.dirname(c10d.__file__) + os.sep
_CALLERS = (
    _LABLIB,
    *(_C10D + name for name in ("distributed_c10d.py", "c10d_logger.py")),
    torch.overrides.__file__,
    torch_file("utils", "_device.py"),  # a default device is a mode around every call
)
BACKENDS = ("nccl", "gloo", "mpi", "ucc", "sim", "undefined")


def answer_backends(patches: Patches) -> None:
    patches.answer(*place("new_process_group"), partial(_new_group, current("new_process_group")))
    patches.answer(c10d, "rendezvous", _rendezvous)
    patches.answer(*place("default_timeout"), lambda process, backend: c10d.default_pg_timeout)
    for owner in (dist, c10d):
        for name in ("is_nccl_available", "is_mpi_available", "is_ucc_available"):
            patches.answer(owner, name, lambda process: True)
    patches.replace(dist, "Reducer", _placed_reducer())


def _rendezvous(process: Process, url: str, rank: int = -1, world_size: int = -1, **_: Any) -> Iterator[Any]:
    for said, is_so, name in ((rank, process.rank.rank, "rank"), (world_size, process.ranks, "world_size")):
        if said not in (-1, is_so):
            raise ValueError(
                f"init_process_group(..., {name}={said}): this is rank {process.rank.rank} of {process.ranks}; "
                f"leave {name} out, or take it from the environment as torchrun sets it"
            )
    yield process.store, process.rank.rank, process.ranks


def _new_group(
    helper: Callable[..., Any],
    process: Process,
    group_size: int,
    group_rank: int,
    global_ranks: list[int],
    backend: Any,
    store: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    names = _backend_names(str(backend))
    # Binding a device connects NCCL early, which has no effect here, and puts messages on one stream.
    process.binds_device |= kwargs.get("device_id") is not None
    size = process.ranks if group_size == -1 else group_size
    rank = process.rank.rank if group_rank == -1 else group_rank
    store = process.store if str(backend) == "mpi" else store
    group, prefix_store = simulated_group(helper, size, rank, global_ranks, backend, store, *args, **kwargs)
    if not isinstance(group, dist.ProcessGroup):
        return group, prefix_store  # not a member
    if set(names) == {"nccl"}:
        process.placement.is_used = True  # by later communication: NCCL itself does not initialize CUDA until then
        group.accepts = _OnlyTheDevice(process)  # pyright: ignore[reportAttributeAccessIssue]
    if "nccl" in names:
        limits = NcclLimits(lambda tensor: index_of(tensor) is not None)
        group.limit_to_nccl(limits, process.binds_device, process.note)  # pyright: ignore[reportAttributeAccessIssue]
    return group, prefix_store


def _backend_names(text: str) -> list[str]:
    """ "cpu:gloo,cuda:nccl" -> ["gloo", "nccl"]."""
    names = [part.split(":")[-1].lower() for part in text.split(",")]
    for name in names:
        if name not in BACKENDS:
            raise unknown_name("backend", name, BACKENDS)
    return names


class _OnlyTheDevice:
    """NCCL's errors for tensors that are not on the rank's own device."""

    def __init__(self, process: Process):
        self._process = process
        self.devices = [torch.device("cuda")]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> None:
        process = self._process
        for index in {index_of(t) for t in tensors}:
            if index is None and _is_programs_own_call():
                raise RuntimeError(
                    "No backend type associated with device type cpu: NCCL communicates from the device's memory; "
                    "move the tensor with .cuda() first, or create the group with gloo"
                )
            if index not in (None, process.local_rank):
                raise RuntimeError(
                    f"Duplicate GPU detected: rank {process.rank.rank} communicates from cuda:{index}, which belongs "
                    f"to local rank {index} of its node; call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) "
                    "before the first use of the device"
                )


def _is_programs_own_call() -> bool:
    """Whether the script itself called torch.distributed, rather than torch's own code on its behalf.

    Memory that torch allocates below Python for DDP has no mark (placement.py) and is on the right device.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_CALLERS):
        frame = frame.f_back
    return frame is not None and is_program(frame)


def _placed_reducer() -> type:
    """DDP's reducer with buckets on the device of its parameters: any method may allocate them below Python."""
    plain: Any = dist.Reducer  # pyright: ignore[reportPrivateImportUsage]

    class Reducer(plain):
        def __init__(self, params: Sequence[torch.Tensor], *args: Any, **kwargs: Any):
            self._params = params[:1]
            with _where(params):
                super().__init__(list(params), *args, **kwargs)

    for name in [name for name in vars(plain) if not name.startswith("__")]:
        setattr(Reducer, name, _placed(getattr(plain, name)))
    return Reducer


def _placed(method: Callable[..., Any]) -> Callable[..., Any]:
    def placed(reducer: Any, *args: Any, **kwargs: Any) -> Any:
        with _where(reducer._params):
            return method(reducer, *args, **kwargs)

    return placed


def _where(params: Sequence[torch.Tensor]) -> AbstractContextManager[None]:
    """Allocations below Python within this context are on the device of the parameters."""
    process, index = here(), index_of(params[0]) if len(params) else None
    return nullcontext() if process is None or index is None else process.placement.assuming(index)
