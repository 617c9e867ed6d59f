"""Checks of lab 08: collectives. Each run is checked for values, calls, bytes and seconds; ranks and sizes are random.

Legend: n ranks, L of them on each of N nodes; S bytes; alpha, 1/beta of a link.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from math import ceil, isfinite, prod
from numbers import Real
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from lablib import Run, find_cluster
from lablib.cost import GroupNetwork
from lablib.course import Expect, exercise
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.learner_code import learner_frames, program_error
from lablib.course.checks.observe import Observed
from lablib.course.checks.rules import not_from_lablib, observe, works_in_place
from lablib.errors import LaunchError, RankError
from lablib.hardware import Cluster
from lablib.text.units import format_quantity

ONE_NODE = find_cluster("dgx-h100").free_compute().replace(devices_per_node=64)
LINK = ONE_NODE.intra
HALVES = ("exchange", "ring_reduce_scatter", "ring_all_gather")
SENDS = "dist.send, dist.recv, dist.isend, dist.irecv"

AllReduce = Callable[..., Any]
Shape = tuple[int, ...]
Ask = Callable[[int, Shape, torch.dtype], None]
AGAIN = "each further call in the same program sums as the first did, for the same or another size"
MIXED = "a call in a group, and then one without a group, sum as if each were the first"
EXACT = "whole numbers are summed exactly, in their own type"
GROUP_ADVICE = (
    "Is `group` given everywhere: to get_rank, to get_world_size, to each send and receive? `group_dst` and "
    "`group_src` take ranks of the group, which count its members from 0; `dst` and `src` take ranks of the world."
)
ALL_ASKED = "values, calls, bytes and seconds"


def drawn(expect: Expect, n: int, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """The input of each of n ranks; int64 numbers are odd and so large that floats would round them."""
    large = dtype == torch.int64
    parts = [((2**55 if large else 100) * expect.draw.tensor(shape, torch.float64)).to(dtype) for _ in range(n)]
    return [part | 1 for part in parts] if large else parts


def total(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(parts)).sum(dim=0, dtype=parts[0].dtype)


def call_inside(all_reduce: AllReduce, x: Tensor, *rest: Any) -> Observed:
    """One call on a view into a larger tensor; its memory is inspected, since `x.data = ...` is not in place."""
    whole = x.new_zeros(x.numel() + 2)
    inside = whole[1:-1].view(x.shape)
    inside.copy_(x)
    call = observe(lambda whole: all_reduce(whole[1:-1].view(x.shape), *rest), whole)
    if whole[0] or whole[-1]:
        raise RuleBroken("the memory next to x stays as it was", f"{whole[[0, -1]].tolist()}", "[0, 0]")
    return replace(call, args=(inside,))


def run_on(
    expect: Expect, all_reduce: AllReduce, parts: list[Tensor], cluster: Cluster = ONE_NODE, allowed: str = SENDS
) -> Run:
    """One call on each rank; each must leave the sum in the tensor that was passed, and use messages only."""

    def program(parts: list[Tensor]) -> Any:
        return call_inside(all_reduce, parts[dist.get_rank()])

    run = expect.launch(program, parts, ranks=len(parts), cluster=cluster)
    works_in_place(expect, run, [total(parts)] * len(parts), what="the sum")
    if not parts[0].is_floating_point():
        expect.equal(EXACT, [call.args[0] for call in run.values], [total(parts)] * len(parts))
    messages_only(expect, run, f"{len(parts)} ranks, {parts[0].numel()} elements", allowed)
    return run


def messages_only(expect: Expect, run: Run, where: str, allowed: str) -> None:
    """No collective of torch is called; names the run, since some answers call one only in some runs."""
    others = sorted({transfer.name for transfer in run.traffic.transfers} - {"send"})
    expect.that(
        f"only sends and receives are called, no collective ({where})",
        not others,
        saw=f"calls of {', '.join(others)}" if others else "sends only",
        expected=allowed,
    )


def odd_size(expect: Expect, n: int) -> int:
    """A number of elements that n does not divide (n is 2 or more); three too many or more, if n permits.

    Three, since leaving them all in one chunk then gives too unequal shares, for any n.
    """
    return n * expect.draw.integer(20, 60) + expect.draw.integer(min(3, n - 1), n - 1)


def ask_all(expect: Expect, ask: Ask, counts: Sequence[int]) -> None:
    """On these numbers of ranks and on 1 to 5: sizes that n divides or not, shapes and types, few elements."""
    a, b, c, d, many = counts
    draw = expect.draw
    with expect.grouped(f"also on {', '.join(map(str, counts))} ranks, with other sizes and shapes", ALL_ASKED):
        ask(a, (a * draw.integer(20, 600),), torch.float32)
        ask(b, (odd_size(expect, b),), torch.float64)
        ask(c, (2, draw.integer(11, 29)), torch.int64)
        ask(d, (draw.integer(1, d - 1),), torch.float64)
        ask(many, (odd_size(expect, many),), torch.int64)
    with expect.grouped("also on 1 to 9 ranks, for a single number and for an empty tensor", ALL_ASKED):
        for n in range(1, 10):
            ask(n, (7,), torch.int32 if n % 2 else torch.float32)
        ask(draw.integer(2, 3), (), torch.float64)
        ask(draw.integer(2, 5), (0,), torch.float32)


def call_again(expect: Expect, all_reduce: AllReduce, n: int) -> None:
    """Calls on each rank, as in steps of training, the first size twice: no state of a call changes the next."""
    first, second = expect.draw.integers(2, 2 * n, 20 * n)
    calls = [drawn(expect, n, (size,)) for size in (first, second, first)]

    def program(parts: list[tuple[Tensor, ...]]) -> list[Tensor]:
        return [observe(all_reduce, x).args[0] for x in parts[dist.get_rank()]]

    run = expect.launch(program, list(zip(*calls, strict=True)), ranks=n, cluster=ONE_NODE)
    expect.close(AGAIN, run.values, [[total(call) for call in calls]] * n, rtol=1e-4, atol=1e-2)


def call_mixed(expect: Expect, all_reduce: AllReduce) -> None:
    """All ranks, then two groups at the same time, one of them with rank 0, then all again."""
    n = expect.draw.integer(4, 6)
    groups = [[0, 2], [rank for rank in range(n) if rank not in (0, 2)]]
    size, dtype = expect.draw.integer(2 * n, 9 * n), torch.int64
    calls = [drawn(expect, n, (size,), dtype) for _ in range(3)]

    def program(parts: list[tuple[Tensor, ...]]) -> list[Tensor]:
        rank = dist.get_rank()
        members = [dist.new_group(group) for group in groups][0 if rank in groups[0] else 1]
        rests = ((), (members,), ())
        return [observe(all_reduce, x, *rest).args[0] for x, rest in zip(parts[rank], rests, strict=True)]

    run = expect.launch(program, list(zip(*calls, strict=True)), ranks=n, cluster=ONE_NODE)
    whole, last = total(calls[0]), total(calls[2])
    of_group = [total([calls[1][rank] for rank in group]) for group in groups]
    wanted = [[whole, of_group[0 if rank in groups[0] else 1], last] for rank in range(n)]
    expect.equal(MIXED, run.values, wanted)


def run_in_a_group(expect: Expect, all_reduce: AllReduce, allowed: str = SENDS) -> tuple[Run, list[int], Tensor]:
    """Some ranks sum among themselves; they neither begin at rank 0 nor are evenly spaced.
    Returns the run, these ranks, and a rank's input.
    """
    n = expect.draw.integer(6, 8)
    group = sorted({1, 2, 4, *expect.draw.integers(2, 4, n - 1)})
    parts = drawn(expect, n, (2, 3, 2 * len(group) + 1))

    def program(parts: list[Tensor]) -> Any:
        members, x = dist.new_group(group), parts[dist.get_rank()]
        return call_inside(all_reduce, x, members) if dist.get_rank() in group else observe(lambda x: None, x)

    rule = f"it works in a group: ranks {', '.join(map(str, group))} of {n} sum among themselves"
    try:
        run = expect.launch(program, parts, ranks=n, cluster=ONE_NODE)
    except LaunchError as error:
        cause = program_error(error)
        if isinstance(cause, NotImplementedError | RuleBroken):
            raise
        where = f" on rank {error.rank}" if isinstance(error, RankError) else ""
        saw = "\n".join(filter(None, [f"{type(cause).__name__}{where}: {cause}", learner_frames(cause, __file__)]))
        advice = "" if cause is error else f". {GROUP_ADVICE}"  # a diagnosis contains the advice
        raise RuleBroken(rule, saw, f"the group's sum on each of its ranks{advice}") from error
    sum_of_group = total([parts[rank] for rank in group])
    wanted = [sum_of_group if rank in group else part for rank, part in enumerate(parts)]
    expect.close(rule, [call.args[0] for call in run.values], wanted, rtol=1e-4, atol=1e-2)
    messages_only(expect, run, "in a group", allowed)
    return run, group, parts[0]


def sent_by(run: Run, members: Sequence[int] | None = None) -> list[float]:
    return [run.traffic.sent_bytes(rank) for rank in (range(run.ranks) if members is None else members)]


def shares_within(expect: Expect, what: str, sent: Sequence[float], at_most: float, at_least: float) -> None:
    """Every rank sends its share, and no rank much less than another."""
    expect.budget(f"the most a rank sends, {what}", max(sent), at_most, "B")
    least, most = (format_quantity(value, "B", digits=4) for value in (min(sent), max(sent)))
    expect.that(
        f"the least a rank sends, {what}",
        min(sent) >= at_least - 1e-9,
        saw=f"ranks send unequal shares, from {least} to {most}" if min(sent) < max(sent) else f"each {least}",
        expected=f"at least {format_quantity(at_least, 'B', digits=4)} from each rank: all share the work",
    )


def seconds_within(expect: Expect, what: str, run: Run, at_most: float) -> None:
    expect.budget(f"seconds of {what}, {run.ranks} ranks", run.timeline.makespan_s, at_most, "s")


@exercise(
    "The ring",
    hints=[
        "After the reduce-scatter rank r holds the sum of chunk r + 1 (mod n), and of no other. Which chunk can it "
        "pass to the right in the first step? Which one comes from the left?",
        "In each further step a rank sends on what it has just received. So the chunk that rank r sends goes down by "
        "one from step to step, counted mod n.",
        "In step s, rank r sends chunk (r + 1 - s) % n; for its left neighbour apply the same rule to r - 1. Receive "
        "straight into the chunk, a view of the tensor: nothing has to be added.",
    ],
)
def ring_all_reduce(expect: Expect, answer: AllReduce) -> None:
    not_from_lablib(answer, allowed=("exchange", "ring_reduce_scatter"))
    allowed = f"{SENDS}, parallel.exchange or parallel.ring_reduce_scatter"

    def within_budget(run: Run, members: Sequence[int], part: Tensor) -> None:
        n, size, item = len(members), part.numel(), part.element_size()
        largest = ceil(size / n) * item  # bytes of a chunk
        what = f"2(n-1)/n of {size * item} B on {n} ranks"
        at_least = max(0, 2 * (size * item - largest))
        shares_within(expect, what, sent_by(run, members), 2 * (n - 1) * largest, at_least)
        seconds_within(expect, "2(n-1) steps", run, 2 * (n - 1) * LINK.transfer_s(largest))

    def ask(n: int, shape: Shape, dtype: torch.dtype) -> None:
        parts = drawn(expect, n, shape, dtype)
        within_budget(run_on(expect, answer, parts, allowed=allowed), range(n), parts[0])

    ask(4, (1024,), torch.float32)
    ask_all(expect, ask, [*expect.draw.integers(4, 5, 9), expect.draw.integer(10, 20)])
    call_again(expect, answer, 4)
    within_budget(*run_in_a_group(expect, answer, allowed))
    call_mixed(expect, answer)


@exercise(
    "The tree",
    hints=[
        "Upwards, a rank receives in the rounds before it sends, and after it has sent it is done. Which ranks take "
        "part in the round of stride 1? Of stride 2? What do their numbers have in common?",
        "In the round of a stride, the ranks that are multiples of 2 * stride receive, if their partner exists, and "
        "add; the ranks with rank % (2 * stride) == stride send. Receive into a new tensor.",
        "Down: the same pairs, the strides in reverse, sender and receiver swapped. Now receive into `tensor` itself.",
    ],
)
def tree_all_reduce(expect: Expect, answer: AllReduce) -> None:
    not_from_lablib(answer)

    def within_budget(run: Run, members: Sequence[int], part: Tensor) -> None:
        n, size_bytes = len(members), part.nbytes
        rounds, all_bytes = (n - 1).bit_length(), 2 * (n - 1) * size_bytes
        what = f"all {n} ranks send: n - 1 pairs, once up and once down"
        expect.budget(f"messages that {what}", run.traffic.count("send"), 2 * (n - 1), "messages")
        expect.budget(f"bytes that {what}", sum(sent_by(run)), all_bytes, "B", at_least=all_bytes)
        seconds_within(expect, f"2 log2(n) = {2 * rounds} rounds", run, 2 * rounds * LINK.transfer_s(size_bytes))

    def ask(n: int, shape: Shape, dtype: torch.dtype) -> None:
        parts = drawn(expect, n, shape, dtype)
        within_budget(run_on(expect, answer, parts), range(n), parts[0])

    ask(8, (256,), torch.float32)
    ask_all(expect, ask, [*expect.draw.integers(4, 4, 12), expect.draw.integer(13, 40)])
    call_again(expect, answer, 4)
    within_budget(*run_in_a_group(expect, answer))
    call_mixed(expect, answer)


@exercise(
    "The crossing as a formula",
    hints=[
        "Call the rounds k = log2 n, rounded up. Divide both sides by 2 and multiply out.",
        "Collect the terms with alpha on one side and the terms with S beta on the other.",
        "(n - 1 - k) alpha = (k - (n-1)/n) S beta. `(n - 1).bit_length()` is the exponent of the first power of two "
        "that is not below n; rounding log2 may be wrong.",
    ],
)
def crossing_size_bytes(expect: Expect, answer: Callable[[int, float, float], Any]) -> None:
    not_from_lablib(answer, allowed=("Link",))
    draw = expect.draw
    with expect.grouped("ring and tree take the same time", "on 4 to 99 ranks, and on some up to 5000, on any link"):
        at_the_crossing(expect, answer, 8)
        at_the_crossing(expect, answer, 6)
        odd = [*(2**k + 1 for k in range(7, 13)), *draw.integers(9, 100, 5000)]
        for n in [*range(4, 100), *(2**k for k in range(7, 13)), *odd]:
            at_the_crossing(expect, answer, n)
        alpha, bandwidth = a_link(expect, 8)
        for other in (bandwidth, bandwidth / 4, bandwidth):
            at_the_crossing(expect, answer, 8, (alpha, other))
    for n in (2, 3):
        rule = f"on {n} ranks the tree never wins, so the crossing is 0"
        size = number_of_bytes(expect, answer(n, *a_link(expect, n)))
        expect.that(rule, size == 0, saw=format_quantity(size, "B", 6), expected="0 B")


def a_link(expect: Expect, n: int) -> tuple[float, float]:
    """An alpha and a bandwidth, far apart from call to call; together so many bytes that a small error shows."""
    exponent = expect.draw.number(-8, -2)
    return 10**exponent, 10 ** expect.draw.number(max(7, (3 if n < 1000 else 5) - exponent), 13)


def at_the_crossing(
    expect: Expect, answer: Callable[[int, float, float], Any], n: int, link: tuple[float, float] | None = None
) -> None:
    """Ring and tree take the same time at the answer's size."""
    rounds = next(k for k in range(20) if 2**k >= n)  # log2 n, rounded up
    alpha, bandwidth = link or a_link(expect, n)
    size, beta = number_of_bytes(expect, answer(n, alpha, bandwidth)), 1 / bandwidth
    ring, tree = (2 * (n - 1) * (alpha + size / n * beta), 2 * rounds * (alpha + size * beta))
    # Both times are straight lines of the size, so their difference gives the error of the size.
    off_bytes = abs(ring - tree) / (2 * (rounds - (n - 1) / n) * beta)
    kind = "a power of two" if n & (n - 1) == 0 else "no power of two"
    size_text, *times, alpha_text = (
        format_quantity(value, unit, 6) for value, unit in ((size, "B"), (ring, "s"), (tree, "s"), (alpha, "s"))
    )
    expect.that(
        f"ring and tree take the same time ({n} ranks, {kind})",
        off_bytes <= 1 + 1e-6 * size,  # rounding to a byte, or in float32, is forgiven
        saw=f"at {size_text} the ring takes {times[0]}, the tree {times[1]} "
        f"(alpha {alpha_text}, 1/beta {format_quantity(bandwidth, 'B/s', 4)})",
        expected="equal times",
    )


