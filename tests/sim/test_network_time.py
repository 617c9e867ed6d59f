"""Communication takes what the cost model says, and shares streams and ports: who waits for whom, in closed form."""

from collections.abc import Callable, Iterable
from math import isclose
from typing import cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import Run, launch
from lablib.cost import GroupNetwork, collective_cost, exchange_cost
from lablib.faults import SlowLink
from lablib.hardware import Cluster, find_cluster

# torch 2.13 deprecates all_gather_into_tensor and reduce_scatter_tensor, which programs still use.
pytestmark = pytest.mark.filterwarnings("ignore:.*_tensor` is deprecated:FutureWarning")

ROUNDING = 1e-12
H100 = find_cluster("dgx-h100").free_compute()  # only communication takes time


def new_group(members: Iterable[int]) -> dist.ProcessGroup:
    return cast(dist.ProcessGroup, dist.new_group(list(members)))  # torch allows for None and -1 here


# ---- collectives ----


def bits(n: int) -> torch.Tensor:
    return torch.zeros(n, dtype=torch.uint8)  # a number is a byte


# What each does on every rank with S bytes (S of the cost model: the whole tensor, or the n shards together).
COLLECTIVES: dict[str, tuple[str, Callable[[int, int, int], object]]] = {
    "all_reduce": ("all_reduce", lambda n, size, root: dist.all_reduce(bits(size))),
    "broadcast": ("broadcast", lambda n, size, root: dist.broadcast(bits(size), src=root)),
    "reduce": ("reduce", lambda n, size, root: dist.reduce(bits(size), dst=root)),
    "all_gather": (
        "all_gather",
        lambda n, size, root: dist.all_gather([bits(size // n) for _ in range(n)], bits(size // n)),
    ),
    "all_gather_into_tensor": (
        "all_gather",
        lambda n, size, root: dist.all_gather_into_tensor(bits(size), bits(size // n)),
    ),
    "reduce_scatter": (
        "reduce_scatter",
        lambda n, size, root: dist.reduce_scatter(bits(size // n), [bits(size // n) for _ in range(n)]),
    ),
    "reduce_scatter_tensor": (
        "reduce_scatter",
        lambda n, size, root: dist.reduce_scatter_tensor(bits(size // n), bits(size)),
    ),
    "gather": (
        "gather",
        lambda n, size, root: dist.gather(
            bits(size // n), [bits(size // n) for _ in range(n)] if dist.get_rank() == root else None, dst=root
        ),
    ),
    "scatter": (
        "scatter",
        lambda n, size, root: dist.scatter(
            bits(size // n), [bits(size // n) for _ in range(n)] if dist.get_rank() == root else None, src=root
        ),
    ),
    "all_to_all": (
        "all_to_all",
        lambda n, size, root: dist.all_to_all([bits(size // n) for _ in range(n)], [bits(size // n) for _ in range(n)]),
    ),
    "all_to_all_single": ("all_to_all", lambda n, size, root: dist.all_to_all_single(bits(size), bits(size))),
    "barrier": ("barrier", lambda n, size, root: dist.barrier()),
}


@pytest.mark.parametrize("call", COLLECTIVES)
@settings(max_examples=12)
@given(st.integers(1, 20), st.sampled_from([1, 1000, 100_000]), st.sampled_from(["dgx-h100", "pcie-a100"]), st.data())
def test_with_free_compute_a_collective_takes_what_the_cost_model_says(call, n, shard, name, data):
    kind, program = COLLECTIVES[call]
    size, root = (0 if call == "barrier" else n * shard), data.draw(st.integers(0, n - 1))
    cluster = find_cluster(name).free_compute()
    run = launch(program, n, size, root, ranks=n, cluster=cluster)
    cost = collective_cost(kind, size, GroupNetwork(cluster, range(n)), root=root)
    assert isclose(run.timeline.makespan_s, cost.time_s, rel_tol=ROUNDING)
    (transfer,) = run.traffic.transfers
    assert (transfer.name, transfer.algorithm, transfer.ranks) == (call, cost.algorithm, tuple(range(n)))
    assert (transfer.tensor_bytes, transfer.sent_bytes) == (size, cost.sent_bytes)


@settings(max_examples=20)
@given(st.lists(st.integers(0, 19), min_size=2, max_size=8, unique=True), st.data())
def test_a_collective_of_some_ranks_costs_what_their_own_edges_cost(members, data):
    members, root = sorted(members), data.draw(st.integers(0, len(members) - 1))

    def program() -> None:
        group = new_group(members)
        if dist.get_rank() in members:
            dist.broadcast(bits(10_000), src=members[root], group=group)

    run = launch(program, ranks=20, cluster=H100)
    cost = collective_cost("broadcast", 10_000, GroupNetwork(H100, members), root=root)
    assert isclose(run.timeline.makespan_s, cost.time_s, rel_tol=ROUNDING)
    assert run.traffic.transfers[0].sent_bytes == cost.sent_bytes


def splits_of(sizes: np.ndarray, as_lists: bool = False) -> None:
    """An all-to-all of sizes[a, b] bytes from rank a to rank b."""
    rank, n = dist.get_rank(), dist.get_world_size()
    given, wanted = sizes[rank].tolist(), sizes[:, rank].tolist()
    if as_lists:
        dist.all_to_all([bits(size) for size in wanted], [bits(size) for size in given])
    else:
        work = dist.all_to_all_single(bits(sum(wanted)), bits(sum(given)), wanted, given, async_op=n % 2 == 0)
        if work is not None:
            work.wait()


@settings(max_examples=25)
@given(st.integers(1, 6), st.data(), st.booleans())
def test_an_uneven_exchange_is_counted_and_priced_by_message(ranks, data, as_lists):
    sizes = st.lists(st.one_of(st.just(0), st.integers(0, 5_000)), min_size=ranks**2, max_size=ranks**2)
    matrix = np.array(data.draw(sizes)).reshape(ranks, ranks)
    cluster = H100.replace(devices_per_node=2)
    run = launch(splits_of, matrix, as_lists, ranks=ranks, cluster=cluster)
    cost = exchange_cost(matrix, GroupNetwork(cluster, range(ranks)))
    sent = matrix.astype(float)
    np.fill_diagonal(sent, 0)
    assert np.array_equal(run.traffic.matrix(ranks), sent)
    assert isclose(run.timeline.makespan_s, cost.time_s, rel_tol=1e-9)
    assert np.allclose(run.traffic.transfers[0].sent_bytes, sent.sum(1))


def test_an_exchange_inside_nodes_leaves_the_wires_between_them_free():
    cluster = H100.replace(devices_per_node=2)
    inside = np.array([[0, 10**6, 0, 0], [10**6, 0, 0, 0], [0, 0, 0, 10**6], [0, 0, 10**6, 0]])

    def program(sizes: np.ndarray | None) -> None:
        across = [dist.new_group([0, 2]), dist.new_group([1, 3])][dist.get_rank() % 2]
        work = dist.all_reduce(bits(10**7), group=across, async_op=True)
        if sizes is not None:
            splits_of(sizes)
        assert work is not None
        work.wait()

    def reduce_s(sizes: np.ndarray | None) -> float:
        transfers = launch(program, sizes, ranks=4, cluster=cluster).traffic.transfers
        return max(t.end_s - t.start_s for t in transfers if t.name == "all_reduce")

    assert reduce_s(inside) == reduce_s(None)
    assert reduce_s(inside[::-1]) > reduce_s(None)  # the same bytes, across


def test_an_uneven_exchange_over_a_slow_link_takes_its_factor_longer():
    sizes = np.array([[0, 10**7, 0], [0, 0, 0], [0, 0, 0]])
    healthy, slow = (
        launch(splits_of, sizes, ranks=3, cluster=H100, faults=faults).timeline.makespan_s
        for faults in ([], [SlowLink(0, 1, factor=4)])
    )
    elsewhere = launch(splits_of, sizes, ranks=3, cluster=H100, faults=[SlowLink(1, 2, factor=4)]).timeline.makespan_s
    assert slow > 3 * healthy
    assert elsewhere == healthy


def times(run: Run) -> list[tuple[float, float]]:
    return [(t.start_s, t.end_s) for t in run.traffic.transfers]


def test_waiting_for_one_communication_does_not_wait_for_the_next():
    sizes = [1000, 4_000_000]

    def program() -> None:
        aside = new_group(range(2))
        first, second = (dist.all_reduce(bits(size), async_op=True) for size in sizes)
        assert first is not None and second is not None
        first.wait()
        dist.barrier(group=aside)
        second.wait()

    run = launch(program, ranks=2, cluster=H100)
    first_s = collective_cost("all_reduce", sizes[0], GroupNetwork(H100, range(2))).time_s
    barrier = next(t for t in run.traffic.transfers if t.name == "barrier")
    assert isclose(barrier.start_s, first_s, rel_tol=ROUNDING)


# ---- messages ----

SIZE = 1_000_000
INTRA_S = 1.9e-6 + SIZE / 450e9  # NVLink 4
INTER_S = 4.0e-6 + 150e-9 + SIZE / 50e9  # NDR: 400 Gb/s, one switch


def send(peer: int, size: int = SIZE) -> dist.Work | None:
    return dist.isend(bits(size), dst=peer)


def receive(peer: int, size: int = SIZE) -> dist.Work | None:
    return dist.irecv(bits(size), src=peer)


def messages(*pairs: tuple[int, int], ranks: int = 4, cluster: Cluster = H100) -> Run:
    """Every pair (from, to) at once: all receives and sends posted in this order, then waited for."""

    def program() -> None:
        rank = dist.get_rank()
        works = [
            send(receiver) if rank == sender else receive(sender)
            for sender, receiver in pairs
            if rank in (sender, receiver)
        ]
        for work in works:
            assert work is not None
            work.wait()

    return launch(program, ranks=ranks, cluster=cluster)


def takes(run: Run, seconds: float) -> bool:
    return isclose(run.timeline.makespan_s, seconds, rel_tol=ROUNDING)


def test_a_message_takes_its_latency_and_its_bytes_over_the_bandwidth():
    assert takes(messages((0, 1)), INTRA_S)
    assert takes(messages((0, 8), ranks=9), INTER_S)


@pytest.mark.parametrize("pairs", [[(0, 1), (1, 0)], [(1, 0), (0, 1)]])
def test_a_send_and_a_receive_at_the_same_time_take_one_transfer(pairs):
    run = messages(*pairs)
    assert takes(run, INTRA_S) and [start for start, _ in times(run)] == [0, 0]


@pytest.mark.parametrize("peers", [1, 2, 5])
def test_sends_to_different_peers_leave_one_after_another_through_one_port(peers):
    run = messages(*((0, peer) for peer in range(1, peers + 1)), ranks=6)
    assert takes(run, peers * INTRA_S)
    spans = times(run)
    assert all(end == start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))


@pytest.mark.parametrize("peers", [1, 2, 5])
def test_receives_from_different_peers_come_in_one_after_another_through_one_port(peers):
    assert takes(messages(*((peer, 0) for peer in range(1, peers + 1)), ranks=6), peers * INTRA_S)


def test_a_node_has_a_port_for_its_inside_and_another_for_its_outside():
    assert takes(messages((0, 1), (0, 8), ranks=9), max(INTRA_S, INTER_S))
    assert takes(messages((1, 0), (8, 0), ranks=9), max(INTRA_S, INTER_S))
    # Two messages out of the node share the NIC.
    assert takes(messages((0, 8), (0, 9), ranks=10), 2 * INTER_S)


@given(st.integers(0, 6), st.integers(0, 6))
@settings(max_examples=15)
def test_a_message_moves_when_both_ends_have_posted_it(sender_late, receiver_late):
    alpha_s = collective_cost("all_reduce", 8, GroupNetwork(H100, [0, 1])).time_s

    def program() -> None:
        # Each pair of ranks {0, 2} and {1, 3} passes its own time with all-reduces of 8 bytes.
        groups = [new_group([0, 2]), new_group([1, 3])]
        rank = dist.get_rank()
        for _ in range((sender_late, receiver_late)[rank % 2]):
            dist.all_reduce(bits(8), group=groups[rank % 2])
        if rank < 2:
            dist.send(bits(SIZE), dst=1) if rank == 0 else dist.recv(bits(SIZE), src=0)

    run = launch(program, ranks=4, cluster=H100)
    message = next(t for t in run.traffic.transfers if t.name == "send")
    assert isclose(message.start_s, max(sender_late, receiver_late) * alpha_s, rel_tol=ROUNDING)
    assert isclose(message.end_s, message.start_s + INTRA_S, rel_tol=ROUNDING)
    assert (message.ranks, message.sent_bytes, message.algorithm) == ((0, 1), (SIZE, 0), "direct")


def test_batched_messages_overlap_like_single_ones():
    def program() -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        ops = [
            dist.P2POp(dist.isend, bits(SIZE), (rank + 1) % size),
            dist.P2POp(dist.irecv, bits(SIZE), (rank - 1) % size),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    assert takes(launch(program, ranks=5, cluster=H100), INTRA_S)


@settings(max_examples=20)
@given(st.permutations(range(1, 6)))
def test_messages_handed_over_at_one_moment_start_in_the_order_of_their_calls(receivers):
    # The receivers post at the same moment, but have their turns after the sender, in the order of ranks.
    def program() -> None:
        if dist.get_rank() == 0:
            for work in [dist.isend(bits(1000), other) for other in receivers]:
                assert work is not None
                work.wait()
        else:
            dist.recv(bits(1000), 0)

    run = launch(program, ranks=6, cluster=H100)
    by_start = sorted(run.traffic.transfers, key=lambda transfer: transfer.start_s)
    assert [transfer.ranks[1] for transfer in by_start] == list(receivers)
