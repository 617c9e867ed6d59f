# pyright: reportOptionalMemberAccess=false

"""Programs whose transfers meet on the same wires: who is slowed, by how much, and who is not."""

from collections.abc import Iterable
from typing import cast

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import DeadlockError, Run, launch
from lablib.cost import CollectiveCost, GroupNetwork, collective_cost
from lablib.errors import UnwaitedWarning
from tests.sim.toy import TOY, about, compute


def bits(num_bytes: int) -> torch.Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8)


def all_reduce_cost(num_bytes: int, ranks: Iterable[int]) -> CollectiveCost:
    return collective_cost("all_reduce", num_bytes, GroupNetwork(TOY, list(ranks)))


def reduce_in(calls: list[tuple[list[int], int, int]], is_backwards: bool = False) -> None:
    """Every call (ranks, bytes, nanoseconds later than the call before), each in a group of its own, all at once."""
    groups = [cast(dist.ProcessGroup, dist.new_group(ranks)) for ranks, *_ in calls]
    works = []
    for group, (ranks, num_bytes, later) in list(zip(groups, calls, strict=True))[:: -1 if is_backwards else 1]:
        if later:
            compute(later)
        if dist.get_rank() in ranks:
            works.append(dist.all_reduce(bits(num_bytes), group=group, async_op=True))
    for work in works:
        work.wait()


def ends(run: Run) -> list[tuple[tuple[int, ...], float]]:
    return sorted((t.ranks, t.end_s) for t in run.traffic.transfers)


# ---- collectives ----


@settings(max_examples=15)
@given(st.integers(2000, 9000), st.integers(2000, 9000), st.integers(1, 19_000))
def test_two_that_start_apart_share_while_both_are_under_way(first: int, second: int, later: int):
    run = launch(reduce_in, [([0, 1], first, 0), ([0, 1], second, later)], ranks=2, cluster=TOY)
    costs = [all_reduce_cost(size, [0, 1]) for size in (first, second)]
    later_s = later * 1e-9  # the smallest takes 20 us: the first is still under way
    left_s = [costs[0].transfer_s - later_s, costs[1].transfer_s]
    both_s = 2 * min(left_s)
    expected = [later_s + costs[1].latency_s + both_s + (left - both_s / 2) for left in left_s]
    transfers = sorted(run.traffic.transfers, key=lambda t: t.start_s)
    assert [t.end_s for t in transfers] == [pytest.approx(end_s, rel=1e-9) for end_s in expected]


def test_tensor_parallel_groups_inside_nodes_and_data_parallel_groups_across_them_cost_what_they_cost_alone():
    tensor = [list(range(4)), list(range(4, 8))]
    data = [[i, i + 4] for i in range(4)]
    run = launch(reduce_in, [(ranks, 5000, 0) for ranks in tensor + data], ranks=8, cluster=TOY)
    assert len(ends(run)) == 6
    for ranks, end_s in ends(run):
        assert end_s == all_reduce_cost(5000, ranks).time_s


def test_the_next_collective_of_a_group_starts_when_the_slowed_one_before_it_is_over():
    def program() -> None:
        groups = [cast(dist.ProcessGroup, dist.new_group([0, 1])) for _ in range(2)]
        works = [dist.all_reduce(bits(4000), group=groups[i], async_op=True) for i in (0, 1, 0)]
        for work in works:
            work.wait()

    timeline = launch(program, ranks=2, cluster=TOY).timeline
    (first, next_), (beside,) = timeline.select(0, "comm:0,1"), timeline.select(0, "comm:0,1 (2)")
    cost = all_reduce_cost(4000, [0, 1])
    shared_s = about(cost.latency_s + 2 * cost.transfer_s)
    assert [first.end_s, beside.end_s] == [shared_s, shared_s]
    assert next_.start_s == first.end_s and next_.duration_s == about(cost.time_s)


CALLS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5), min_size=2, unique=True).map(sorted),
        st.sampled_from([0, 1000, 3000, 9000]),
        st.just(0),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=15)
@given(CALLS)
def test_the_order_in_which_calls_are_issued_at_one_moment_does_not_matter(calls: list[tuple[list[int], int, int]]):
    forwards, backwards = (launch(reduce_in, calls, is_back, ranks=6, cluster=TOY) for is_back in (False, True))
    assert ends(forwards) == ends(backwards)
    again = launch(reduce_in, calls, ranks=6, cluster=TOY)
    assert again.timeline == forwards.timeline and again.traffic == forwards.traffic


# ---- collectives and messages ----


