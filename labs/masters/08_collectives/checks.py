"""Checks of lab 08: collectives. Each run is asked for values, calls, bytes, seconds; ranks and sizes are drawn anew.

Legend: n ranks, L of them on each of N nodes; S bytes; alpha, 1/beta of a link.
"""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lablib import Run, find_cluster
from lablib.cost import GroupNetwork
from lablib.course import Expect, exercise
from lablib.course.rules import not_from_lablib, observe, works_in_place
from lablib.hardware import Cluster

ONE_NODE = find_cluster("dgx-h100").free_compute().but(devices_per_node=16)
LINK = ONE_NODE.intra
HALVES = ("exchange", "ring_reduce_scatter", "ring_all_gather")

AllReduce = Callable[..., Any]
ALL_ASKED = "values, calls, bytes and seconds"


def drawn(expect: Expect, n: int, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """What each of n ranks puts in."""
    return [expect.draw.tensor(shape, dtype) for _ in range(n)]


def total(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(parts)).sum(dim=0)


def run_on(expect: Expect, all_reduce: AllReduce, parts: list[Tensor], cluster: Cluster = ONE_NODE) -> Run:
    """One call on each rank; each must leave the sum in the tensor that was passed, and use messages only."""

    def program(parts: list[Tensor]) -> Any:
        return observe(all_reduce, parts[dist.get_rank()].clone())

    run = expect.launch(program, parts, ranks=len(parts), cluster=cluster)
    works_in_place(expect, run, [total(parts)] * len(parts), what="the sum")
    messages_only(expect, run, f"{len(parts)} ranks, {parts[0].numel()} elements")
    return run


def messages_only(expect: Expect, run: Run, where: str) -> None:
    """No collective of torch's own; says in which run, since some answers call one in some runs only."""
    others = sorted({transfer.name for transfer in run.traffic.transfers} - {"send"})
    expect.that(
        f"only sends and receives are called, no collective ({where})",
        not others,
        saw=f"calls of {', '.join(others)}" if others else "sends only",
        expected="dist.send, dist.recv and their kin, or parallel.exchange",
    )


def odd_size(expect: Expect, n: int) -> int:
    """A number of elements that n does not divide (n is 2 or more)."""
    return n * expect.draw.integer(20, 60) + expect.draw.integer(1, n - 1)


def cases(expect: Expect, counts: Sequence[int]) -> list[tuple[int, tuple[int, ...], torch.dtype]]:
    """(ranks, shape, dtype): a size that n divides, sizes that it does not, a matrix, fewer elements than ranks."""
    a, b, c, d = counts
    few = max(2, expect.draw.integer(1, d))
    return [
        (a, (a * expect.draw.integer(20, 60),), torch.float32),
        (b, (odd_size(expect, b),), torch.float64),
        (c, (2, expect.draw.integer(11, 29)), torch.float32),
        (d, (few - 1,), torch.float64),
    ]


def works_in_a_group(expect: Expect, all_reduce: AllReduce) -> None:
    """Some ranks sum among themselves; those of the group neither begin at rank 0 nor are evenly spaced."""
    n = expect.draw.integer(6, 8)
    group = sorted({1, 2, 4, *expect.draw.integers(2, 4, n - 1)})
    parts = drawn(expect, n, (len(group) * 12 + 1,))

    def program(parts: list[Tensor]) -> Any:
        members, x = dist.new_group(group), parts[dist.get_rank()].clone()
        return observe(lambda x: all_reduce(x, members) if dist.get_rank() in group else None, x)

    rule = f"it works in a group: ranks {', '.join(map(str, group))} of {n} sum among themselves"
    try:
        run = expect.launch(program, parts, ranks=n, cluster=ONE_NODE)
    except Exception as error:
        if isinstance(error.__cause__, NotImplementedError):
            raise
        saw = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        expect.that(rule, False, saw=saw, expected="the group's sum on each of its ranks")
        return
    sum_of_group = total([parts[rank] for rank in group])
    wanted = [sum_of_group if rank in group else part for rank, part in enumerate(parts)]
    expect.close(rule, [call.args[0] for call in run.values], wanted, rtol=1e-4, atol=1e-4)
    messages_only(expect, run, "in a group")


def sent_by(run: Run) -> list[float]:
    return [run.traffic.sent_bytes(rank) for rank in range(run.ranks)]


def seconds_within(expect: Expect, what: str, run: Run, at_most: float) -> None:
    expect.budget(f"seconds of {what}, {run.ranks} ranks", run.timeline.makespan_s, at_most, "s")


@exercise(
    "The ring",
    hints=[
        "After the reduce-scatter rank r holds the sum of chunk r + 1 (mod n), and of no other. Which chunk can it "
        "pass to the right in the first step? Which one comes from the left?",
        "In each further step a rank sends on what it has just received. So the chunk that rank r sends goes down by "
        "one from step to step, counted mod n.",
        "In step s, rank r sends chunk (r + 1 - s) % n; its left neighbour sends what the same rule gives for r - 1. "
        "Receive that straight into the chunk, a view of the tensor: nothing is to be added any more.",
    ],
)
def ring_all_reduce(expect: Expect, answer: AllReduce) -> None:
    not_from_lablib(answer, allowed=("exchange", "ring_reduce_scatter"))

    def ask(n: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        parts = drawn(expect, n, shape, dtype)
        run = run_on(expect, answer, parts)
        size, item = parts[0].numel(), parts[0].element_size()
        largest = ceil(size / n) * item  # bytes of a chunk
        what = f"a rank sends, 2(n-1)/n of {size * item} B on {n} ranks"
        expect.budget(f"the most {what}", max(sent_by(run)), 2 * (n - 1) * largest, "B")
        least = max(0, 2 * (size * item - largest))
        expect.budget(f"the least {what}", min(sent_by(run)), 2 * (n - 1) * largest, "B", at_least=least)
        seconds_within(expect, "2(n-1) steps", run, 2 * (n - 1) * LINK.transfer_s(largest))

    ask(4, (1024,), torch.float32)
    counts = expect.draw.integers(4, 5, 9)
    with expect.as_one(f"so it is on {', '.join(map(str, counts))} ranks, with other sizes and shapes", ALL_ASKED):
        for case in cases(expect, counts):
            ask(*case)
    with expect.as_one("it works on 1, 2 and 3 ranks", "values and calls"):
        for n in (1, 2, 3):
            run_on(expect, answer, drawn(expect, n, (7,)))
    works_in_a_group(expect, answer)


@exercise(
    "The tree",
    hints=[
        "Upwards, a rank receives in the rounds before it sends, and after it has sent it is done. Which ranks are "
        "left in the round of stride 1? Of stride 2? What do their numbers have in common?",
        "In the round of a stride, the ranks that are multiples of 2 * stride receive, if their partner exists, and "
        "add; those with rank % (2 * stride) == stride send. Receive into a tensor of its own.",
        "Down: the same pairs, the strides in reverse, sender and receiver swapped. Now receive into `tensor` itself.",
    ],
)
def tree_all_reduce(expect: Expect, answer: AllReduce) -> None:
    not_from_lablib(answer)

    def ask(n: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        parts = drawn(expect, n, shape, dtype)
        run = run_on(expect, answer, parts)
        size_bytes, rounds = parts[0].nbytes, (n - 1).bit_length()
        all_bytes = 2 * (n - 1) * size_bytes
        what = f"all {n} ranks send: n - 1 pairs, once up and once down"
        expect.budget(f"messages that {what}", run.traffic.count("send"), 2 * (n - 1), "messages")
        expect.budget(f"bytes that {what}", sum(sent_by(run)), all_bytes, "B", at_least=all_bytes)
        seconds_within(expect, f"2 log2(n) = {2 * rounds} rounds", run, 2 * rounds * LINK.transfer_s(size_bytes))

    ask(8, (256,), torch.float32)
    counts = expect.draw.integers(4, 4, 12)
    with expect.as_one(f"so it is on {', '.join(map(str, counts))} ranks, with other sizes and shapes", ALL_ASKED):
        for case in cases(expect, counts):
            ask(*case)
    with expect.as_one("it works on 1, 2 and 3 ranks", "values and calls"):
        for n in (1, 2, 3):
            run_on(expect, answer, drawn(expect, n, (7,)))
    works_in_a_group(expect, answer)


@exercise(
    "The crossing as a formula",
    hints=[
        "Call the rounds k = log2 n, rounded up. Divide both sides by 2 and multiply out.",
        "Collect what has alpha on one side and what has S beta on the other.",
        "(n - 1 - k) alpha = (k - (n-1)/n) S beta. And which power of two is the first that is not below n? "
        "(n - 1).bit_length() knows; rounding log2 does not.",
    ],
)
def crossing_size_bytes(expect: Expect, answer: Callable[[int, float, float], Any]) -> None:
    not_from_lablib(answer)
    draw = expect.draw
    powers = [8, 2 ** draw.integer(2, 12)]
    others = [
        draw.choice((6, 7, 12, 13, 14, 15)),
        draw.choice((5, 9, 10, 11)),
        draw.integer(17, 22),
        draw.integer(65, 90),
        *draw.integers(3, 100, 5000),
    ]
    for n in [*powers, *others]:
        rounds = next(k for k in range(20) if 2**k >= n)  # log2 n, rounded up
        alpha, bandwidth = 10 ** draw.number(-6, -4), 10 ** draw.number(9, 12)
        size = answer(n, alpha, bandwidth)
        beta, value = 1 / bandwidth, number(expect, size)
        ring, tree = (2 * (n - 1) * (alpha + value / n * beta), 2 * rounds * (alpha + value * beta))
        kind = "a power of two" if n & (n - 1) == 0 else "no power of two"
        expect.that(
            f"ring and tree take the same time ({n} ranks, {kind})",
            value > 0 and abs(ring / tree - 1) < 1e-9,
            saw=f"at {value:.6g} B the ring takes {ring * 1e6:.6g} us, the tree {tree * 1e6:.6g} us "
            f"(alpha {alpha * 1e6:.4g} us, {bandwidth / 1e9:.4g} GB/s)",
            expected="equal times",
        )
    for n in (2, 3):
        rule = f"on {n} ranks the tree never wins, so the crossing is 0"
        size = answer(n, 10 ** draw.number(-6, -4), 10 ** draw.number(9, 12))
        expect.that(rule, number(expect, size) == 0, saw=f"{number(expect, size):.6g} B", expected="0 B")


def number(expect: Expect, value: Any) -> float:
    """A plain number, a fraction, or a tensor of one element."""
    try:
        return float(value)
    except (TypeError, ValueError):
        expect.that("a size is returned, in bytes", False, saw=repr(value), expected="a number")
        raise


@exercise(
    "Halving and doubling",
    hints=[
        "Two partners hold the same piece, each with sums of its own. What does each need of the other's, if one of "
        "them shall end with the first half of it and the other with the second?",
        "Begin with the largest stride. If rank & stride is 0, keep the first half: send the second, receive the "
        "partner's first half into a tensor of its own, and add. Remember which two halves there were.",
        "After the last round 1/n of the tensor is summed. Go through the strides and the remembered halves backwards: "
        "send the half that was kept; what comes in belongs into the half that was given away.",
    ],
)
def halving_doubling_all_reduce(expect: Expect, answer: AllReduce) -> None:
    not_from_lablib(answer, allowed=("exchange",))
    small, large = expect.draw.shuffled((4, 8))
    shapes = [(small * expect.draw.integer(20, 60),), (expect.draw.integer(2, 3), expect.draw.integer(41, 59))]

    def ask(n: int, shape: tuple[int, ...]) -> None:
        parts = drawn(expect, n, shape, torch.float64 if n == 16 else torch.float32)
        run = run_on(expect, answer, parts)
        size, item, rounds = parts[0].numel(), parts[0].element_size(), n.bit_length() - 1
        halves = [size / 2**k for k in range(1, rounds + 1)]
        largest, smallest = (2 * item * sum(f(half) for half in halves) for f in (ceil, int))
        what = f"a rank sends, 2(n-1)/n of {size * item} B on {n} ranks"
        expect.budget(f"the most {what}", max(sent_by(run)), largest, "B")
        expect.budget(f"the least {what}", min(sent_by(run)), largest, "B", at_least=smallest)
        at_most = 2 * sum(LINK.transfer_s(item * ceil(half)) for half in halves)
        seconds_within(expect, f"2 log2(n) = {2 * rounds} rounds", run, at_most)

    ask(8, (1024,))
    with expect.as_one("so it is on 4, 8 and 16 ranks, with other sizes and shapes", ALL_ASKED):
        ask(small, shapes[0])
        ask(large, shapes[1])
        ask(16, (expect.draw.integer(3, 99),))
    with expect.as_one("it works on 1 and 2 ranks", "values and calls"):
        for n in (1, 2):
            run_on(expect, answer, drawn(expect, n, (7,)))


@exercise(
    "The hierarchy",
    hints=[
        "Rank r is on node r // ranks_per_node at place r % ranks_per_node. Its node is a range of neighbours, its "
        "rail every ranks_per_node-th rank.",
        "Cut the tensor into as many chunks as the node has ranks, and reduce-scatter them over the node. Which chunk "
        "of the node's sum does the rank at place p hold then?",
        "Only that chunk goes over the rail, cut into as many pieces as there are nodes: both halves of a ring. "
        "What is left is to bring the chunks together inside the node.",
    ],
)
def hierarchical_all_reduce(expect: Expect, answer: AllReduce) -> None:
    not_from_lablib(answer, allowed=HALVES)

    def ask(local: int, num_nodes: int, size: int) -> None:
        cluster = ONE_NODE.but(devices_per_node=local)
        parts = drawn(expect, local * num_nodes, (size,))
        run = run_on(expect, lambda x: answer(x, local), parts, cluster)
        network_within_budget(expect, run, cluster, size, parts[0].element_size())

    ask(4, 2, 1024)
    few, many = expect.draw.shuffled((3, 4))
    with expect.as_one("so it is on one, three and four nodes of 1 to 4 ranks, with other sizes", ALL_ASKED):
        ask(2, few, odd_size(expect, 2 * few))
        ask(expect.draw.integer(3, 4), many, odd_size(expect, 16))
        ask(3, 4, expect.draw.integer(4, 7))
        ask(expect.draw.integer(2, 4), 1, odd_size(expect, 5))
        ask(1, 3, odd_size(expect, 3))


def network_within_budget(expect: Expect, run: Run, cluster: Cluster, size: int, item: int) -> None:
    """What leaves a node, by which NIC, and the seconds, where chunks and pieces differ by one element."""
    net = GroupNetwork(cluster, range(run.ranks))
    local, num_nodes = len(net.by_node[0]), len(net.by_node)
    where = f"{num_nodes} {'node' if num_nodes == 1 else 'nodes'} of {local}"
    chunk, piece = ceil(size / local), ceil(ceil(size / local) / num_nodes)
    sent = [0.0] * run.ranks
    for message in run.traffic.transfers:
        source, target = message.ranks
        sent[source] += message.tensor_bytes if cluster.node(source) != cluster.node(target) else 0.0
    leaving = [sum(sent[rank] for rank in node) for node in net.by_node]
    chunks = [size // local + (i < size % local) for i in range(local)]  # as tensor_split cuts
    least = sum(2 * item * (each - ceil(each / num_nodes)) for each in chunks)
    nic = 2 * item * (num_nodes - 1) * piece
    rule = f"bytes that leave a node, 2(N-1)/N of the tensor ({where})"
    expect.budget(rule, max(leaving), local * nic, "B")
    expect.budget(f"{rule}, no less", min(leaving), local * nic, "B", at_least=least)
    expect.budget(f"bytes through the busiest NIC, 2(N-1)/N * S/L ({where})", max(sent), nic, "B")
    inside = max(node.ring.time_s(chunk * item) for node in net.nodes)
    across = max(rail.ring.time_s(piece * item) for rail in net.rails)
    seconds_within(expect, f"its three phases ({where})", run, 2 * (local - 1) * inside + 2 * (num_nodes - 1) * across)
