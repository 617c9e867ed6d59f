# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false
"""Groups, barriers, objects and meetings: the calls around training that a script for torchrun makes."""

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _get_default_group
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from lablib import launch
from lablib.errors import DeadlockError, RankError


def test_a_program_may_name_its_rank_and_world_without_calling_init():
    """What a script for torchrun does at its start, and at its end."""

    def script() -> int:
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        size = dist.get_world_size()
        assert _get_default_group().size() == size
        dist.destroy_process_group()
        return size

    assert launch(script, ranks=3).values == [3, 3, 3]


def total(group: Any = None) -> float:
    x = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(x, group=group)
    return x.item()


def test_subgroups_of_equal_size_and_by_enumeration():
    def program() -> tuple[float, float]:
        pair, pairs = dist.new_subgroups(2)
        odd_even, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
        assert len(pairs) == 2
        return total(pair), total(odd_even)

    assert launch(program, ranks=4).values == [(1.0, 2.0), (1.0, 4.0), (5.0, 2.0), (5.0, 4.0)]


def test_new_group_with_local_synchronization_is_made_by_its_members_alone():
    def program() -> float | None:
        if dist.get_rank() < 2:
            return total(dist.new_group([0, 1], use_local_synchronization=True))
        return None

    assert launch(program, ranks=3).values == [1.0, 1.0, None]


def test_split_group_is_left_to_backends_that_torch_lets_split():
    """It wants a default group bound to one device, which a CPU's never is: gloo says the same."""

    def program() -> None:
        dist.split_group(split_ranks=[[0, 1], [2, 3]])

    with pytest.raises(RankError, match="not safe to split any process groups"):
        launch(program, ranks=4)


def test_objects_are_broadcast_gathered_and_scattered():
    def program() -> tuple[Any, Any, Any]:
        rank, size = dist.get_rank(), dist.get_world_size()
        mine = {"rank": rank, "square": rank**2}
        everyone: list[Any] = [None] * size
        dist.all_gather_object(everyone, mine)
        at_root: list[Any] | None = [None] * size if rank == 1 else None
        dist.gather_object(mine, at_root, dst=1)
        told: list[Any] = [("from", rank)]
        dist.broadcast_object_list(told, src=2)
        given: list[Any] = [None]
        dist.scatter_object_list(given, [f"for {r}" for r in range(size)] if rank == 0 else None, src=0)
        if rank == 0:
            dist.send_object_list([mine], dst=1)
        elif rank == 1:
            received: list[Any] = [None]
            dist.recv_object_list(received, src=0)
            assert received == [{"rank": 0, "square": 0}]
        return everyone, at_root, (told[0], given[0])

    whole = [{"rank": r, "square": r**2} for r in range(3)]
    for rank, (everyone, at_root, (told, given)) in enumerate(launch(program, ranks=3).values):
        assert everyone == whole and at_root == (whole if rank == 1 else None)
        assert told == ("from", 2) and given == f"for {rank}"


def test_a_monitored_barrier_names_who_is_missing():
    def program() -> None:
        if dist.get_rank() != 1:
            dist.monitored_barrier(timeout=timedelta(seconds=1))

    with pytest.raises(DeadlockError, match=r"waits in monitored_barrier #0 of group world; rank 1 is not there"):
        launch(program, ranks=3)


def test_a_ring_of_batched_sends_and_receives():
    def program() -> float:
        rank, size = dist.get_rank(), dist.get_world_size()
        seen, passed = 0.0, torch.tensor([float(rank)])
        for _ in range(size):
            received = torch.zeros(1)
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, passed, (rank + 1) % size),
                    dist.P2POp(dist.irecv, received, (rank - 1) % size),
                ]
            )
            for work in works:
                work.wait()
            seen, passed = seen + received.item(), received
        return seen

    assert launch(program, ranks=5).values == [10.0] * 5


def test_a_mesh_is_made_from_ranks_or_from_groups():
    def program() -> tuple[float, float, float]:
        by_ranks = DeviceMesh("cpu", [[0, 3], [1, 2]], mesh_dim_names=("a", "b"))
        by_group = DeviceMesh.from_group(dist.new_subgroups(2)[0], "cpu")
        flat = init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", "y"))._flatten("all")
        return total(by_ranks.get_group("b")), total(by_group.get_group()), total(flat.get_group())

    assert launch(program, ranks=4).values == [(3.0, 1.0, 6.0), (3.0, 1.0, 6.0), (3.0, 5.0, 6.0), (3.0, 5.0, 6.0)]


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_distributed_sampler_deals_every_sample_out(drop_last: bool):
    """Shuffled anew each epoch, the same on every rank; without drop_last the first ones come twice to fill up."""

    def program() -> list[list[int]]:
        data = TensorDataset(torch.arange(10))
        sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3, drop_last=drop_last)
        loader = DataLoader(data, batch_size=2, sampler=sampler)
        epochs = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            epochs.append([int(i) for (part,) in loader for i in part])
        return epochs

    values = launch(program, ranks=4).values
    for epoch in range(2):
        order = torch.randperm(10, generator=torch.Generator().manual_seed(3 + epoch)).tolist()
        order = order[:8] if drop_last else order + order[:2]
        assert [seen[epoch] for seen in values] == [order[rank::4] for rank in range(4)]


def test_worker_processes_of_a_data_loader_serve_a_simulated_rank():
    def program() -> int:
        data = TensorDataset(torch.arange(8))
        loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False), num_workers=1)
        return sum(int(part.sum()) for (part,) in loader)

    assert launch(program, ranks=2).values == [0 + 2 + 4 + 6, 1 + 3 + 5 + 7]


def test_a_store_is_shared_by_the_ranks():
    def program() -> str:
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 1:
            store.set("key", "value of rank 1")
        return store.get("key").decode()

    assert launch(program, ranks=3).values == ["value of rank 1"] * 3


def test_symmetric_memory_is_refused_in_one_clear_line():
    """It maps the memory of other GPUs: there is nothing to map here."""
    import torch.distributed._symmetric_memory as symmetric

    def program() -> Tensor:
        x = symmetric.empty(4, device="cpu")
        symmetric.rendezvous(x, dist.group.WORLD)
        return x

    with pytest.raises(RankError, match="SymmetricMemory does not support device type cpu"):
        launch(program, ranks=2)
