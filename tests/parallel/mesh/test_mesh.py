"""The mesh of named axes: coordinates and groups, beside torch's DeviceMesh, and what it refuses."""

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import RankError, launch
from lablib.parallel import Mesh

AXES = ("pipeline", "data", "context", "tensor")
meshes = st.lists(st.integers(1, 3), min_size=1, max_size=4).map(
    lambda sizes: Mesh(**dict(zip(AXES, sizes, strict=False)))
)


@given(mesh=meshes)
def test_every_rank_has_coordinates_of_its_own_and_they_lead_back(mesh: Mesh):
    found = [tuple(mesh.coordinates(rank).values()) for rank in range(mesh.num_ranks)]
    assert found == [tuple(map(int, at)) for at in torch.ones(*mesh.sizes.values()).nonzero().tolist()]
    assert [mesh.rank(**mesh.coordinates(rank)) for rank in range(mesh.num_ranks)] == list(range(mesh.num_ranks))


@given(mesh=meshes, data=st.data())
@settings(max_examples=30)
def test_groups_are_slices_of_the_box_and_each_rank_is_in_one(mesh: Mesh, data: Any):
    axes = tuple(data.draw(st.lists(st.sampled_from(mesh.axes), min_size=1, unique=True)))
    box = torch.arange(mesh.num_ranks).view(*mesh.sizes.values())
    dims = [i for i, axis in enumerate(mesh.axes) if axis in axes]
    slices = box.movedim(dims, list(range(-len(dims), 0))).reshape(-1, *[box.shape[dim] for dim in dims]).flatten(1)
    assert mesh.groups(*axes) == tuple(map(tuple, slices.tolist()))
    assert sorted(rank for group in mesh.groups(*axes) for rank in group) == list(range(mesh.num_ranks))
    for rank in range(mesh.num_ranks):
        assert rank in mesh.group_of(rank, *axes) and mesh.group_of(rank, *axes) in mesh.groups(*axes)


@given(mesh=meshes)
@settings(max_examples=20)
def test_another_order_of_axes_is_another_placement_of_the_same_axes(mesh: Mesh):
    placements = list(mesh.placements())
    assert placements[0] == mesh and len(set(placements)) == len(placements)
    for placed in placements:
        assert placed.sizes == mesh.sizes and placed.stride(placed.axes[-1]) == 1
        for axis in mesh.axes:
            steps = {b - a for group in placed.groups(axis) for a, b in pairwise(group)}
            assert steps <= {placed.stride(axis)}


def test_the_process_groups_are_those_of_torchs_mesh():
    mesh = Mesh(data=2, context=1, tensor=3)

    def program() -> tuple[Any, ...]:
        device_mesh = mesh.device_mesh()
        of_torch = [dist.get_process_group_ranks(device_mesh.get_group(axis)) for axis in mesh.axes]
        ours = [dist.get_process_group_ranks(mesh.group(axis)) for axis in mesh.axes]
        x = torch.tensor([1.0 + dist.get_rank()])
        dist.all_reduce(x, group=mesh.group("data", "tensor"))
        return of_torch, ours, [list(mesh.group_of(dist.get_rank(), axis)) for axis in mesh.axes], x.item()

    for of_torch, ours, expected, total in launch(program, ranks=6).values:
        assert of_torch == ours == expected
        assert total == 21.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Mesh(), "a mesh must have an axis"),
        (lambda: Mesh(data=2**40, tensor=2**40), "Mesh: ranks must be below 2\\*\\*63"),
        (lambda: Mesh(data=2, tensor=4).require(16), "got data 2 x tensor 4 = 8 for 16; try data=4"),
        (lambda: Mesh(data=3, tensor=4).require(10), "got data 3 x tensor 4 = 12 for 10; try 12 ranks"),
        (lambda: Mesh(data=2, tensor=4).groups("tensor", "tensor"), "each axis can be used once: got 'tensor' twice"),
        (lambda: Mesh(data=2, tensor=4).groups("tensr"), "tensor"),
        (lambda: Mesh(data=2, tensor=4).groups(), "a group is along one or more axes.*try 'tensor'"),
        (lambda: Mesh(data=2, tensor=4).reordered("tensor"), "another order must have each axis"),
        (lambda: Mesh(data=2).coordinates(2), "rank must be 0 to 1"),
        (lambda: Mesh(data=2).rank(data=2), "a coordinate on data must be 0 to 1: got 2"),
        (lambda: Mesh(data=2).rank(tensor=1), "one coordinate on each axis"),
    ],
)
def test_what_is_no_mesh_is_refused(call: Any, message: str):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_mesh_of_other_ranks_than_run_is_refused_before_a_group_is_made():
    with pytest.raises(RankError, match="data 2 x tensor 4 = 8 for 4; try data=1"):
        launch(lambda: Mesh(data=2, tensor=4).group("data"), ranks=4)
