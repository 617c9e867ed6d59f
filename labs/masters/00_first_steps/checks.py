"""Checks of lab 00: first steps."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from lablib import CorruptGradient, find_cluster, launch
from lablib.course import Expect, exercise

CLUSTER = "dgx-h100"
LENGTH = 1_000_000  # numbers of 4 bytes: large enough for the ring, the algorithm that sends least


@exercise(
    "The mean over ranks",
    hints=[
        "Which collective leaves a sum on every rank? And what is a mean, once you have the sum?",
        "`all_reduce` writes its result into the tensor it is given: give it a copy, `x.clone()`.",
        "mean = x.clone(); dist.all_reduce(mean); then divide by dist.get_world_size(), and return it.",
    ],
)
def mean_over_ranks(expect: Expect, mean_over_ranks: Callable[[Tensor], Tensor]) -> None:
    def program(length: int):
        x = torch.full((length,), 2.0 * dist.get_rank() + 1.0)
        before = x.clone()
        mean = mean_over_ranks(x)
        return (mean if isinstance(mean, Tensor) else repr(mean)), torch.equal(x, before)

    for ranks in (4, 3):  # the numbers 1, 3, 5, 7 and 1, 3, 5
        run = launch(program, 3, ranks=ranks, cluster=CLUSTER)
        means = [mean for mean, _ in run.values]
        expect.that("every rank returns a tensor", all(isinstance(m, Tensor) for m in means), means, "a tensor each")
        expect.close(f"the mean over {ranks} ranks, on every rank", means, [torch.full((3,), float(ranks))] * ranks)
        kept = all(is_kept for _, is_kept in run.values)
        expect.that("x stays as it was", kept, "x as it was" if kept else "x changed", "work on a copy of x")

    run = launch(program, LENGTH, ranks=4, cluster=CLUSTER)
    sent_bytes = max(run.traffic.sent_bytes(rank) for rank in range(4))
    expect.budget("bytes each rank sends for 4 MB on 4 ranks", sent_bytes, 2 * 3 / 4 * 4 * LENGTH, "B")
    expect.budget("communications", len(run.traffic), 1, "calls")


@exercise(
    "Pass to the right",
    hints=[
        "What must each rank have begun before it waits for anything?",
        "`dist.isend` begins a send and returns at once. The right neighbour is (rank + 1) % world_size.",
        "inbox = torch.empty_like(x); sending = dist.isend(x, dst=right); dist.recv(inbox, src=left); sending.wait().",
    ],
)
def pass_to_right(expect: Expect, pass_to_right: Callable[[Tensor], Tensor]) -> None:
    def program(length: int):
        got = pass_to_right(torch.full((length,), float(dist.get_rank())))
        return got if isinstance(got, Tensor) else repr(got)

    for ranks in (4, 5):
        got = launch(program, 3, ranks=ranks, cluster=CLUSTER).values
        expect.that("every rank returns a tensor", all(isinstance(g, Tensor) for g in got), got, "a tensor each")
        inside = [torch.full((3,), float(rank - 1)) for rank in range(1, ranks)]
        expect.close(f"ranks 1 to {ranks - 1} hold what their left neighbour gave", got[1:], inside)
        expect.close("rank 0 holds what the last rank gave", got[0], torch.full((3,), ranks - 1.0))

    run = launch(program, LENGTH, ranks=8, cluster=find_cluster(CLUSTER).free_compute())
    sent_bytes = max(run.traffic.sent_bytes(rank) for rank in range(8))
    expect.budget("bytes each rank sends: x, once", sent_bytes, 4 * LENGTH, "B")
    one_message_s = find_cluster(CLUSTER).edge(0, 1).transfer_s(4 * LENGTH)
    expect.budget("seconds on 8 ranks: two messages", run.timeline.makespan_s, 2 * one_message_s, "s")


@exercise(
    "Equal weights, different data",
    hints=[
        "`torch.manual_seed` may be called more than once. What should each seed depend on?",
        "Weights: a seed made from `seed` alone. Data: a seed made from `seed` and the rank, and never `seed` itself.",
        "torch.manual_seed(seed) for the weights; torch.manual_seed(1000 * (seed + 1) + dist.get_rank()) for the data.",
    ],
)
def weights_and_data(expect: Expect, weights_and_data: Callable[[int], tuple[Tensor, Tensor]]) -> None:
    run = launch(weights_and_data, 3, ranks=4, cluster=CLUSTER)
    pairs = [value if isinstance(value, tuple | list) else (value,) for value in run.values]
    is_pair = all(len(p) == 2 and all(isinstance(t, Tensor) and t.shape == (4, 4) for t in p) for p in pairs)
    expect.that("two tensors of shape (4, 4) on every rank", is_pair, run.values[0], "return weights, data")
    weights, data = zip(*pairs, strict=True)
    expect.equal("the same weights on every rank", list(weights), [weights[0]] * 4)
    same = [f"ranks {i} and {j}" for i in range(4) for j in range(i) if torch.equal(data[i], data[j])]
    expect.that("different data on every rank", not same, same and f"the same data on {same[0]}", "no two alike")
    copies = [rank for rank in range(4) if torch.equal(data[rank], weights[0])]
    saw = f"on rank {copies[0]} the data are the weights" if copies else "other numbers"
    expect.that("data are not the weights' numbers over again", not copies, saw, "a data seed unlike the weights'")

    other = launch(weights_and_data, 4, ranks=4, cluster=CLUSTER).values
    for index, name in enumerate(("weights", "data")):
        same = [rank for rank in range(4) if torch.equal(other[rank][index], pairs[rank][index])]
        saw = f"the same {name} with seeds 3 and 4 on rank {same[0]}" if same else "other numbers"
        expect.that(f"another seed gives other {name}", not same, saw, "a seed that depends on `seed`")
    expect.budget("bytes sent", run.traffic.sent_bytes(), 0, "B")


@exercise(
    "Mend a deadlock",
    hints=[
        "Which rank waits in the broken program, and who is not there?",
        "A collective belongs to all ranks. Only the text belongs to rank 0.",
        "Call dist.all_reduce(loss) above the `if`, on every rank; leave the `return` below it.",
    ],
)
def report(expect: Expect, report: Callable[[Tensor], str | None]) -> None:
    def program():
        return report(torch.tensor([1.5 + dist.get_rank()]))  # losses 1.5, 2.5, 3.5, 4.5

    run = launch(program, ranks=4, cluster=CLUSTER)
    expect.equal("rank 0 reports the mean loss of all ranks", run.values[0], "mean loss 3.00")
    expect.equal("ranks 1 to 3 report nothing", run.values[1:], [None] * 3)
    expect.budget("communications", len(run.traffic), 1, "calls")
    one_all_reduce = launch(lambda: dist.all_reduce(torch.ones(1)), ranks=4, cluster=CLUSTER)
    expect.budget("bytes sent by all ranks", run.traffic.sent_bytes(), one_all_reduce.traffic.sent_bytes(), "B")


@exercise(
    "Whose gradient is it?",
    hints=[
        "What can one rank find out without the others? What must all of them then learn?",
        "`grad.isfinite().all()` is a rank's own answer: one number. Which collective shows everybody's to everybody?",
        "Make `flags`, a list of n tensors of one number; dist.all_gather(flags, is_bad); keep the ranks with a 1.",
    ],
)
def corrupted_ranks(expect: Expect, corrupted_ranks: Callable[[Tensor], list[int]]) -> None:
    def program(features: int):
        torch.manual_seed(0)
        layer = torch.nn.Linear(features, features, bias=False)
        layer(torch.ones(2, features)).sum().backward()
        grad = layer.weight.grad
        assert grad is not None
        before = grad.clone()
        found = corrupted_ranks(grad)
        return found, torch.equal(grad.nan_to_num(7.0), before.nan_to_num(7.0))

    def launched(*faults: CorruptGradient, ranks: int = 4, features: int = 4):
        return launch(program, features, ranks=ranks, cluster=CLUSTER, faults=faults)

    def found(*faults: CorruptGradient, ranks: int = 4):
        return [ranks_found for ranks_found, _ in launched(*faults, ranks=ranks).values]

    with_nan = launched(CorruptGradient(2, kind="nan"))
    expect.equal("a NaN on rank 2: every rank returns [2]", [value for value, _ in with_nan.values], [[2]] * 4)
    kept = all(is_kept for _, is_kept in with_nan.values)
    expect.that("grad stays as it was", kept, "grad as it was" if kept else "grad changed", "leave grad alone")
    infinite = CorruptGradient(1, kind="inf")
    expect.equal("an infinite number on rank 1: every rank returns [1]", found(infinite), [[1]] * 4)
    two = (CorruptGradient(3, kind="nan"), CorruptGradient(0, kind="inf", element=5))
    expect.equal("ranks 0 and 3 are hit: every rank returns both", found(*two), [[0, 3]] * 4)
    expect.equal("all is well on 3 ranks: an empty list", found(ranks=3), [[]] * 3)

    run = launched(CorruptGradient(2, kind="nan"), features=64)
    one_number_each = launch(lambda: dist.all_reduce(torch.zeros(4, dtype=torch.int64)), ranks=4, cluster=CLUSTER)
    sent_bytes = max(run.traffic.sent_bytes(rank) for rank in range(4))
    at_most = max(one_number_each.traffic.sent_bytes(rank) for rank in range(4))
    expect.budget("communications", len(run.traffic), 1, "calls")
    expect.budget("bytes a rank sends", sent_bytes, at_most, "B")
