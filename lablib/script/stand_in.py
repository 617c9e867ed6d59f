"""Simulated GPU for launches: programs run as with backend="nccl", with CUDA's device errors.

    launch(program, ranks=4, device="cuda")        this launch
    with cuda_by_default(): ...                    every launch inside

Each rank's default device is then its own GPU, `cuda:<local rank>`, as on the real backend, and its groups are NCCL's.
The device is script mode's (placement.py, devices.py): tensors are on the CPU, have a mark, and have values. Operators
raise where CUDA's would (mixing.py):

    torch.ones(4).normal_(generator=torch.Generator())    a CPU generator, and numbers drawn on the device
    torch.ones(4) + torch.ones(4, device="cpu")       two devices
    torch.ones(4).numpy()                             numpy reads only the host's memory
    dist.all_reduce(torch.ones(4, device="cpu"))      NCCL cannot access the host's memory

Tensors among the program's arguments arrive on the device (lablib/process/arguments.py). Tensors from a global or a
closure are in the host's memory, as all tensors of the notebook.

Simplified: code inside torch's own C++ sees CPU tensors, so a kernel that CUDA lacks raises no error. Launches with
fidelity="shapes" are not changed: they have one device, "meta".
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib import sim
from lablib.hardware.cluster import Cluster
from lablib.process.arguments import note_what_is_left
from lablib.process.arguments import replaced as replaced_tensors
from lablib.process.default_device import make_tensors_on
from lablib.process.replaced import replaced
from lablib.run import Run
from lablib.script.gpu_answers import answer_gpu, processes_of, with_gpu
from lablib.script.marks import HOST, mark
from lablib.script.patches import Patches
from lablib.script.process import Process, here
from lablib.sim.communication.store import SimStore
from lablib.sim.ranks.copies import Copies
from lablib.sim.ranks.rank import Rank
from lablib.sim.simulation import run_sim


class StandIn:
    """A launched function and the environment of its ranks (`lablib.sim.simulation.RankEnvironment`)."""

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any]):
        self._copies = Copies(fn, args)
        self._processes: list[Process] = []

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the run: possible hangs on NCCL."""
        return list(dict.fromkeys(note for process in self._processes for note in process.notes))

    def program(self) -> Any:
        process = here()
        assert process is not None
        # The device is given, as in the workers of lablib/real.
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
            # An entry left on torch's stack of this thread is freed after Python has removed the thread, which aborts a
            # process that is ending.
            torch.set_default_device(None)

    @contextmanager
    def of_the_run(self, ranks: list[Rank], store: SimStore, cluster: Cluster) -> Iterator[None]:
        with Patches() as patches:
            answer_gpu(patches)
            self._processes += processes_of(ranks, cluster, store)
            yield

    @contextmanager
    def of_a_rank(self, rank: Rank) -> Iterator[None]:
        """Context of a rank's thread: its device, in use from the start."""
        process = self._processes[rank.rank]
        with with_gpu(process):
            process.placement.device_index = process.placement.use(process.local_rank)
            yield


def _on_device(one: Tensor | nn.Module, index: int) -> Tensor | nn.Module:
    """Mark all memory of an argument of the program as on the device."""
    tensors = [one] if isinstance(one, Tensor) else [*one.parameters(), *one.buffers()]
    for tensor in tensors:
        mark(tensor, index)
        if tensor.grad is not None:
            mark(tensor.grad, index)
    return one


def run_on_cuda(fn: Callable[..., Any], args: Sequence[Any], **options: Any) -> Run:
    """`lablib.sim.run_sim` with a GPU with separate memory for each rank."""
    stand_in = StandIn(fn, args)
    run = run_sim(stand_in.program, (), **options, environment=stand_in)
    return replace(run, notes=(*run.notes, *stand_in.notes))


@contextmanager
def cuda_by_default() -> Iterator[None]:
    """Run every `launch` on the simulator inside this context on simulated GPUs."""

    def on_the_stand_in(fn: Callable[..., Any], args: Sequence[Any], **options: Any) -> Run:
        if options.get("fidelity") == "shapes":
            return run_sim(fn, args, **options)
        return run_on_cuda(fn, args, **options)

    with replaced((sim, "run_sim", on_the_stand_in)):
        yield
