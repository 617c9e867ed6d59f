"""Checks of lab 08: collectives. Values first, then the bytes and the seconds that the algorithm may take."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lablib import Run, find_cluster, launch
from lablib.cost import GroupNetwork, collective_cost
from lablib.course import Expect, exercise
from lablib.hardware import LINKS, Cluster

ONE_NODE = find_cluster("dgx-h100").free_compute()
FEW_A_NODE = {local: ONE_NODE.but(devices_per_node=local) for local in (2, 3, 4)}
GROUP = (1, 2, 4)  # of 6 ranks: neither from 0 nor evenly spaced


def numbers(n: int, size: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """What each rank puts in: whole numbers, whose sum is exact in any order, and which nobody can guess."""
    generator = torch.Generator().manual_seed(8)
    return [torch.randint(-999, 1000, (size,), generator=generator).to(dtype) for _ in range(n)]


def total(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(parts)).sum(dim=0).to(parts[0].dtype)


def run_on(all_reduce: Callable[..., Any], parts: list[Tensor], cluster: Cluster = ONE_NODE) -> Run:
    """Each rank's tensor after the call, and what the call returned."""

    def program() -> tuple[Tensor, Any]:
        x = parts[dist.get_rank()].clone()
        returned = all_reduce(x)
        return x, returned

    return launch(program, ranks=len(parts), cluster=cluster)


def expect_sums(expect: Expect, rule: str, run: Run, parts: Sequence[Tensor]) -> None:
    expect.equal(rule, saw=[after for after, _ in run.values], expected=[total(parts)] * len(parts))


def expect_in_place(expect: Expect, run: Run, parts: list[Tensor]) -> None:
    """Is the sum in the tensor that was passed? One that is returned and not there is the commonest mistake."""
    after, returned = run.values[0]
    only_returned = isinstance(returned, Tensor) and not torch.equal(after, returned)
    expect.that(
        "the sum is in the tensor that was passed, not in a new one",
        not (only_returned and torch.equal(after, parts[0])),
        saw="a new tensor was returned, and `tensor` is as before" if only_returned else "changed in place",
        expected="`tensor` itself changed in place (write `tensor += ...`, `tensor.copy_(...)`)",
    )


def expect_only_messages(expect: Expect, run: Run) -> None:
    """No collective of torch's own, and no way round the network."""
    names = sorted({transfer.name for transfer in run.traffic.transfers} - {"send"})
    expect.that(
        "only sends and receives are used, no collective of torch",
        not names,
        saw=f"calls of {', '.join(names)}" if names else "sends only",
        expected="dist.send, dist.recv and their kin, or parallel.exchange",
    )


def expect_any_ranks(expect: Expect, all_reduce: Callable[..., Any], counts: Sequence[int]) -> None:
    for n in counts:
        parts = numbers(n, 12 * n)
        text = f"it works on {n} {'rank' if n == 1 else 'ranks'}"
        expect_sums(expect, text, run_on(all_reduce, parts), parts)


def expect_any_size(expect: Expect, all_reduce: Callable[..., Any]) -> None:
    for n, size in ((4, 10), (5, 3)):
        parts = numbers(n, size, torch.float64)
        expect_sums(expect, f"it works for {size} float64 on {n} ranks", run_on(all_reduce, parts), parts)
    parts = [part.view(2, 4) for part in numbers(4, 8)]
    expect_sums(expect, "it works for a tensor of shape 2 x 4", run_on(all_reduce, parts), parts)


def expect_any_group(expect: Expect, all_reduce: Callable[..., Any]) -> None:
    parts = numbers(6, 12)

    def program() -> Tensor:
        group, x = dist.new_group(list(GROUP)), parts[dist.get_rank()].clone()
        if dist.get_rank() in GROUP:
            all_reduce(x, group)
        return x

    sum_of_group = total([parts[rank] for rank in GROUP])
    expected = [sum_of_group if rank in GROUP else part for rank, part in enumerate(parts)]
    rule = f"it works in a group: ranks {', '.join(map(str, GROUP))} of 6 sum among themselves"
    try:
        values = launch(program, ranks=6, cluster=ONE_NODE).values
    except Exception as error:
        if isinstance(error.__cause__, NotImplementedError):
            raise
        expect.that(
            rule, False, saw=f"{type(error).__name__}: {error}", expected="the group's sum on each of its ranks"
        )
    else:
        expect.equal(rule, saw=values, expected=expected)