def number_of_bytes(expect: Expect, value: Any) -> float:
    """A plain number, a fraction, a decimal, or an array or a tensor of one element; 0 or more."""
    is_number = isinstance(value, Real | Decimal) and not isinstance(value, bool)
    is_number = is_number or (isinstance(value, Tensor | np.ndarray) and prod(value.shape) == 1)
    if not is_number:
        raise RuleBroken("a size is returned, in bytes", repr(value), "a number: `return size`")
    size = float(value)
    if not (isfinite(size) and size >= 0):
        raise RuleBroken("the size is 0 or more, and finite", f"{size:g} B", "0 B or more")
    return size


@exercise(
    "Halving and doubling",
    hints=[
        "Two partners hold the same piece, each with different sums. What does each need from the other, if one of "
        "them ends with the first half of the piece and the other with the second?",
        "Begin with the largest stride. If rank & stride is 0, keep the first half: send the second, receive the "
        "partner's first half into a new tensor, and add. Remember both halves.",
        "After the last round 1/n of the tensor is summed. Go through the strides and the remembered halves backwards: "
        "send the half that was kept, and receive into the half that was given away.",
    ],
)
def halving_doubling_all_reduce(expect: Expect, answer: AllReduce) -> None:
    not_from_lablib(answer, allowed=("exchange",))
    allowed = f"{SENDS} or parallel.exchange"
    draw = expect.draw

    def ask(n: int, shape: Shape, dtype: torch.dtype = torch.float32) -> None:
        parts = drawn(expect, n, shape, dtype)
        run = run_on(expect, answer, parts, allowed=allowed)
        size, item, rounds = parts[0].numel(), parts[0].element_size(), n.bit_length() - 1
        # One element more for cutting at the bounds of n chunks; and n chunks of equal size, for padding.
        spare, padded = int(size % n != 0), n * ceil(size / n)
        most = [max(ceil(size / 2**k) + spare, padded >> k) for k in range(1, rounds + 1)]
        least = [max(0, size // 2**k - spare) for k in range(1, rounds + 1)]
        what = f"2(n-1)/n of {size * item} B on {n} ranks"
        shares_within(expect, what, sent_by(run), 2 * item * sum(most), 2 * item * sum(least))
        seconds_within(
            expect, f"2 log2(n) = {2 * rounds} rounds", run, 2 * sum(LINK.transfer_s(item * m) for m in most)
        )

    ask(8, (1024,))
    small, large = draw.shuffled((4, 8))
    with expect.grouped("also on 4, 8, 16 and 32 ranks, with other sizes and shapes", ALL_ASKED):
        ask(small, (small * draw.integer(20, 60),))
        ask(large, (2, 3, draw.integer(31, 59)), torch.int64)
        ask(16, (odd_size(expect, 16),), torch.float64)
        ask(32, (odd_size(expect, 32),))
        ask(4, (draw.integer(1, 3),))
    with expect.grouped("also on 1 and 2 ranks, for a single number and for an empty tensor", ALL_ASKED):
        ask(1, (7,))
        ask(2, (7,), torch.int32)
        ask(2, (), torch.float64)
        ask(4, (0,))
    call_again(expect, answer, 4)


@exercise(
    "The hierarchy",
    hints=[
        "Rank r is on node r // ranks_per_node at place r % ranks_per_node. Its node is a range of adjacent ranks, its "
        "rail every ranks_per_node-th rank.",
        "Cut the tensor into as many chunks as the node has ranks, and reduce-scatter them over the node. Which chunk "
        "of the node's sum does the rank at place p hold then?",
        "Only that chunk goes over the rail, cut into as many pieces as there are nodes: both halves of a ring. "
        "Last, gather the chunks inside the node.",
    ],
)
def hierarchical_all_reduce(expect: Expect, answer: AllReduce) -> None:
    not_from_lablib(answer, allowed=HALVES)

    allowed, draw = f"{SENDS}, {', '.join(f'parallel.{half}' for half in HALVES)}", expect.draw

    def ask(local: int, num_nodes: int, *shape: int, dtype: torch.dtype = torch.float32) -> None:
        cluster = ONE_NODE.replace(devices_per_node=local)
        parts = drawn(expect, local * num_nodes, shape, dtype)
        run = run_on(expect, lambda x: answer(x, local), parts, cluster, allowed)
        network_within_budget(expect, run, cluster, prod(shape), parts[0].element_size())

    ask(4, 2, 1024)
    few, many = draw.shuffled((3, 4))
    with expect.grouped("also on one to seven nodes of 1 to 9 ranks, with other sizes and shapes", ALL_ASKED):
        ask(2, few, odd_size(expect, 2 * few), dtype=torch.float64)
        ask(3, many, 2, 3, draw.integer(11, 29), dtype=torch.int64)
        ask(draw.integer(4, 6), 3, odd_size(expect, 12))
        ask(5, 2, 10 * draw.integer(20, 60) + 4)  # 4, 5: the remainder shows wherever it is put
        ask(draw.integer(7, 9), 2, odd_size(expect, 12))
        ask(2, draw.integer(5, 7), odd_size(expect, 10))
        ask(3, draw.integer(2, 3), draw.integer(1, 2))
        ask(draw.integer(2, 4), 1, odd_size(expect, 5))
        ask(1, 3, odd_size(expect, 3), dtype=torch.int32)
        ask(1, 1, 7)
        ask(2, 2)
        ask(2, 2, 0)
    call_again(expect, lambda x: answer(x, 2), 4)


def network_within_budget(expect: Expect, run: Run, cluster: Cluster, size: int, item: int) -> None:
    """Bytes that leave a node, by NIC, and the seconds, if chunks and pieces differ by one element."""
    net = GroupNetwork(cluster, range(run.ranks))
    local, num_nodes = len(net.by_node[0]), len(net.by_node)
    where = f"{num_nodes} {'node' if num_nodes == 1 else 'nodes'} of {local}"
    piece = ceil(size / (local * num_nodes))
    chunk = num_nodes * piece  # for padding, or cutting at the bounds of n pieces; at most N - 1 elements too many
    sent = [0.0] * run.ranks
    for message in run.traffic.transfers:
        source, target = message.ranks
        sent[source] += message.tensor_bytes if cluster.node(source) != cluster.node(target) else 0.0
    leaving = [sum(sent[rank] for rank in node) for node in net.by_node]
    least = 2 * item * (num_nodes - 1) * local * (size // run.ranks)  # by rings, or straight to each member
    nic = 2 * item * (num_nodes - 1) * piece
    rule = f"bytes that leave a node, 2(N-1)/N of the tensor ({where})"
    expect.budget(rule, max(leaving), local * nic, "B")
    expect.budget(f"{rule}, no less", min(leaving), local * nic, "B", at_least=least)
    expect.budget(f"bytes through the busiest NIC, 2(N-1)/N * S/L ({where})", max(sent), nic, "B")
    inside = max(node.ring.time_s(chunk * item) for node in net.nodes)
    across = max(rail.ring.time_s(piece * item) for rail in net.rails)
    seconds_within(expect, f"its three phases ({where})", run, 2 * (local - 1) * inside + 2 * (num_nodes - 1) * across)
