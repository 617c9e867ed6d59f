"""Simulated GPUs of ranks (for run.py and stand_in.py): replaced functions of torch, and each rank's device."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lablib.hardware.cluster import Cluster
from lablib.script.backends import answer_backends
from lablib.script.classes import answer_classes
from lablib.script.cuda import answer_cuda
from lablib.script.cuda_kernels import answer_kernels
from lablib.script.devices import DeviceCalls, answer_grouping, answer_hooks, answer_wrappers
from lablib.script.dtensor import answer_dtensor
from lablib.script.patches import Patches
from lablib.script.placement import Placement
from lablib.script.process import Process
from lablib.script.streams import Stream
from lablib.sim.communication.store import SimStore
from lablib.sim.ranks.rank import Rank
from lablib.sim.ranks.streams import Streams, set_streams


def answer_gpu(patches: Patches) -> None:
    for answer in (answer_cuda, answer_classes, answer_hooks, answer_grouping, answer_wrappers):
        answer(patches)
    for answer in (answer_dtensor, answer_kernels, answer_backends):
        answer(patches)


def processes_of(ranks: Sequence[Rank], cluster: Cluster, store: SimStore, is_shapes: bool = False) -> list[Process]:
    """A process for each rank, with as many devices as its node has ranks."""
    processes, size = [], cluster.devices_per_node
    for rank in ranks:
        first = cluster.node(rank.rank) * size
        place = rank.rank - first, min(size, len(ranks) - first)
        processes.append(Process(rank, len(ranks), *place, cluster, store.of_another_rank(), is_shapes))
    return processes


@contextmanager
def with_gpu(process: Process) -> Iterator[None]:
    """In a rank's thread: its process, marked memory, and handling of device arguments."""
    threading.current_thread().script_process = process  # pyright: ignore[reportAttributeAccessIssue]
    process.placement = Placement(process.rank, process.cluster.device)
    process.rank.counts = process.placement.counts
    process.streams = Streams(process.rank, Stream(_index=process.local_rank))
    set_streams(process.streams)
    process.calls = DeviceCalls(process)
    with process.placement, process.calls:
        yield
