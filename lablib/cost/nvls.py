"""An all-reduce whose sums the switch makes: NVLink SHARP, NCCL's NVLS and NVLSTree.

In a ring every element passes every rank twice. Switches from NVSwitch 3 on (H100, B200) add by themselves. Rank k
loads the sums of its n-th part of the tensor from a multicast address: the switch asks all n ranks for that part and
adds what they answer. Then rank k stores its sums to the same address, and the switch hands a copy to every rank.

    nvls        one node        alpha + (n+1)/n S beta
    nvls-tree   several nodes   alpha + (L+1)/L S beta + all-reduce of S/L on every rail, by the faster of ring and tree

    sent = received: (n+1)/n S; with nvls-tree (L+1)/L S, and what the rail sends

Of the (n+1)/n S that leave a rank, S are its tensor, part by part, and S/n its sums. (Its own part goes through the
switch, too.) So from 4 ranks on it is less than the ring's 2 (n-1)/n S, which is the least without such a switch: on 8
ranks 9/8 S instead of 14/8 S. alpha is the `nvls_latency_s` of the link.

Legend: n ranks, L of them on each of N nodes; S bytes; 1/beta the bandwidth of a device into its switch.

Off by default: "auto" considers it where the cluster says `uses_nvls`; by its name it can be had wherever the link has
it. All-gather and reduce-scatter gain nothing: a rank receives, or sends, all of S either way.

Source: R. Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP): A hardware architecture for efficient
data reduction", COMHPC 2016 (InfiniBand's switches); B. Klenk, N. Jiang, G. Thorson, L. Dennison, "An in-network
architecture for accelerating shared-memory multiprocessor collectives", ISCA 2020 (NVSwitch); NVIDIA/nccl 2.28.9,
src/device/all_reduce.h (RunWorkColl of NVLS and NVLS_TREE), src/graph/tuning.cc, and its user guide, NCCL_NVLS_ENABLE.
Simplified: both halves are pipelined perfectly, at the link's bandwidth. On 8 H100 a large all-reduce was measured to
be 1.3 times as fast as the ring (NVIDIA/nccl issues 1442 and 1455), and not 14/9 = 1.56 times: NCCL's tuning counts
0.85 of Hopper's bandwidth for NVLS. SHARP in InfiniBand switches (NCCL's CollNet) is not modelled.
"""

from collections.abc import Mapping
from types import MappingProxyType

from lablib.cost.collective import Algorithm, CollectiveCost, rails_all_reduce
from lablib.cost.network import GroupNetwork
from lablib.hardware.cluster import Cluster


def nvls_all_reduce(net: GroupNetwork, size_bytes: float, root: int = 0) -> CollectiveCost:
    moved = (net.size + 1) / net.size * size_bytes
    return CollectiveCost("nvls", net.switch.time_s(moved), (moved,) * net.size, net.switch.latency_s(moved))


def nvls_tree_all_reduce(net: GroupNetwork, size_bytes: float, root: int = 0) -> CollectiveCost:
    inside = max((nvls_all_reduce(node, size_bytes) for node in net.nodes), key=lambda cost: cost.time_s)
    across = rails_all_reduce(net, size_bytes)
    sent = tuple(inside.sent_bytes[0] + across.sent_bytes[place] for place in range(net.size))
    return CollectiveCost("nvls-tree", inside.time_s + across.time_s, sent, inside.latency_s + across.latency_s)


NVLS: Mapping[str, Mapping[str, Algorithm]] = MappingProxyType(
    {"all_reduce": MappingProxyType({"nvls": nvls_all_reduce, "nvls-tree": nvls_tree_all_reduce})}
)


def nvls_algorithms(name: str, net: GroupNetwork) -> dict[str, Algorithm]:
    """Those of this file that can do the collective on this group of ranks."""
    if net.cluster.intra.nvls_latency_s is None or net.size == 1:
        return {}
    fits = {"nvls": len(net.by_node) == 1, "nvls-tree": net.is_hierarchical}
    return {algorithm: f for algorithm, f in NVLS.get(name, {}).items() if fits[algorithm]}


def why_not(algorithm: str, net: GroupNetwork) -> str:
    """Why an algorithm of this file cannot work on this group: rule, value, remedy."""
    if net.cluster.intra.nvls_latency_s is None:
        return no_nvls(algorithm, net.cluster)
    counts = [len(members) for members in net.by_node]
    needs = "ranks of one node" if algorithm == "nvls" else "two or more nodes with the same number (two or more)"
    return f"algorithm {algorithm!r} needs {needs}: ranks {net.ranks} have {counts} a node; choose 'auto'"


def no_nvls(algorithm: str, cluster: Cluster) -> str:
    """What to say where the switches of a cluster cannot add."""
    return (
        f"algorithm {algorithm!r} needs switches that add (nvls_latency_s of the link inside a node): "
        f"{cluster.intra.name!r} of {cluster.name!r} has none; NVLink 4 and 5 have ('dgx-h100', 'dgx-b200')"
    )
