"""All-reduce with sums in the switch: NVLink SHARP, NCCL's NVLS and NVLSTree.

In a ring every element passes every rank twice. Switches from NVSwitch 3 on (H100, B200) can add. Rank k loads the sums
of its n-th part of the tensor from a multicast address: the switch reads that part from all n ranks and adds them. Then
rank k stores its sums to the same address, and the switch sends a copy to every rank.

    nvls        one node        alpha + (n+1)/n S beta
    nvls-tree   several nodes   alpha + (L+1)/L S beta + all-reduce of S/L on every rail, by the faster of ring and tree

    sent = received: (n+1)/n S; with nvls-tree (L+1)/L S, plus the rail's bytes

Of the (n+1)/n S that leave a rank, S are its tensor, part by part, and S/n its sums. (Its own part goes through the
switch, too.) So from 4 ranks on it is less than the ring's 2 (n-1)/n S, the minimum without such a switch: on 8 ranks
9/8 S instead of 14/8 S. alpha is the `nvls_latency_s` of the link.

Legend: n ranks, L of them on each of N nodes; S bytes; 1/beta the bandwidth of a device into its switch.

Off by default: "auto" considers it where the cluster says `uses_nvls`; by its name it is available wherever the link
has it. All-gather and reduce-scatter gain nothing: a rank receives, or sends, all of S either way.

Source: R. Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP): A hardware architecture for efficient
data reduction", COMHPC 2016 (InfiniBand's switches); B. Klenk, N. Jiang, G. Thorson, L. Dennison, "An in-network
architecture for accelerating shared-memory multiprocessor collectives", ISCA 2020 (NVSwitch); NVIDIA/nccl 2.28.9,
src/device/all_reduce.h (RunWorkColl of NVLS and NVLS_TREE), src/graph/tuning.cc, and its user guide, NCCL_NVLS_ENABLE.
Simplified: both halves are pipelined perfectly, at the link's bandwidth. On 8 H100 a large all-reduce was measured to
be 1.3 times as fast as the ring (NVIDIA/nccl issues 1442 and 1455), not 14/9 = 1.56 times: NCCL's tuning counts 0.85
of Hopper's bandwidth for NVLS. SHARP in InfiniBand switches (NCCL's CollNet) is not modelled.
"""

from collections.abc import Iterator

from lablib.cost.algorithms import (
    EQUAL_NODES,
    RING_ALL_REDUCE,
    TREE_ALL_REDUCE,
    Algorithm,
    Message,
    Paths,
    Term,
    fills_nodes,
)


def _one_switch(g: Paths, size: float, root: int) -> Iterator[Term]:
    yield 1, (g.size + 1) / g.size * size, g.switches


def _switches(g: Paths, size: float, root: int) -> Iterator[Term]:
    yield 1, (g.local + 1) / g.local * size, g.switches


def _sent(n: int, size: float, root: int) -> tuple[float, ...]:
    return ((n + 1) / n * size,) * n


def _messages(n: int, size: float, root: int) -> Iterator[Message]:
    # The switch adds in flight: a rank's bytes are spread over the others evenly.
    share = (n + 1) / n * size / (n - 1)
    return ((a, b, share) for a in range(n) for b in range(n) if a != b)


NVLS = Algorithm("nvls", _one_switch, _sent, _messages, (), lambda g: g.is_one_node, "ranks of one node")
NVLS_TREE = Algorithm(
    "nvls-tree", _switches, _sent, _messages, (RING_ALL_REDUCE, TREE_ALL_REDUCE), fills_nodes, EQUAL_NODES
)
