"""A device mesh: ranks as a box with named axes, and the groups along its axes.

    Mesh(data=2, tensor=4)         tensor 0  1  2  3
                        data 0            0  1  2  3       tensor groups: rows      data groups: columns
                             1            4  5  6  7       (neighbours)             (4 apart)

The coordinates are the digits of a rank's number, with the last axis as units:

    rank = c_0 s_1 s_2 + c_1 s_2 + c_2         coordinate i = rank / (s_{i+1} s_{i+2} ...) mod s_i

A group along an axis has the ranks that differ only in that coordinate; along several axes, only in those. So the order
of the axes is a placement: a node has neighbouring ranks, so the last axis communicates within a node, and the first
between nodes. Tensor parallelism sends most and goes last; data and pipeline parallelism go first.

torch's DeviceMesh makes the process groups (`device_mesh`) and has this information once ranks run. This class has it
before any rank starts, for figures, predictions and early errors.

Cost: some sums; `group` makes a new process group on each of its ranks.
Legend: c_i a coordinate, s_i the size of an axis.
Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021,
arXiv 2104.04473, section 3 (which axis within a node); torch.distributed.device_mesh (torch 2.13, documentation).
Simplified: one box with all ranks; expert axes overlap with others and need a second mesh of the same ranks.
"""

from collections.abc import Iterator
from itertools import permutations, product
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from lablib.errors import unknown_name
from lablib.signature import Count, NonNegativeInt, checked, shown, whole_number


