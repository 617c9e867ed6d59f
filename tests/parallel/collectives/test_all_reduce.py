"""All-reduce by hand: right to the bit in the order each file states, at the cost of its closed form, on any sizes."""

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lablib import RankError, find_cluster, launch
from lablib.cost import GroupNetwork, collective_cost
from lablib.parallel import (
    hierarchical_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    tree_all_reduce,
)

AllReduce = Callable[..., object]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8]
RANKS_PER_NODE = 4
CLUSTER = find_cluster("dgx-h100").replace(devices_per_node=RANKS_PER_NODE).free_compute()
many = settings(max_examples=25)


def program(all_reduce: AllReduce, parts: Sequence[Tensor]) -> Tensor:
    x = parts[dist.get_rank()].clone()
    assert all_reduce(x) is None, "works in place"
    return x


def draw_parts(n: int, size: int, dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return [torch.randn(size, generator=generator).to(dtype) for _ in range(n)]
    return [torch.randint(0, 100, (size,), generator=generator).to(dtype) for _ in range(n)]


# ---- the same sums on one device, in the order that each docstring states ----


def in_rank_order(parts: Sequence[Tensor]) -> Tensor:
    """((t0 + t1) + t2) + ..."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def in_ring_order(parts: Sequence[Tensor]) -> Tensor:
    """Chunk c from rank c on, once round the ring."""
    n = len(parts)
    chunks = [part.tensor_split(n) for part in parts]
    return torch.cat([in_rank_order([chunks[(c + k) % n][c] for k in range(n)]) for c in range(n)])


def in_tree_order(parts: Sequence[Tensor]) -> Tensor:
    """Neighbours first, then pairs of pairs."""
    sums = list(parts)
    while len(sums) > 1:
        sums = [in_rank_order(sums[i : i + 2]) for i in range(0, len(sums), 2)]
    return sums[0]


def in_hierarchical_order(parts: Sequence[Tensor], local: int) -> Tensor:
    """Chunk c in ring order within each node from its place c on; its piece d then in ring order over nodes from d."""
    nodes = [parts[i : i + local] for i in range(0, len(parts), local)]
    sums = [in_ring_order(node).tensor_split(local) for node in nodes]
    return torch.cat([in_ring_order([node[c] for node in sums]) for c in range(local)])


ORDERS: dict[AllReduce, Callable[[Sequence[Tensor]], Tensor]] = {
    ring_all_reduce: in_ring_order,
    tree_all_reduce: in_tree_order,
}


@many
@given(n=st.integers(1, 9), size=st.integers(0, 40), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 99))
@pytest.mark.parametrize("all_reduce", [ring_all_reduce, tree_all_reduce])
def test_equals_the_stated_order_to_the_bit(all_reduce: AllReduce, n: int, size: int, dtype: torch.dtype, seed: int):
    parts = draw_parts(n, size, dtype, seed)
    run = launch(program, all_reduce, parts, ranks=n)
    expected = ORDERS[all_reduce](parts)
    assert all(torch.equal(value, expected) for value in run.values)


@many
@given(
    nodes=st.integers(1, 4), local=st.integers(1, 4), size=st.integers(0, 40), dtype=st.sampled_from(DTYPES),
)  # fmt: skip
def test_hierarchical_equals_the_stated_order_to_the_bit(nodes: int, local: int, size: int, dtype: torch.dtype):
    parts = draw_parts(nodes * local, size, dtype)
    run = launch(program, partial(hierarchical_all_reduce, ranks_per_node=local), parts, ranks=nodes * local)
    expected = in_hierarchical_order(parts, local)
    assert all(torch.equal(value, expected) for value in run.values)


@pytest.mark.parametrize("all_reduce", [ring_all_reduce, tree_all_reduce, hierarchical_all_reduce])
def test_integers_are_the_same_in_every_order(all_reduce: AllReduce):
    parts = draw_parts(8, 37, torch.int64)
    ours = launch(program, all_reduce, parts, ranks=8, cluster=CLUSTER)
    theirs = launch(program, dist.all_reduce, parts, ranks=8, cluster=CLUSTER)
    assert all(torch.equal(a, b) for a, b in zip(ours.values, theirs.values, strict=True))


def test_orders_differ_in_the_last_bits():
    """Otherwise the tests above would prove nothing about order."""
    parts = draw_parts(8, 1000, torch.float32)
    sums = [in_rank_order(parts), in_ring_order(parts), in_tree_order(parts), in_hierarchical_order(parts, 4)]
    for i, one in enumerate(sums):
        for other in sums[:i]:
            assert not torch.equal(one, other)
            torch.testing.assert_close(one, other)


# ---- cost ----


def relative_error(saw: float, expected: float) -> float:
    return abs(saw / expected - 1)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 8, 12, 16])
@pytest.mark.parametrize("elements_per_rank", [1, 1000])
@pytest.mark.parametrize(("name", "all_reduce"), [("ring", ring_all_reduce), ("tree", tree_all_reduce)])
def test_seconds_and_bytes_are_the_closed_form(name: str, all_reduce: AllReduce, n: int, elements_per_rank: int):
    parts = draw_parts(n, n * elements_per_rank, torch.float32)
    cluster = find_cluster("dgx-h100").free_compute()  # n > 8 spans two nodes
    run = launch(program, all_reduce, parts, ranks=n, cluster=cluster)
    cost = collective_cost("all_reduce", parts[0].nbytes, GroupNetwork(cluster, range(n)), algorithm=name)
    assert relative_error(run.timeline.makespan_s, cost.time_s) < 1e-9
    assert [run.traffic.sent_bytes(rank) for rank in range(n)] == pytest.approx(cost.sent_bytes, rel=1e-12)


# On 4 nodes and more, a few bytes would be quicker up a tree of nodes, and the cost model knows; ours is always a ring.
@pytest.mark.parametrize(("nodes", "elements_per_rank"), [(2, 1), (2, 1000), (3, 1000), (4, 100_000)])
def test_hierarchical_seconds_and_bytes_are_the_closed_form(nodes: int, elements_per_rank: int):
    n = nodes * RANKS_PER_NODE
    parts = draw_parts(n, n * elements_per_rank, torch.float32)
    run = launch(program, hierarchical_all_reduce, parts, ranks=n, cluster=CLUSTER)
    cost = collective_cost("all_reduce", parts[0].nbytes, GroupNetwork(CLUSTER, range(n)), algorithm="hierarchical")
    assert relative_error(run.timeline.makespan_s, cost.time_s) < 1e-9
    assert [run.traffic.sent_bytes(rank) for rank in range(n)] == pytest.approx(cost.sent_bytes, rel=1e-12)


def test_hierarchical_sends_little_through_each_nic():
    """2 (N-1)/N S/L a rank, where a flat ring sends 2 (n-1)/n S through one NIC of each node."""
    n, size_bytes = 8, 8 * 4000
    parts = draw_parts(n, size_bytes // 4, torch.float32)

    def through_nic(all_reduce: AllReduce) -> list[float]:
        run = launch(program, all_reduce, parts, ranks=n, cluster=CLUSTER)
        crossing = [t for t in run.traffic.transfers if CLUSTER.edge(t.ranks[0], t.ranks[1]).level == "inter"]
        return [sum(t.tensor_bytes for t in crossing if t.ranks[0] == rank) for rank in range(n)]

    assert through_nic(hierarchical_all_reduce) == [size_bytes / RANKS_PER_NODE] * n
    assert max(through_nic(ring_all_reduce)) == 2 * (n - 1) / n * size_bytes


# ---- groups, shapes, errors ----


def sum_in_groups(all_reduce: AllReduce) -> Tensor:
    """Odd ranks sum among themselves, even ranks too."""
    rank = dist.get_rank()
    groups = [dist.new_group(list(range(start, dist.get_world_size(), 2))) for start in (0, 1)]
    x = torch.full((2, 3), float(10**rank), dtype=torch.float64)
    all_reduce(x, group=groups[rank % 2])
    return x


@pytest.mark.parametrize(
    "all_reduce", [ring_all_reduce, tree_all_reduce, partial(hierarchical_all_reduce, ranks_per_node=3)]
)
def test_ranks_are_those_of_the_group(all_reduce: AllReduce):
    run = launch(sum_in_groups, all_reduce, ranks=6)
    for rank, value in enumerate(run.values):
        assert torch.equal(value, torch.full((2, 3), [10101.0, 101010.0][rank % 2], dtype=torch.float64))


@pytest.mark.parametrize("half", [ring_reduce_scatter, ring_all_gather])
def test_a_rank_that_is_none_of_the_ring_is_told_to_give_the_group(half: Callable[..., None]):
    def program() -> None:
        members = dist.new_group([1, 2, 4])
        if dist.get_rank() in (1, 2, 4):
            half(list(torch.ones(3).tensor_split(3)), range(3), None if dist.get_rank() == 4 else members)

    with pytest.raises(RankError, match=r"rank 4 of the world is not in \[0, 1, 2\]; give the `group`"):
        launch(program, ranks=5)


@pytest.mark.parametrize("all_reduce", [ring_all_reduce, tree_all_reduce, hierarchical_all_reduce])
def test_parameters_and_scalars_can_be_summed(all_reduce: AllReduce):
    def run_one() -> tuple[Tensor, Tensor]:
        weight, scalar = torch.nn.Parameter(torch.ones(3)), torch.tensor(2.0)
        all_reduce(weight)
        all_reduce(scalar)
        return weight.detach(), scalar

    for weight, scalar in launch(run_one, ranks=4).values:
        assert torch.equal(weight, torch.full((3,), 4.0)) and scalar.item() == 8.0 and scalar.shape == ()


@pytest.mark.parametrize("all_reduce", [ring_all_reduce, tree_all_reduce, hierarchical_all_reduce])
def test_a_tensor_with_gaps_is_refused(all_reduce: AllReduce):
    def run_one() -> str:
        with pytest.raises(ValueError, match="contiguous"):
            all_reduce(torch.zeros(4, 4).T)
        return "refused"

    assert launch(run_one, ranks=2).values == ["refused"] * 2


def test_nodes_that_are_not_equally_full_are_refused():
    def run_one() -> str:
        with pytest.raises(ValueError, match="must divide the ranks of the group: got 4 and 6"):
            hierarchical_all_reduce(torch.zeros(4), ranks_per_node=4)
        return "refused"

    assert launch(run_one, ranks=6).values == ["refused"] * 6


# ---- real processes ----


@pytest.mark.parametrize("all_reduce", [ring_all_reduce, tree_all_reduce, hierarchical_all_reduce])
def test_same_bits_on_gloo(all_reduce: AllReduce):
    """Real processes: the order of the sum is the program's, not the machine's."""
    local = 2
    all_reduce = partial(all_reduce, ranks_per_node=local) if all_reduce is hierarchical_all_reduce else all_reduce
    for dtype, size in ((torch.float32, 1001), (torch.int32, 3), (torch.bfloat16, 64), (torch.float64, 0)):
        parts = draw_parts(4, size, dtype)
        simulated = launch(program, all_reduce, parts, ranks=4)
        real = launch(program, all_reduce, parts, ranks=4, backend="gloo", timeout_s=120)
        assert all(torch.equal(a, b) for a, b in zip(simulated.values, real.values, strict=True))
        assert real.traffic.sent_bytes() == simulated.traffic.sent_bytes()