def test_a_message_and_a_collective_share_a_port():
    def program() -> None:
        work = dist.all_reduce(bits(10_000), async_op=True)
        dist.send(bits(2000), 1) if dist.get_rank() == 0 else dist.recv(bits(2000), 0)
        work.wait()

    transfers = {t.name: t for t in launch(program, ranks=2, cluster=TOY).traffic.transfers}
    cost, message_s = all_reduce_cost(10_000, [0, 1]), 2000 / 1e8
    alone_s = cost.latency_s - 1e-6  # the message's latency is shorter: it has begun when the all-reduce begins
    assert 0 < alone_s < message_s < cost.transfer_s
    assert transfers["send"].end_s == about(cost.latency_s + 2 * (message_s - alone_s))
    assert transfers["all_reduce"].end_s == about(cost.time_s + message_s - alone_s)


# ---- waiting for an end that others can still move ----


def shared_end_s() -> float:
    cost = all_reduce_cost(5000, [0, 1])
    return cost.latency_s + 2 * cost.transfer_s


@pytest.mark.parametrize("way", ["wait", "poll", "future"])
def test_however_a_program_waits_it_goes_on_at_the_end_that_sharing_gives(way: str):
    def program() -> None:
        groups = [cast(dist.ProcessGroup, dist.new_group([0, 1])) for _ in range(2)]
        x = bits(5000)
        work = dist.all_reduce(x, group=groups[0], async_op=True)
        future = work.get_future() if way == "future" else None
        other = dist.all_reduce(bits(5000), group=groups[1], async_op=True)  # comes after the future was handed out
        if way == "wait":
            work.wait()
        while way == "poll" and not work.is_completed():
            pass
        if future is not None:
            future.wait()[0].add_(1)
        else:
            compute(7)
        other.wait()

    timeline = launch(program, ranks=2, cluster=TOY).timeline
    assert [timeline.select(rank, "compute")[0].start_s for rank in (0, 1)] == [about(shared_end_s())] * 2


def test_an_end_is_not_final_before_a_rank_that_is_behind_has_passed_it():
    """Ranks 0 and 1 are through with their program on the host before rank 2 issues what slows them."""

    def program() -> None:
        fast, slow = (cast(dist.ProcessGroup, dist.new_group(ranks)) for ranks in ([0, 1], [1, 2]))
        if dist.get_rank() < 2:
            work = dist.all_reduce(bits(9000), group=fast, async_op=True)
        if dist.get_rank() > 0:
            compute(1000)
            dist.all_reduce(bits(9000), group=slow)
        if dist.get_rank() < 2:
            work.wait()
            compute(1)

    run = launch(program, ranks=3, cluster=TOY)
    cost = all_reduce_cost(9000, [0, 1])
    # Alone for one microsecond; then both share until the first has sent its rest.
    first_s = cost.latency_s + 1e-6 + 2 * (cost.transfer_s - 1e-6)
    assert ends(run) == [((0, 1), about(first_s)), ((1, 2), about(cost.latency_s + 2 * cost.transfer_s))]
    assert run.timeline.select(0, "compute")[0].start_s == about(first_s)


def test_what_nobody_waits_for_is_written_down_all_the_same():
    def program() -> None:
        groups = [cast(dist.ProcessGroup, dist.new_group([0, 1])) for _ in range(2)]
        for group in groups:
            dist.all_reduce(bits(5000), group=group, async_op=True)

    with pytest.warns(UnwaitedWarning, match="never waited for all_reduce of group 0,1"):
        run = launch(program, ranks=2, cluster=TOY)
    assert [end_s for _, end_s in ends(run)] == [about(shared_end_s())] * 2
    assert len(run.timeline.select(stream="comm")) == 4


def test_a_deadlock_is_seen_while_transfers_are_under_way():
    def program() -> None:
        dist.all_reduce(bits(5000), async_op=True)
        if dist.get_rank() == 0:
            dist.recv(bits(1), 1)

    with pytest.raises(DeadlockError, match="rank 0 waits in recv from rank 1"):
        launch(program, ranks=2, cluster=TOY)


def test_a_receive_from_anyone_waits_for_virtual_time_not_for_whoever_ran_first():
    """Rank 1 posts first, to send late; rank 2 sends early, after an all-reduce that has to end first."""

    def program() -> list[int]:
        pair = cast(dist.ProcessGroup, dist.new_group([2, 3]))
        if dist.get_rank() == 0:
            return [dist.recv(bits(1)) for _ in range(2)]
        if dist.get_rank() == 1:
            compute(1_000_000)
        else:
            dist.all_reduce(bits(8), group=pair)
        if dist.get_rank() < 3:
            dist.send(bits(1), 0)
        return []

    assert launch(program, ranks=4, cluster=TOY).values[0] == [2, 1]
