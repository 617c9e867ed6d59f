# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false
"""Groups, barriers, objects and meetings: the calls around training that a script for torchrun makes."""

from typing import Any

import hypothesis
import pytest
import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _get_default_group
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from lablib import launch
from lablib.errors import CollectiveMismatchError, DeadlockError, LaunchError, RankError


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


def test_new_group_with_local_synchronization_is_made_by_its_members_alone():
    def program() -> float | None:
        if dist.get_rank() < 2:
            return total(dist.new_group([0, 1], use_local_synchronization=True))
        return None

    assert launch(program, ranks=3).values == [1.0, 1.0, None]


@st.composite
def calls_of_new_group(draw: Any) -> list[list[list[int]]]:
    """The groups that each rank makes, in its order: all of them, those that it is in, or a selection."""
    size = draw(st.integers(2, 5))
    members = st.lists(st.integers(0, size - 1), min_size=1, max_size=size, unique=True).map(sorted)
    groups = draw(st.lists(members, min_size=1, max_size=4))
    by_members = [[group for group in groups if rank in group] for rank in range(size)]
    selection = st.lists(st.sampled_from(groups), max_size=4)
    if draw(st.booleans()):
        return by_members
    return [draw(st.just(groups) | st.just(by_members[rank]) | selection) for rank in range(size)]


def everyone_in(groups: list[list[int]], is_local: bool = False) -> list[list[int]]:
    """Make groups; then gather, in each that this rank is in, the ranks that take part."""
    made = [dist.new_group(ranks, use_local_synchronization=is_local) for ranks in groups]
    return [gathered(group) for group, ranks in zip(made, groups, strict=True) if dist.get_rank() in ranks]


def gathered(group: Any) -> list[int]:
    seen = [torch.zeros(1) for _ in range(dist.get_world_size(group))]
    dist.all_gather(seen, torch.full((1,), float(dist.get_rank())), group=group)
    return [int(one) for one in seen]


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(calls_of_new_group())
def test_groups_have_their_own_members_or_the_program_is_refused(calls: list[list[list[int]]]):
    """torch gives the i-th group of each rank the name i, and the members of a group meet under its name."""
    by_name: list[set[tuple[int, ...]]] = [set() for _ in range(4)]
    missing = []  # members that make another group under the name, or none
    for rank, groups in enumerate(calls):
        for i, group in enumerate(groups):
            if rank in group:
                by_name[i].add(tuple(group))
                missing += [calls[m][i : i + 1] for m in group if calls[m][i : i + 1] != [group]]
    if any(len(groups) > 1 for groups in by_name) or any(missing):
        with pytest.raises(CollectiveMismatchError, match="(?s)new_group.*test_groups.py:.*test_groups.py:"):
            launch(lambda: everyone_in(calls[dist.get_rank()]), ranks=len(calls))
    elif missing:
        with pytest.raises(DeadlockError):
            launch(lambda: everyone_in(calls[dist.get_rank()]), ranks=len(calls))
    else:
        values = launch(lambda: everyone_in(calls[dist.get_rank()]), ranks=len(calls)).values
        assert values == [[group for group in groups if rank in group] for rank, groups in enumerate(calls)]


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(st.lists(st.sets(st.integers(0, 3), min_size=1).map(sorted), min_size=1, max_size=4, unique_by=tuple))
def test_groups_made_only_by_their_members_are_right_with_local_synchronization(groups: list[list[int]]):
    """torch names such a group after its members and the number of groups that a rank has: equal for all members."""
    mine = [[group for group in groups if rank in group] for rank in range(4)]
    if all(mine[rank].index(group) == mine[group[0]].index(group) for rank in range(4) for group in mine[rank]):
        assert launch(lambda: everyone_in(mine[dist.get_rank()], is_local=True), ranks=4).values == mine
    else:
        with pytest.raises(DeadlockError, match="the number of groups that a rank has already"):
            launch(lambda: everyone_in(mine[dist.get_rank()], is_local=True), ranks=4)


def halves_by_new_group() -> list[int]:
    return everyone_in([[0, 1] if dist.get_rank() < 2 else [2, 3]])[0]


def halves_by_mesh() -> list[int]:
    return gathered(DeviceMesh("cpu", [0, 1] if dist.get_rank() < 2 else [2, 3]).get_group())


def halves_by_enumeration() -> list[int]:
    return gathered(dist.new_subgroups_by_enumeration([[0, 1] if dist.get_rank() < 2 else [2, 3]])[0])


def mesh_in_another_order() -> list[int]:
    """Rows, then columns; on rank 3 columns, then rows."""
    rows, columns = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
    meshes = [DeviceMesh("cpu", m) for m in ((columns, rows) if dist.get_rank() == 3 else (rows, columns))]
    return gathered(meshes[0].get_group(1))


@pytest.mark.parametrize("program", [halves_by_new_group, halves_by_mesh, halves_by_enumeration, mesh_in_another_order])
@pytest.mark.parametrize("where", [{}, {"like": "nccl"}, {"backend": "gloo", "timeout_s": 60}], ids=str)
def test_groups_made_only_by_their_members_are_an_error_with_both_lines(program: Any, where: dict[str, Any]):
    with pytest.raises(
        LaunchError, match=r"(?s)rank \d made \[\d, \d\] .*test_groups.py:\d+.*rank \d made .*test_groups"
    ):
        launch(program, ranks=4, **where)


def test_split_group_is_left_to_backends_that_torch_lets_split():
    """It wants a default group bound to one device, which a CPU's never is: gloo says the same."""

    def program() -> None:
        dist.split_group(split_ranks=[[0, 1], [2, 3]])

    with pytest.raises(RankError, match="not safe to split any process groups"):
        launch(program, ranks=4)


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


def test_symmetric_memory_is_refused_in_one_clear_line():
    """It maps the memory of other GPUs: there is nothing to map here."""
    import torch.distributed._symmetric_memory as symmetric

    def program() -> Tensor:
        x = symmetric.empty(4, device="cpu")
        symmetric.rendezvous(x, dist.group.WORLD)
        return x

    with pytest.raises(RankError, match="SymmetricMemory does not support device type cpu"):
        launch(program, ranks=2)
