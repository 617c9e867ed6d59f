"""A buffer holds what it held until the wait of its own work, whatever way it waits; a dropped handle is a finding.

gloo cannot be asked: its handle of a reduce_scatter has no future, and a poll of it never ends.
"""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager

from lablib import launch
from lablib.errors import UnwaitedWarning, WriteInFlightWarning
from lablib.sim.communication.delivery import Delivery

OLD = -1.0


def given_in(rank: int, salt: int, parts: int = 1) -> Tensor:
    """What a rank gives in: two numbers for each part."""
    return torch.arange(2.0 * parts) + 100 * rank + 1000 * salt


def old(parts: int = 1) -> Tensor:
    return torch.full((2 * parts,), OLD)


Issued = tuple[Any, list[Tensor], list[Tensor]]  # handle, buffers, what they hold after the wait


def all_reduce(rank: int, n: int, salt: int) -> Issued:
    x = given_in(rank, salt)
    total = torch.stack([given_in(r, salt) for r in range(n)]).sum(0)
    return dist.all_reduce(x, async_op=True), [x], [total]


def broadcast(rank: int, n: int, salt: int) -> Issued:
    root = salt % n
    x = given_in(rank, salt)
    return dist.broadcast(x, src=root, async_op=True), [x], [given_in(root, salt)]


def reduce(rank: int, n: int, salt: int) -> Issued:
    root = salt % n
    x = given_in(rank, salt)
    total = torch.stack([given_in(r, salt) for r in range(n)]).sum(0)
    return dist.reduce(x, dst=root, async_op=True), [x], [total if rank == root else given_in(rank, salt)]


def all_gather(rank: int, n: int, salt: int) -> Issued:
    outputs = [old() for _ in range(n)]
    expected = [given_in(r, salt) for r in range(n)]
    return dist.all_gather(outputs, given_in(rank, salt), async_op=True), outputs, expected


def all_gather_into_tensor(rank: int, n: int, salt: int) -> Issued:
    output = old(n) if rank % 2 else old(n).view(n, 2)  # ranks may shape the same numbers differently
    expected = torch.cat([given_in(r, salt) for r in range(n)]).view(output.shape)
    return dist.all_gather_into_tensor(output, given_in(rank, salt), async_op=True), [output], [expected]


def gather(rank: int, n: int, salt: int) -> Issued:
    root = salt % n
    outputs = [old() for _ in range(n)] if rank == root else None
    work = dist.gather(given_in(rank, salt), outputs, dst=root, async_op=True)
    return work, outputs or [], [given_in(r, salt) for r in range(n)] if rank == root else []


def scatter(rank: int, n: int, salt: int) -> Issued:
    root, output = salt % n, old()
    parts = [given_in(r, salt) for r in range(n)] if rank == root else None
    return dist.scatter(output, parts, src=root, async_op=True), [output], [given_in(rank, salt)]


def reduce_scatter(rank: int, n: int, salt: int) -> Issued:
    output, parts = old(), list(given_in(rank, salt, n).view(n, 2))
    total = torch.stack([given_in(r, salt, n) for r in range(n)]).sum(0)
    return dist.reduce_scatter(output, parts, async_op=True), [output], [total[2 * rank : 2 * rank + 2]]


def reduce_scatter_tensor(rank: int, n: int, salt: int) -> Issued:
    output = old()
    total = torch.stack([given_in(r, salt, n) for r in range(n)]).sum(0)
    work = dist.reduce_scatter_tensor(output, given_in(rank, salt, n), async_op=True)
    return work, [output], [total[2 * rank : 2 * rank + 2]]


def all_to_all(rank: int, n: int, salt: int) -> Issued:
    outputs = [old() for _ in range(n)]
    expected = [given_in(r, salt, n)[2 * rank : 2 * rank + 2] for r in range(n)]
    return dist.all_to_all(outputs, list(given_in(rank, salt, n).view(n, 2)), async_op=True), outputs, expected


def all_to_all_single(rank: int, n: int, salt: int) -> Issued:
    output = old(n)
    expected = torch.cat([given_in(r, salt, n)[2 * rank : 2 * rank + 2] for r in range(n)])
    return dist.all_to_all_single(output, given_in(rank, salt, n), async_op=True), [output], [expected]


def message(rank: int, n: int, salt: int) -> Issued:
    """Round the ring. The handles of both sides are one here: the receive's is waited for first."""
    inbox = old()
    works = [dist.irecv(inbox, src=(rank - 1) % n), dist.isend(given_in(rank, salt), dst=(rank + 1) % n)]
    return _Both(works), [inbox], [given_in((rank - 1) % n, salt)]


