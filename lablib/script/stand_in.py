"""A stand-in for a GPU: programs run as with backend="nccl", on a device that refuses what CUDA refuses.

    launch(program, ranks=4, device="cuda")        this launch
    with cuda_by_default(): ...                    every launch inside

Each rank's default device is then its own GPU, `cuda:<local rank>`, as it is on the real backend, and its groups are
NCCL's. The device is script mode's (placement.py, devices.py): tensors are on the CPU, carry a mark, and have values.
What CUDA refuses, it refuses, operator by operator (mixing.py):

    torch.ones(4).normal_(generator=torch.Generator())    a CPU generator, and numbers drawn on the device
    torch.ones(4) + torch.ones(4, device="cpu")       two devices
    torch.ones(4).numpy()                             numpy reads the host's memory alone
    dist.all_reduce(torch.ones(4, device="cpu"))      NCCL has no way to the host's memory

Tensors among the program's arguments arrive on the device (lablib/process/arguments.py). One that it takes from
elsewhere, a global or a closure, is in the host's memory, like all that the notebook makes.

Simplified: code inside torch's own C++ sees CPU tensors, so a kernel that CUDA lacks is not missed. Launches with
fidelity="shapes" run as ever: they have one device, "meta".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib import sim
from lablib.hardware.cluster import Cluster
from lablib.hardware.device import Device
from lablib.process.arguments import note_what_is_left
from lablib.process.arguments import replaced as replaced_tensors
from lablib.process.default_device import make_tensors_on
from lablib.run import Run
from lablib.script.devices import DeviceCalls
from lablib.script.gpu_answers import answer_gpu
from lablib.script.marks import HOST, mark
from lablib.script.patches import Patches
from lablib.script.placement import Placement
from lablib.script.process import Process, here
from lablib.script.streams import Streams
from lablib.sim.communication.store import SimStore
from lablib.sim.ranks.copies import Copies
from lablib.sim.ranks.rank import Rank
from lablib.sim.replaced import replaced
from lablib.sim.simulation import run_sim


class StandIn:
    """A launched function, and what its ranks find around them (`lablib.sim.simulation.RankEnvironment`).

    Args:
        fn, args: what was launched.
        ranks, cluster: on how many GPUs, and which.
    """

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], ranks: int, cluster: Cluster):
        self._copies = Copies(fn, args)
        self._num_ranks = ranks
        self._device: Device = cluster.device
        self._processes: list[Process] = []

    @property
    def notes(self) -> Sequence[str]:
        """What the run must say: what may hang on NCCL."""
        return list(dict.fromkeys(note for process in self._processes for note in process.notes))

    def program(self) -> Any:
        """What each rank runs."""
        process = here()
        assert process is not None
        # The device is named, as by the workers of lablib/real.
        dist.init_process_group("nccl", device_id=torch.device("cuda", process.local_rank))
        with process.placement.assuming(HOST):
            fn, args = replaced_tensors(self._copies.copy(), partial(_on_device, index=process.local_rank))
        make_tensors_on(torch.device("cuda", process.local_rank))
        try:
            return fn(*args)
        except RuntimeError as error:
            note_what_is_left(error, (fn, args, {}))
            raise
        finally:
            # What stays on torch's stack of this thread is freed when Python has forgotten the thread already; the
            # process is aborted if it ends meanwhile.
            torch.set_default_device(None)

    @contextmanager
    def of_the_run(self, ranks: list[Rank], store: SimStore, cluster: Cluster) -> Iterator[None]:
        """What the ranks share: answers in the place of torch's functions."""
        with ExitStack() as stack:
            patches = stack.enter_context(Patches())
            answer_gpu(patches)
            for rank in ranks:
                first = cluster.node(rank.rank) * cluster.devices_per_node
                num_devices = min(cluster.devices_per_node, len(ranks) - first)
                self._processes.append(
                    Process(rank, len(ranks), rank.rank - first, num_devices, cluster, store.of_another_rank())
                )
            yield

    @contextmanager
    def of_a_rank(self, rank: Rank) -> Iterator[None]:
        """What a rank's thread has: its device, which it uses from the start."""
        process = self._processes[rank.rank]
        threading.current_thread().script_process = process  # pyright: ignore[reportAttributeAccessIssue]
        process.placement = Placement(rank, self._device)
        process.placement.device_index = process.placement.use(process.local_rank)
        rank.counts = process.placement.counts
        process.streams = Streams(rank, process.local_rank)
        process.calls = DeviceCalls(process)
        with process.placement, process.calls:
            yield


def _on_device(one: Tensor | nn.Module, index: int) -> Tensor | nn.Module:
    """An argument of the program as it arrives: all memory of it is the device's."""
    tensors = [one] if isinstance(one, Tensor) else [*one.parameters(), *one.buffers()]
    for tensor in tensors:
        mark(tensor, index)
        if tensor.grad is not None:
            mark(tensor.grad, index)
    return one


def run_on_cuda(fn: Callable[..., Any], args: Sequence[Any], **options: Any) -> Run:
    """`lablib.sim.run_sim` with a GPU for each rank, whose memory is not the host's."""
    stand_in = StandIn(fn, args, options["ranks"], options["cluster"])
    run = run_sim(stand_in.program, (), **options, environment=stand_in)
    return replace(run, notes=(*run.notes, *stand_in.notes))


@contextmanager
def cuda_by_default() -> Iterator[None]:
    """Every `launch` on the simulator inside runs its ranks on the stand-in."""

    def on_the_stand_in(fn: Callable[..., Any], args: Sequence[Any], **options: Any) -> Run:
        if options.get("fidelity") == "shapes":
            return run_sim(fn, args, **options)
        return run_on_cuda(fn, args, **options)

    with replaced((sim, "run_sim", on_the_stand_in)):
        yield