@exercise(
    "The ring",
    hints=[
        "Cut with `chunks = tensor.view(-1).tensor_split(n)`. These are views: changing a chunk changes the tensor. "
        "And n need not divide the size.",
        "Reduce-scatter: in step s, send chunk (rank - s) % n to the right, receive chunk (rank - s - 1) % n from the "
        "left into a tensor of its own, and add it. n - 1 steps.",
        "All-gather: rank r now has chunk (r + 1) % n complete. In step s, send chunk (rank - s + 1) % n to the right, "
        "and receive chunk (rank - s) % n from the left, straight into the chunk. n - 1 steps.",
    ],
)
def ring_all_reduce(expect: Expect, ring_all_reduce: Callable[..., Any]) -> None:
    n, size = 4, 1024
    parts = numbers(n, size)
    run = run_on(ring_all_reduce, parts)
    expect_in_place(expect, run, parts)
    expect_sums(expect, "every rank holds the sum (4 ranks, 1024 floats)", run, parts)
    expect_only_messages(expect, run)
    expect_any_ranks(expect, ring_all_reduce, (1, 2, 3, 5, 8))
    expect_any_size(expect, ring_all_reduce)
    expect_any_group(expect, ring_all_reduce)
    cost = collective_cost("all_reduce", 4 * size, GroupNetwork(ONE_NODE, range(n)), "ring")
    sent = [run.traffic.sent_bytes(rank) for rank in range(n)]
    expect.that(
        "all bytes go through messages (no all-reduce sends less than 2(n-1)/n of the tensor a rank)",
        sum(sent) >= sum(cost.sent_bytes) * (1 - 1e-9),
        saw=f"{sum(sent):g} B sent by all ranks together",
        expected=f"{sum(cost.sent_bytes):g} B",
    )
    expect.budget("bytes that the busiest rank sends", max(sent), at_most=cost.sent_bytes[0], unit="B")
    expect.budget("seconds of 2(n-1) steps", run.timeline.makespan_s, at_most=cost.time_s, unit="s")


@exercise(
    "The tree",
    hints=[
        "In the round of stride 1, 2, 4, ... the ranks that are a multiple of 2 * stride receive from rank + stride, "
        "if there is such a rank.",
        "A rank sends in the one round in which rank % (2 * stride) == stride, to rank - stride; after that it waits "
        "for the sum to come down. There are (n - 1).bit_length() rounds.",
        "Down: go through the strides in reverse, and swap send and receive. Receive into `tensor` itself.",
    ],
)
def tree_all_reduce(expect: Expect, tree_all_reduce: Callable[..., Any]) -> None:
    n, size = 8, 256
    parts = numbers(n, size)
    run = run_on(tree_all_reduce, parts)
    expect_in_place(expect, run, parts)
    expect_sums(expect, "every rank holds the sum (8 ranks, 256 floats)", run, parts)
    expect_only_messages(expect, run)
    expect_any_ranks(expect, tree_all_reduce, (1, 2, 3, 5, 6, 7))
    expect_any_size(expect, tree_all_reduce)
    expect_any_group(expect, tree_all_reduce)
    cost = collective_cost("all_reduce", 4 * size, GroupNetwork(ONE_NODE, range(n)), "tree")
    expect.budget("seconds of 2 log2(n) rounds on 8 ranks", run.timeline.makespan_s, at_most=cost.time_s, unit="s")
    sent = sum(run.traffic.sent_bytes(rank) for rank in range(n))
    expect.budget("bytes that all ranks send (n - 1 links, once up and once down)", sent, sum(cost.sent_bytes), "B")
    expect.that(
        "all bytes go through messages (n - 1 links, once up and once down)",
        sent >= sum(cost.sent_bytes) * (1 - 1e-9),
        saw=f"{sent:g} B sent by all ranks together",
        expected=f"{sum(cost.sent_bytes):g} B",
    )
    many = run_on(tree_all_reduce, numbers(6, size))
    at_most = collective_cost("all_reduce", 4 * size, GroupNetwork(ONE_NODE, range(6)), "tree").time_s
    expect.budget("seconds of 2 log2(n) rounds, rounded up, on 6 ranks", many.timeline.makespan_s, at_most, "s")


