"""Handles and groups reach another rank through a global on the simulator alone: it says so, and names both ranks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lablib import LaunchError, launch

pytestmark = [pytest.mark.usefixtures("everything_is_given_back"), pytest.mark.timeout(30)]

USES: dict[str, Callable[[Any], Any]] = {
    "wait": lambda work: work.wait(),
    "is_completed": lambda work: work.is_completed(),
    "result": lambda work: work.result(),
    "get_future": lambda work: work.get_future(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("is_swallowed", [False, True])
def test_a_handle_that_another_rank_waits_for_names_who_waits_and_whose_it_is(use: str, is_swallowed: bool):
    handles: dict[int, Any] = {}

    def program() -> None:
        rank = dist.get_rank()
        handles[rank] = dist.irecv(torch.ones(2), src=2) if rank < 2 else None
        dist.barrier()
        if rank == 1:
            try:
                USES[use](handles[0])
            except Exception:
                assert is_swallowed
        if rank == 2:
            dist.send(torch.ones(2), dst=0)
            dist.send(torch.ones(2), dst=1)
        elif rank == 0:
            handles[0].wait()

    with pytest.raises(LaunchError, match=r"rank 1 uses .* belongs to rank 0 \(test_handles_of_others.py:\d+: .*work"):
        launch(program, ranks=3)


def test_a_group_object_of_another_rank_is_refused_as_well():
    shared: list[Any] = []

    def program() -> None:
        if dist.get_rank() == 0:
            shared.append(dist.group.WORLD)
        dist.barrier()
        shared[0].allreduce([torch.ones(2)]).wait()

    with pytest.raises(LaunchError, match="rank 1 uses a process group .* belongs to rank 0"):
        launch(program, ranks=2)
