"""Functions of torch.distributed that a run replaces: DDP's check of parameters, `Join`, `monitored_barrier`."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.join import Join

from lablib.sim.communication.process_group import SimProcessGroup
from lablib.text.units import plural
from lablib.torch_compat import default_group, keep_join_work, rank_not_in_group, verify_params, warn_not_in_group

_notify_join_context = Join.notify_join_context


def notify_join_context(joinable: Any) -> Any:
    """torch's own, but keeps the work: DDP's reducer holds only its C++ side, which cannot wait by itself."""
    work = _notify_join_context(joinable)
    keep_join_work(joinable, work)
    return work


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """`monitored_barrier` for the simulator; torch accepts it on gloo only."""
    if rank_not_in_group(group):
        warn_not_in_group("monitored_barrier")
        return
    group = group or default_group()
    assert isinstance(group, SimProcessGroup)
    group.monitored_barrier(timeout, wait_all_ranks)


def verify_params_across_processes(group: Any, params: list[Tensor], logger: Any = None) -> None:
    """DDP's check, when it is built, that all ranks have as many parameters as this one, with the sizes of rank 0.

    For the counts, torch makes n tensors on each of n ranks: a million tensors for 1,024 ranks in one process, most of
    the time of a small run. This version gathers the same numbers into one tensor and sends the same bytes. Phantoms
    are assumed to hold the same parameters as the simulated ranks. Raises RuntimeError: this rank's number of
    parameters differs from another rank's, or a size differs from rank 0.
    """
    if not isinstance(group, SimProcessGroup):
        verify_params(group, params, logger)
        return
    with group.phantoms_alike():
        _verify(group, params)


def _verify(group: SimProcessGroup, params: list[Tensor]) -> None:
    counts = torch.empty(group.size(), dtype=torch.int64, device="cpu")
    group.all_gather_single(counts, torch.tensor([len(params)], device="cpu")).wait()
    for rank, count in enumerate(counts.tolist()):
        if count != len(params):
            raise RuntimeError(
                f"DDP needs the same model on all ranks: rank {group.rank()} has {plural(len(params), 'parameters')}, "
                f"rank {rank} has {count}."
            )
    layouts = [tuple(number for pair in zip(p.shape, p.stride(), strict=True) for number in pair) for p in params]
    mine = torch.tensor([number for layout in layouts for number in layout], dtype=torch.int64, device="cpu")
    theirs = mine.clone()
    options = dist.BroadcastOptions()
    options.rootRank = 0
    group.broadcast([theirs], options).wait()
    found = theirs.tolist()
    for index, (param, layout) in enumerate(zip(params, layouts, strict=True)):
        expected, found = found[: len(layout)], found[len(layout) :]
        if tuple(expected) != layout:
            raise RuntimeError(
                f"DDP needs the same model on all ranks: parameter {index} has shape {list(param.shape)} and strides "
                f"{list(param.stride())} on rank {group.rank()}, on rank 0 shape {expected[::2]} and strides "
                f"{expected[1::2]}."
            )
