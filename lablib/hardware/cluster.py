"""Clusters: devices, links and a topology put together; and the edge between any two ranks.

Ranks fill nodes in order: with 8 devices per node, ranks 0 to 7 are node 0, ranks 8 to 15 node 1, and so on. Two ranks
of one node use `intra`; others use the NIC of each device, `inter`, and the topology's switches:

    alpha = link latency + hops * switch latency        1/beta = link bandwidth * taper

A call of the communication library takes another `collective_overhead_s`, once, for any number of rounds: `wire` is the
edge of one round, `edge` the edge of one separate message.

Names of small times:

    device.kernel_overhead_s    the smallest operation: launch and run of one kernel                     5 us on an H100
    intra.latency_s             alpha, one hop: one round of a collective that runs already              1.9 us there
    collective_overhead_s       the call of a collective or a message, before its first hop: measured by `lab calibrate`

The catalogue's clusters have no figure for the last, so it is 0: a collective costs its hops alone, and one hop is
shorter than the smallest operation, as no kernel is launched for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from lablib.hardware.checks import Seconds, check_places, check_size
from lablib.hardware.device import FREE, Device
from lablib.hardware.link import Link
from lablib.hardware.topology import FatTree, Topology
from lablib.signature import NonNegativeInt, OneOf, Range, check_fields

LIBRARIES = ("", "gloo")


@dataclass(frozen=True, slots=True)
class Edge:
    """The connection of two ranks. `level` is "intra" (one node) or "inter"."""

    level: str
    latency_s: float
    bandwidth_bytes_per_s: float

    def transfer_s(self, size_bytes: float) -> float:
        """Seconds for one message: alpha + size * beta. Raises ValueError for a size that is no number."""
        try:
            return self.latency_s + size_bytes / self.bandwidth_bytes_per_s
        except (TypeError, OverflowError, RuntimeError):  # the simulator's innermost loop: checked only after a failure
            check_size(size_bytes)
            raise


@dataclass(frozen=True)
class Cluster:
    """Any number of equal nodes."""

    name: str
    device: Device  # the accelerator; one per rank
    devices_per_node: Annotated[int, Range(ge=1, lt=2**31, example=8)]  # ranks on one node
    intra: Link  # the link between two devices of one node, per device and direction
    inter: Link  # the link from a device out of its node (its NIC), per device and direction
    topology: Topology = field(default_factory=FatTree)  # the network between nodes
    source: str = ""
    # fixed time of one collective or one message of any size, in addition to alpha: the call of the library and the
    # launch of its kernel. 0 in the catalogue: not known.
    collective_overhead_s: Seconds = 0.0
    # "gloo": use the algorithms of this communication library; "": always the fastest one, as NCCL's tuner would
    # (lablib/cost/library.py)
    library: Annotated[str, OneOf(LIBRARIES)] = ""
    # whether "the fastest" may be an all-reduce with sums in the switches of a node, as NCCL's is on a DGX H100
    # (lablib/cost/nvls.py); only if `intra` has an `nvls_latency_s`
    uses_nvls: bool = False
    # processor cores of a node that its ranks share, where ranks are processes on a CPU and `device` describes one
    # process with a core: more ranks than cores take turns, and a communication needs cores too
    # (lablib/engine/cores.py). 0: each rank has its own device, and links need no cores. The planner, for runs on GPUs,
    # does not read it.
    shared_cores: NonNegativeInt = 0
    # when, where and with which versions the figures were measured; empty for published ones
    profile: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_fields(self, self.name)
        if self.uses_nvls and self.intra.nvls_latency_s is None:
            raise ValueError(
                f"uses_nvls needs switches that add (nvls_latency_s of the link inside a node): {self.intra.name!r} of "
                f"{self.name!r} has none; take NVLink 4 or 5, as 'dgx-h100' and 'dgx-b200' have, or leave it out"
            )

    def node(self, rank: int) -> int:
        """The node of a rank. Raises ValueError for an invalid rank."""
        check_places("rank", rank)
        return rank // self.devices_per_node

    def num_nodes(self, ranks: int) -> int:
        """Nodes that so many ranks fill (the last one perhaps in part). Raises ValueError for an invalid number."""
        check_places("ranks", ranks)
        return -(-ranks // self.devices_per_node)

    def edge(self, rank_a: int, rank_b: int) -> Edge:
        """The edge of one message between two ranks, with the call. A rank reaches itself in no time.

        Raises ValueError: an invalid rank.
        """
        wire = self.wire(rank_a, rank_b)
        if rank_a == rank_b or not self.collective_overhead_s:
            return wire
        return replace(wire, latency_s=wire.latency_s + self.collective_overhead_s)

    def wire(self, rank_a: int, rank_b: int) -> Edge:
        """The edge of one round of a collective between two ranks: `edge` without the call. Raises as `edge`."""
        check_places("a rank", rank_a, rank_b)
        if rank_a == rank_b:
            return Edge("self", 0.0, float("inf"))
        node_a, node_b = rank_a // self.devices_per_node, rank_b // self.devices_per_node
        if node_a == node_b:
            return Edge("intra", self.intra.latency_s, self.intra.bandwidth_bytes_per_s)
        hops, taper = self.topology.hops(node_a, node_b), self.topology.taper(node_a, node_b)
        latency_s = self.inter.latency_s + hops * self.topology.switch_latency_s
        return Edge("inter", latency_s, self.inter.bandwidth_bytes_per_s * taper)

    def replace(self, **changes: Any) -> "Cluster":
        """This cluster with some fields changed: `find_cluster("dgx-a100").replace(inter=LINKS["roce-100"])`."""
        return replace(self, **changes)

    def free_compute(self) -> "Cluster":
        """This cluster with a device that computes in no time: only communication takes time."""
        return self.replace(name=f"{self.name}, free compute", device=FREE)