class Mesh:
    """Named axes over ranks 0 to n - 1; the last axis has neighbours. Immutable; equal if axes and sizes are equal.

    >>> mesh = Mesh(data=2, tensor=4)
    >>> mesh.coordinates(6), mesh.rank(data=1, tensor=2), mesh.groups("data")
    ({'data': 1, 'tensor': 2}, 6, ((0, 4), (1, 5), (2, 6), (3, 7)))

    Raises ValueError: no axis, or a size that is not a whole number from 1.
    """

    def __init__(self, **sizes: int):
        if not sizes:
            raise ValueError("a mesh must have an axis: got none; try Mesh(data=2, tensor=4).")
        self.sizes = {axis: whole_number(f"Mesh: {axis}", size, example=2) for axis, size in sizes.items()}
        whole_number("Mesh: ranks", prod(self.sizes.values()))

    @property
    def axes(self) -> tuple[str, ...]:
        """Names from the first axis, with distant neighbours, to the last."""
        return tuple(self.sizes)

    @property
    def num_ranks(self) -> int:
        return prod(self.sizes.values())

    @checked
    def require(self, num_ranks: Count) -> None:
        """Raise ValueError unless the product of the axes is `num_ranks`."""
        if self.num_ranks == num_ranks:
            return
        text = " x ".join(f"{axis} {size}" for axis, size in self.sizes.items())
        fits = [
            f"{axis}={num_ranks // others}"
            for axis, size in self.sizes.items()
            if num_ranks % (others := self.num_ranks // size) == 0 and num_ranks >= others
        ]
        remedy = f"try {fits[0]}" if fits else f"try {self.num_ranks} ranks"
        raise ValueError(
            f"the axes must multiply to the ranks: got {text} = {self.num_ranks} for {num_ranks}; {remedy}."
        )

    def stride(self, axis: str) -> int:
        """The distance of neighbours along the axis, in ranks."""
        later = self.axes[self._one(axis) + 1 :]
        return prod(self.sizes[name] for name in later)

    @checked
    def coordinates(self, rank: NonNegativeInt) -> dict[str, int]:
        """The rank's coordinate on each axis."""
        if rank >= self.num_ranks:
            raise ValueError(f"rank must be 0 to {self.num_ranks - 1}, one of {self!r}: got {rank}.")
        return {axis: rank // self.stride(axis) % size for axis, size in self.sizes.items()}

    def rank(self, **coordinates: int) -> int:
        """The rank at these coordinates. ValueError: a missing or unknown axis, or a coordinate beyond its axis."""
        if set(coordinates) != set(self.axes):
            raise ValueError(f"a rank has one coordinate on each axis of {self!r}: got {coordinates}.")
        for axis, at in coordinates.items():
            if whole_number(f"coordinate on {axis}", at, minimum=0, example=0) >= self.sizes[axis]:
                raise ValueError(f"a coordinate on {axis} must be 0 to {self.sizes[axis] - 1}: got {at}.")
        return sum(at * self.stride(axis) for axis, at in coordinates.items())

    def groups(self, *axes: str) -> tuple[tuple[int, ...], ...]:
        """All groups along these axes, ranks ascending. ValueError: no axis, an unknown one, or one twice."""
        return tuple(self._members(axes, others) for others in self._places(self._others(axes)))

    def group_of(self, rank: int, *axes: str) -> tuple[int, ...]:
        """The group of the rank along these axes. Raises ValueError as `groups` and `coordinates`."""
        at = self.coordinates(rank)
        return self._members(axes, {axis: at[axis] for axis in self._others(axes)})

    def reordered(self, *axes: str) -> "Mesh":
        """The same axes in another order: another placement."""
        if self._others(axes):
            raise ValueError(f"another order must have each axis of {self!r}: got {', '.join(axes)}.")
        return Mesh(**{axis: self.sizes[axis] for axis in axes})

    def placements(self) -> Iterator["Mesh"]:
        """The mesh in every order of its axes, its own order first."""
        return (self.reordered(*axes) for axes in permutations(self.axes))

    # ---- on ranks that run ----

    def device_mesh(self, device: str = "") -> DeviceMesh:
        """torch's mesh of these axes. Communicates, to make a group for each axis; all ranks call it.

        `device`: "cpu" or "cuda"; empty: cuda if the ranks are on GPUs.

        Raises ValueError: the product of the axes is not the number of running ranks.
        """
        self.require(dist.get_world_size())
        device = device or ("cuda" if "nccl" in dist.get_backend() and torch.cuda.is_available() else "cpu")
        return init_device_mesh(device, tuple(self.sizes.values()), mesh_dim_names=self.axes)

    def group(self, *axes: str) -> dist.ProcessGroup:
        """A new process group of this rank along these axes. Communicates; all its ranks call it."""
        self.require(dist.get_world_size())
        ranks = self.group_of(dist.get_rank(), *axes)
        group: Any = dist.new_group(list(ranks), use_local_synchronization=True)  # only its members call it
        return group

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{axis}={size}' for axis, size in self.sizes.items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and list(self.sizes.items()) == list(other.sizes.items())

    def __hash__(self) -> int:
        return hash(tuple(self.sizes.items()))

    def _one(self, axis: str) -> int:
        if axis not in self.axes:
            raise unknown_name("axis", axis, self.axes)
        return self.axes.index(axis)

    def _others(self, axes: tuple[str, ...]) -> list[str]:
        """The other axes. Raises as `groups`."""
        if not axes:
            raise ValueError(f"a group is along one or more axes of {self!r}: got none; try {self.axes[-1]!r}.")
        for axis in axes:
            self._one(axis)
        if twice := [axis for i, axis in enumerate(axes) if axis in axes[:i]]:
            raise ValueError(f"each axis can be used once: got {shown(twice[0])} twice; leave one out.")
        return [axis for axis in self.axes if axis not in axes]

    def _places(self, axes: list[str]) -> Iterator[dict[str, int]]:
        return (dict(zip(axes, at, strict=True)) for at in product(*(range(self.sizes[axis]) for axis in axes)))

    def _members(self, axes: tuple[str, ...], others: dict[str, int]) -> tuple[int, ...]:
        along = [axis for axis in self.axes if axis in axes]
        return tuple(self.rank(**others, **at) for at in self._places(along))