@exercise(
    "The crossing as a formula",
    hints=[
        "Divide both sides by 2 and multiply out: (n-1) alpha + (n-1)/n S beta = k alpha + k S beta, with k = log2 n "
        "rounded up.",
        "Collect: (n - 1 - k) alpha = (k - (n-1)/n) S beta.",
        "So S = (n - 1 - k) / (k - (n-1)/n) * alpha / beta, and alpha / beta is latency times bandwidth. "
        "k = (n - 1).bit_length().",
    ],
)
def crossing_size_bytes(expect: Expect, crossing_size_bytes: Callable[[int, float, float], float]) -> None:
    def times(n: int, link: Any, size_bytes: float) -> tuple[float, float]:
        net = GroupNetwork(ONE_NODE.but(intra=link, devices_per_node=n), range(n))
        ring, tree = (collective_cost("all_reduce", size_bytes, net, name).time_s for name in ("ring", "tree"))
        return ring, tree

    for n, name in ((8, "nvlink4"), (8, "roce-100"), (64, "pcie5"), (6, "nvlink4"), (12, "infiniband-ndr")):
        link = LINKS[name]
        size = crossing_size_bytes(n, link.latency_s, link.bandwidth_bytes_per_s)
        saw, is_equal = f"{size!r} B", False
        if isinstance(size, int | float) and size > 0:
            ring, tree = times(n, link, size)
            is_equal = abs(ring / tree - 1) < 1e-9
            saw = f"at {size:.6g} B the ring takes {ring * 1e6:.6g} us, the tree {tree * 1e6:.6g} us"
        expect.that(f"ring and tree take the same time ({n} ranks, {link.name})", is_equal, saw, expected="equal times")
    for n in (2, 3):
        size = crossing_size_bytes(n, 2e-6, 450e9)
        expect.equal(f"on {n} ranks the tree never wins, so the crossing is 0", saw=size, expected=0)


@exercise(
    "The hierarchy",
    hints=[
        "Rank r is on node r // ranks_per_node at place r % ranks_per_node. Its node is a range of neighbours, its "
        "rail every ranks_per_node-th rank.",
        "Cut the tensor into ranks_per_node chunks and reduce-scatter them over the node. The i-th rank of the node "
        "then holds chunk (i + 1) % ranks_per_node of the node's sum.",
        "Cut that one chunk into as many pieces as there are nodes; ring_reduce_scatter and ring_all_gather the pieces "
        "over the rail. Then ring_all_gather the chunks over the node.",
    ],
)
def hierarchical_all_reduce(expect: Expect, hierarchical_all_reduce: Callable[..., Any]) -> None:
    def on_nodes(local: int, nodes: int, size: int) -> tuple[Run, list[Tensor]]:
        parts = numbers(local * nodes, size)
        return run_on(lambda x: hierarchical_all_reduce(x, local), parts, FEW_A_NODE[local]), parts

    run, parts = on_nodes(4, 2, 1024)
    cluster = FEW_A_NODE[4]
    expect_in_place(expect, run, parts)
    expect_only_messages(expect, run)
    size_bytes = parts[0].nbytes
    sent = [0.0] * run.ranks
    for message in run.traffic.transfers:
        source, target = message.ranks
        sent[source] += message.size_bytes if cluster.node(source) != cluster.node(target) else 0.0
    leaving = [sum(sent[:4]), sum(sent[4:])]
    expect.that(
        "the sum of a node reaches the other node through messages",
        min(leaving) > 0,
        saw=f"{min(leaving):g} B leave a node",
        expected=f"{size_bytes:g} B, 2(N-1)/N of the tensor",
    )
    expect_sums(expect, "every rank holds the sum (2 nodes of 4 ranks, 1024 floats)", run, parts)
    for local, nodes, size in ((2, 3, 60), (4, 3, 10), (4, 1, 16), (3, 4, 5)):
        rule = f"it works on {nodes} {'node' if nodes == 1 else 'nodes'} of {local} ranks, {size} floats"
        expect_sums(expect, rule, *on_nodes(local, nodes, size))
    expect.budget("bytes that leave a node, 2(N-1)/N of the tensor", max(leaving), at_most=size_bytes, unit="B")
    expect.budget("bytes through the busiest NIC, 2(N-1)/N * S/L", max(sent), at_most=size_bytes / 4, unit="B")
    cost = collective_cost("all_reduce", size_bytes, GroupNetwork(cluster, range(8)), "hierarchical")
    expect.budget("seconds", run.timeline.makespan_s, at_most=cost.time_s, unit="s")