class _Both:
    def __init__(self, works: list[Any]):
        self.works = works

    def wait(self) -> None:
        for work in self.works:
            work.wait()


KINDS: list[Callable[[int, int, int], Issued]] = [
    *(all_reduce, broadcast, reduce, all_gather, all_gather_into_tensor, gather, scatter, reduce_scatter),
    *(reduce_scatter_tensor, all_to_all, all_to_all_single, message),
]


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Callable], list[list[int]]]:
    """Communications, issued in this order by every rank, and which of them each rank waits for, in which order."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    num_ranks = draw(st.integers(2, 4))
    numbers = range(len(kinds))
    waits = [
        draw(st.permutations(numbers).flatmap(lambda p: st.integers(0, len(p)).map(lambda k: p[:k])))
        for _ in range(num_ranks)
    ]
    return kinds, waits


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # new names since torch 2.13
@given(programs())
def test_a_buffer_is_filled_by_its_own_wait_and_by_no_other(drawn):
    kinds, waits = drawn
    num_ranks = len(waits)

    def program() -> None:
        rank = dist.get_rank()
        issued = [kind(rank, num_ranks, salt) for salt, kind in enumerate(kinds)]
        before = [[b.tolist() for b in buffers] for _, buffers, _ in issued]  # no operator: nobody is told of a read
        waited: set[int] = set()

        def look() -> None:
            for number, (_, buffers, after) in enumerate(issued):
                for buffer, then, now in zip(buffers, before[number], after, strict=True):
                    assert buffer.tolist() == (now.tolist() if number in waited else then), (
                        kinds[number].__name__,
                        waited,
                    )

        for number in waits[rank]:
            issued[number][0].wait()
            waited.add(number)
            look()
            for buffer, now in zip(issued[number][1], issued[number][2], strict=True):
                now += 0.5  # after the wait the buffer is the program's again: others must not see this
                buffer += 0.5
        dist.barrier()
        look()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnwaitedWarning)
        run = launch(program, ranks=num_ranks)
    unwaited = {number for order in waits for number in set(range(len(kinds))) - set(order)}
    assert bool(unwaited) == bool([note for note in run.notes if "never waited" in note])


def poll(work: dist.Work) -> None:
    while not work.is_completed():
        pass


WAYS: dict[str, Callable[[dist.Work], Any]] = {
    "wait": lambda work: work.wait(),
    "wait twice": lambda work: (work.wait(), work.wait()),
    "synchronize": lambda work: work.synchronize(),
    "result": lambda work: work.result(),
    "poll": poll,
    "future": lambda work: work.get_future().wait(),
    "then": lambda work: work.get_future().then(lambda future: future.value()).wait(),
}


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_waiting_fills_the_buffers(way: str, ranks: int):
    def program() -> None:
        for salt, kind in enumerate(KINDS[:-1]):
            work, buffers, after = kind(dist.get_rank(), ranks, salt)
            WAYS[way](work)
            assert [buffer.tolist() for buffer in buffers] == [now.tolist() for now in after], kind.__name__

    launch(program, ranks=ranks)


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("is_async", [False, True])
def test_coalesced_gathers_and_scatters_equal_those_made_one_by_one(is_async: bool):
    def program() -> tuple[list[Tensor], list[Tensor]]:
        shards, wholes = [torch.randn(2, 3) for _ in range(3)], [torch.zeros(6, 3) for _ in range(3)]
        with _coalescing_manager(async_ops=is_async) as manager:
            for whole, shard in zip(wholes, shards, strict=True):
                dist.all_gather_into_tensor(whole, shard)
        if is_async:
            manager.wait()
        parts, sums = [torch.randn(6, 3) for _ in range(3)], [torch.zeros(2, 3) for _ in range(3)]
        with _coalescing_manager(async_ops=is_async) as manager:
            for total, part in zip(sums, parts, strict=True):
                dist.reduce_scatter_tensor(total, part)
        if is_async:
            manager.wait()
        plain = [torch.zeros(6, 3) for _ in range(3)] + [torch.zeros(2, 3) for _ in range(3)]
        for k in range(3):
            dist.all_gather_into_tensor(plain[k], shards[k])
            dist.reduce_scatter_tensor(plain[3 + k], parts[k])
        return wholes + sums, plain

    for coalesced, plain in launch(program, ranks=3).values:
        assert all(torch.equal(x, y) for x, y in zip(coalesced, plain, strict=True))


def test_one_poll_of_what_is_under_way_is_false_and_no_wait():
    """`work.is_completed(); x /= n` without a loop is a race: nobody waited."""

    def program() -> bool:
        x = torch.ones(100_000)
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        seen = work.is_completed()
        x /= dist.get_world_size()
        return seen

    with pytest.warns(UnwaitedWarning):
        run = launch(program, ranks=3)
    assert run.values == [False] * 3


def test_a_poll_after_enough_work_is_true():
    def program() -> tuple[bool, bool, float]:
        x = torch.ones(1000)
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        early = work.is_completed()
        torch.ones(3000, 3000) @ torch.ones(3000, 3000)
        return early, work.is_completed(), x[0].item()

    assert launch(program, ranks=2).values == [(False, True, 2.0)] * 2


def test_a_receive_is_filled_by_its_wait_although_the_sender_has_gone_on():
    def program() -> tuple[list[float], list[float]]:
        x = torch.full((2,), float(dist.get_rank()))
        if dist.get_rank() == 0:
            dist.send(x + 1, dst=1)
            dist.barrier()
            return [], []
        work = dist.irecv(x, src=0)
        dist.barrier()
        early = x.tolist()
        assert work is not None
        work.wait()
        return early, x.tolist()

    # The sender may go on before the receiver waits: the bytes have left its buffer.
    assert launch(program, ranks=2).values[1] == ([1.0, 1.0], [1.0, 1.0])


def test_what_is_sent_is_read_when_somebody_waits_so_writing_to_it_before_is_seen():
    def program() -> float:
        x = torch.ones(1)
        work = dist.all_reduce(x, async_op=True)
        if dist.get_rank() == 0:
            x += 10  # wrong: the communication may still read it
        assert work is not None
        work.wait()
        return x.item()

    with pytest.warns(WriteInFlightWarning):
        assert launch(program, ranks=2).values == [12.0, 12.0]


def test_a_dropped_handle_is_named_with_its_ranks_and_its_line():
    def program() -> None:
        for _ in range(3):
            if dist.get_rank() != 1:
                dist.isend(torch.ones(1), dst=1)
        if dist.get_rank() == 1:
            for _ in range(3):
                dist.recv(torch.ones(1), src=0)
                dist.recv(torch.ones(1), src=2)

    with pytest.warns(UnwaitedWarning, match="on real processes the message may not have left"):
        run = launch(program, ranks=3)
    (note,) = run.notes
    assert "garbage" not in note and note.startswith(
        "ranks 0, 2 never waited for send of group world, 3 times (test_delivery.py:"
    )
    assert "dist.isend(torch.ones(1), dst=1)" in note


def test_many_lines_that_drop_handles_become_a_few_notes():
    lines = "".join("    dist.all_reduce(torch.ones(1), async_op=True)\n" for _ in range(20))
    place: dict[str, Any] = {"dist": dist, "torch": torch}
    exec(compile(f"def program():\n{lines}", "dropping.py", "exec"), place)
    with pytest.warns(UnwaitedWarning):
        run = launch(place["program"], ranks=2)
    assert len(run.notes) == 9 and run.notes[-1].startswith("12 more lines")


def test_one_coalesced_handle_is_for_all_that_it_holds():
    def program() -> list[float]:
        xs = [torch.full((2,), float(dist.get_rank())) for _ in range(3)]
        with _coalescing_manager(async_ops=True) as manager:
            for x in xs:
                dist.all_reduce(x)
        early = [x.tolist()[0] for x in xs]  # no operator: nobody is told of a read
        manager.wait()
        return early + [x[0].item() for x in xs]

    run = launch(program, ranks=2)
    assert run.values == [[0.0] * 3 + [1.0] * 3, [1.0] * 6] and not run.notes


def test_results_that_are_the_same_for_all_are_kept_once():
    delivery, received, seen = Delivery(), [[old()] for _ in range(5)], []

    def move(sent: Any, into: Any) -> None:
        seen.extend(id(tensors[0]) for tensors in into)
        for tensors in into:
            tensors[0].fill_(7.0)

    delivery.load([[]] * 5, received, move, is_alike=True)
    delivery.waiting.add(1)
    delivery.fill(0)
    assert seen[:2] == [id(received[0][0]), id(received[1][0])] and len(set(seen[2:])) == 1
    assert [r[0][0].item() for r in received] == [7.0, 7.0, OLD, OLD, OLD]
    delivery.fill(4)
    assert [r[0][0].item() for r in received] == [7.0, 7.0, OLD, OLD, 7.0]
