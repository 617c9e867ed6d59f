"""Order of the axes over the ranks: which axis has neighbouring ranks, and where the ranks of each group are.

The planner counts ranks in its own order: tensor ranks are neighbours, then context, data and pipeline. A rank is a
number with its coordinates as digits; another order permutes the digits. So a plan is predicted as usual, and each of
its groups is priced at the new positions of its ranks:

    the planner's order      pipeline  data  tensor        data group of rank 0:  0  2        tensor 2, data 2
    another                  pipeline  tensor  data                               0  1        neighbours now

Ranks that differ on one axis have a constant stride in every order; those that differ on two (data and context ranks
share one sum of gradients) may not, and are then priced rank by rank.

Cost: a look-up; for a group without a constant stride, the cost model goes through its ranks once.
Source: Narayanan et al., SC21, arXiv 2104.04473, section 3 (which axis within a node).
Simplified: all groups of an axis cost as much as the group of rank 0. They share no wire, as each rank has its own,
into its node's interconnect and out of its NIC; the topology's taper, which every message pays, stands for shared
switches. Two axes that communicate at the same time over one wire are not slowed here, but in the simulator they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

from lablib.cost.arrays import Numbers
from lablib.cost.collective import collective_cost
from lablib.cost.network import GroupNetwork
from lablib.errors import unknown_name
from lablib.plan.machine import Machine
from lablib.plan.parallel import Parallel
from lablib.signature import shown

ORDER = ("pipeline", "data", "context", "tensor")  # the planner's own: far apart to neighbours
PLACED = ("data", "tensor", "pipeline", "context", "expert")  # axes of an order


@dataclass(frozen=True)
class PlacedMachine(Machine):
    """A machine with its ranks in another order."""

    sizes: tuple[tuple[str, int], ...] = ()  # of each axis, in the planner's order
    order: tuple[str, ...] = ()  # the axes from far apart to neighbours
    # whether messages between stages take no time, to separate the bubble from waiting for wires
    has_free_messages: bool = False

    def collective_s(self, name: str, size_bytes: Numbers, n: Numbers, stride: Numbers = 1) -> Numbers:
        """As `Machine.collective_s`; the stride is in the planner's order."""
        if name == "send" and self.has_free_messages:
            return 0.0 * size_bytes
        if n == 1 or (n - 1) * stride >= prod(size for _, size in self.sizes):
            return super().collective_s(name, size_bytes, n, stride)  # no other rank, or no such ranks
        ranks = self.ranks(int(n), int(stride))
        apart = ranks[1] - ranks[0]
        if all(b - a == apart for a, b in zip(ranks, ranks[1:], strict=False)):
            return super().collective_s(name, size_bytes, n, apart)
        net = self._network(ranks)
        if name != "broadcast in turn":
            return collective_cost(name, float(size_bytes), net).time_s
        times_s = [collective_cost("broadcast", float(size_bytes), net, root=i).time_s for i in range(len(ranks))]
        return sum(times_s) / len(ranks)

    def in_node(self, n: Numbers, stride: Numbers) -> Numbers:
        """As `Machine.in_node`."""
        return sum(rank < self.cluster.devices_per_node for rank in self.ranks(int(n), int(stride)))

    def ranks(self, n: int, stride: int) -> tuple[int, ...]:
        """Positions of the planner's ranks 0, stride, ..., (n - 1) stride in this order; ascending."""
        return tuple(sorted(self._place(k * stride) for k in range(n)))

    def _place(self, rank: int) -> int:
        place = 0
        for axis, size in reversed(self.sizes):
            place, rank = place + rank % size * self._strides[axis], rank // size
        return place

    @cached_property
    def _strides(self) -> dict[str, int]:
        sizes = dict(self.sizes)
        return {axis: prod(sizes[later] for later in self.order[i + 1 :]) for i, axis in enumerate(self.order)}

    @cached_property
    def _network(self):
        return lru_cache(maxsize=256)(lambda ranks: GroupNetwork(self.groups.cluster, ranks))


@lru_cache(maxsize=256)
def placed_machine(
    machine: Machine, parallel: Parallel, order: tuple[str, ...], has_free_messages: bool = False
) -> PlacedMachine:
    """The machine with its ranks in an order from `checked_order`; one cached record for equal arguments."""
    sizes = tuple((axis, size) for axis, size in axis_sizes(parallel, "expert" in order).items())
    order = tuple(axis for axis, _ in sizes if axis not in order) + order
    same = machine.cluster, machine.stack, machine.derating, machine.precision
    return PlacedMachine(*same, sizes, order, has_free_messages)


def axis_sizes(parallel: Parallel, has_expert_axis: bool = False) -> dict[str, int]:
    """Ranks on each axis, in the planner's order; an expert axis takes its ranks from the data axis."""
    sizes = {axis: getattr(parallel, axis) for axis in ORDER}
    if not has_expert_axis:
        return sizes
    split = {"data": sizes["data"] // parallel.expert, "expert": parallel.expert}
    return {"pipeline": sizes["pipeline"], **split, "context": sizes["context"], "tensor": sizes["tensor"]}


def checked_order(order: Sequence[str], parallel: Parallel) -> tuple[str, ...]:
    """The order, if it is of names of axes, each once, and fits this split; otherwise a ValueError."""
    if isinstance(order, str) or not isinstance(order, Sequence):
        raise ValueError(f"order is the axes, from far apart to neighbours: got {shown(order)}; try {ORDER}")
    for axis in order:
        if not isinstance(axis, str) or axis not in PLACED:
            raise unknown_name("axis", axis, PLACED)
    if twice := [axis for i, axis in enumerate(order) if axis in order[:i]]:
        raise ValueError(f"order has each axis once: got {shown(twice[0])} twice; leave one out")
    if "expert" in order and parallel.expert > 1 and (parallel.context > 1 or parallel.data % parallel.expert):
        raise ValueError(
            "an expert axis must divide the data ranks, without a context axis: got expert "
            f"{parallel.expert}, data {parallel.data} and context {parallel.context}; leave expert out of the order, "
            "which puts experts on the context ranks first"
        )
    if "expert" in order and parallel.expert_tensor_ranks != parallel.tensor:
        raise ValueError(
            "an expert axis needs experts that all tensor ranks share: got expert_tensor "
            f"{parallel.expert_tensor_ranks} and tensor {parallel.tensor}; leave expert out of the order"
        )
    for axis, size in axis_sizes(parallel, "expert" in order).items():
        if size > 1 and axis not in order:
            raise ValueError(
                f"order has every axis with more than one rank: got {shown(tuple(order))} with {axis} {size}; put "
                f"{axis} in"
            )
    return tuple(order)
